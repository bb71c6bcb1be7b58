//! Architectures for tests: the families, and architectures that exist only here. Each of these has one of these
//! properties: a table that every layer reads, no segment embeddings, a last layer that is applied twice, two networks
//! with shared embeddings, a frozen network, or a span boundary head.

use std::sync::Arc;

use lambert_config::run::{self, Family, Model, ReplacedTokens};
use lambert_dataset::random::Key;
use lambert_plan::architecture::{Architecture, Head, Module, Network};
use lambert_plan::objectives::{self, MASKED_LANGUAGE};

use super::super::*;
use crate::data::GlobalBatch;
use crate::kernels::Host;
use crate::objective::{Objective, Pass, PassOutput, Teacher};
use crate::state::TrainState;

/// An architecture with its name in messages, its passes, and the blocks of those segments that BERT lacks.
pub struct Case {
    pub name: &'static str,
    /// Returns the configuration of the case, with the sizes of the given one.
    model: fn(&Model) -> Model,
    architecture: fn(&Model) -> Architecture,
    block: fn(NetworkWeights<'_>, &Segment) -> Option<Box<dyn SegmentBlock>>,
    passes: fn(&Case, &Parameters, &Model) -> Vec<Pass>,
}

const VOCABULARY: usize = 50;

const BERT: Case = Case { name: "BERT", model: Model::clone, architecture: bert, block: |_, _| None, passes: one_pass };

/// All architectures; BERT is the first.
pub const CASES: [Case; 15] = [
    BERT,
    Case { name: "RoBERTa", model: |model| of_family(Family::Roberta, model), passes: no_pairs, ..BERT },
    Case { name: "ALBERT", model: |model| of_family(Family::Albert, model), ..BERT },
    Case { name: "ELECTRA", model: |model| of_family(Family::Electra, model), passes: no_pairs, ..BERT },
    Case { name: "DistilBERT", model: |model| of_family(Family::Distilbert, model), passes: no_pairs, ..BERT },
    Case { name: "ModernBERT", model: |model| of_family(Family::Modernbert, model), passes: no_pairs, ..BERT },
    Case { name: "DeBERTa", model: |model| of_family(Family::DebertaV2, model), passes: no_pairs, ..BERT },
    Case { name: "a table in every layer", architecture: table_in_every_layer, block: table_block, ..BERT },
    Case { name: "last layer twice", architecture: last_layer_twice, block: twice_block, ..BERT },
    Case { name: "two networks", model: electra, architecture: generator_and_discriminator, passes: detection, ..BERT },
    Case { name: "a teacher", passes: teacher_and_student, ..BERT },
    Case { name: "a wide teacher", passes: wide_teacher, ..BERT },
    Case { name: "no segment embeddings", architecture: no_segment_embeddings, ..BERT },
    Case { name: "SpanBERT", architecture: span_boundary, passes: span_pass, ..BERT },
    Case {
        name: "narrow embeddings with span boundaries",
        model: |model| of_family(Family::Electra, model),
        architecture: span_boundary,
        passes: span_pass,
        ..BERT
    },
];

fn bert(model: &Model) -> Architecture {
    Network::new(model, &[], 3, VOCABULARY).into()
}

fn one_pass(case: &Case, parameters: &Parameters, model: &Model) -> Vec<Pass> {
    let losses = objectives::losses(&run::Objective::default()).into_iter().map(crate::objective::loss);
    vec![Pass::new(case.encoder(parameters, 0, model), losses.collect())]
}

fn no_pairs(case: &Case, parameters: &Parameters, model: &Model) -> Vec<Pass> {
    vec![Pass::new(case.encoder(parameters, 0, model), vec![crate::objective::loss(MASKED_LANGUAGE)])]
}

/// A network with a span boundary head.
fn span_boundary(model: &Model) -> Architecture {
    Network::new(model, &[Head::SpanBoundary], 3, VOCABULARY).into()
}

/// All losses that the family of `model` has, with a weight of 0.5 for the span boundaries.
fn span_pass(case: &Case, parameters: &Parameters, model: &Model) -> Vec<Pass> {
    let pair = (case.model)(model).family.pair();
    let objective = run::Objective { pair, span_boundary_weight: 0.5, ..run::Objective::default() };
    let losses = objectives::losses(&objective).into_iter().map(crate::objective::loss);
    vec![Pass::new(case.encoder(parameters, 0, model), losses.collect())]
}

/// Configuration of a family with the sizes of `model`, embeddings of 12 if they may differ from the hidden size, and a
/// window or a number of buckets of 8 if the family has these.
fn of_family(family: Family, model: &Model) -> Model {
    let own = family.model();
    let Model { layers, hidden, heads, intermediate, positions, precision, attention, dropout, .. } = *model;
    let (embedding, attention_window) = (own.embedding.map(|_| 12), own.attention_window.min(8));
    let position_buckets = own.position_buckets.min(8);
    let shape =
        Model { layers, hidden, heads, intermediate, positions, embedding, attention_window, position_buckets, ..own };
    let attention_dropout = model.attention_dropout.or(shape.attention_dropout);
    Model { precision, attention, dropout, attention_dropout, pad_vocabulary_to: model.pad_vocabulary_to, ..shape }
}

/// Position embeddings in a side segment with two outputs. Each layer adds one of the outputs to its input.
fn table_in_every_layer(model: &Model) -> Architecture {
    let mut network = Network::new(model, &[], 3, VOCABULARY);
    let is_table = |module: &&Module| module.kind == ModuleKind::PositionEmbeddings;
    let embed = &network.segments[0];
    let (tables, others): (Vec<_>, Vec<_>) = embed.modules.iter().partition(is_table);
    let side = Segment { kind: SegmentKind::Side, modules: tables.into(), ..embed.clone() };
    network.segments[0].modules = others.into();
    network.segments.insert(1, side);
    for (index, segment) in network.segments.iter_mut().enumerate().skip(2) {
        // The side segment lies between the embeddings and the first layer.
        let below = if index == 2 { 0 } else { index - 1 };
        segment.inputs = vec![SegmentOutput { segment: below, output: 0 }];
        if segment.kind != SegmentKind::Heads {
            segment.inputs.push(SegmentOutput { segment: 1, output: index % 2 });
        }
    }
    network.into()
}

/// Blocks of BERT without segment embeddings, with other tensor names (RoBERTa, arXiv 1907.11692).
fn no_segment_embeddings(model: &Model) -> Architecture {
    let mut network = Network::new(model, &[], 3, VOCABULARY);
    let kept = |module: &&Module| module.kind != ModuleKind::SegmentEmbeddings;
    network.segments[0].modules = network.segments[0].modules.iter().filter(kept).copied().collect();
    network.name = |id| format!("other.{:?}.{:?}.{:?}", id.module, id.layer, id.param);
    network.into()
}

struct EmbeddingsWithoutPositions {
    words: Tensor,
    segments: Tensor,
    norm: Normalization,
}

impl SegmentBlock for EmbeddingsWithoutPositions {
    fn forward(&self, _: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor> {
        let sum = torch::embedding(&self.words, &input.ids) + torch::embedding(&self.segments, &input.segments);
        vec![dropout.hidden(self.norm.forward(&sum), None, dropout::DropoutSite::Embeddings)]
    }
}

/// Segment with two outputs: a table, and the same table multiplied by 2.
struct Tables(Tensor);

impl SegmentBlock for Tables {
    fn forward(&self, _: &[&Tensor], _: &Input, _: Dropout<'_>) -> Vec<Tensor> {
        vec![&self.0 * 1.0, &self.0 * 2.0]
    }
}

struct WithTable(layer::Layer);

impl SegmentBlock for WithTable {
    fn forward(&self, inputs: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor> {
        let seq_len = inputs[0].size()[1];
        let hidden = inputs[0] + inputs[1].narrow(0, 0, seq_len);
        self.0.forward(&[&hidden], input, dropout)
    }
}

fn table_block(weights: NetworkWeights<'_>, segment: &Segment) -> Option<Box<dyn SegmentBlock>> {
    let table = |part| weights.tensor(part, None, ParamKind::Weight);
    Some(match segment.kind {
        SegmentKind::Embed => Box::new(EmbeddingsWithoutPositions {
            words: table(ModuleKind::WordEmbeddings),
            segments: table(ModuleKind::SegmentEmbeddings),
            norm: Normalization::new(weights, ModuleKind::EmbeddingNorm, None),
        }),
        SegmentKind::Side => Box::new(Tables(table(ModuleKind::PositionEmbeddings))),
        SegmentKind::Layer { application } => {
            Box::new(WithTable(layer::Layer::new(weights, segment.layer?, application)))
        }
        SegmentKind::Decoder { .. } | SegmentKind::Heads => return None,
    })
}

/// A network with three layer segments. The third one applies the layer of the second segment twice and also reads the
/// output of the first segment, like the enhanced mask decoder of DeBERTa (arXiv 2006.03654).
fn last_layer_twice(model: &Model) -> Architecture {
    let mut network = Network::new(model, &[], 3, VOCABULARY);
    let twice = &mut network.segments[3];
    twice.layer = Some(1);
    twice.inputs.push(SegmentOutput { segment: 1, output: 0 });
    network.into()
}

struct Twice([layer::Layer; 2]);

impl SegmentBlock for Twice {
    fn forward(&self, inputs: &[&Tensor], input: &Input, dropout: Dropout<'_>) -> Vec<Tensor> {
        let [first, second] = &self.0;
        let between = &first.forward(&inputs[..1], input, dropout)[0] + inputs[1];
        second.forward(&[&between], input, dropout)
    }
}

fn twice_block(weights: NetworkWeights<'_>, segment: &Segment) -> Option<Box<dyn SegmentBlock>> {
    let is_twice = segment.kind == SegmentKind::Layer { application: 2 };
    let layer = |application| layer::Layer::new(weights, 1, application);
    is_twice.then(|| Box::new(Twice([2, 3].map(layer))) as Box<dyn SegmentBlock>)
}

/// A generator of one layer and a discriminator of two layers, with embeddings of another width.
fn electra(model: &Model) -> Model {
    Model { layers: 2, ..of_family(Family::Electra, model) }
}

fn replaced_tokens() -> run::Objective {
    let settings = ReplacedTokens { generator_layers: Some(1), generator_hidden: Some(8), ..ReplacedTokens::default() };
    run::Objective { pair: run::Pair::None, replaced_tokens: Some(settings), ..run::Objective::default() }
}

fn generator_and_discriminator(model: &Model) -> Architecture {
    let config = run::RunConfig { model: model.clone(), objective: replaced_tokens(), ..run::RunConfig::default() };
    Architecture::of_run(&config, model.layers, VOCABULARY)
}

fn detection(case: &Case, parameters: &Parameters, model: &Model) -> Vec<Pass> {
    Objective::passes_of(parameters, &(case.model)(model), &replaced_tokens())
}

/// A frozen teacher outside the training state, and a BERT student with all losses of distillation.
fn teacher_and_student(case: &Case, parameters: &Parameters, model: &Model) -> Vec<Pass> {
    taught(case, parameters, model, &run::Teacher::default(), model.clone())
}

/// A wider teacher of another family with a larger padding of the vocabulary, and a student that learns only its predictions.
fn wide_teacher(case: &Case, parameters: &Parameters, model: &Model) -> Vec<Pass> {
    let wide = Model { hidden: 2 * model.hidden, pad_vocabulary_to: 64, ..of_family(Family::Roberta, model) };
    taught(case, parameters, model, &run::Teacher { cosine_weight: 0.0, ..run::Teacher::default() }, wide)
}

fn taught(
    case: &Case,
    parameters: &Parameters,
    model: &Model,
    settings: &run::Teacher,
    of_teacher: Model,
) -> Vec<Pass> {
    let kernels = Arc::clone(parameters.kernels());
    let architecture = Architecture::from(Network::new(&of_teacher, &[], 1, VOCABULARY));
    let mut weights = Parameters::initialize(kernels, architecture, 2, 0.2);
    weights.keep_bf16_copy(compute_dtype(model));
    // A micro-batch has several chunks.
    let teacher = Teacher { chunk: 7 * VOCABULARY as i64, ..Teacher::new(weights, of_teacher) };
    let objective = run::Objective { teacher: Some(settings.clone()), ..run::Objective::default() };
    let own = objectives::losses(&objective).into_iter().filter(|loss| !loss.needs_teacher());
    let student = Pass::new(case.encoder(parameters, 0, model), own.map(crate::objective::loss).collect());
    crate::objective::taught_passes(&teacher, student, &objective)
}

impl Case {
    /// Architecture with the sizes of `model`.
    pub fn architecture(&self, model: &Model) -> Architecture {
        (self.architecture)(&(self.model)(model))
    }

