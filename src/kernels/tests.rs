//! Every implementor against the formulas in f64, and against the host.

use std::ops::Range;
use std::sync::Arc;

use lambert_config::run::Optimizer as Settings;
use tch::{Device, Tensor};

use super::cuda::Emulator;
use super::cuda::launch::{Arguments, Card, THREADS};
use super::*;
use crate::optim;

/// `e.weight` starts at zero norm, `f.weight` has several chunks. Whether it decays stands last.
pub const SHAPES: Shapes<6> = [
    ("a.weight", 64 * 33, true),
    ("b.bias", 33, false),
    ("c.LayerNorm.weight", 7, false),
    ("d.weight", 1, true),
    ("e.weight", 50, true),
    ("f.weight", (2 << 16) + 11, true),
];
/// Those that fit into a chunk.
const SMALL: usize = 5;
const ZERO: usize = 4;

pub type Shapes<const N: usize> = [(&'static str, usize, bool); N];
type Shape = (&'static str, usize, bool);

fn ranges(shapes: &[Shape]) -> Vec<Range<usize>> {
    let mut end = 0;
    let range = |(_, count, _): &Shape| {
        end += count;
        end - count..end
    };
    shapes.iter().map(range).collect()
}

fn elements(shapes: &[Shape]) -> usize {
    shapes.iter().map(|(_, count, _)| count).sum()
}

/// An update of all `shapes`.
pub fn update<'a>(shapes: &[Shape], settings: &Settings, rate: f64, updates: u64, norm: &'a Tensor) -> Update<'a> {
    let rules = shapes.iter().map(|(_, _, decays)| optim::rule(settings, *decays, updates, rate));
    Update {
        kind: settings.kind,
        clip_norm: settings.clip_norm,
        trust_ratio: settings.trust_ratio,
        norm,
        parameters: ranges(shapes).into_iter().zip(rules).collect(),
    }
}

/// The update rules once more, plainly and in f64.
struct Reference {
    weights: Vec<f64>,
    first: Vec<f64>,
    second: Vec<f64>,
}

impl Reference {
    /// One update; what each parameter's direction is multiplied with.
    fn step(&mut self, settings: &Settings, shapes: &[Shape], gradients: &[f64], t: i32, rate: f64) -> Vec<f64> {
        let norm = gradients.iter().map(|g| g * g).sum::<f64>().sqrt();
        let divide = if norm > settings.clip_norm { norm / settings.clip_norm } else { 1.0 };
        let corrects = settings.bias_correction && settings.kind != OptimizerKind::AdamBert;
        let corrected = |beta: f64| if corrects { 1.0 - beta.powi(t) } else { 1.0 };
        let (correction1, correction2) = (corrected(settings.beta1), corrected(settings.beta2));
        let (mut first, mut rates) = (0, Vec::new());
        for &(_, count, decays) in shapes {
            let range = first..first + count;
            first += count;
            let decay = if decays { settings.weight_decay } else { 0.0 };
            let direction = |i: usize| {
                let g = gradients[i] / divide;
                self.first[i] = settings.beta1 * self.first[i] + (1.0 - settings.beta1) * g;
                self.second[i] = settings.beta2 * self.second[i] + (1.0 - settings.beta2) * g * g;
                let (m, v) = (self.first[i] / correction1, self.second[i] / correction2);
                m / (v.sqrt() + settings.eps) + decay * self.weights[i]
            };
            let directions: Vec<f64> = range.clone().map(direction).collect();
            let length = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
            let (p, u) = (length(&self.weights[range.clone()]), length(&directions));
            let trusted = settings.kind == OptimizerKind::Lamb && (decays || settings.trust_undecayed);
            let ratio = if p > 0.0 && u > 0.0 { p / u } else { 1.0 };
            let bounded = settings.trust_ratio.map_or(ratio, |[least, most]| ratio.max(least).min(most));
            let ratio = if trusted { bounded } else { 1.0 };
            for (weight, direction) in self.weights[range].iter_mut().zip(directions) {
                *weight -= rate * ratio * direction;
            }
            rates.push(rate * ratio);
        }
        rates
    }
}

pub struct Draw(lambert_dataset::random::Rng);

impl Draw {
    pub fn new(seed: u64) -> Self {
        Self(Key::new(seed).rng())
    }

    pub fn values(&mut self, shapes: &[Shape], scale: f64) -> Vec<f32> {
        (0..elements(shapes)).map(|_| ((self.0.unit_f64() - 0.5) * scale) as f32).collect()
    }

    pub fn weights(&mut self, shapes: &[Shape]) -> Vec<f32> {
        let mut weights = self.values(shapes, 0.1);
        weights[ranges(shapes)[ZERO].clone()].fill(0.0);
        weights
    }
}

/// Weights, gradients and moments on a device, and the copy of the weights in bf16.
struct Tensors([Tensor; 5]);

impl Tensors {
    /// With zero moments.
    fn new(kernels: &dyn Kernels, weights: &[f32]) -> Self {
        let zeros = || kernels.zeros(&[weights.len() as i64], Kind::Float);
        let values = kernels.upload(Values::F32(weights));
        let low = values.to_kind(Kind::BFloat16);
        Self([values, zeros(), zeros(), zeros(), low])
    }

    fn update(
        &mut self,
        kernels: &dyn Kernels,
        gradients: &[f32],
        update: impl Fn(&Tensor) -> Update<'_>,
    ) -> Option<Vec<f64>> {
        let [weights, scratch, first, second, low] = &mut self.0;
        *scratch = kernels.upload(Values::F32(gradients));
        let norm = kernels.norm(scratch);
        let mut buffers = Buffers { weights, gradients: scratch, first, second, low: Some(low) };
        let rates = kernels.update(&mut buffers, &update(&norm));
        rates.map(|rates| kernels.fetch(&rates.to_kind(Kind::Double)))
    }

    /// Weights and both moments, in main memory.
    fn values(&self) -> [Vec<f32>; 3] {
        assert_eq!(self.0[4], self.0[0].to_kind(Kind::BFloat16), "the copy in bf16");
        [0, 2, 3].map(|index| Vec::try_from(self.0[index].to_device(Device::Cpu)).unwrap())
    }
}

/// The worst relative error of a parameter after `steps` updates.
fn against_formulas(kernels: &dyn Kernels, shapes: &[Shape], settings: &Settings, steps: u64) -> f64 {
    let mut draw = Draw::new(5);
    let weights = draw.weights(shapes);
    let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<f64>>();
    let zeros = vec![0.0; weights.len()];
    let mut formulas = Reference { weights: wide(&weights), first: zeros.clone(), second: zeros };
    let mut tensors = Tensors::new(kernels, &weights);
    for t in 1..=steps {
        // Every third gradient is small enough not to be clipped.
        let gradients = draw.values(shapes, if t % 3 == 0 { 1e-4 } else { 1.0 });
        let rate = 1e-2 / (t as f64).sqrt();
        let expected = formulas.step(settings, shapes, &wide(&gradients), t as i32, rate);
        let rates = tensors.update(kernels, &gradients, |norm| update(shapes, settings, rate, t, norm));
        assert_eq!(rates.is_some(), settings.kind == OptimizerKind::Lamb);
        for (rate, expected) in rates.iter().flatten().zip(expected) {
            assert!((rate / expected - 1.0).abs() < 1e-4, "a rate of {rate} for {expected}");
        }
    }
    let [weights, ..] = tensors.values();
    let worst = |range: Range<usize>| {
        let difference = |i: usize| (f64::from(weights[i]) - formulas.weights[i]).powi(2);
        let size: f64 = range.clone().map(|i| formulas.weights[i].powi(2)).sum();
        (range.map(difference).sum::<f64>() / size).sqrt()
    };
    ranges(shapes).into_iter().map(worst).max_by(f64::total_cmp).unwrap()
}

fn settings() -> Vec<(&'static str, Settings)> {
    let lamb = Settings::default();
    let adamw = Settings { kind: OptimizerKind::Adamw, ..lamb.clone() };
    let uncorrected = |settings: &Settings| Settings { bias_correction: false, ..settings.clone() };
    vec![
        ("LAMB without bias correction", uncorrected(&lamb)),
        (
            "LAMB, trust ratio bounded and for all",
            Settings { trust_undecayed: true, trust_ratio: Some([0.02, 0.05]), ..lamb.clone() },
        ),
        ("AdamW without bias correction", uncorrected(&adamw)),
        ("Adam of the original BERT", Settings { kind: OptimizerKind::AdamBert, ..lamb.clone() }),
        ("LAMB", lamb),
        ("AdamW", adamw),
    ]
}

fn reference() -> super::Reference {
    // libtorch's threads would wait for each other where several tests run.
    tch::set_num_threads(1);
    super::Reference::new(Device::Cpu)
}

/// A GPU's kernels, on a processor.
fn emulated() -> Cuda<Emulator> {
    Cuda::new(Arc::default())
}

#[test]
fn every_rule_equals_its_formulas_in_f64_over_a_thousand_steps() {
    for (name, settings) in settings() {
        let error = against_formulas(&Host, &SHAPES[..SMALL], &settings, 1000);
        println!("{name} over 1,000 steps: relative error {error:.1e}");
        assert!(error < 1e-5, "{name}: {error:e}");
        let error = against_formulas(&Host, &SHAPES, &settings, 10);
        assert!(error < 1e-5, "{name} in chunks: {error:e}");
        let error = against_formulas(&reference(), &SHAPES, &settings, 10);
        assert!(error < 1e-5, "{name} out of libtorch's operations: {error:e}");
        let error = against_formulas(&emulated(), &SHAPES, &settings, 10);
        assert!(error < 1e-5, "{name} out of a GPU's kernels: {error:e}");
    }
}

/// How far weights and moments are from the host's after `steps` updates, at most.
fn from_the_host(kernels: &dyn Kernels, shapes: &[Shape], settings: &Settings, steps: u64) -> f32 {
    let mut draw = Draw::new(8);
    let weights = draw.weights(shapes);
    let (mut ours, mut theirs) = (Tensors::new(&Host, &weights), Tensors::new(kernels, &weights));
    for t in 1..=steps {
        let gradients = draw.values(shapes, if t % 3 == 0 { 1e-4 } else { 1.0 });
        let rate = 1e-2 / (t as f64).sqrt();
        ours.update(&Host, &gradients, |norm| update(shapes, settings, rate, t, norm));
        theirs.update(kernels, &gradients, |norm| update(shapes, settings, rate, t, norm));
    }
    let (ours, theirs) = (ours.values().concat(), theirs.values().concat());
    ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).max_by(f32::total_cmp).unwrap()
}

