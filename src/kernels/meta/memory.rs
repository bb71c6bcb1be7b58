//! The formula for a card's memory against the bytes that a step's tensors have on the meta device, whose allocator counts.

use lambert_config::run::{Attention, Objective, RunConfig, Stage};
use lambert_plan::architecture::Architecture;
use lambert_plan::memory::{self, card};

use super::*;

unsafe extern "C" {
    fn lambert_live() -> i64;
    fn lambert_peak() -> i64;
}

/// A model, and a micro-batch of it.
#[derive(Debug, Clone, Copy)]
struct Shape {
    layers: usize,
    hidden: usize,
    heads: usize,
    intermediate: usize,
    pieces: usize,
    length: usize,
    rows: usize,
}

const fn shape([layers, hidden, heads, intermediate]: [usize; 4], [pieces, length, rows]: [usize; 3]) -> Shape {
    Shape { layers, hidden, heads, intermediate, pieces, length, rows }
}

const SHAPES: [Shape; 16] = [
    shape([2, 64, 2, 256], [1000, 32, 8]),
    shape([2, 64, 2, 256], [1000, 32, 512]),
    shape([4, 256, 4, 1024], [30522, 128, 8]),
    shape([4, 256, 4, 1024], [30522, 128, 128]),
    shape([2, 512, 8, 512], [8000, 256, 64]),
    shape([1, 128, 4, 512], [30522, 128, 16]),
    shape([3, 320, 5, 640], [5003, 96, 40]),
    shape([5, 384, 12, 1536], [119547, 48, 32]),
    shape([8, 512, 8, 2048], [30522, 384, 24]),
    shape([12, 768, 12, 3072], [30522, 128, 32]),
    shape([12, 768, 12, 3072], [30522, 128, 256]),
    shape([12, 768, 12, 3072], [30522, 512, 64]),
    shape([6, 768, 12, 3072], [1000, 512, 64]),
    shape([3, 768, 12, 3072], [50000, 64, 128]),
    shape([24, 1024, 16, 4096], [30522, 128, 128]),
    shape([24, 1024, 16, 4096], [30522, 512, 16]),
];

/// A global batch of two micro-batches of `rows` samples, the second of them padded.
fn batches(config: &RunConfig, shape: Shape) -> GlobalBatch {
    let hidden = (1..=config.objective.predictions(shape.length) as u16).map(|position| Hidden { position, label: 3 });
    let hidden: Vec<Hidden> = hidden.collect();
    let sample = |length: usize| MaskedSample {
        ids: vec![5; length],
        segment_b_start: 3,
        pair_label: Some(1),
        hidden: hidden.clone(),
        factor: 1.0,
    };
    let micro_batch = |length: usize| {
        let mut samples = vec![sample(shape.length); shape.rows];
        samples[shape.rows - 1] = sample(length);
        MicroBatch::new(&(0..shape.rows).collect::<Vec<_>>(), shape.length, 0, &samples)
    };
    let micro_batches = vec![micro_batch(shape.length), micro_batch(shape.length - 1)];
    let lengths = vec![shape.length as u16; 2 * shape.rows];
    GlobalBatch { lengths, masked_tokens: 8, drawn: 0..4, micro_batches, ..GlobalBatch::default() }
}

/// The bytes that two steps have at their most, those of the training state among them.
fn peak(config: &RunConfig, shape: Shape) -> i64 {
    // SAFETY: a count of this thread.
    let before = unsafe { lambert_live() };
    let device = Arc::new(Nothing::default());
    let kernels: Arc<dyn Kernels> = Arc::new(Cuda::new(device.clone()));
    let (model, layers) = (&config.model, shape.layers);
    let mut state = TrainState::new(Parameters::zeros(kernels.clone(), Architecture::new(model, layers, shape.pieces)));
    state.parameters.keep_low(model::kind(model));
    let objective = step::tests::objective(&state, model).recomputing(config.stage[0].recompute);
    let batch = batches(config, shape);
    for _ in 0..2 {
        let computed =
            step::forward_backward(&objective, &mut state, batch.whole(), Key::new(1), &mut |_, _| ()).unwrap();
        let norm = torch::guard(|| optim::update(&mut state, &config.optimizer, 1e-3)).unwrap().norm;
        computed.fetch(&*kernels, &norm).unwrap();
    }
    // SAFETY: a count of this thread.
    unsafe { lambert_peak() - before }
}

