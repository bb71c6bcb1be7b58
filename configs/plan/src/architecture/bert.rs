//! BERT (arXiv 1810.04805) and its pre-training heads, under the names that transformers gives them: those of
//! `BertForPreTraining`, or with pre-normalisation those of `MegatronBertForPreTraining`.

use std::sync::Arc;

use serde_json::json;

use super::{
    Each, Form, Head, Leaf, Module, Network, Normalises, Part, Segment, SegmentKind, TensorId, TransformersModel, Value,
};
use lambert_config::run::{Activation, Model, Norm};

/// The heads that every BERT has, whether a loss reads them or not: checkpoints have their parameters.
const ALWAYS: [Head; 2] = [Head::MaskedLanguage, Head::Pair];

/// The network of a configuration with at least the heads `needed`, `layers` deep, for a vocabulary of so many tokens.
pub fn network(model: &Model, needed: &[Head], layers: usize, vocabulary: usize) -> Network {
    let layer_modules: Arc<[Module]> = layer(model).into();
    let embed = Segment {
        kind: SegmentKind::Embed,
        inputs: Vec::new(),
        layer: None,
        modules: embeddings(model, vocabulary).into(),
        attention: 0,
    };
    let below = |segment: usize| vec![Value { segment, output: 0 }];
    let application = |index: usize| Segment {
        kind: SegmentKind::Layer { application: index },
        inputs: below(index),
        layer: Some(index),
        modules: Arc::clone(&layer_modules),
        attention: model.hidden,
    };
    let heads = Segment {
        kind: SegmentKind::Heads,
        inputs: below(layers),
        layer: None,
        modules: heads(model, needed, vocabulary).into(),
        attention: 0,
    };
    let segments = std::iter::once(embed).chain((0..layers).map(application)).chain([heads]).collect();
    let name = match model.norm {
        Norm::Post => name_post,
        Norm::Pre => name_pre,
    };
    Network { number: 0, segments, name, vocabulary, rows: model.rows_of(vocabulary) }
}

pub(super) fn norm(part: Part, each: Each, width: usize) -> Module {
    Module::new(part, each, Form::Norm { width })
}

pub(super) fn embeddings(model: &Model, vocabulary: usize) -> Vec<Module> {
    let width = model.hidden;
    let table = |part, rows| Module::new(part, Each::Token, Form::Table { rows, width });
    let mut modules = vec![
        Module { of_vocabulary: true, ..table(Part::WordEmbeddings, model.rows_of(vocabulary)) },
        table(Part::SegmentEmbeddings, 2),
        table(Part::PositionEmbeddings, model.positions),
    ];
    if model.norm == Norm::Post {
        modules.push(norm(Part::EmbeddingNorm, Each::Token, width));
    }
    modules
}

/// A layer, in the order in which its modules are computed.
pub(super) fn layer(model: &Model) -> Vec<Module> {
    let (width, intermediate) = (model.hidden, model.intermediate);
    let linear = |part, inputs, outputs| Module::new(part, Each::Token, Form::Linear { inputs, outputs });
    let attention = [
        linear(Part::Query, width, width),
        Module { joined: true, ..linear(Part::Key, width, width) },
        Module { joined: true, ..linear(Part::Value, width, width) },
        Module { is_residual: true, ..linear(Part::AttentionOutput, width, width) },
    ];
    let feed_forward = [
        Module { is_activated: true, ..linear(Part::Intermediate, width, intermediate) },
        Module { is_residual: true, ..linear(Part::Output, intermediate, width) },
    ];
    let norm = |part, normalises| Module { normalises, ..norm(part, Each::Token, width) };
    let mut modules = Vec::new();
    match model.norm {
        Norm::Post => {
            modules.extend(attention);
            modules.push(norm(Part::AttentionNorm, Normalises::InnerSum));
            modules.extend(feed_forward);
            modules.push(norm(Part::OutputNorm, Normalises::LastSum));
        }
        Norm::Pre => {
            modules.push(norm(Part::AttentionNorm, Normalises::Other));
            modules.extend(attention);
            modules.push(norm(Part::OutputNorm, Normalises::Other));
            modules.extend(feed_forward);
        }
    }
    modules
}

