//! Token budget of a micro-batch: a number or `"auto"`.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum number of tokens in a micro-batch, padding included. In TOML a number or `"auto"`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TokenBudget {
    /// Fixed number of tokens.
    Tokens(usize),
    /// On a GPU, the largest number that fits into free GPU memory, at most [`TokenBudget::MAX_AUTO`]. If the results
    /// depend on it, later attempts with the same number of GPUs use the number of the first. On a CPU,
    /// [`TokenBudget::AUTO_ON_CPU`].
    #[default]
    Auto,
}

impl TokenBudget {
    /// Number of tokens that `"auto"` means on a CPU.
    pub const AUTO_ON_CPU: usize = 4096;
    /// Largest number of tokens that `"auto"` chooses on a GPU. With half as many, a GPU that trains BERT-large is idle for
    /// 1.2 % of the time (docs/experiments/gpu-speed.md).
    pub const MAX_AUTO: usize = 65_536;

    /// Returns the fixed number of tokens, or the number that `"auto"` means on a CPU.
    pub fn on_cpu(self) -> usize {
        self.or(Self::AUTO_ON_CPU)
    }

    /// Returns the fixed number of tokens, or `auto` for `"auto"`.
    pub fn or(self, auto: usize) -> usize {
        match self {
            Self::Tokens(tokens) => tokens,
            Self::Auto => auto,
        }
    }
}

impl From<usize> for TokenBudget {
    fn from(tokens: usize) -> Self {
        Self::Tokens(tokens)
    }
}

impl JsonSchema for TokenBudget {
    fn schema_name() -> Cow<'static, str> {
        "TokenBudget".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [{ "type": "integer", "minimum": 1 }, { "const": "auto" }] })
    }
}

impl Serialize for TokenBudget {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Tokens(tokens) => serializer.serialize_u64(*tokens as u64),
            Self::Auto => serializer.serialize_str("auto"),
        }
    }
}

impl<'de> Deserialize<'de> for TokenBudget {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NumberOrAuto;

        impl Visitor<'_> for NumberOrAuto {
            type Value = TokenBudget;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a number of tokens, or \"auto\"")
            }

            fn visit_u64<E: Error>(self, tokens: u64) -> Result<TokenBudget, E> {
                let tokens = usize::try_from(tokens);
                tokens.map(TokenBudget::Tokens).map_err(|_| E::custom("exceeds the address space"))
            }

            fn visit_i64<E: Error>(self, tokens: i64) -> Result<TokenBudget, E> {
                let below = |_| E::custom(format!("must be above 0, not {tokens}"));
                self.visit_u64(u64::try_from(tokens).map_err(below)?)
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<TokenBudget, E> {
                match word {
                    "auto" => Ok(TokenBudget::Auto),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)),
                }
            }
        }

        deserializer.deserialize_any(NumberOrAuto)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Layers, RunConfig};

    fn parse(value: &str, sets: &[&str]) -> Result<TokenBudget, String> {
        let text = format!("[[stage]]\nname = \"one\"\ndata = \"x\"\nsteps = 9\nmicro_batch_tokens = {value}\n");
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let config: Result<RunConfig, _> = Layers::from_sets(&sets).parse(&text, "run.toml");
        config.map(|config| config.stage[0].micro_batch_tokens).map_err(|error| error.to_string())
    }

    #[test]
    fn numbers_and_auto_round_trip() {
        for (value, budget) in [("512", TokenBudget::Tokens(512)), ("\"auto\"", TokenBudget::Auto)] {
            assert_eq!(parse(value, &[]), Ok(budget));
            let config = RunConfig {
                stage: vec![crate::run::Stage { micro_batch_tokens: budget, ..Default::default() }],
                ..RunConfig::default()
            };
            let text = toml::to_string(&config).unwrap();
            assert!(text.contains(&format!("micro_batch_tokens = {value}\n")), "{text}");
        }
        assert_eq!(parse("512", &["stage.0.micro_batch_tokens=auto"]), Ok(TokenBudget::Auto));
        assert_eq!(parse("\"auto\"", &["stage.0.micro_batch_tokens=64"]), Ok(TokenBudget::Tokens(64)));
    }

    #[test]
    fn other_values_are_rejected_with_the_expected_format() {
        for (value, words) in [
            (
                "\"much\"",
                "stage.0.micro_batch_tokens: invalid value: string \"much\", expected a number of tokens, or \"auto\"",
            ),
            ("-3", "stage.0.micro_batch_tokens: must be above 0, not -3"),
            ("0", "stage.0.micro_batch_tokens = 0: must be above 0"),
            (
                "1.5",
                "stage.0.micro_batch_tokens: invalid type: floating point `1.5`, expected a number of tokens, or \"auto\"",
            ),
        ] {
            let output = parse(value, &[]).unwrap_err();
            assert!(output.contains(words), "{output}");
        }
    }

    #[test]
    fn auto_is_accepted_with_any_attention() {
        for sets in [
            &["model.attention=fused"][..],
            &["device.kind=cuda"],
            &["device.kind=cuda", "model.attention=keyed"],
            &["device.kind=cuda", "device.deterministic=true"],
            &["device.kind=cpu"],
        ] {
            assert_eq!(parse("\"auto\"", sets), Ok(TokenBudget::Auto), "{sets:?}");
        }
    }
}
