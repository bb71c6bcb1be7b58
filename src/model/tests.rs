//! Networks that no family has, made of the same segments and blocks: layers that share parameters, a table that every layer reads, a
//! last layer that is applied twice. Whatever holds for BERT's training step has to hold for them.

use std::sync::Arc;

use lambert_config::run::{Model, Norm, Precision};

use super::*;
use crate::data::GlobalBatch;
use crate::kernels::cuda::Emulator;
use crate::kernels::{Cuda, Host};
use crate::state::{Buffer, Spec, TrainState};
use crate::step::{self, tests::batch};

/// A network, the code of those of its segments that BERT does not have, and its name in messages.
struct Case {
    name: &'static str,
    network: fn(&Model) -> Network,
    block: fn(&Parameters, &Model, &Segment) -> Option<Box<dyn Block>>,
}

const VOCABULARY: usize = 50;

const CASES: [Case; 4] = [
    Case { name: "BERT", network: |model| Network::new(model, 3, VOCABULARY), block: no_block },
    Case { name: "shared layers", network: shared_layers, block: no_block },
    Case { name: "a table in every layer", network: table_in_every_layer, block: table_block },
    Case { name: "last layer twice", network: last_layer_twice, block: twice_block },
];

fn no_block(_: &Parameters, _: &Model, _: &Segment) -> Option<Box<dyn Block>> {
    None
}

/// Three applications of one layer (ALBERT, arXiv 1909.11942).
fn shared_layers(model: &Model) -> Network {
    let mut network = Network::new(model, 3, VOCABULARY);
    network.segments.iter_mut().for_each(|segment| segment.layer = segment.layer.map(|_| 0));
    network
}

/// Positions are no part of the embeddings: each layer adds one of two tables that a segment of its own makes of them.
fn table_in_every_layer(model: &Model) -> Network {
    let mut network = Network::new(model, 3, VOCABULARY);
    let is_table = |module: &&lambert_config::architecture::Module| module.part == Part::PositionEmbeddings;
    let embed = &network.segments[0];
    let (tables, others): (Vec<_>, Vec<_>) = embed.modules.iter().partition(is_table);
    let side = Segment { kind: SegmentKind::Side, modules: tables.into(), ..embed.clone() };
    network.segments[0].modules = others.into();
    network.segments.insert(1, side);
    for (index, segment) in network.segments.iter_mut().enumerate().skip(2) {
        // The table lies between the embeddings and the first layer.
        let below = if index == 2 { 0 } else { index - 1 };
        segment.inputs = vec![Value { segment: below, output: 0 }];
        if segment.kind != SegmentKind::Heads {
            segment.inputs.push(Value { segment: 1, output: index % 2 });
        }
    }
    network
}

struct EmbeddingsWithoutPositions {
    words: Tensor,
    segments: Tensor,
    norm: LayerNorm,
}

