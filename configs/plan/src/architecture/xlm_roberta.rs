//! XLM-RoBERTa (arXiv 1911.02116): the network of RoBERTa. Parameter names are those of transformers'
//! `XLMRobertaForMaskedLM`, which are also those of `RobertaForMaskedLM`.

use super::roberta;
pub use super::roberta::network;
use super::transformers::{ExportedShape, TransformersModel};

/// Describes the model as an `XLMRobertaConfig` of transformers.
pub fn transformers(shape: ExportedShape<'_>) -> TransformersModel {
    roberta::of_class(shape, "XLMRobertaForMaskedLM", "xlm-roberta")
}
