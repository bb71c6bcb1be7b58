//! Tests that compare the estimate of GPU memory with the tensor memory of a training step on the meta device. The
//! allocator of the meta device counts the bytes of all tensors.

use lambert_config::run::{
    Attention, Family, Model, Norm, Objective, Optimizer as Settings, OptimizerKind, Precision, ReplacedTokens,
    RunConfig, Stage, Teacher, TeacherInfo,
};
use lambert_dataset::random::Key;
use lambert_plan::architecture::Architecture;
use lambert_plan::batch_partition::{Layout, MicroBatchPlan};
use lambert_plan::memory::{self, gpu};

use super::*;
use crate::data::batch::MaskedSample;
use crate::data::{GlobalBatch, MicroBatch};
use crate::masking::MaskedToken;
use crate::model;
use crate::optim;
use crate::state::{Parameters, TrainState};
use crate::train::step;

unsafe extern "C" {
    fn lambert_live() -> i64;
    fn lambert_peak() -> i64;
}

/// A model and a micro-batch.
#[derive(Debug, Clone, Copy)]
struct Shape {
    layers: usize,
    hidden: usize,
    heads: usize,
    intermediate: usize,
    vocabulary: usize,
    length: usize,
    rows: usize,
}

const fn shape([layers, hidden, heads, intermediate]: [usize; 4], [vocabulary, length, rows]: [usize; 3]) -> Shape {
    Shape { layers, hidden, heads, intermediate, vocabulary, length, rows }
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

/// Samples of a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Samples {
    /// Samples of the sequence length, padded.
    Padded,
    /// Unpadded samples of the sequence length divided by this number. A micro-batch has as many tokens as with padded samples.
    Unpadded(usize),
}

/// A sample of `length` tokens.
fn sample(config: &RunConfig, length: usize) -> MaskedSample {
    // Spans of three tokens.
    let positions = (1..).filter(|position| position % 4 != 0).take(config.objective.predictions(length));
    let masked_tokens: Vec<MaskedToken> = positions.map(|position| MaskedToken { position, label: 3 }).collect();
    MaskedSample { ids: vec![5; length], segment_b_start: 3, pair_label: Some(1), masked_tokens, loss_scale: 1.0 }
}

/// A global batch of two micro-batches of `rows` samples of the sequence length, or of as many tokens.
fn batches(config: &RunConfig, shape: Shape, samples: Samples) -> GlobalBatch {
    let Samples::Unpadded(parts) = samples else { return padded_batches(config, shape) };
    let (length, count) = (shape.length / parts, shape.rows * parts);
    let (tokens, layout) = (length * count, Layout::Unpadded);
    let plan = MicroBatchPlan { samples: (0..count).collect(), width: length, tokens, layout };
    let micro_batches = [(); 2].map(|()| MicroBatch::new(&plan, 0, &vec![sample(config, length); count])).into();
    let lengths = vec![length as u16; 2 * count];
    GlobalBatch { lengths, masked_tokens: 8, sample_range: 0..4, micro_batches, ..GlobalBatch::default() }
}

/// A global batch of two micro-batches of `rows` samples. The second micro-batch is padded.
fn padded_batches(config: &RunConfig, shape: Shape) -> GlobalBatch {
    let sample = |length: usize| MaskedSample { ids: vec![5; length], ..sample(config, shape.length) };
    let micro_batch = |length: usize| {
        let mut samples = vec![sample(shape.length); shape.rows];
        samples[shape.rows - 1] = sample(length);
        let batch = MicroBatch::padded(&(0..shape.rows).collect::<Vec<_>>(), shape.length, &samples);
        if config.objective.span_boundary_weight > 0.0 { batch.with_span_targets() } else { batch }
    };
    let micro_batches = vec![micro_batch(shape.length), micro_batch(shape.length - 1)];
    let lengths = vec![shape.length as u16; 2 * shape.rows];
    GlobalBatch { lengths, masked_tokens: 8, sample_range: 0..4, micro_batches, ..GlobalBatch::default() }
}

/// Teacher of a configuration, if it has one.
fn teacher(config: &RunConfig, kernels: Arc<dyn Kernels>, vocabulary: usize) -> Option<crate::objective::Teacher> {
    let facts = config.objective.teacher.as_ref()?.info.as_ref()?;
    let Model { precision, attention, .. } = config.model;
    let model = Model { precision, attention, ..facts.model.clone() };
    let mut parameters = Parameters::zeros(kernels, Architecture::new(&model, model.layers, vocabulary));
    parameters.keep_bf16_copy(model::compute_dtype(&model));
    Some(crate::objective::Teacher::new(parameters, model))
}

