//! Families of encoders: their default shapes, and the keys that a family does not have.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::{Activation, Model, Norm, Pair};
use crate::load::ConfigIssue;

/// Encoder family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Family {
    /// BERT (arXiv 1810.04805), post-norm or pre-norm.
    #[default]
    Bert,
    /// RoBERTa (arXiv 1907.11692): no segment embeddings and no sentence pairs.
    Roberta,
    /// XLM-RoBERTa (arXiv 1911.02116): RoBERTa for many languages.
    XlmRoberta,
    /// ALBERT (arXiv 1909.11942): layers that share weights, narrow embeddings.
    Albert,
    /// ELECTRA (arXiv 2003.10555): with `objective.replaced_tokens` the discriminator, otherwise the generator alone, trained as a
    /// masked language model.
    Electra,
    /// DistilBERT (arXiv 1910.01108): no segment embeddings and no sentence pairs.
    Distilbert,
    /// ModernBERT (arXiv 2412.13663): rotary positions, local attention, gated layers, pre-norm, no biases.
    Modernbert,
    /// DeBERTa-v2 (arXiv 2006.03654): attention to contents and relative positions.
    DebertaV2,
}

/// Keys of `[model]` that only DeBERTa has.
const DEBERTA: [&str; 2] = ["position_buckets", "enhanced_decoder"];

/// Keys of `[model]` that only ModernBERT has.
const MODERN: [&str; 10] = [
    "norm_kind",
    "norm_bias",
    "linear_bias",
    "gated",
    "rotary_base",
    "local_rotary_base",
    "attention_window",
    "global_attention_every",
    "attention_output_dropout",
    "scaled_initialization",
];

impl Family {
    /// Returns the published base shape. Its values are the defaults of the family.
    pub fn model(self) -> Model {
        let bert = Model { family: self, ..Model::default() };
        match self {
            Self::Bert => bert,
            Self::Roberta | Self::XlmRoberta => Model { segments: 1, layer_norm_eps: 1e-5, ..bert },
            Self::Albert => {
                Model { embedding: Some(128), groups: 1, activation: Activation::GeluTanh, dropout: 0.0, ..bert }
            }
            Self::Electra => Model { embedding: Some(768), hidden: 256, heads: 4, intermediate: 1024, ..bert },
            Self::Distilbert => Model { layers: 6, segments: 0, ..bert },
            Self::Modernbert => Model {
                layers: 22,
                intermediate: 1152,
                positions: 1024,
                segments: 0,
                norm: Norm::Pre,
                norm_bias: false,
                linear_bias: false,
                gated: true,
                rotary_base: Some(10_000.0),
                attention_window: 128,
                global_attention_every: 3,
                dropout: 0.0,
                attention_output_dropout: Some(0.1),
                scaled_initialization: true,
                layer_norm_eps: 1e-5,
                ..bert
            },
            Self::DebertaV2 => {
                Model { segments: 0, position_buckets: 256, enhanced_decoder: true, layer_norm_eps: 1e-7, ..bert }
            }
        }
    }

    /// Returns the published base shape of a discriminator. Only ELECTRA has one.
    fn discriminator(self) -> Model {
        match self {
            Self::Electra => Model { family: self, ..Model::default() },
            _ => self.model(),
        }
    }

    /// Returns the default sentence-pair objective.
    pub fn pair(self) -> Pair {
        match self {
            Self::Bert => Pair::Nsp,
            Self::Albert => Pair::Sop,
            Self::Roberta
            | Self::XlmRoberta
            | Self::Electra
            | Self::Distilbert
            | Self::Modernbert
            | Self::DebertaV2 => Pair::None,
        }
    }

    /// True if models of the family can have a sentence-pair head.
    pub fn has_pair_head(self) -> bool {
        matches!(self, Self::Bert | Self::Albert)
    }

    /// True if the transformers classes have segment embeddings, of at least one segment.
    pub fn has_segments(self) -> bool {
        !matches!(self, Self::Distilbert | Self::Modernbert | Self::DebertaV2)
    }

