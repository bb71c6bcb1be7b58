//! ALBERT (arXiv 1909.11942). Parameter names are those of transformers' `AlbertForPreTraining`.

use lambert_config::run::{Activation, Family, Model};
use serde_json::json;

use super::imported::{ConfigKeys, ImportedModel, UnsupportedValue};
use super::post_norm::Variant;
use super::transformers::{ExportedShape, TransformersModel};
use super::{Head, ModuleKind, Network, TensorId, names};

/// Heads that every ALBERT model has.
const ALWAYS: [Head; 2] = [Head::MaskedLanguage, Head::Pair];

/// Describes the network of a configuration with at least the heads `needed`, for `layers` layers and `vocabulary`
/// tokens.
pub fn network(model: &Model, needed: &[Head], layers: usize, vocabulary: usize) -> Network {
    let variant = Variant::new(model, &ALWAYS, needed, name);
    Variant { projects_embeddings: true, ..variant }.network(layers, vocabulary)
}

fn name(id: TensorId) -> String {
    let part = match id.module {
        ModuleKind::WordEmbeddings => "albert.embeddings.word_embeddings",
        ModuleKind::PositionEmbeddings => "albert.embeddings.position_embeddings",
        ModuleKind::SegmentEmbeddings => "albert.embeddings.token_type_embeddings",
        ModuleKind::EmbeddingNorm => "albert.embeddings.LayerNorm",
        ModuleKind::EmbeddingProjection => "albert.encoder.embedding_hidden_mapping_in",
        ModuleKind::Query => "albert_layers.0.attention.query",
        ModuleKind::Key => "albert_layers.0.attention.key",
        ModuleKind::Value => "albert_layers.0.attention.value",
        ModuleKind::AttentionOutput => "albert_layers.0.attention.dense",
        ModuleKind::AttentionNorm => "albert_layers.0.attention.LayerNorm",
        ModuleKind::Intermediate => "albert_layers.0.ffn",
        ModuleKind::Output => "albert_layers.0.ffn_output",
        ModuleKind::OutputNorm => "albert_layers.0.full_layer_layer_norm",
        ModuleKind::FinalNorm => "albert.encoder.final_norm",
        ModuleKind::Pooler => "albert.pooler",
        ModuleKind::PairHead => "sop_classifier.classifier",
        ModuleKind::Transform => "predictions.dense",
        ModuleKind::TransformNorm => "predictions.LayerNorm",
        ModuleKind::Decoder => "predictions.decoder",
        ModuleKind::PredictionBias => "predictions",
        part => names::of_span_boundary(part),
    };
    names::join(id, "albert.encoder.albert_layer_groups", part)
}

/// Describes the model as an `AlbertConfig` of transformers.
pub fn transformers(shape: ExportedShape<'_>, heads: &[Head]) -> TransformersModel {
    let class = if heads.contains(&Head::Pair) { "AlbertForPreTraining" } else { "AlbertForMaskedLM" };
    let model = shape.model;
    let mut keys = shape.keys(model.positions);
    keys.insert("embedding_size".into(), json!(model.embedding()));
    keys.insert("inner_group_num".into(), json!(1));
    keys.insert("num_hidden_groups".into(), json!(if model.groups == 0 { shape.layers } else { model.groups }));
    // A head for fine-tuning has dropout, even if the pre-training had none.
    keys.insert("classifier_dropout_prob".into(), json!(0.1));
    TransformersModel::of_class(class, "albert", keys)
}

/// Reads an `AlbertConfig`.
pub fn imported(keys: ConfigKeys<'_>) -> Result<ImportedModel, UnsupportedValue> {
    keys.expect("inner_group_num", 1.into(), &1.into())?;
    let published = Family::Albert.model();
    let activation = Activation::GeluTanh;
    let model =
        keys.post_norm_model(Model { hidden: 4096, heads: 64, intermediate: 16384, activation, ..published })?;
    let (embedding, groups) = (keys.count("embedding_size", 128)?, keys.count("num_hidden_groups", 1)?);
    let model = Model { embedding: Some(embedding), groups, ..model };
    Ok(ImportedModel {
        model,
        vocabulary: keys.count("vocab_size", 30000)?,
        first_position: 0,
        prefix: "albert.",
        old_names: &[],
    })
}