    /// Encoder of network `number`.
    fn encoder(&self, parameters: &Parameters, number: usize, model: &Model) -> Encoder {
        let code = |weights: NetworkWeights<'_>, segment: &Segment| {
            (self.block)(weights, segment).or_else(|| block(weights, segment))
        };
        Encoder::with_blocks(NetworkWeights::new(parameters, number, &(self.model)(model)), code)
    }

    /// Objective with the passes of this case.
    pub fn objective(&self, parameters: &Parameters, model: &Model) -> Objective {
        Objective::from_passes((self.passes)(self, parameters, model))
    }

    /// Training state with randomly initialized weights.
    pub fn state(&self, kernels: Arc<dyn Kernels>, model: &Model) -> TrainState {
        let mut state = TrainState::new(Parameters::initialize(kernels, self.architecture(model), 1, 0.2));
        state.parameters.keep_bf16_copy(compute_dtype(model));
        state
    }

    /// Total number of segments of all networks.
    pub fn segments(&self, model: &Model) -> usize {
        self.architecture(model).networks().iter().map(|network| network.segments.len()).sum()
    }
}

/// Gradients of a step, computed by libtorch with one autograd graph over all passes.
pub fn gradients_of_one_graph(state: &mut TrainState, objective: &Objective, global: &GlobalBatch) -> Vec<f32> {
    state.clear_gradients();
    Input::each(&Host, &global.micro_batches, |micro_batch, input| {
        let (mut outputs, mut losses) = (Vec::new(), Vec::new());
        for pass in objective.passes() {
            let derived = pass.replaced_input(&input, &outputs, Key::new(1));
            let input = derived.as_ref().unwrap_or(&input);
            let dropout = if pass.is_frozen { Dropout::Off } else { pass.encoder.dropout(Key::new(1), input) };
            let hidden = pass.encoder.forward(input, dropout);
            let mut scores = pass.score(micro_batch, input, &hidden);
            for (loss, scored) in pass.losses().zip(&scores) {
                let divisor = loss.global_targets(global) as f64;
                losses.push(&scored.as_ref().unwrap().loss * (loss.description().weight / divisor));
            }
            outputs.extend(PassOutput::take(&hidden, &mut scores, true));
        }
        losses.into_iter().reduce(|sum, loss| sum + loss).unwrap().backward();
    });
    state.read(crate::state::Buffer::Gradients, 0..state.elements())
}
