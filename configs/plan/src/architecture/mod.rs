//! Network descriptions. A description is data: it lists segments and modules but computes nothing. Each family of
//! encoders has one file in this directory and one arm in [`Network::new`]. Parameter names, shapes and memory order,
//! FLOPs, activation memory, growth and exports all derive from a description.

mod albert;
mod bert;
mod deberta_v2;
mod distilbert;
mod electra;
mod imported;
mod modernbert;
mod module;
mod names;
mod network;
mod networks;
mod post_norm;
mod roberta;
mod tensor;
mod transformers;
mod xlm_roberta;

pub use electra::transformers_name;
pub use imported::{ConfigKeys, ImportedModel, UnsupportedValue};
pub use module::{
    CostUnit, Head, Module, ModuleKind, NormInput, Op, ParamKind, Role, SPAN_POSITION_WIDTH, SPAN_POSITIONS, TensorId,
};
pub use network::{Network, Segment, SegmentKind, SegmentOutput};
pub use networks::{ALIGNMENT, Architecture};
pub use tensor::Tensor;
pub use transformers::TransformersModel;

use lambert_config::run::{Family, Model, Norm};
use serde_json::Value as Json;

/// Keys of `[model]` that determine the set and the shapes of the parameters.
pub const SHAPING: [&str; 16] = [
    "family",
    "layers",
    "hidden",
    "intermediate",
    "positions",
    "segments",
    "embedding",
    "groups",
    "position_buckets",
    "enhanced_decoder",
    "norm",
    "norm_bias",
    "linear_bias",
    "gated",
    "tied_decoder",
    "pad_vocabulary_to",
];

impl Network {
    /// Describes the network of a configuration with at least the heads `needed`, for `layers` layers and `vocabulary`
    /// tokens.
    pub fn new(model: &Model, needed: &[Head], layers: usize, vocabulary: usize) -> Self {
        match model.family {
            Family::Bert => bert::network(model, needed, layers, vocabulary),
            Family::Roberta => roberta::network(model, needed, layers, vocabulary),
            Family::XlmRoberta => xlm_roberta::network(model, needed, layers, vocabulary),
            Family::Albert => albert::network(model, needed, layers, vocabulary),
            Family::Electra => electra::network(model, needed, layers, vocabulary),
            Family::Distilbert => distilbert::network(model, needed, layers, vocabulary),
            Family::Modernbert => modernbert::network(model, layers, vocabulary),
            Family::DebertaV2 => deberta_v2::network(model, needed, layers, vocabulary),
        }
    }
}

impl TransformersModel {
    /// Describes a model with these `heads`, `layers` layers and a vocabulary of `vocabulary` tokens. `pad` is the id
    /// of the padding token.
    pub fn new(model: &Model, heads: &[Head], layers: usize, vocabulary: usize, pad: u32) -> Self {
        let shape = transformers::ExportedShape { model, layers, vocabulary, pad };
        match model.family {
            Family::Bert => bert::transformers(shape, heads),
            Family::Roberta => roberta::transformers(shape),
            Family::XlmRoberta => xlm_roberta::transformers(shape),
            Family::Albert => albert::transformers(shape, heads),
            Family::Electra => electra::transformers(shape, heads),
            Family::Distilbert => distilbert::transformers(shape),
            Family::Modernbert => modernbert::transformers(shape),
            Family::DebertaV2 => deberta_v2::transformers(shape),
        }
    }

    /// Returns a setting of the model that no transformers class has, if there is one.
    pub fn unsupported(model: &Model) -> Option<&'static str> {
        match model.family {
            Family::Modernbert => modernbert::unsupported(model),
            _ => None,
        }
    }
}

impl ImportedModel {
    /// Describes the model of a `config.json` of transformers.
    ///
    /// # Errors
    /// lambert does not have this kind of model, or not with these values.
    pub fn new(config: &Json) -> Result<Self, UnsupportedValue> {
        let keys = ConfigKeys(config);
        let model_type = keys.value("model_type").cloned().unwrap_or_default();
        match model_type.as_str().unwrap_or_default() {
            "bert" => bert::imported(keys, Norm::Post),
            "megatron-bert" => bert::imported(keys, Norm::Pre),
            "roberta" => roberta::imported(keys, Family::Roberta),
            "xlm-roberta" => roberta::imported(keys, Family::XlmRoberta),
            "albert" => albert::imported(keys),
            "electra" => electra::imported(keys),
            "distilbert" => distilbert::imported(keys),
            "modernbert" => modernbert::imported(keys),
            "deberta-v2" => deberta_v2::imported(keys),
            _ => {
                let expected =
                    "bert, megatron-bert, roberta, xlm-roberta, albert, electra, distilbert, modernbert or deberta-v2";
                Err(UnsupportedValue::new("model_type", &model_type, expected))
            }
        }
    }
}

impl Architecture {
    /// Describes the discriminator `model` with `layers` layers, and its generator, for `vocabulary` tokens.
    pub fn with_generator(model: &Model, generator: &Model, layers: usize, vocabulary: usize) -> Self {
        Self::from_networks(electra::networks(model, generator, layers, vocabulary))
    }

    /// Describes a model with only the heads of its family, for `layers` layers and `vocabulary` tokens.
    pub fn new(model: &Model, layers: usize, vocabulary: usize) -> Self {
        Network::new(model, &[], layers, vocabulary).into()
    }
}

#[cfg(test)]
mod tests;