#[test]
fn updates_are_the_host_s() {
    for (name, settings) in settings() {
        let apart = from_the_host(&reference(), &SHAPES, &settings, 20);
        assert!(apart < 1e-6, "{name} out of libtorch's operations: {apart:e}");
        let apart = from_the_host(&emulated(), &SHAPES, &settings, 20);
        assert!(apart < 1e-6, "{name} out of a GPU's kernels: {apart:e}");
        let apart = from_the_host(&emulated(), &SHAPES[..SMALL], &settings, 1000);
        println!("{name} out of a GPU's kernels over 1,000 steps: {apart:.1e}");
        assert!(apart < 1e-6, "{name} out of a GPU's kernels over 1,000 steps: {apart:e}");
    }
}

#[test]
fn what_is_not_finite_changes_nothing() {
    for kernels in [&Host as &dyn Kernels, &reference(), &emulated()] {
        for (name, settings) in settings() {
            let mut draw = Draw::new(9);
            let mut tensors = Tensors::new(kernels, &draw.weights(&SHAPES));
            let sound = draw.values(&SHAPES, 1.0);
            tensors.update(kernels, &sound, |norm| update(&SHAPES, &settings, 1e-2, 1, norm));
            let before = tensors.values();
            for fault in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut gradients = sound.clone();
                gradients[1234] = fault;
                tensors.update(kernels, &gradients, |norm| update(&SHAPES, &settings, 1e-2, 2, norm));
                assert_eq!(tensors.values(), before, "{name}: {fault}");
            }
            tensors.update(kernels, &sound, |norm| update(&SHAPES, &settings, 1e-2, 2, norm));
            assert_ne!(tensors.values(), before, "{name}");
        }
    }
}