/// Peak bytes of two steps, including the training state and the teacher.
fn peak(config: &RunConfig, shape: Shape, samples: Samples) -> i64 {
    // SAFETY: reads a thread-local counter.
    let before = unsafe { lambert_live() };
    let device = Arc::new(MetaDevice::default());
    let kernels: Arc<dyn Kernels> = Arc::new(Cuda::new(device.clone()));
    let (model, layers) = (&config.model, shape.layers);
    let mut state =
        TrainState::new(Parameters::zeros(kernels.clone(), Architecture::of_run(config, layers, shape.vocabulary)));
    state.parameters.keep_bf16_copy(model::compute_dtype(model));
    let objective = crate::objective::Objective::new(&state.parameters, model, &config.objective)
        .with_teacher(teacher(config, kernels.clone(), shape.vocabulary).as_ref(), &config.objective)
        .recomputing(config.stage[0].recompute);
    let batch = batches(config, shape, samples);
    for _ in 0..2 {
        let computed =
            step::forward_backward(&objective, &mut state, batch.whole(), Key::new(1), &mut |_, _| ()).unwrap();
        let norm = optim::update(&mut state, &config.optimizer, 1e-3, &mut optim::SingleRank).unwrap().norm;
        computed.fetch(&*kernels, &norm).unwrap();
    }
    // SAFETY: reads a thread-local counter.
    unsafe { lambert_peak() - before }
}

/// Maximum relative excess of the estimate over the counted bytes. The estimate must never be below the count.
const MARGIN: f64 = 0.15;
/// The same for samples that are much shorter than the sequence length.
const SHORT_MARGIN: f64 = 0.17;

/// The same with a teacher.
const TEACHER_MARGIN: f64 = 0.16;

/// Ratio of the estimate to the counted bytes, for a micro-batch of `shape`.
fn ratio(mut config: RunConfig, shape: Shape, samples: Samples) -> f64 {
    let Shape { layers, hidden, heads, intermediate, length, .. } = shape;
    config.model = Model { layers, hidden, heads, intermediate, positions: length, ..config.model };
    let mean_length = match samples {
        Samples::Padded => length,
        Samples::Unpadded(parts) => length / parts,
    };
    let (vocabulary, sequence_length) = (shape.vocabulary, length);
    let data = memory::DatasetShape { vocabulary, sequence_length, mean_length, rows: 1 << 20, row_group: 1024 };
    let counted = peak(&config, shape, samples);
    gpu::needed(&config, 0, data, 1, shape.rows * length) as f64 / counted as f64
}

#[test]
fn memory_estimate_is_slightly_above_the_count() {
    let mut ratios = Vec::new();
    let mut measure = |model: Model, objective: Objective, kind: OptimizerKind, recompute, shape: Shape| {
        let objective = Objective { max_predictions: 0, pair: model.family.pair(), ..objective };
        let networks = if objective.replaced_tokens.is_some() { "two networks" } else { "one network" };
        let weight = objective.span_boundary_weight;
        let stage = vec![Stage { recompute, global_batch: 2 * shape.rows, ..Stage::default() }];
        let Model { family, norm, precision, attention, .. } = model;
        let name = format!(
            "{family} {networks} {norm:?} {precision:?} {attention:?} {kind:?}, recompute {recompute}, SBO {weight}"
        );
        let optimizer = Settings { kind, ..Settings::default() };
        let ratio =
            ratio(RunConfig { model, objective, optimizer, stage, ..RunConfig::default() }, shape, Samples::Padded);
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
                    // Each shape also gets one of four sets of other settings.
                    let model = match number % 4 {
                        0 => plain,
                        1 => Model { dropout: 0.0, attention_dropout: Some(0.1), ..plain },
                        2 => Model { pad_vocabulary_to: 1024, attention_dropout: Some(0.0), ..plain },
                        _ => Model { pad_vocabulary_to: 64, tied_decoder: false, ..plain },
                    };
                    let kind = if number % 3 == 0 { OptimizerKind::Muon } else { OptimizerKind::Lamb };
                    measure(model, Objective::default(), kind, recompute, shape);
                }
            }
        }
    }
    for family in
        [Family::Roberta, Family::Albert, Family::Electra, Family::Distilbert, Family::Modernbert, Family::DebertaV2]
    {
        for shape in SHAPES.into_iter().take(6) {
            for (precision, recompute) in [(Precision::Fp32, false), (Precision::Bf16, true)] {
                let embedding = family.model().embedding.map(|_| shape.hidden / 2);
                let model = Model { precision, embedding, attention: Attention::Keyed, dropout: 0.1, ..family.model() };
                measure(model.clone(), Objective::default(), OptimizerKind::Lamb, recompute, shape);
                if family == Family::Electra {
                    for generator_hidden in [None, Some(shape.hidden)] {
                        let settings = ReplacedTokens { generator_hidden, ..ReplacedTokens::default() };
                        let objective = Objective { replaced_tokens: Some(settings), ..Objective::default() };
                        measure(model.clone(), objective, OptimizerKind::Lamb, recompute, shape);
                    }
                }
            }
        }
    }
    for family in [Family::Bert, Family::Electra] {
        for shape in SHAPES.into_iter().take(10) {
            for (precision, recompute) in [(Precision::Fp32, false), (Precision::Bf16, true)] {
                let embedding = family.model().embedding.map(|_| shape.hidden / 2);
                let model = Model { precision, embedding, attention: Attention::Fused, ..family.model() };
                let objective = Objective { span_boundary_weight: 1.0, ..Objective::default() };
                measure(model, objective, OptimizerKind::Lamb, recompute, shape);
            }
        }
    }
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!("minimum {:?}, maximum {:?}, {} total", ratios[0], ratios[ratios.len() - 1], ratios.len());
    let out_of_range: Vec<_> = ratios.iter().filter(|(ratio, ..)| !(1.0..=1.0 + MARGIN).contains(ratio)).collect();
    assert!(out_of_range.is_empty(), "estimate below the count or more than {MARGIN} above it: {out_of_range:?}");
}

