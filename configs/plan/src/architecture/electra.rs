//! ELECTRA (arXiv 2003.10555). Parameter names are those of transformers' `ElectraForMaskedLM` and `ElectraForPreTraining`. If a
//! run trains both, the generator's own parameters have a prefix.

use lambert_config::run::{Activation, Family, Model};
use serde_json::json;

use super::imported::{ConfigKeys, ImportedModel, UnsupportedValue};
use super::post_norm::Variant;
use super::transformers::{ExportedShape, TransformersModel};
use super::{Head, Module, ModuleKind, Network, SegmentKind, TensorId, names};

/// Describes a generator that is trained alone, with at least the heads `needed`, for `layers` layers and `vocabulary`
/// tokens. The MLM head always uses GELU.
pub fn network(model: &Model, needed: &[Head], layers: usize, vocabulary: usize) -> Network {
    let variant = Variant::new(model, &[Head::MaskedLanguage], needed, name);
    let variant = Variant { head_activation: Activation::Gelu, keeps_tied_bias: false, ..variant };
    variant.network(layers, vocabulary)
}

/// Describes the generator and the discriminator `model`, which share their embeddings.
pub fn networks(model: &Model, generator: &Model, layers: usize, vocabulary: usize) -> Vec<Network> {
    let generator = Network { name: generator_name, ..network(generator, &[], generator.layers, vocabulary) };
    let variant = Variant::new(model, &[Head::ReplacedTokens], &[], name);
    let mut discriminator = variant.network(layers, vocabulary);
    for segment in discriminator.segments.iter_mut().filter(|segment| segment.kind == SegmentKind::Embed) {
        let owner = |module: &Module| (module.kind != ModuleKind::EmbeddingProjection).then_some(0);
        segment.modules = segment.modules.iter().map(|module| Module { owner: owner(module), ..*module }).collect();
    }
    vec![generator, discriminator]
}

/// Prefix of the names of the generator's own tensors, if the run also trains a discriminator.
const GENERATOR: &str = "generator.";

/// Returns the name of a tensor of a generator that is trained with a discriminator.
fn generator_name(id: TensorId) -> String {
    match id.module {
        ModuleKind::WordEmbeddings
        | ModuleKind::PositionEmbeddings
        | ModuleKind::SegmentEmbeddings
        | ModuleKind::EmbeddingNorm => name(id),
        _ => format!("{GENERATOR}{}", name(id)),
    }
}

/// Returns the name of the tensor that is stored as `name` in the models of transformers.
pub fn transformers_name(name: &str) -> &str {
    name.strip_prefix(GENERATOR).unwrap_or(name)
}

fn name(id: TensorId) -> String {
    let part = match id.module {
        ModuleKind::WordEmbeddings => "electra.embeddings.word_embeddings",
        ModuleKind::PositionEmbeddings => "electra.embeddings.position_embeddings",
        ModuleKind::SegmentEmbeddings => "electra.embeddings.token_type_embeddings",
        ModuleKind::EmbeddingNorm => "electra.embeddings.LayerNorm",
        ModuleKind::EmbeddingProjection => "electra.embeddings_project",
        ModuleKind::Transform => "generator_predictions.dense",
        ModuleKind::TransformNorm => "generator_predictions.LayerNorm",
        ModuleKind::Decoder | ModuleKind::PredictionBias => "generator_lm_head",
        ModuleKind::DetectionTransform => "discriminator_predictions.dense",
        ModuleKind::Detection => "discriminator_predictions.dense_prediction",
        part => names::of_layer(part),
    };
    names::join(id, "electra.encoder.layer", part)
}

/// Describes the model as an `ElectraConfig` of transformers.
pub fn transformers(shape: ExportedShape<'_>, heads: &[Head]) -> TransformersModel {
    let mut keys = shape.keys(shape.model.positions);
    keys.insert("embedding_size".into(), json!(shape.model.embedding()));
    let is_discriminator = heads.contains(&Head::ReplacedTokens);
    let class = if is_discriminator { "ElectraForPreTraining" } else { "ElectraForMaskedLM" };
    TransformersModel::of_class(class, "electra", keys)
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
