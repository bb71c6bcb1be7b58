//! DistilBERT (arXiv 1910.01108). Parameter names are those of transformers' `DistilBertForMaskedLM`.

use lambert_config::run::{Family, Model};
use serde_json::{Map, json};

use super::imported::{ConfigKeys, ImportedModel, UnsupportedValue};
use super::post_norm::Variant;
use super::transformers::{self, ExportedShape, TransformersModel};
use super::{Head, ModuleKind, Network, TensorId, names};

/// Describes the network of a configuration with at least the heads `needed`, for `layers` layers and `vocabulary`
/// tokens. The output of the attention has no dropout.
pub fn network(model: &Model, needed: &[Head], layers: usize, vocabulary: usize) -> Network {
    let variant = Variant::new(model, &[Head::MaskedLanguage], needed, name);
    let variant = Variant { drops_attention_output: false, keeps_tied_bias: false, ..variant };
    variant.network(layers, vocabulary)
}

fn name(id: TensorId) -> String {
    let part = match id.module {
        ModuleKind::WordEmbeddings => "distilbert.embeddings.word_embeddings",
        ModuleKind::PositionEmbeddings => "distilbert.embeddings.position_embeddings",
        ModuleKind::EmbeddingNorm => "distilbert.embeddings.LayerNorm",
        ModuleKind::Query => "attention.q_lin",
        ModuleKind::Key => "attention.k_lin",
        ModuleKind::Value => "attention.v_lin",
        ModuleKind::AttentionOutput => "attention.out_lin",
        ModuleKind::AttentionNorm => "sa_layer_norm",
        ModuleKind::Intermediate => "ffn.lin1",
        ModuleKind::Output => "ffn.lin2",
        ModuleKind::OutputNorm => "output_layer_norm",
        ModuleKind::Transform => "vocab_transform",
        ModuleKind::TransformNorm => "vocab_layer_norm",
        ModuleKind::Decoder | ModuleKind::PredictionBias => "vocab_projector",
        part => names::of_span_boundary(part),
    };
    names::join(id, "distilbert.transformer.layer", part)
}

/// Describes the model as a `DistilBertConfig` of transformers.
pub fn transformers(shape: ExportedShape<'_>) -> TransformersModel {
    let ExportedShape { model, layers, vocabulary, pad } = shape;
    let keys = Map::from_iter([
        ("activation".to_owned(), json!(transformers::activation(model.activation))),
        ("attention_dropout".to_owned(), json!(model.attention_dropout.unwrap_or(model.dropout))),
        ("dim".to_owned(), json!(model.hidden)),
        ("dropout".to_owned(), json!(model.dropout)),
        ("hidden_dim".to_owned(), json!(model.intermediate)),
        ("initializer_range".to_owned(), json!(model.initializer_range)),
        ("max_position_embeddings".to_owned(), json!(model.positions)),
        ("n_heads".to_owned(), json!(model.heads)),
        ("n_layers".to_owned(), json!(layers)),
        ("pad_token_id".to_owned(), json!(pad)),
        ("sinusoidal_pos_embds".to_owned(), json!(false)),
        ("tie_word_embeddings".to_owned(), json!(model.tied_decoder)),
        ("vocab_size".to_owned(), json!(vocabulary)),
    ]);
    TransformersModel::of_class("DistilBertForMaskedLM", "distilbert", keys)
}

/// Reads a `DistilBertConfig`.
pub fn imported(keys: ConfigKeys<'_>) -> Result<ImportedModel, UnsupportedValue> {
    let defaults = Family::Distilbert.model();
    let dropout = keys.number("dropout", defaults.dropout)?;
    let attention_dropout = keys.number("attention_dropout", defaults.dropout)?;
    let model = Model {
        layers: keys.count("n_layers", defaults.layers)?,
        hidden: keys.count("dim", defaults.hidden)?,
        heads: keys.count("n_heads", defaults.heads)?,
        intermediate: keys.count("hidden_dim", defaults.intermediate)?,
        positions: keys.count("max_position_embeddings", defaults.positions)?,
        activation: keys.activation("activation", defaults.activation)?,
        dropout,
        attention_dropout: (attention_dropout != dropout).then_some(attention_dropout),
        initializer_range: keys.number("initializer_range", defaults.initializer_range)?,
        tied_decoder: keys.flag("tie_word_embeddings", true)?,
        pad_vocabulary_to: 1,
        ..defaults
    };
    Ok(ImportedModel {
        model,
        vocabulary: keys.count("vocab_size", 30522)?,
        first_position: 0,
        prefix: "distilbert.",
        old_names: &[],
    })
}
