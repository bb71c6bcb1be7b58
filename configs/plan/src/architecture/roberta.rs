//! RoBERTa (arXiv 1907.11692). Parameter names are those of transformers' `RobertaForMaskedLM`.

use lambert_config::run::{Activation, Family, Model};

use super::imported::{ConfigKeys, ImportedModel, UnsupportedValue};
use super::post_norm::Variant;
use super::transformers::{ExportedShape, TransformersModel};
use super::{Head, ModuleKind, Network, TensorId, names};

/// Describes the network of a configuration with at least the heads `needed`, for `layers` layers and `vocabulary`
/// tokens. The MLM head always uses GELU.
pub fn network(model: &Model, needed: &[Head], layers: usize, vocabulary: usize) -> Network {
    let variant = Variant::new(model, &[Head::MaskedLanguage], needed, name);
    Variant { head_activation: Activation::Gelu, ..variant }.network(layers, vocabulary)
}

fn name(id: TensorId) -> String {
    let part = match id.module {
        ModuleKind::WordEmbeddings => "roberta.embeddings.word_embeddings",
        ModuleKind::PositionEmbeddings => "roberta.embeddings.position_embeddings",
        ModuleKind::SegmentEmbeddings => "roberta.embeddings.token_type_embeddings",
        ModuleKind::EmbeddingNorm => "roberta.embeddings.LayerNorm",
        ModuleKind::Transform => "lm_head.dense",
        ModuleKind::TransformNorm => "lm_head.layer_norm",
        ModuleKind::Decoder => "lm_head.decoder",
        ModuleKind::PredictionBias => "lm_head",
        part => names::of_layer(part),
    };
    names::join(id, "roberta.encoder.layer", part)
}

/// Describes the model as a `RobertaConfig` of transformers.
pub fn transformers(shape: ExportedShape<'_>) -> TransformersModel {
    of_class(shape, "RobertaForMaskedLM", "roberta")
}

/// Describes the model as a transformers class whose positions of tokens begin after the id of the padding token.
pub fn of_class(shape: ExportedShape<'_>, class: &'static str, model_type: &str) -> TransformersModel {
    let first_position = shape.pad as usize + 1;
    let keys = shape.keys(shape.model.positions + first_position);
    TransformersModel { first_position, ..TransformersModel::of_class(class, model_type, keys) }
}

/// Reads a `RobertaConfig` or, with [`Family::XlmRoberta`], an `XLMRobertaConfig`. Both classes have segments by default, and
/// lambert supports models with one.
pub fn imported(keys: ConfigKeys<'_>, family: Family) -> Result<ImportedModel, UnsupportedValue> {
    let defaults = Model { segments: 2, layer_norm_eps: 1e-12, ..family.model() };
    let model = keys.post_norm_model(defaults)?;
    let first_position = keys.count("pad_token_id", 1)? + 1;
    let rows = model.positions;
    let Some(positions) = rows.checked_sub(first_position).filter(|positions| *positions > 0) else {
        let expected = format!("more than pad_token_id + 1 = {first_position}");
        return Err(UnsupportedValue::new("max_position_embeddings", &rows.into(), &expected));
    };
    let vocabulary = keys.count("vocab_size", if family == Family::Roberta { 50265 } else { 30522 })?;
    Ok(ImportedModel {
        model: Model { positions, ..model },
        vocabulary,
        first_position,
        prefix: "roberta.",
        old_names: &[],
    })
}
