//! Networks with the layers of BERT, post-norm or pre-norm. Families differ in their embeddings, in their heads and in the
//! names of their tensors.

use std::sync::Arc;

use lambert_config::run::{Activation, Model, Norm};

use super::{
    CostUnit, Head, Module, ModuleKind, Network, NormInput, Op, SPAN_POSITION_WIDTH, SPAN_POSITIONS, Segment,
    SegmentKind, SegmentOutput, TensorId,
};

/// Differences between families.
pub struct Variant<'a> {
    /// Configuration.
    pub model: &'a Model,
    /// Heads, in the order of their parameters.
    pub heads: Vec<Head>,
    /// Function that returns the name of a tensor.
    pub name: fn(TensorId) -> String,
    /// Activation function of the MLM head.
    pub head_activation: Activation,
    /// True if the embeddings include positions.
    pub has_positions: bool,
    /// True if the embeddings are projected to the hidden size, even if the sizes are equal.
    pub projects_embeddings: bool,
    /// True if dropout is applied to the output of the attention.
    pub drops_attention_output: bool,
    /// True if a network with an untied decoder has the bias of a tied decoder too, which it does not use.
    pub keeps_tied_bias: bool,
}

impl<'a> Variant<'a> {
    /// Variant of BERT's kind with the heads `always` and the heads `needed`.
    pub fn new(model: &'a Model, always: &[Head], needed: &[Head], name: fn(TensorId) -> String) -> Self {
        let further = needed.iter().filter(|head| !always.contains(head));
        Self {
            model,
            heads: always.iter().chain(further).copied().collect(),
            name,
            head_activation: model.activation,
            has_positions: true,
            projects_embeddings: model.embedding() != model.hidden,
            drops_attention_output: true,
            keeps_tied_bias: true,
        }
    }

    /// Describes the network for `layers` layers and `vocabulary` tokens.
    pub fn network(&self, layers: usize, vocabulary: usize) -> Network {
        let model = self.model;
        let layer_modules: Arc<[Module]> = self.layer().into();
        let embed = Segment::outside_layers(SegmentKind::Embed, Vec::new(), self.embeddings(vocabulary));
        let below = |segment: usize| vec![SegmentOutput { segment, output: 0 }];
        let application = |index: usize| Segment {
            kind: SegmentKind::Layer { application: index },
            inputs: below(index),
            layer: Some(if model.groups == 0 { index } else { index * model.groups / layers }),
            modules: Arc::clone(&layer_modules),
            attention_width: model.hidden,
            score_products: 1,
            attention_reach: None,
        };
        let heads = Segment::outside_layers(SegmentKind::Heads, below(layers), self.heads(vocabulary));
        Network {
            number: 0,
            segments: std::iter::once(embed).chain((0..layers).map(application)).chain([heads]).collect(),
            name: self.name,
            head_activation: self.head_activation,
            vocabulary,
            padded_vocabulary: model.padded_vocabulary(vocabulary),
        }
    }

    fn embeddings(&self, vocabulary: usize) -> Vec<Module> {
        let (model, width) = (self.model, self.model.embedding());
        let table = |kind, rows| Module::new(kind, CostUnit::Token, Op::Table { rows, width });
        let rows = model.padded_vocabulary(vocabulary);
        let mut modules = vec![Module { is_vocabulary: true, ..table(ModuleKind::WordEmbeddings, rows) }];
        if model.segments > 0 {
            modules.push(table(ModuleKind::SegmentEmbeddings, model.segments));
        }
        if self.has_positions {
            modules.push(table(ModuleKind::PositionEmbeddings, model.positions));
        }
        if model.norm == Norm::Post {
            modules.push(norm(ModuleKind::EmbeddingNorm, CostUnit::Token, width));
        }
        if self.projects_embeddings {
            let op = Op::Linear { inputs: width, outputs: model.hidden };
            modules.push(Module::new(ModuleKind::EmbeddingProjection, CostUnit::Token, op));
        }
        modules
    }

    /// Returns the modules of a layer, in the order of computation.
    fn layer(&self) -> Vec<Module> {
        let (width, intermediate) = (self.model.hidden, self.model.intermediate);
        let linear = |kind, inputs, outputs| Module::new(kind, CostUnit::Token, Op::Linear { inputs, outputs });
        let residual = |module, is_dropped| Module { is_residual: true, is_dropped, ..module };
        let attention = [
            linear(ModuleKind::Query, width, width),
            Module { is_fused_with_previous: true, ..linear(ModuleKind::Key, width, width) },
            Module { is_fused_with_previous: true, ..linear(ModuleKind::Value, width, width) },
            residual(linear(ModuleKind::AttentionOutput, width, width), self.drops_attention_output),
        ];
        let feed_forward = [
            Module { is_activated: true, ..linear(ModuleKind::Intermediate, width, intermediate) },
            residual(linear(ModuleKind::Output, intermediate, width), true),
        ];
        let norm = |kind, norm_input| Module { norm_input, ..norm(kind, CostUnit::Token, width) };
        let mut modules = Vec::new();
        match self.model.norm {
            Norm::Post => {
                modules.extend(attention);
                modules.push(norm(ModuleKind::AttentionNorm, NormInput::InnerSum));
                modules.extend(feed_forward);
                modules.push(norm(ModuleKind::OutputNorm, NormInput::LastSum));
            }
            Norm::Pre => {
                modules.push(norm(ModuleKind::AttentionNorm, NormInput::Other));
                modules.extend(attention);
                modules.push(norm(ModuleKind::OutputNorm, NormInput::Other));
                modules.extend(feed_forward);
            }
        }
        modules
    }