impl Block for EmbeddingsWithoutPositions {
    fn forward(&self, _: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor> {
        let sum = torch::embedding(&self.words, &input.ids) + torch::embedding(&self.segments, &input.segments);
        vec![dropout.hidden(self.norm.forward(&sum), None, dropout::Site::Embeddings)]
    }
}

/// Two tables, of which the second is the first one doubled.
struct Tables(Tensor);

impl Block for Tables {
    fn forward(&self, _: &[&Tensor], _: &Input, _: Dropout<'_>) -> Vec<Tensor> {
        vec![&self.0 * 1.0, &self.0 * 2.0]
    }
}

struct WithTable(layer::Layer);

impl Block for WithTable {
    fn forward(&self, inputs: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor> {
        let width = inputs[0].size()[1];
        let hidden = inputs[0] + inputs[1].narrow(0, 0, width);
        self.0.forward(&[&hidden], input, dropout)
    }
}

fn table_block(parameters: &Parameters, model: &Model, segment: &Segment) -> Option<Box<dyn Block>> {
    let table = |part| parameters.tensor(TensorId::new(part, Leaf::Weight));
    Some(match segment.kind {
        SegmentKind::Embed => Box::new(EmbeddingsWithoutPositions {
            words: table(Part::WordEmbeddings),
            segments: table(Part::SegmentEmbeddings),
            norm: LayerNorm::new(parameters, Part::EmbeddingNorm, None, model),
        }),
        SegmentKind::Side => Box::new(Tables(table(Part::PositionEmbeddings))),
        SegmentKind::Layer { application } => {
            Box::new(WithTable(layer::Layer::new(parameters, model, segment.layer?, application)))
        }
        SegmentKind::Heads => return None,
    })
}

/// A third segment that applies the second layer twice more, and reads what the first layer put out, too (as DeBERTa's enhanced mask
/// decoder does, arXiv 2006.03654).
fn last_layer_twice(model: &Model) -> Network {
    let mut network = Network::new(model, 3, VOCABULARY);
    let twice = &mut network.segments[3];
    twice.layer = Some(1);
    twice.inputs.push(Value { segment: 1, output: 0 });
    network
}

struct Twice([layer::Layer; 2]);

impl Block for Twice {
    fn forward(&self, inputs: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor> {
        let [first, second] = &self.0;
        let between = &first.forward(&inputs[..1], input, dropout)[0] + inputs[1];
        second.forward(&[&between], input, dropout)
    }
}

fn twice_block(parameters: &Parameters, model: &Model, segment: &Segment) -> Option<Box<dyn Block>> {
    let is_twice = segment.kind == SegmentKind::Layer { application: 2 };
    let layer = |application| layer::Layer::new(parameters, model, 1, application);
    is_twice.then(|| Box::new(Twice([2, 3].map(layer))) as Box<dyn Block>)
}

impl Case {
    /// A training state with weights drawn at random, and the encoder over it.
    fn make(&self, kernels: Arc<dyn Kernels>, model: &Model, recompute: bool) -> (TrainState, Encoder) {
        let network = (self.network)(model);
        let mut state = TrainState::new(Parameters::initialize(kernels, parameters::specs(&network), 1, 0.2));
        state.parameters.keep_low(kind(model));
        let code = |segment: &Segment| {
            (self.block)(&state.parameters, model, segment).or_else(|| block(&state.parameters, model, segment))
        };
        let mut encoder = Encoder::of(&state.parameters, model, &network, code);
        encoder.recompute = recompute;
        (state, encoder)
    }

