//! BERT (arXiv 1810.04805) and its pre-training heads. Parameter names are those of transformers' `BertForPreTraining`,
//! or with pre-norm those of `MegatronBertForPreTraining`.

use lambert_config::run::{Family, Model, Norm};
use serde_json::json;

use super::imported::{ConfigKeys, ImportedModel, UnsupportedValue};
use super::post_norm::Variant;
use super::transformers::{ExportedShape, TransformersModel};
use super::{Head, ModuleKind, Network, TensorId, names};

/// Heads that every BERT model has, even if no loss uses them. Checkpoints contain the parameters of these heads.
const ALWAYS: [Head; 2] = [Head::MaskedLanguage, Head::Pair];

/// Describes the network of a configuration with at least the heads `needed`, for `layers` layers and `vocabulary`
/// tokens.
pub fn network(model: &Model, needed: &[Head], layers: usize, vocabulary: usize) -> Network {
    let name = match model.norm {
        Norm::Post => name_post,
        Norm::Pre => name_pre,
    };
    Variant::new(model, &ALWAYS, needed, name).network(layers, vocabulary)
}

fn name_post(id: TensorId) -> String {
    name(id, Norm::Post)
}

fn name_pre(id: TensorId) -> String {
    name(id, Norm::Pre)
}

fn name(id: TensorId, norm: Norm) -> String {
    let part = match (id.module, norm) {
        (ModuleKind::WordEmbeddings, _) => "bert.embeddings.word_embeddings",
        (ModuleKind::PositionEmbeddings, _) => "bert.embeddings.position_embeddings",
        (ModuleKind::SegmentEmbeddings, _) => "bert.embeddings.token_type_embeddings",
        (ModuleKind::EmbeddingNorm, _) => "bert.embeddings.LayerNorm",
        (ModuleKind::AttentionNorm, Norm::Pre) => "attention.ln",
        (ModuleKind::OutputNorm, Norm::Pre) => "ln",
        (ModuleKind::FinalNorm, _) => "bert.encoder.ln",
        (ModuleKind::Pooler, _) => "bert.pooler.dense",
        (ModuleKind::PairHead, _) => "cls.seq_relationship",
        (ModuleKind::Transform, _) => "cls.predictions.transform.dense",
        (ModuleKind::TransformNorm, _) => "cls.predictions.transform.LayerNorm",
        (ModuleKind::Decoder, _) => "cls.predictions.decoder",
        (ModuleKind::PredictionBias, _) => "cls.predictions",
        (part, _) => names::of_layer(part),
    };
    names::join(id, "bert.encoder.layer", part)
}

/// Describes the model as a `BertConfig` of transformers, or with pre-norm as a `MegatronBertConfig`. Without a
/// sentence-pair head, the model class has no pooler.
pub fn transformers(shape: ExportedShape<'_>, heads: &[Head]) -> TransformersModel {
    let (class, model_type) = match (shape.model.norm, heads.contains(&Head::Pair)) {
        (Norm::Post, true) => ("BertForPreTraining", "bert"),
        (Norm::Post, false) => ("BertForMaskedLM", "bert"),
        (Norm::Pre, true) => ("MegatronBertForPreTraining", "megatron-bert"),
        (Norm::Pre, false) => ("MegatronBertForMaskedLM", "megatron-bert"),
    };
    let mut keys = shape.keys(shape.model.positions);
    keys.insert("classifier_dropout".into(), json!(null));
    keys.insert("use_cache".into(), json!(true));
    TransformersModel::of_class(class, model_type, keys)
}

/// Reads a `BertConfig`, or with [`Norm::Pre`] a `MegatronBertConfig`.
pub fn imported(keys: ConfigKeys<'_>, norm: Norm) -> Result<ImportedModel, UnsupportedValue> {
    let base = Model { norm, ..Family::Bert.model() };
    let (defaults, vocabulary) = match norm {
        Norm::Post => (base, 30522),
        Norm::Pre => (Model { layers: 24, hidden: 1024, heads: 16, intermediate: 4096, ..base }, 29056),
    };
    let model = keys.post_norm_model(defaults)?;
    Ok(ImportedModel {
        model,
        vocabulary: keys.count("vocab_size", vocabulary)?,
        first_position: 0,
        prefix: "bert.",
        old_names: &[],
    })
}
