//! Models of Hugging Face Transformers as `[model]` of a run, the reverse of [`TransformersModel`](super::TransformersModel).

use lambert_config::run::{Activation, Model};
use serde_json::Value as Json;

/// Value in a `config.json` that no model of lambert has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnsupportedValue {
    /// Key.
    pub key: String,
    /// Value, as JSON.
    pub found: String,
    /// Values that lambert supports.
    pub expected: String,
}

impl UnsupportedValue {
    /// Describes the value `found` of `key`.
    pub fn new(key: &str, found: &Json, expected: &str) -> Self {
        Self { key: key.to_owned(), found: found.to_string(), expected: expected.to_owned() }
    }
}

impl std::fmt::Display for UnsupportedValue {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} is {}; expected {}", self.key, self.found, self.expected)
    }
}

impl std::error::Error for UnsupportedValue {}

/// Model of a `config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportedModel {
    /// Configuration, without padding of the vocabulary.
    pub model: Model,
    /// Number of rows of the embedding table.
    pub vocabulary: usize,
    /// Row of the first token in the table of positions.
    pub first_position: usize,
    /// Prefix of the names of the encoder's tensors. Classes without heads leave it out.
    pub prefix: &'static str,
    /// Old and new beginnings of names that older transformers versions write. The first that fits applies.
    pub old_names: &'static [(&'static str, &'static str)],
}

/// Keys of a `config.json`. A key that is absent or null has the default value of its class.
#[derive(Debug, Clone, Copy)]
pub struct ConfigKeys<'a>(pub &'a Json);

impl ConfigKeys<'_> {
    /// True if the class of the model has no MLM head, as after fine-tuning. Other heads can have tensors of the same
    /// names.
    pub fn has_other_head(&self) -> bool {
        let class = self.0["architectures"][0].as_str().unwrap_or("ForMaskedLM");
        !["ForMaskedLM", "ForPreTraining"].iter().any(|end| class.ends_with(end))
    }

    /// Returns the value of a key.
    pub fn value(&self, key: &str) -> Option<&Json> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// Returns a count, or the default.
    ///
    /// # Errors
    /// The value is not a whole number, or too large for a size.
    pub fn count(&self, key: &str, default: usize) -> Result<usize, UnsupportedValue> {
        let whole = |value: &Json| value.as_u64().filter(|count| *count < 1 << 31).map(|count| count as usize);
        self.read(key, default, "a whole number below 2^31", whole)
    }

    /// Returns a number.
    ///
    /// # Errors
    /// The value is not a number of at least 0.
    pub fn number(&self, key: &str, default: f64) -> Result<f64, UnsupportedValue> {
        self.read(key, default, "a number of at least 0", |value| value.as_f64().filter(|number| *number >= 0.0))
    }

    /// Returns true or false.
    ///
    /// # Errors
    /// The value is neither.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool, UnsupportedValue> {
        self.read(key, default, "true or false", Json::as_bool)
    }

    /// Returns an activation function.
    ///
    /// # Errors
    /// lambert does not have the function.
    pub fn activation(&self, key: &str, default: Activation) -> Result<Activation, UnsupportedValue> {
        let known = |value: &Json| match value.as_str()? {
            "gelu" => Some(Activation::Gelu),
            "gelu_new" | "gelu_pytorch_tanh" => Some(Activation::GeluTanh),
            "silu" | "swish" => Some(Activation::Silu),
            _ => None,
        };
        self.read(key, default, "gelu, gelu_new, gelu_pytorch_tanh or silu", known)
    }

    /// Rejects all values of a key but one.
    ///
    /// # Errors
    /// The key has another value. `default` is its value if it is absent.
    pub fn expect(&self, key: &str, default: Json, expected: &Json) -> Result<(), UnsupportedValue> {
        let is_expected = |value: &Json| (value == expected).then_some(());
        match self.value(key) {
            Some(value) if is_expected(value).is_some() => Ok(()),
            None if default == *expected => Ok(()),
            found => Err(UnsupportedValue::new(key, found.unwrap_or(&default), &expected.to_string())),
        }
    }

    /// Reads the keys that the configurations of BERT, RoBERTa, ALBERT, ELECTRA and DeBERTa share. `defaults` has the default
    /// values of the class.
    ///
    /// # Errors
    /// lambert does not support one of the values.
    pub fn post_norm_model(&self, defaults: Model) -> Result<Model, UnsupportedValue> {
        self.expect("position_embedding_type", "absolute".into(), &"absolute".into())?;
        self.expect("is_decoder", false.into(), &false.into())?;
        let dropout = self.number("hidden_dropout_prob", defaults.dropout)?;
        let attention_dropout =
            self.number("attention_probs_dropout_prob", defaults.attention_dropout.unwrap_or(defaults.dropout))?;
        Ok(Model {
            layers: self.count("num_hidden_layers", defaults.layers)?,
            hidden: self.count("hidden_size", defaults.hidden)?,
            heads: self.count("num_attention_heads", defaults.heads)?,
            intermediate: self.count("intermediate_size", defaults.intermediate)?,
            positions: self.count("max_position_embeddings", defaults.positions)?,
            segments: self.count("type_vocab_size", defaults.segments)?,
            activation: self.activation("hidden_act", defaults.activation)?,
            dropout,
            attention_dropout: (attention_dropout != dropout).then_some(attention_dropout),
            initializer_range: self.number("initializer_range", defaults.initializer_range)?,
            layer_norm_eps: self.number("layer_norm_eps", defaults.layer_norm_eps)?,
            tied_decoder: self.flag("tie_word_embeddings", true)?,
            pad_vocabulary_to: 1,
            ..defaults
        })
    }

    fn read<T>(
        &self,
        key: &str,
        default: T,
        expected: &str,
        read: impl Fn(&Json) -> Option<T>,
    ) -> Result<T, UnsupportedValue> {
        match self.value(key) {
            Some(value) => read(value).ok_or_else(|| UnsupportedValue::new(key, value, expected)),
            None => Ok(default),
        }
    }
}