#[test]
fn what_has_no_rule_stays() {
    for kernels in [&Host as &dyn Kernels, &reference(), &emulated()] {
        let mut draw = Draw::new(7);
        let (start, gradients) = (draw.weights(&SHAPES), draw.values(&SHAPES, 1.0));
        let mut tensors = Tensors::new(kernels, &start);
        tensors.update(kernels, &gradients, |norm| {
            let mut update = update(&SHAPES, &Settings::default(), 1e-2, 1, norm);
            // The first, one in the middle, the last.
            let frozen = [0, 2, 5].map(|number| ranges(&SHAPES)[number].clone());
            update.parameters.retain(|(range, _)| !frozen.contains(range));
            update
        });
        let [weights, first, _] = tensors.values();
        for (number, range) in ranges(&SHAPES).into_iter().enumerate() {
            let same = weights[range.clone()] == start[range.clone()];
            assert_eq!(same, [0, 2, 5].contains(&number), "{}", SHAPES[number].0);
            assert_eq!(first[range].iter().all(|moment| *moment == 0.0), same);
        }
    }
}

#[test]
fn dropout_s_factors_are_the_same_bits_everywhere() {
    for shape in [&[3, 7, 5][..], &[2, 4, 6, 9], &[1, 1, 1], &[5, 2, 16, 64]] {
        let samples: Vec<i64> = (0..shape[0]).map(|row| 1_000_003 * row + 7).collect();
        for (dropped, scale) in [(6554, 1.111_114), (1, 1.0), (65_535, 65536.0), (32_768, 2.0)] {
            let factors = |kernels: &dyn Kernels| {
                let samples = Tensor::from_slice(&samples);
                let draws = Draws { key: Key::new(11).with(3), samples: &samples, dropped, scale };
                let factors = kernels.dropout_factors(&draws, shape);
                assert_eq!(factors.size(), shape);
                Vec::<f32>::try_from(factors.flatten(0, -1)).unwrap()
            };
            assert_eq!(factors(&Host), factors(&reference()), "{shape:?} {dropped}");
            assert_eq!(factors(&Host), factors(&emulated()), "{shape:?} {dropped}");
        }
    }
}

