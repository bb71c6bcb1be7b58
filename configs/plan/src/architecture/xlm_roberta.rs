//! XLM-RoBERTa (arXiv 1911.02116): the network of RoBERTa. Parameter names are those of transformers'
//! `XLMRobertaForMaskedLM`, which are also those of `RobertaForMaskedLM`.

pub use super::roberta::network;
use super::transformers::{ExportedShape, TransformersModel};

/// Describes the model as an `XLMRobertaConfig` of transformers, where the positions of tokens begin after the id of the
/// padding token.
pub fn transformers(shape: ExportedShape<'_>) -> TransformersModel {
    let first_position = shape.pad as usize + 1;
    let keys = shape.keys(shape.model.positions + first_position);
    TransformersModel { first_position, ..TransformersModel::of_class("XLMRobertaForMaskedLM", "xlm-roberta", keys) }
}
