//! BERT (arXiv 1810.04805) and its pre-training heads. Parameter names are those of transformers' `BertForPreTraining`,
//! or with pre-norm those of `MegatronBertForPreTraining`.

use std::sync::Arc;

use serde_json::json;

use super::{
    CostUnit, Head, Module, ModuleKind, Network, NormInput, Op, ParamKind, Segment, SegmentKind, SegmentOutput,
    TensorId, TransformersModel,
};
use lambert_config::run::{Activation, Model, Norm};

/// Heads that every BERT model has, even if no loss uses them. Checkpoints contain the parameters of these heads.
const ALWAYS: [Head; 2] = [Head::MaskedLanguage, Head::Pair];

/// Describes the network of a configuration with at least the heads `needed`, for `layers` layers and `vocabulary`
/// tokens.
pub fn network(model: &Model, needed: &[Head], layers: usize, vocabulary: usize) -> Network {
    let layer_modules: Arc<[Module]> = layer(model).into();
    let embed = Segment {
        kind: SegmentKind::Embed,
        inputs: Vec::new(),
        layer: None,
        modules: embeddings(model, vocabulary).into(),
        attention_width: 0,
    };
    let below = |segment: usize| vec![SegmentOutput { segment, output: 0 }];
    let application = |index: usize| Segment {
        kind: SegmentKind::Layer { application: index },
        inputs: below(index),
        layer: Some(index),
        modules: Arc::clone(&layer_modules),
        attention_width: model.hidden,
    };
    let heads = Segment {
        kind: SegmentKind::Heads,
        inputs: below(layers),
        layer: None,
        modules: heads(model, needed, vocabulary).into(),
        attention_width: 0,
    };
    let segments = std::iter::once(embed).chain((0..layers).map(application)).chain([heads]).collect();
    let name = match model.norm {
        Norm::Post => name_post,
        Norm::Pre => name_pre,
    };
    Network { number: 0, segments, name, vocabulary, padded_vocabulary: model.padded_vocabulary(vocabulary) }
}

pub(super) fn norm(part: ModuleKind, unit: CostUnit, width: usize) -> Module {
    Module::new(part, unit, Op::Norm { width })
}

pub(super) fn embeddings(model: &Model, vocabulary: usize) -> Vec<Module> {
    let width = model.hidden;
    let table = |part, rows| Module::new(part, CostUnit::Token, Op::Table { rows, width });
    let mut modules = vec![
        Module { is_vocabulary: true, ..table(ModuleKind::WordEmbeddings, model.padded_vocabulary(vocabulary)) },
        table(ModuleKind::SegmentEmbeddings, 2),
        table(ModuleKind::PositionEmbeddings, model.positions),
    ];
    if model.norm == Norm::Post {
        modules.push(norm(ModuleKind::EmbeddingNorm, CostUnit::Token, width));
    }
    modules
}