/// The activations of the shipped models in short, and attention weights; rows whose length is no multiple of four.
#[test]
fn dropout_and_its_way_back_are_the_same_bits_on_a_gpu() {
    for shape in [&[2, 5, 128][..], &[1, 3, 768], &[1, 2, 1024], &[2, 4, 6, 11], &[1, 12, 3, 128]] {
        for kind in [Kind::Float, Kind::BFloat16] {
            let values = |seed: u64| {
                let count = shape.iter().product::<i64>() as usize;
                let values = Draw::new(seed).values(&[("x", count, true)], 4.0);
                Host.upload(Values::F32(&values)).view(shape).to_kind(kind)
            };
            let samples = Tensor::from_slice(&[3_i64, 1 << 40][..shape[0] as usize]);
            let draws = Draws { key: Key::new(5).with(9), samples: &samples, dropped: 6554, scale: 1.111_114 };
            let passes = |kernels: &dyn Kernels, adds: bool| {
                let (x, added) = (values(1).set_requires_grad(true), values(2).set_requires_grad(true));
                let y = kernels.dropout(&x, adds.then_some(&added), &draws);
                (&y * values(3)).sum(Kind::Float).backward();
                [y, x.grad(), if adds { added.grad() } else { values(2) }].map(|tensor| tensor.detach())
            };
            assert_eq!(passes(&Host, false), passes(&emulated(), false), "{shape:?} {kind:?}");
            let ([.., theirs_x, theirs_added], [y, x, added]) = (passes(&Host, true), passes(&emulated(), true));
            assert_eq!((theirs_x, theirs_added), (x, added), "{shape:?} {kind:?}, added");
            // Rounded once, not twice.
            let host = passes(&Host, true)[0].to_kind(Kind::Float);
            let apart = ((y.to_kind(Kind::Float) - &host) / (host.abs() + 1.0)).abs().max().double_value(&[]);
            assert!(apart <= if kind == Kind::Float { 0.0 } else { 1.0 / 128.0 }, "{shape:?} {kind:?}: {apart:e}");
        }
    }
}

