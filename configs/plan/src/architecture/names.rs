//! Names of tensors in the models of Hugging Face Transformers.

use super::{ModuleKind, ParamKind, TensorId};

/// Returns the name of a tensor: `part.weight` outside the layers, `layers.N.part.weight` in layer N.
pub fn join(id: TensorId, layers: &str, part: &str) -> String {
    let param = match id.param {
        ParamKind::Weight => "weight",
        ParamKind::Bias => "bias",
    };
    match id.layer {
        Some(layer) => format!("{layers}.{layer}.{part}.{param}"),
        None => format!("{part}.{param}"),
    }
}

/// Returns the name of a module of a post-norm layer in BERT, RoBERTa and ELECTRA; empty for other modules.
pub fn of_layer(module: ModuleKind) -> &'static str {
    match module {
        ModuleKind::Query => "attention.self.query",
        ModuleKind::Key => "attention.self.key",
        ModuleKind::Value => "attention.self.value",
        ModuleKind::AttentionOutput => "attention.output.dense",
        ModuleKind::AttentionNorm => "attention.output.LayerNorm",
        ModuleKind::Intermediate => "intermediate.dense",
        ModuleKind::Output => "output.dense",
        ModuleKind::OutputNorm => "output.LayerNorm",
        module => of_span_boundary(module),
    }
}

/// Returns the name of a module of the span boundary head, which no class of Transformers has; empty for other modules.
pub fn of_span_boundary(module: ModuleKind) -> &'static str {
    match module {
        ModuleKind::SpanPositions => "span_boundary.position_embeddings",
        ModuleKind::SpanTransform => "span_boundary.transform.dense",
        ModuleKind::SpanTransformNorm => "span_boundary.transform.LayerNorm",
        ModuleKind::SpanOutput => "span_boundary.output.dense",
        ModuleKind::SpanOutputNorm => "span_boundary.output.LayerNorm",
        ModuleKind::SpanDecoder => "span_boundary.decoder",
        ModuleKind::SpanBias => "span_boundary",
        _ => "",
    }
}
