//! Every rule against its formulas in f64, and against itself on other numbers of threads.

use super::*;
use lambert_data_prep::random::Key;

/// `e.weight` starts at zero norm, `f.weight` has several chunks.
const SHAPES: [(&str, usize, bool); 6] = [
    ("a.weight", 64 * 33, true),
    ("b.bias", 33, false),
    ("c.LayerNorm.weight", 7, false),
    ("d.weight", 1, true),
    ("e.weight", 50, true),
    ("f.weight", (2 << 16) + 11, true),
];
/// Those that fit into a chunk.
const SMALL: usize = 5;

type Shapes = [(&'static str, usize, bool)];

fn specs(shapes: &Shapes) -> Vec<Spec> {
    let mut first = 0;
    let spec = |&(name, count, decays): &(&str, usize, bool)| {
        let spec = Spec { name: name.to_owned(), shape: vec![count as i64], first, padding: 0, frozen: false };
        assert_eq!(spec.decays(), decays);
        first += count;
        spec
    };
    shapes.iter().map(spec).collect()
}

fn elements(shapes: &Shapes) -> usize {
    shapes.iter().map(|(_, count, _)| count).sum()
}

/// The update rules once more, plainly and in f64.
struct Reference {
    weights: Vec<f64>,
    first: Vec<f64>,
    second: Vec<f64>,
}

impl Reference {
    fn step(&mut self, settings: &Settings, shapes: &Shapes, gradients: &[f64], t: i32, rate: f64) {
        let norm = gradients.iter().map(|g| g * g).sum::<f64>().sqrt();
        let divide = if norm > settings.clip_norm { norm / settings.clip_norm } else { 1.0 };
        let corrects = settings.bias_correction && settings.kind != OptimizerKind::AdamBert;
        let corrected = |beta: f64| if corrects { 1.0 - beta.powi(t) } else { 1.0 };
        let (correction1, correction2) = (corrected(settings.beta1), corrected(settings.beta2));
        let mut first = 0;
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
        }
    }
}

struct Draw(lambert_data_prep::random::Rng);

impl Draw {
    fn values(&mut self, shapes: &Shapes, scale: f64) -> Vec<f32> {
        (0..elements(shapes)).map(|_| ((self.0.unit_f64() - 0.5) * scale) as f32).collect()
    }

    fn weights(&mut self, shapes: &Shapes) -> Vec<f32> {
        let mut weights = self.values(shapes, 0.1);
        weights[specs(shapes)[4].range()].fill(0.0);
        weights
    }
}

/// The worst relative error of a parameter after `steps` updates.
fn against_reference(shapes: &Shapes, settings: &Settings, steps: i32) -> f64 {
    let (specs, elements) = (specs(shapes), elements(shapes));
    let mut draw = Draw(Key::new(5).rng());
    let mut weights = draw.weights(shapes);
    let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<f64>>();
    let zeros = vec![0.0; elements];
    let mut reference = Reference { weights: wide(&weights), first: zeros.clone(), second: zeros };
    let mut optimizer = Optimizer::new(settings.clone(), elements);
    for t in 1..=steps {
        // Every third gradient is small enough not to be clipped.
        let mut gradients = draw.values(shapes, if t % 3 == 0 { 1e-4 } else { 1.0 });
        let rate = 1e-2 / f64::from(t).sqrt();
        reference.step(settings, shapes, &wide(&gradients), t, rate);
        let norm = norm(&gradients);
        optimizer.step(&specs, &mut weights, &mut gradients, norm, rate);
    }
    let worst = |range: std::ops::Range<usize>| {
        let difference = |i: usize| (f64::from(weights[i]) - reference.weights[i]).powi(2);
        let size: f64 = range.clone().map(|i| reference.weights[i].powi(2)).sum();
        (range.map(difference).sum::<f64>() / size).sqrt()
    };
    specs.iter().map(|spec| worst(spec.range())).max_by(f64::total_cmp).unwrap()
}

#[test]
fn every_rule_equals_its_formulas_in_f64_over_a_thousand_steps() {
    let lamb = Settings::default();
    let adamw = Settings { kind: OptimizerKind::Adamw, ..lamb.clone() };
    let bert = Settings { kind: OptimizerKind::AdamBert, ..lamb.clone() };
    let uncorrected = |settings: &Settings| Settings { bias_correction: false, ..settings.clone() };
    let bounded = Settings { trust_undecayed: true, trust_ratio: Some([0.02, 0.05]), ..lamb.clone() };
    for (name, settings) in [
        ("LAMB", &lamb),
        ("LAMB without bias correction", &uncorrected(&lamb)),
        ("LAMB, trust ratio bounded and for all", &bounded),
        ("AdamW", &adamw),
        ("AdamW without bias correction", &uncorrected(&adamw)),
        ("Adam of the original BERT", &bert),
    ] {
        let error = against_reference(&SHAPES[..SMALL], settings, 1000);
        println!("{name} over 1,000 steps: relative error {error:.1e}");
        assert!(error < 1e-5, "{name}: {error:e}");
        let error = against_reference(&SHAPES, settings, 10);
        assert!(error < 1e-5, "{name} in chunks: {error:e}");
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let specs = specs(&SHAPES);
    for kind in [OptimizerKind::Lamb, OptimizerKind::Adamw, OptimizerKind::AdamBert] {
        let settings = Settings { kind, ..Settings::default() };
        let after = |threads: usize| {
            let mut draw = Draw(Key::new(6).rng());
            let (mut weights, mut gradients) = (draw.weights(&SHAPES), draw.values(&SHAPES, 1.0));
            let mut optimizer = Optimizer { updates: 1, ..Optimizer::new(settings.clone(), elements(&SHAPES)) };
            let norm = chunks::sum_of_squares_of(&gradients, threads).sqrt();
            let rules = vec![Some(optimizer.rule(norm, 1e-2, 1)); specs.len()];
            let buffers = Buffers {
                weights: &mut weights,
                gradients: &mut gradients,
                first: &mut optimizer.first_moment,
                second: &mut optimizer.second_moment,
            };
            update(&settings, &rules, &specs, buffers, threads);
            (weights, optimizer, norm)
        };
        let alone = after(1);
        [2, 3, 7, 64].iter().for_each(|&threads| assert_eq!(after(threads), alone));
    }
}

#[test]
fn a_frozen_layer_stays_and_one_that_is_born_later_counts_from_there() {
    for kind in [OptimizerKind::Lamb, OptimizerKind::Adamw] {
        let settings = Settings { kind, ..Settings::default() };
        let names = ["bert.encoder.layer.0.output.dense.weight", "bert.encoder.layer.1.output.dense.weight"];
        let shapes = names.map(|name| (name, 40, true));
        let mut specs = specs(&shapes);
        let mut draw = Draw(Key::new(7).rng());
        let mut weights = draw.values(&shapes, 0.1);
        let (start, range) = (weights.clone(), specs[1].range());
        let mut optimizer = Optimizer::new(settings.clone(), 80);
        specs[1].frozen = true;
        for _ in 0..3 {
            optimizer.step(&specs, &mut weights, &mut draw.values(&shapes, 1.0), 1.0, 1e-2);
        }
        assert_eq!(weights[range.clone()], start[range.clone()]);
        assert_ne!(weights[..40], start[..40]);
        assert!(optimizer.first_moment[range.clone()].iter().all(|moment| *moment == 0.0));
        specs[1].frozen = false;
        optimizer.born.insert(1, 3);
        let mut alone = Optimizer::new(settings, 40);
        let mut its_own = start[range.clone()].to_vec();
        for _ in 0..2 {
            let mut gradients = draw.values(&shapes, 1.0);
            let mut its_gradients = gradients[range.clone()].to_vec();
            optimizer.step(&specs, &mut weights, &mut gradients, 1.0, 1e-2);
            alone.step(&self::specs(&shapes[..1]), &mut its_own, &mut its_gradients, 1.0, 1e-2);
        }
        assert_eq!(weights[range], its_own, "{kind:?}");
    }
}