#[test]
fn digests_are_the_same_everywhere_and_see_every_bit() {
    let values = Draw::new(4).values(&SHAPES, 2.0);
    let of = |kernels: &dyn Kernels, values: &[f32]| {
        let mut digest = [0; 8];
        kernels.read(&kernels.digest(&kernels.upload(Values::F32(values))), 0, &mut digest);
        u64::from_ne_bytes(digest)
    };
    for count in [1, 2, 3, 50, 1 << 16, (1 << 16) + 1, values.len()] {
        let values = &values[..count];
        let digest = of(&Host, values);
        assert_eq!(digest, of(&reference(), values), "{count}");
        assert_eq!(digest, of(&emulated(), values), "{count}");
        for (place, bit) in [(0, 0), (count / 2, 31), (count - 1, 13)] {
            let mut other = values.to_vec();
            other[place] = f32::from_bits(other[place].to_bits() ^ 1 << bit);
            assert_ne!(digest, of(&Host, &other), "{count}, bit {bit} at {place}");
        }
        if count > 2 {
            let mut other = values.to_vec();
            other.swap(0, 2);
            assert_ne!(digest, of(&Host, &other), "{count}, swapped");
        }
    }
    assert_eq!(of(&Host, &[]), 0);
    // By the formula, with another's constants: splitmix64's first outputs are mix(STEP), mix(2 STEP).
    assert_eq!(of(&Host, &[0.0]), 0xe220_a839_7b1d_cdaf);
    assert_eq!(of(&Host, &[0.0; 4]), 0xe220_a839_7b1d_cdaf_u64.wrapping_add(0x6e78_9e6a_a1b9_65f4));
}

/// As `device::SumStream` calls them.
#[test]
fn gradients_are_rounded_to_bf16_and_back() {
    let card = Emulator::default();
    let mut values = Draw::new(8).values(&SHAPES, 2.0);
    values[..5].copy_from_slice(&[f32::NAN, f32::INFINITY, -0.0, f32::MAX, 1.0 + 3.0 / 256.0]);
    let (from, count) = (Host.upload(Values::F32(&values)), values.len());
    let (narrow, wide) = (Host.zeros(&[count as i64], Kind::BFloat16), Host.zeros(&[count as i64], Kind::Float));
    for (kernel, to, from) in [("to_bf16", &narrow, &from), ("from_bf16", &wide, &narrow)] {
        let mut arguments = Arguments::new().tensor(to).tensor(from).u64(count as u64);
        card.launch(kernel, count.div_ceil(THREADS), &mut arguments).unwrap();
    }
    let expected = from.to_kind(Kind::BFloat16).to_kind(Kind::Float);
    let [expected, wide] = [expected, wide].map(|tensor| Vec::<f32>::try_from(tensor).unwrap());
    assert!(wide[0].is_nan() && wide[1..] == expected[1..]);
}

#[test]
fn norms_agree() {
    let values = Draw::new(3).values(&SHAPES, 2.0);
    let of = |kernels: &dyn Kernels| kernels.fetch(&kernels.norm(&kernels.upload(Values::F32(&values))).view([1]))[0];
    assert!((of(&Host) / of(&reference()) - 1.0).abs() < 1e-12);
    assert!((of(&Host) / of(&emulated()) - 1.0).abs() < 1e-12);
    assert_eq!(of(&Host), of(&Host));
    // The threads' order is another each time.
    assert_eq!(of(&emulated()), of(&emulated()));
}