    /// True if models of the family can have a span boundary head.
    pub fn has_span_boundary_head(self) -> bool {
        !matches!(self, Self::Modernbert | Self::DebertaV2)
    }

    /// Returns the keys of `[model]` whose values are fixed.
    fn fixed(self) -> impl Iterator<Item = &'static str> {
        let own: &[&str] = match self {
            Self::Bert => &["segments", "embedding", "groups"],
            Self::Roberta | Self::XlmRoberta | Self::Modernbert => &["norm", "segments", "embedding", "groups"],
            Self::Albert => &["norm"],
            Self::Electra => &["norm", "groups"],
            Self::Distilbert => &["norm", "segments", "embedding", "groups", "layer_norm_eps"],
            Self::DebertaV2 => &["norm", "segments", "embedding", "groups", "tied_decoder", "attention"],
        };
        let modern = if self == Self::Modernbert { &[][..] } else { &MODERN };
        let deberta = if self == Self::DebertaV2 { &[][..] } else { &DEBERTA };
        own.iter().chain(modern).chain(deberta).copied()
    }

    /// Inserts the defaults of the family into the values of a configuration.
    pub(super) fn insert_defaults(tree: &mut Value) {
        let Some(name) = tree.get("model").and_then(|model| model.get("family")) else { return };
        // An unknown family is reported when the value is read.
        let Ok(family) = Self::deserialize(name.clone()) else { return };
        let objective = tree.get("objective").and_then(Value::as_table);
        let replaces_tokens = objective.is_some_and(|objective| objective.contains_key("replaced_tokens"));
        let defaults = if replaces_tokens { family.discriminator() } else { family.model() };
        let Ok(defaults) = Table::try_from(defaults) else { return };
        if let Some(model) = tree.get_mut("model").and_then(Value::as_table_mut) {
            insert(model, defaults);
        }
        let Some(tree) = tree.as_table_mut() else { return };
        let objective = tree.entry("objective").or_insert_with(|| Table::new().into());
        let defaults = ObjectiveDefaults::new(family, replaces_tokens);
        if let (Some(objective), Ok(defaults)) = (objective.as_table_mut(), Table::try_from(defaults)) {
            insert(objective, defaults);
        }
    }

    /// Adds an issue for each key of `[model]` whose value the family does not have.
    pub(super) fn check(self, model: &Model, issues: &mut Vec<ConfigIssue>) {
        let (Ok(values), Ok(defaults)) = (Table::try_from(model), Table::try_from(self.model())) else { return };
        for key in self.fixed().filter(|key| values.get(*key) != defaults.get(*key)) {
            let has = match defaults.get(key) {
                Some(value) => format!("always has {value}"),
                None => "does not have this key".to_owned(),
            };
            issues.push(ConfigIssue::new(format!("model.{key}"), format!("a model of family {self} {has}")));
        }
    }
}

/// Keys of `[objective]` whose defaults follow the family and the objective.
#[derive(Serialize)]
struct ObjectiveDefaults {
    pair: Pair,
    #[serde(skip_serializing_if = "Option::is_none")]
    mask_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    random_share: Option<f64>,
}

impl ObjectiveDefaults {
    /// The generator of ELECTRA has no random tokens in its input.
    fn new(family: Family, replaces_tokens: bool) -> Self {
        let share = |share| replaces_tokens.then_some(share);
        Self { pair: family.pair(), mask_share: share(0.85), random_share: share(0.0) }
    }
}

fn insert(values: &mut Table, defaults: Table) {
    for (key, value) in defaults {
        values.entry(key).or_insert(value);
    }
}

impl std::fmt::Display for Family {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match self {
            Self::Bert => "bert",
            Self::Roberta => "roberta",
            Self::XlmRoberta => "xlm-roberta",
            Self::Albert => "albert",
            Self::Electra => "electra",
            Self::Distilbert => "distilbert",
            Self::Modernbert => "modernbert",
            Self::DebertaV2 => "deberta-v2",
        };
        formatter.write_str(name)
    }
}