/// Returns the modules of a layer, in the order of computation.
pub(super) fn layer(model: &Model) -> Vec<Module> {
    let (width, intermediate) = (model.hidden, model.intermediate);
    let linear = |part, inputs, outputs| Module::new(part, CostUnit::Token, Op::Linear { inputs, outputs });
    let attention = [
        linear(ModuleKind::Query, width, width),
        Module { is_fused_with_previous: true, ..linear(ModuleKind::Key, width, width) },
        Module { is_fused_with_previous: true, ..linear(ModuleKind::Value, width, width) },
        Module { is_residual: true, ..linear(ModuleKind::AttentionOutput, width, width) },
    ];
    let feed_forward = [
        Module { is_activated: true, ..linear(ModuleKind::Intermediate, width, intermediate) },
        Module { is_residual: true, ..linear(ModuleKind::Output, intermediate, width) },
    ];
    let norm = |part, norm_input| Module { norm_input, ..norm(part, CostUnit::Token, width) };
    let mut modules = Vec::new();
    match model.norm {
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

/// Returns the modules above the layers: the final layer normalization of pre-norm models, then the heads, including
/// the heads in `needed`.
pub(super) fn heads(model: &Model, needed: &[Head], vocabulary: usize) -> Vec<Module> {
    let last = (model.norm == Norm::Pre).then(|| norm(ModuleKind::FinalNorm, CostUnit::Token, model.hidden));
    let further = needed.iter().filter(|head| !ALWAYS.contains(head));
    let of = |head: &Head| {
        let head = *head;
        head_modules(head, model, vocabulary).into_iter().map(move |module| Module { head: Some(head), ..module })
    };
    last.into_iter().chain(ALWAYS.iter().chain(further).flat_map(of)).collect()
}

/// Returns the modules of a head, in the order of computation.
fn head_modules(head: Head, model: &Model, vocabulary: usize) -> Vec<Module> {
    let (width, rows) = (model.hidden, model.padded_vocabulary(vocabulary));
    let linear = |part, unit, outputs| Module::new(part, unit, Op::Linear { inputs: width, outputs });
    match head {
        Head::MaskedLanguage => {
            let tied_to = model.tied_decoder.then_some(ModuleKind::WordEmbeddings);
            let decoder = linear(ModuleKind::Decoder, CostUnit::MaskedToken, rows);
            let bias = Module::new(ModuleKind::PredictionBias, CostUnit::MaskedToken, Op::Bias { width: rows });
            vec![
                Module { is_activated: true, ..linear(ModuleKind::Transform, CostUnit::MaskedToken, width) },
                norm(ModuleKind::TransformNorm, CostUnit::MaskedToken, width),
                Module { is_vocabulary: true, tied_to, ..decoder },
                Module { is_vocabulary: true, ..bias },
            ]
        }
        Head::Pair => {
            vec![linear(ModuleKind::Pooler, CostUnit::Sample, width), linear(ModuleKind::PairHead, CostUnit::Sample, 2)]
        }
    }
}

fn name_post(id: TensorId) -> String {
    name(id, Norm::Post)
}

fn name_pre(id: TensorId) -> String {
    name(id, Norm::Pre)
}

fn name(TensorId { part, layer, leaf, .. }: TensorId, norm: Norm) -> String {
    let part = match (part, norm) {
        (ModuleKind::WordEmbeddings, _) => "bert.embeddings.word_embeddings",
        (ModuleKind::PositionEmbeddings, _) => "bert.embeddings.position_embeddings",
        (ModuleKind::SegmentEmbeddings, _) => "bert.embeddings.token_type_embeddings",
        (ModuleKind::EmbeddingNorm, _) => "bert.embeddings.LayerNorm",
        (ModuleKind::Query, _) => "attention.self.query",
        (ModuleKind::Key, _) => "attention.self.key",
        (ModuleKind::Value, _) => "attention.self.value",
        (ModuleKind::AttentionOutput, _) => "attention.output.dense",
        (ModuleKind::AttentionNorm, Norm::Post) => "attention.output.LayerNorm",
        (ModuleKind::AttentionNorm, Norm::Pre) => "attention.ln",
        (ModuleKind::Intermediate, _) => "intermediate.dense",
        (ModuleKind::Output, _) => "output.dense",
        (ModuleKind::OutputNorm, Norm::Post) => "output.LayerNorm",
        (ModuleKind::OutputNorm, Norm::Pre) => "ln",
        (ModuleKind::FinalNorm, _) => "bert.encoder.ln",
        (ModuleKind::Pooler, _) => "bert.pooler.dense",
        (ModuleKind::PairHead, _) => "cls.seq_relationship",
        (ModuleKind::Transform, _) => "cls.predictions.transform.dense",
        (ModuleKind::TransformNorm, _) => "cls.predictions.transform.LayerNorm",
        (ModuleKind::Decoder, _) => "cls.predictions.decoder",
        (ModuleKind::PredictionBias, _) => "cls.predictions",
    };
    let leaf = match leaf {
        ParamKind::Weight => "weight",
        ParamKind::Bias => "bias",
    };
    match layer {
        Some(layer) => format!("bert.encoder.layer.{layer}.{part}.{leaf}"),
        None => format!("{part}.{leaf}"),
    }
}

/// Describes the model as a `BertConfig` of transformers, or with pre-norm as a `MegatronBertConfig`. Without a
/// sentence-pair head, the model class has no pooler.
pub fn transformers(model: &Model, heads: &[Head], layers: usize, vocabulary: usize, pad: u32) -> TransformersModel {
    let (class, model_type) = match (model.norm, heads.contains(&Head::Pair)) {
        (Norm::Post, true) => ("BertForPreTraining", "bert"),
        (Norm::Post, false) => ("BertForMaskedLM", "bert"),
        (Norm::Pre, true) => ("MegatronBertForPreTraining", "megatron-bert"),
        (Norm::Pre, false) => ("MegatronBertForMaskedLM", "megatron-bert"),
    };
    let activation = match model.activation {
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
    };
    let config = json!({
        "architectures": [class],
        "attention_probs_dropout_prob": model.attention_dropout.unwrap_or(model.dropout),
        "classifier_dropout": null,
        "hidden_act": activation,
        "hidden_dropout_prob": model.dropout,
        "hidden_size": model.hidden,
        "initializer_range": model.initializer_range,
        "intermediate_size": model.intermediate,
        "layer_norm_eps": model.layer_norm_eps,
        "max_position_embeddings": model.positions,
        "model_type": model_type,
        "num_attention_heads": model.heads,
        "num_hidden_layers": layers,
        "pad_token_id": pad,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": model.tied_decoder,
        "torch_dtype": "float32",
        "type_vocab_size": 2,
        "use_cache": true,
        "vocab_size": vocabulary,
    });
    TransformersModel { class, config }
}
