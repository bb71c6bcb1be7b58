//! Model classes and configurations for Hugging Face Transformers.

use lambert_config::run::{Activation, Model};
use serde_json::{Map, Value as Json, json};

/// Model class and configuration for Hugging Face Transformers.
#[derive(Debug, Clone, PartialEq)]
pub struct TransformersModel {
    /// Class that loads the model.
    pub class: &'static str,
    /// Content of `config.json`.
    pub config: Json,
    /// Difference between the exported model and the trained one, if there is one.
    pub difference: Option<&'static str>,
    /// Row of the first token in the table of positions. The rows before belong to padding tokens.
    pub first_position: usize,
}

impl TransformersModel {
    /// Creates the description of a class from the keys of its configuration.
    pub(super) fn of_class(class: &'static str, model_type: &str, keys: Map<String, Json>) -> Self {
        let mut config = keys;
        config.insert("architectures".into(), json!([class]));
        config.insert("model_type".into(), json!(model_type));
        config.insert("torch_dtype".into(), json!("float32"));
        Self { class, config: config.into(), difference: None, first_position: 0 }
    }

    /// Takes the keys that lambert does not use from `imported`, the `config.json` of the model that was imported.
    pub fn take_unused_keys(&mut self, imported: &Json) {
        for key in UNUSED_KEYS {
            if let (Some(config), Some(value)) = (self.config.as_object_mut(), imported.get(key)) {
                config.insert(key.to_owned(), value.clone());
            }
        }
    }
}

/// Keys that lambert does not use: of heads for fine-tuning, of the initialization of new weights, and ids of special tokens.
const UNUSED_KEYS: [&str; 16] = [
    "bos_token_id",
    "classifier_dropout",
    "classifier_dropout_prob",
    "classifier_pooling",
    "cls_token_id",
    "eos_token_id",
    "initializer_cutoff_factor",
    "pooler_dropout",
    "pooler_hidden_act",
    "qa_dropout",
    "sep_token_id",
    "seq_classif_dropout",
    "summary_activation",
    "summary_last_dropout",
    "summary_type",
    "summary_use_proj",
];

/// Sizes of an exported model.
#[derive(Debug, Clone, Copy)]
pub struct ExportedShape<'a> {
    pub model: &'a Model,
    pub layers: usize,
    pub vocabulary: usize,
    /// Id of the padding token.
    pub pad: u32,
}

impl ExportedShape<'_> {
    /// Returns the keys that the configurations of BERT, RoBERTa, ALBERT and ELECTRA share. `positions` is the number
    /// of position embeddings.
    pub fn keys(self, positions: usize) -> Map<String, Json> {
        let Self { model, layers, vocabulary, pad } = self;
        let keys = json!({
            "attention_probs_dropout_prob": model.attention_dropout.unwrap_or(model.dropout),
            "hidden_act": activation(model.activation),
            "hidden_dropout_prob": model.dropout,
            "hidden_size": model.hidden,
            "initializer_range": model.initializer_range,
            "intermediate_size": model.intermediate,
            "layer_norm_eps": model.layer_norm_eps,
            "max_position_embeddings": positions,
            "num_attention_heads": model.heads,
            "num_hidden_layers": layers,
            "pad_token_id": pad,
            "position_embedding_type": "absolute",
            "tie_word_embeddings": model.tied_decoder,
            "type_vocab_size": model.segments,
            "vocab_size": vocabulary,
        });
        match keys {
            Json::Object(keys) => keys,
            _ => Map::new(),
        }
    }
}

/// Returns the name of an activation function.
pub fn activation(activation: Activation) -> &'static str {
    match activation {
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_pytorch_tanh",
        Activation::Silu => "silu",
    }
}
