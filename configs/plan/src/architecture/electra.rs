//! Generator of ELECTRA (arXiv 2003.10555). Parameter names are those of transformers' `ElectraForMaskedLM`.

use lambert_config::run::{Activation, Family, Model};
use serde_json::json;

use super::imported::{ConfigKeys, ImportedModel, UnsupportedValue};
use super::post_norm::Variant;
use super::transformers::{ExportedShape, TransformersModel};
use super::{Head, ModuleKind, Network, TensorId, names};

/// Describes the network of a configuration with at least the heads `needed`, for `layers` layers and `vocabulary`
/// tokens. The MLM head always uses GELU.
pub fn network(model: &Model, needed: &[Head], layers: usize, vocabulary: usize) -> Network {
    let variant = Variant::new(model, &[Head::MaskedLanguage], needed, name);
    let variant = Variant { head_activation: Activation::Gelu, keeps_tied_bias: false, ..variant };
    variant.network(layers, vocabulary)
}

fn name(id: TensorId) -> String {
    let part = match id.part {
        ModuleKind::WordEmbeddings => "electra.embeddings.word_embeddings",
        ModuleKind::PositionEmbeddings => "electra.embeddings.position_embeddings",
        ModuleKind::SegmentEmbeddings => "electra.embeddings.token_type_embeddings",
        ModuleKind::EmbeddingNorm => "electra.embeddings.LayerNorm",
        ModuleKind::EmbeddingProjection => "electra.embeddings_project",
        ModuleKind::Transform => "generator_predictions.dense",
        ModuleKind::TransformNorm => "generator_predictions.LayerNorm",
        ModuleKind::Decoder | ModuleKind::PredictionBias => "generator_lm_head",
        part => names::of_layer(part),
    };
    names::join(id, "electra.encoder.layer", part)
}

/// Describes the model as an `ElectraConfig` of transformers.
pub fn transformers(shape: ExportedShape<'_>) -> TransformersModel {
    let mut keys = shape.keys(shape.model.positions);
    keys.insert("embedding_size".into(), json!(shape.model.embedding()));
    TransformersModel::of_class("ElectraForMaskedLM", "electra", keys)
}

/// Reads an `ElectraConfig`.
pub fn imported(keys: ConfigKeys<'_>) -> Result<ImportedModel, UnsupportedValue> {
    let model = keys.post_norm_model(Family::Electra.model())?;
    let model = Model { embedding: Some(keys.count("embedding_size", 128)?), ..model };
    Ok(ImportedModel {
        model,
        vocabulary: keys.count("vocab_size", 30522)?,
        first_position: 0,
        prefix: "electra.",
        old_names: &[],
    })
}