/// How far the formula, which refuses runs, may be above what was counted: never below.
const MARGIN: f64 = 0.15;

/// The formula over the count, for a micro-batch of `shape`.
fn ratio(mut config: RunConfig, shape: Shape) -> f64 {
    let Shape { layers, hidden, heads, intermediate, length, .. } = shape;
    config.model = Model { layers, hidden, heads, intermediate, positions: length, ..config.model };
    let data = memory::Data { pieces: shape.pieces, longest: length, rows: 1 << 20, row_group: 1024 };
    let counted = peak(&config, shape);
    card::needed(&config, 0, data, 1, shape.rows * length) as f64 / counted as f64
}

#[test]
fn the_formula_is_little_above_what_is_counted() {
    let mut ratios = Vec::new();
    let mut measure = |model: Model, recompute, shape: Shape| {
        let objective = Objective { max_predictions: 0, ..Objective::default() };
        let stage = vec![Stage { recompute, global_batch: 2 * shape.rows, ..Stage::default() }];
        let name = format!("{:?} {:?} {:?}, recompute {recompute}", model.norm, model.precision, model.attention);
        let ratio = ratio(RunConfig { model, objective, stage, ..RunConfig::default() }, shape);
        println!("{ratio:.3}: {name}, dropout, {shape:?}");
        ratios.push((ratio, name, shape));
    };
    for (number, shape) in SHAPES.into_iter().enumerate() {
        for norm in [Norm::Post, Norm::Pre] {
            for (precision, recompute) in
                [(Precision::Fp32, false), (Precision::Fp32, true), (Precision::Bf16, false), (Precision::Bf16, true)]
            {
                for attention in [Attention::Keyed, Attention::Fused] {
                    let plain = Model { norm, precision, attention, ..Model::default() };
                    // The rest by turns.
                    let model = match number % 4 {
                        0 => plain,
                        1 => Model { dropout: 0.0, attention_dropout: Some(0.1), ..plain },
                        2 => Model { pad_vocabulary_to: 1024, attention_dropout: Some(0.0), ..plain },
                        _ => Model { pad_vocabulary_to: 64, tied_decoder: false, ..plain },
                    };
                    measure(model, recompute, shape);
                }
            }
        }
    }
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!("least {:?}, greatest {:?}, {} in all", ratios[0], ratios[ratios.len() - 1], ratios.len());
    let far: Vec<_> = ratios.iter().filter(|(ratio, ..)| !(1.0..=1.0 + MARGIN).contains(ratio)).collect();
    assert!(far.is_empty(), "below the count or more than {MARGIN} above: {far:?}");
}

#[test]
fn what_is_freed_is_counted_no_longer() {
    let device = Nothing::default();
    // SAFETY: counts of this thread.
    let (live, peak) = (|| unsafe { lambert_live() }, || unsafe { lambert_peak() });
    let before = live();
    let numbers = device.zeros(&[1000], Kind::Float);
    assert_eq!(live() - before, 4000);
    let twice = &numbers * 2.0;
    drop((numbers * 3.0, twice));
    assert_eq!((peak() - before, live() - before), (12000, 0));
    // Attention as a card has it keeps no weights: of 4 x 2 x 64 x 64 numbers.
    let kinds = [(Kind::Float, 4), (Kind::BFloat16, 2)];
    for (kind, bytes) in kinds {
        let query = device.zeros(&[4, 64, 2, 32], kind).transpose(1, 2).set_requires_grad(true);
        let before = live();
        let mixed =
            Tensor::scaled_dot_product_attention(&query, &query, &query, None::<Tensor>, 0.1, false, None, false);
        let kept = bytes * 4 * 64 * 2 * 32 + 4 * 4 * 2 * 64 + 16;
        assert_eq!((peak() - before, live() - before), (kept, kept), "{kind:?}");
        drop(mixed);
    }
}