/// The modules above the layers: the closing normalisation of pre-normalised layers, then the heads, those in `needed` among them.
pub(super) fn heads(model: &Model, needed: &[Head], vocabulary: usize) -> Vec<Module> {
    let last = (model.norm == Norm::Pre).then(|| norm(Part::FinalNorm, Each::Token, model.hidden));
    let further = needed.iter().filter(|head| !ALWAYS.contains(head));
    let of = |head: &Head| {
        let head = *head;
        head_modules(head, model, vocabulary).into_iter().map(move |module| Module { head: Some(head), ..module })
    };
    last.into_iter().chain(ALWAYS.iter().chain(further).flat_map(of)).collect()
}

/// The modules of a head, in the order in which they are computed.
fn head_modules(head: Head, model: &Model, vocabulary: usize) -> Vec<Module> {
    let (width, rows) = (model.hidden, model.rows_of(vocabulary));
    let linear = |part, each, outputs| Module::new(part, each, Form::Linear { inputs: width, outputs });
    match head {
        Head::MaskedLanguage => {
            let tied_to = model.tied_decoder.then_some(Part::WordEmbeddings);
            let decoder = linear(Part::Decoder, Each::MaskedToken, rows);
            let bias = Module::new(Part::PredictionBias, Each::MaskedToken, Form::Bias { width: rows });
            vec![
                Module { is_activated: true, ..linear(Part::Transform, Each::MaskedToken, width) },
                norm(Part::TransformNorm, Each::MaskedToken, width),
                Module { of_vocabulary: true, tied_to, ..decoder },
                Module { of_vocabulary: true, ..bias },
            ]
        }
        Head::Pair => vec![linear(Part::Pooler, Each::Sample, width), linear(Part::PairHead, Each::Sample, 2)],
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
        (Part::WordEmbeddings, _) => "bert.embeddings.word_embeddings",
        (Part::PositionEmbeddings, _) => "bert.embeddings.position_embeddings",
        (Part::SegmentEmbeddings, _) => "bert.embeddings.token_type_embeddings",
        (Part::EmbeddingNorm, _) => "bert.embeddings.LayerNorm",
        (Part::Query, _) => "attention.self.query",
        (Part::Key, _) => "attention.self.key",
        (Part::Value, _) => "attention.self.value",
        (Part::AttentionOutput, _) => "attention.output.dense",
        (Part::AttentionNorm, Norm::Post) => "attention.output.LayerNorm",
        (Part::AttentionNorm, Norm::Pre) => "attention.ln",
        (Part::Intermediate, _) => "intermediate.dense",
        (Part::Output, _) => "output.dense",
        (Part::OutputNorm, Norm::Post) => "output.LayerNorm",
        (Part::OutputNorm, Norm::Pre) => "ln",
        (Part::FinalNorm, _) => "bert.encoder.ln",
        (Part::Pooler, _) => "bert.pooler.dense",
        (Part::PairHead, _) => "cls.seq_relationship",
        (Part::Transform, _) => "cls.predictions.transform.dense",
        (Part::TransformNorm, _) => "cls.predictions.transform.LayerNorm",
        (Part::Decoder, _) => "cls.predictions.decoder",
        (Part::PredictionBias, _) => "cls.predictions",
    };
    let leaf = match leaf {
        Leaf::Weight => "weight",
        Leaf::Bias => "bias",
    };
    match layer {
        Some(layer) => format!("bert.encoder.layer.{layer}.{part}.{leaf}"),
        None => format!("{part}.{leaf}"),
    }
}

/// transformers' `BertConfig` or, with pre-normalisation, `MegatronBertConfig`. Without a pair head the class is the one that has no
/// pooler either.
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