    /// Returns the modules above the layers: the final layer normalization of pre-norm models, then the heads.
    fn heads(&self, vocabulary: usize) -> Vec<Module> {
        let is_pre_norm = self.model.norm == Norm::Pre;
        let last = is_pre_norm.then(|| norm(ModuleKind::FinalNorm, CostUnit::Token, self.model.hidden));
        let of = |head: &Head| {
            let head = *head;
            self.head(head, vocabulary).into_iter().map(move |module| Module { head: Some(head), ..module })
        };
        last.into_iter().chain(self.heads.iter().flat_map(of)).collect()
    }

    /// Returns the modules of a head, in the order of computation.
    fn head(&self, head: Head, vocabulary: usize) -> Vec<Module> {
        let model = self.model;
        let (hidden, width, rows) = (model.hidden, model.embedding(), model.padded_vocabulary(vocabulary));
        let linear = |kind, unit, inputs, outputs| Module::new(kind, unit, Op::Linear { inputs, outputs });
        match head {
            Head::MaskedLanguage => {
                let tied_to = model.tied_decoder.then_some(ModuleKind::WordEmbeddings);
                let transform = linear(ModuleKind::Transform, CostUnit::MaskedToken, hidden, width);
                let decoder = linear(ModuleKind::Decoder, CostUnit::MaskedToken, width, rows);
                let mut modules = vec![
                    Module { is_activated: true, ..transform },
                    norm(ModuleKind::TransformNorm, CostUnit::MaskedToken, width),
                    Module { is_vocabulary: true, tied_to, ..decoder },
                ];
                if model.tied_decoder || self.keeps_tied_bias {
                    let op = Op::Bias { width: rows };
                    let bias = Module::new(ModuleKind::PredictionBias, CostUnit::MaskedToken, op);
                    modules.push(Module { is_vocabulary: true, ..bias });
                }
                modules
            }
            Head::Pair => vec![
                linear(ModuleKind::Pooler, CostUnit::Sample, hidden, hidden),
                linear(ModuleKind::PairHead, CostUnit::Sample, hidden, 2),
            ],
            Head::ReplacedTokens => {
                let transform = linear(ModuleKind::DetectionTransform, CostUnit::Token, hidden, hidden);
                let detection = linear(ModuleKind::Detection, CostUnit::Token, hidden, 1);
                vec![Module { is_activated: true, ..transform }, detection]
            }
            Head::SpanBoundary => span_boundary(hidden, width, rows),
        }
    }
}

/// Returns the modules of the span boundary head (arXiv 1907.10529, section 3.2), in the order of computation, for embeddings
/// of size `width` with `rows` rows.
fn span_boundary(hidden: usize, width: usize, rows: usize) -> Vec<Module> {
    let module = |kind, op| Module::new(kind, CostUnit::MaskedToken, op);
    let dense = |kind, inputs, outputs| Module { is_activated: true, ..module(kind, Op::Linear { inputs, outputs }) };
    let boundaries = 2 * hidden + SPAN_POSITION_WIDTH;
    let decoder = module(ModuleKind::SpanDecoder, Op::Linear { inputs: width, outputs: rows });
    let bias = module(ModuleKind::SpanBias, Op::Bias { width: rows });
    vec![
        module(ModuleKind::SpanPositions, Op::Table { rows: SPAN_POSITIONS, width: SPAN_POSITION_WIDTH }),
        dense(ModuleKind::SpanTransform, boundaries, hidden),
        norm(ModuleKind::SpanTransformNorm, CostUnit::MaskedToken, hidden),
        dense(ModuleKind::SpanOutput, hidden, width),
        norm(ModuleKind::SpanOutputNorm, CostUnit::MaskedToken, width),
        Module { is_vocabulary: true, tied_to: Some(ModuleKind::WordEmbeddings), ..decoder },
        Module { is_vocabulary: true, ..bias },
    ]
}

fn norm(kind: ModuleKind, unit: CostUnit, width: usize) -> Module {
    Module::new(kind, unit, Op::Norm { width })
}