    /// The gradients of a step over `batch`, and what was said to be final on the way, each as it was then.
    fn step(
        &self,
        kernels: Arc<dyn Kernels>,
        model: &Model,
        recompute: bool,
        batch: &GlobalBatch,
    ) -> (Vec<f32>, Vec<Vec<f32>>) {
        let (mut state, encoder) = self.make(kernels, model, recompute);
        let mut told = Vec::new();
        let mut tell = |state: &TrainState, elements| told.push(state.read(Buffer::Gradients, 0..elements));
        step::forward_backward(&encoder, &mut state, batch.whole(), Key::new(1), &mut tell).unwrap();
        (state.read(Buffer::Gradients, 0..state.elements()), told)
    }
}

fn model() -> Model {
    step::tests::model(Norm::Post)
}

fn host() -> Arc<dyn Kernels> {
    Arc::new(Host)
}

fn card() -> Arc<dyn Kernels> {
    Arc::new(Cuda::new(Arc::new(Emulator::default())))
}

const WHOLE: &[&[usize]] = &[&[4, 3, 2, 1, 0]];
const CUT: &[&[usize]] = &[&[3, 0], &[1], &[4, 2]];

/// |a - b| / |a|.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>()) / norm(a)
}

/// Libtorch's own way back through all segments as one graph.
#[test]
fn the_backward_pass_by_segments_is_that_of_the_whole_graph() {
    for case in CASES {
        let (mut state, encoder) = case.make(host(), &model(), false);
        let global = batch(WHOLE);
        state.clear_gradients();
        Input::each(&Host, &global.micro_batches, |micro_batch, input| {
            let hidden = encoder.forward(&input, encoder.dropout(Key::new(1), &input));
            let losses = crate::objective::ALL.map(|objective| {
                let divisor = objective.answers_of_all(&global) as f64;
                assert!(objective.answers(micro_batch) > 0);
                objective.score(&encoder.heads, &hidden, &input).loss / divisor
            });
            losses.into_iter().reduce(|sum, loss| sum + loss).unwrap().backward();
        });
        let whole = state.read(Buffer::Gradients, 0..state.elements());
        for recompute in [false, true] {
            let (by_segments, _) = case.step(host(), &model(), recompute, &global);
            let apart = distance(&whole, &by_segments);
            assert!(apart < 1e-6, "{} {recompute}: {apart:e}", case.name);
        }
        let idle = |spec: &&Spec| whole[spec.range()].iter().all(|gradient| *gradient == 0.0);
        let idle: Vec<&str> = state.parameters.specs().iter().filter(idle).map(|spec| &*spec.name).collect();
        assert!(idle.iter().all(|name| name.ends_with("key.bias")), "{}: {idle:?} have no gradient", case.name);
    }
}

#[test]
fn gradients_that_are_said_to_be_final_are() {
    for case in CASES {
        for (kernels, recompute, precision) in [
            (host as fn() -> Arc<dyn Kernels>, false, Precision::Fp32),
            (host, true, Precision::Bf16),
            (card, false, Precision::Fp32),
        ] {
            let model = Model { precision, ..model() };
            let (gradients, told) = case.step(kernels(), &model, recompute, &batch(CUT));
            assert_eq!(told.len(), (case.network)(&model).segments.len(), "{}", case.name);
            assert!(told.windows(2).all(|pair| pair[0].len() <= pair[1].len()), "{}", case.name);
            assert_eq!(told.last().map(Vec::len), Some(gradients.len()), "{}", case.name);
            for early in told {
                assert_eq!(early, gradients[..early.len()], "{} {recompute} {precision:?}", case.name);
            }
        }
    }
}

/// Gradients of a tensor are final as early as they can be: behind the first of the segments that read it, not later.
#[test]
fn heads_are_final_first_whatever_lies_below() {
    for case in CASES {
        let (gradients, told) = case.step(host(), &model(), false, &batch(CUT));
        let specs = parameters::specs(&(case.network)(&model()));
        let heads = specs.iter().take_while(|spec| spec.name.starts_with("cls.") || spec.name.contains("pooler"));
        assert_eq!(told[0].len(), heads.last().unwrap().range().end.next_multiple_of(32), "{}", case.name);
        assert!(told[0].iter().any(|gradient| *gradient != 0.0) && gradients.len() > told[0].len());
    }
}

#[test]
fn no_gradient_depends_on_the_micro_batches_or_the_device() {
    for case in CASES {
        let (whole, _) = case.step(host(), &model(), false, &batch(WHOLE));
        let (cut, _) = case.step(host(), &model(), true, &batch(CUT));
        assert!(distance(&whole, &cut) < 1e-5, "{}: {:e}", case.name, distance(&whole, &cut));
        let keyed = Model { attention: Attention::Keyed, ..model() };
        let (on_card, _) = case.step(card(), &keyed, false, &batch(WHOLE));
        assert!(distance(&whole, &on_card) < 1e-5, "{}: {:e}", case.name, distance(&whole, &on_card));
    }
}

/// The parts of a global batch that `cluster.canonical` sums one by one.
#[test]
fn parts_that_are_summed_one_by_one_make_the_whole() {
    for case in CASES {
        let (whole, _) = case.step(host(), &model(), false, &batch(CUT));
        let (mut state, encoder) = case.make(host(), &model(), false);
        let global = GlobalBatch { leaves: vec![1, 1, 1], ..batch(CUT) };
        let mut sum = vec![0.0; state.elements()];
        let mut parts = 0;
        step::leaf_by_leaf(&encoder, &mut state, global.whole(), Key::new(1), |state| {
            parts += 1;
            let own = state.read(Buffer::Gradients, 0..state.elements());
            sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        })
        .unwrap();
        assert_eq!(parts, 3);
        assert!(distance(&whole, &sum) < 1e-6, "{}: {:e}", case.name, distance(&whole, &sum));
    }
}

/// Tensors that several segments read exist once.
#[test]
fn shared_parameters_are_there_once() {
    let count = |case: &Case| parameters::specs(&(case.network)(&model())).len();
    let [bert, shared, table, twice] = CASES.each_ref().map(count);
    let of_a_layer = 16;
    assert_eq!((shared, table, twice), (bert - 2 * of_a_layer, bert, bert - of_a_layer));
    for case in CASES {
        let network = (case.network)(&model());
        let elements: usize = parameters::specs(&network).iter().map(Spec::count).sum();
        assert_eq!(network.parameters(), elements as u64, "{}", case.name);
    }
}