/// Short samples need the most memory: flash attention adds 128 rows for each sample to the gradients of the queries.
#[test]
fn memory_estimate_of_unpadded_samples_is_above_the_count() {
    let mut ratios = Vec::new();
    for shape in SHAPES.into_iter().filter(|shape| shape.rows >= 16) {
        for (family, recompute) in [(Family::Bert, false), (Family::Bert, true), (Family::Modernbert, false)] {
            for parts in [1, 2, 4, 8] {
                let model = Model { precision: Precision::Bf16, attention: Attention::Fused, ..family.model() };
                let objective = Objective { max_predictions: 0, pair: family.pair(), ..Objective::default() };
                let stage = vec![Stage { recompute, global_batch: 2 * shape.rows, ..Stage::default() }];
                let config = RunConfig { model, objective, stage, ..RunConfig::default() };
                let ratio = ratio(config, shape, Samples::Unpadded(parts));
                println!(
                    "{ratio:.3}: {family}, samples of {} tokens, recompute {recompute}, {shape:?}",
                    shape.length / parts
                );
                ratios.push((ratio, family, parts, recompute, shape));
            }
        }
    }
    let out_of_range: Vec<_> =
        ratios.iter().filter(|(ratio, ..)| !(1.0..=1.0 + SHORT_MARGIN).contains(ratio)).collect();
    assert!(
        out_of_range.is_empty(),
        "estimate below the count or more than {SHORT_MARGIN} above it: {out_of_range:#?}"
    );
}

/// A teacher of BERT's shape with twice the layers, and one of another family and width.
#[test]
fn memory_estimate_with_a_teacher_is_slightly_above_the_count() {
    let mut ratios = Vec::new();
    for shape in SHAPES {
        for (precision, recompute) in
            [(Precision::Fp32, false), (Precision::Fp32, true), (Precision::Bf16, false), (Precision::Bf16, true)]
        {
            for is_alike in [true, false] {
                let Shape { layers, hidden, heads, intermediate, length, .. } = shape;
                let family = if is_alike { Family::Bert } else { Family::Modernbert };
                let wide = if is_alike { 1 } else { 2 };
                let of_teacher = Model {
                    layers: 2 * layers,
                    hidden: wide * hidden,
                    heads,
                    intermediate: wide * intermediate,
                    positions: length,
                    ..family.model()
                };
                let facts = TeacherInfo {
                    checkpoint: None,
                    weights_sha256: String::new(),
                    config_sha256: String::new(),
                    vocabulary_sha256: String::new(),
                    model: of_teacher,
                };
                let cosine_weight = if is_alike { 1.0 } else { 0.0 };
                let teacher = Teacher { cosine_weight, info: Some(facts.into()), ..Teacher::default() };
                let model = Model { precision, attention: Attention::Fused, ..Family::Distilbert.model() };
                let objective = Objective {
                    max_predictions: 0,
                    pair: model.family.pair(),
                    teacher: Some(teacher),
                    ..Objective::default()
                };
                let stage = vec![Stage { recompute, global_batch: 2 * shape.rows, ..Stage::default() }];
                let ratio =
                    ratio(RunConfig { model, objective, stage, ..RunConfig::default() }, shape, Samples::Padded);
                println!("{ratio:.3}: {family} {precision:?}, recompute {recompute}, {shape:?}");
                ratios.push((ratio, precision, recompute, family, shape));
            }
        }
    }
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!("minimum {:?}, maximum {:?}", ratios[0], ratios[ratios.len() - 1]);
    let out_of_range: Vec<_> =
        ratios.iter().filter(|(ratio, ..)| !(1.0..=1.0 + TEACHER_MARGIN).contains(ratio)).collect();
    assert!(
        out_of_range.is_empty(),
        "estimate below the count or more than {TEACHER_MARGIN} above it: {out_of_range:?}"
    );
}

#[test]
fn freed_tensors_are_not_counted() {
    let device = MetaDevice::default();
    // SAFETY: reads thread-local counters.
    let (live, peak) = (|| unsafe { lambert_live() }, || unsafe { lambert_peak() });
    let before = live();
    let numbers = device.zeros(&[1000], Kind::Float);
    assert_eq!(live() - before, 4000);
    let twice = &numbers * 2.0;
    drop((numbers * 3.0, twice));
    assert_eq!((peak() - before, live() - before), (12000, 0));
    // Fused attention keeps no [4, 2, 64, 64] attention weights.
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
