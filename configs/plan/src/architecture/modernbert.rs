//! ModernBERT (arXiv 2412.13663): pre-norm layers with rotary positions, local attention and gated feed-forward layers.
//! Parameter names are those of transformers' `ModernBertForMaskedLM`.

use lambert_config::run::{Activation, Family, Model, NormKind};
use serde_json::{Map, Value as Json, json};

use super::imported::{ConfigKeys, ImportedModel, UnsupportedValue};
use super::transformers::{self, ExportedShape, TransformersModel};
use super::{CostUnit, Head, Module, ModuleKind, Network, Op, Segment, SegmentKind, SegmentOutput, TensorId, names};

/// Describes the network of a configuration for `layers` layers and `vocabulary` tokens. The MLM head always uses GELU.
pub fn network(model: &Model, layers: usize, vocabulary: usize) -> Network {
    let below = |segment: usize| vec![SegmentOutput { segment, output: 0 }];
    let application = |index: usize| Segment {
        kind: SegmentKind::Layer { application: index },
        inputs: below(index),
        layer: Some(index),
        modules: layer(model, index).into(),
        attention_width: model.hidden,
        score_products: 1,
        attention_reach: model.attention_reach(index),
    };
    let embed = Segment::outside_layers(SegmentKind::Embed, Vec::new(), embeddings(model, vocabulary));
    let heads = Segment::outside_layers(SegmentKind::Heads, below(layers), heads(model, vocabulary));
    Network {
        number: 0,
        segments: std::iter::once(embed).chain((0..layers).map(application)).chain([heads]).collect(),
        name,
        head_activation: Activation::Gelu,
        vocabulary,
        padded_vocabulary: model.padded_vocabulary(vocabulary),
    }
}

fn embeddings(model: &Model, vocabulary: usize) -> Vec<Module> {
    let op = Op::Table { rows: model.padded_vocabulary(vocabulary), width: model.hidden };
    let words = Module::new(ModuleKind::WordEmbeddings, CostUnit::Token, op);
    vec![Module { is_vocabulary: true, ..words }, norm(model, ModuleKind::EmbeddingNorm, CostUnit::Token)]
}

/// Returns the modules of a layer, in the order of computation. The first layer reads the normalized embeddings, so it has
/// no normalization before the attention.
fn layer(model: &Model, index: usize) -> Vec<Module> {
    let (width, inner) = (model.hidden, model.intermediate);
    let linear = |kind, inputs, outputs| linear(model, kind, CostUnit::Token, inputs, outputs);
    let rotation = Module::new(ModuleKind::Rotary, CostUnit::Token, Op::Rotation { width: 2 * width });
    let up = linear(ModuleKind::Intermediate, width, model.feed_forward_width());
    let modules = [
        linear(ModuleKind::QueryKeyValue, width, 3 * width),
        rotation,
        Module {
            is_residual: true,
            is_dropped: model.attention_output_dropout() > 0.0,
            ..linear(ModuleKind::AttentionOutput, width, width)
        },
        norm(model, ModuleKind::OutputNorm, CostUnit::Token),
        // Dropout follows the activation function, before the down projection.
        Module { is_activated: true, is_gated: model.gated, is_dropped: model.dropout > 0.0, ..up },
        Module { is_residual: true, ..linear(ModuleKind::Output, inner, width) },
    ];
    let first = (index > 0).then(|| norm(model, ModuleKind::AttentionNorm, CostUnit::Token));
    first.into_iter().chain(modules).collect()
}

/// Returns the modules above the layers: the final normalization, then the MLM head.
fn heads(model: &Model, vocabulary: usize) -> Vec<Module> {
    let (width, rows, unit) = (model.hidden, model.padded_vocabulary(vocabulary), CostUnit::MaskedToken);
    let tied_to = model.tied_decoder.then_some(ModuleKind::WordEmbeddings);
    let decoder = Module::new(ModuleKind::Decoder, unit, Op::Linear { inputs: width, outputs: rows });
    let bias = Module::new(ModuleKind::PredictionBias, unit, Op::Bias { width: rows });
    let mut head = vec![
        Module { is_activated: true, ..linear(model, ModuleKind::Transform, unit, width, width) },
        norm(model, ModuleKind::TransformNorm, unit),
        Module { is_vocabulary: true, tied_to, ..decoder },
    ];
    head.extend(model.tied_decoder.then_some(Module { is_vocabulary: true, ..bias }));
    let head = head.into_iter().map(|module| Module { head: Some(Head::MaskedLanguage), ..module });
    std::iter::once(norm(model, ModuleKind::FinalNorm, CostUnit::Token)).chain(head).collect()
}

fn linear(model: &Model, kind: ModuleKind, unit: CostUnit, inputs: usize, outputs: usize) -> Module {
    Module { has_bias: model.linear_bias, ..Module::new(kind, unit, Op::Linear { inputs, outputs }) }
}

fn norm(model: &Model, kind: ModuleKind, unit: CostUnit) -> Module {
    Module { has_bias: model.norm_bias, ..Module::new(kind, unit, Op::Norm { width: model.hidden }) }
}

fn name(id: TensorId) -> String {
    let part = match id.module {
        ModuleKind::WordEmbeddings => "model.embeddings.tok_embeddings",
        ModuleKind::EmbeddingNorm => "model.embeddings.norm",
        ModuleKind::QueryKeyValue => "attn.Wqkv",
        ModuleKind::AttentionOutput => "attn.Wo",
        ModuleKind::AttentionNorm => "attn_norm",
        ModuleKind::Intermediate => "mlp.Wi",
        ModuleKind::Output => "mlp.Wo",
        ModuleKind::OutputNorm => "mlp_norm",
        ModuleKind::FinalNorm => "model.final_norm",
        ModuleKind::Transform => "head.dense",
        ModuleKind::TransformNorm => "head.norm",
        ModuleKind::Decoder | ModuleKind::PredictionBias => "decoder",
        // The family has no such modules.
        ModuleKind::PositionEmbeddings
        | ModuleKind::SegmentEmbeddings
        | ModuleKind::RelativeEmbeddings
        | ModuleKind::RelativeNorm
        | ModuleKind::EmbeddingProjection
        | ModuleKind::Rotary
        | ModuleKind::Query
        | ModuleKind::Key
        | ModuleKind::Value
        | ModuleKind::Pooler
        | ModuleKind::PairHead
        | ModuleKind::DetectionTransform
        | ModuleKind::Detection
        | ModuleKind::SpanPositions
        | ModuleKind::SpanTransform
        | ModuleKind::SpanTransformNorm
        | ModuleKind::SpanOutput
        | ModuleKind::SpanOutputNorm
        | ModuleKind::SpanDecoder
        | ModuleKind::SpanBias => "",
    };
    names::join(id, "model.layers", part)
}

/// Returns a setting that `ModernBertForMaskedLM` does not have, if there is one.
pub fn unsupported(model: &Model) -> Option<&'static str> {
    match (model.norm_kind, model.gated) {
        (NormKind::Rms, _) => Some("model.norm_kind = \"rms\""),
        (_, false) => Some("model.gated = false"),
        _ => None,
    }
}

/// Describes the model as a `ModernBertConfig` of transformers.
pub fn transformers(shape: ExportedShape<'_>) -> TransformersModel {
    let ExportedShape { model, layers, vocabulary, pad } = shape;
    let kind = |layer| if model.attention_reach(layer).is_some() { "sliding_attention" } else { "full_attention" };
    let base = model.rotary_base.unwrap_or(0.0);
    let rotary = |base: f64| json!({ "rope_type": "default", "rope_theta": base });
    let keys = Map::from_iter([
        ("attention_bias".to_owned(), json!(model.linear_bias)),
        ("attention_dropout".to_owned(), json!(model.attention_dropout.unwrap_or(model.dropout))),
        ("bos_token_id".to_owned(), json!(null)),
        ("classifier_activation".to_owned(), json!("gelu")),
        ("classifier_bias".to_owned(), json!(model.linear_bias)),
        ("cls_token_id".to_owned(), json!(null)),
        ("decoder_bias".to_owned(), json!(true)),
        ("embedding_dropout".to_owned(), json!(model.dropout)),
        ("eos_token_id".to_owned(), json!(null)),
        // Versions of transformers before 5 read these three keys, later ones `layer_types` and `rope_parameters`.
        (
            "global_attn_every_n_layers".to_owned(),
            json!(if model.attention_window > 0 { model.global_attention_every } else { 1 }),
        ),
        ("global_rope_theta".to_owned(), json!(base)),
        ("hidden_activation".to_owned(), json!(transformers::activation(model.activation))),
        ("hidden_size".to_owned(), json!(model.hidden)),
        ("initializer_range".to_owned(), json!(model.initializer_range)),
        ("intermediate_size".to_owned(), json!(model.intermediate)),
        ("layer_types".to_owned(), (0..layers).map(kind).collect()),
        ("local_attention".to_owned(), json!(model.attention_window)),
        ("local_rope_theta".to_owned(), json!(model.local_rotary_base.unwrap_or(base))),
        ("max_position_embeddings".to_owned(), json!(model.positions)),
        ("mlp_bias".to_owned(), json!(model.linear_bias)),
        ("mlp_dropout".to_owned(), json!(model.dropout)),
        ("norm_bias".to_owned(), json!(model.norm_bias)),
        ("norm_eps".to_owned(), json!(model.layer_norm_eps)),
        ("num_attention_heads".to_owned(), json!(model.heads)),
        ("num_hidden_layers".to_owned(), json!(layers)),
        ("pad_token_id".to_owned(), json!(pad)),
        (
            "rope_parameters".to_owned(),
            json!({
                "full_attention": rotary(base),
                "sliding_attention": rotary(model.local_rotary_base.unwrap_or(base)),
            }),
        ),
        ("sep_token_id".to_owned(), json!(null)),
        ("tie_word_embeddings".to_owned(), json!(model.tied_decoder)),
        ("vocab_size".to_owned(), json!(vocabulary)),
    ]);
    TransformersModel::of_class("ModernBertForMaskedLM", "modernbert", keys)
}

/// Reads a `ModernBertConfig`. Versions of transformers before 5 have no `layer_types` and no `rope_parameters`.
pub fn imported(keys: ConfigKeys<'_>) -> Result<ImportedModel, UnsupportedValue> {
    let defaults = Family::Modernbert.model();
    let linear_bias = keys.flag("attention_bias", false)?;
    keys.expect("mlp_bias", false.into(), &linear_bias.into())?;
    keys.expect("classifier_bias", false.into(), &linear_bias.into())?;
    keys.expect("decoder_bias", true.into(), &true.into())?;
    keys.expect("classifier_activation", "gelu".into(), &"gelu".into())?;
    if let Some(scaling) = keys.value("rope_scaling") {
        return Err(UnsupportedValue::new("rope_scaling", scaling, "null"));
    }
    let layers = keys.count("num_hidden_layers", 22)?;
    let dropout = keys.number("mlp_dropout", 0.0)?;
    let embedding_dropout = keys.number("embedding_dropout", 0.0)?;
    if embedding_dropout != dropout {
        return Err(UnsupportedValue::new(
            "embedding_dropout",
            &embedding_dropout.into(),
            &format!("mlp_dropout = {dropout}"),
        ));
    }
    // This dropout applies to the weights and to the output of the attention.
    let attention_dropout = keys.number("attention_dropout", 0.0)?;
    let base = rotary_base(keys, "full_attention", "global_rope_theta", 160_000.0)?;
    // Null, in place of an absent key, is the base of layers with global attention.
    let is_shared = keys.0.get("local_rope_theta").is_some_and(Json::is_null);
    let default = if is_shared { base } else { 10_000.0 };
    let local = rotary_base(keys, "sliding_attention", "local_rope_theta", default)?;
    let model = Model {
        layers,
        hidden: keys.count("hidden_size", 768)?,
        heads: keys.count("num_attention_heads", 12)?,
        intermediate: keys.count("intermediate_size", 1152)?,
        positions: keys.count("max_position_embeddings", 8192)?,
        norm_bias: keys.flag("norm_bias", false)?,
        linear_bias,
        activation: keys.activation("hidden_activation", Activation::Gelu)?,
        rotary_base: Some(base),
        local_rotary_base: (local != base).then_some(local),
        attention_window: keys.count("local_attention", 128)?,
        global_attention_every: global_attention_every(keys, layers)?,
        tied_decoder: keys.flag("tie_word_embeddings", true)?,
        dropout,
        attention_dropout: (attention_dropout != dropout).then_some(attention_dropout),
        // Without a value, the model would get the default of the family.
        attention_output_dropout: Some(attention_dropout),
        initializer_range: keys.number("initializer_range", 0.02)?,
        layer_norm_eps: keys.number("norm_eps", 1e-5)?,
        pad_vocabulary_to: 1,
        ..defaults
    };
    Ok(ImportedModel {
        model,
        vocabulary: keys.count("vocab_size", 50368)?,
        first_position: 0,
        prefix: "model.",
        old_names: &[],
    })
}

/// Base of the rotary positions of layers of this type.
fn rotary_base(keys: ConfigKeys<'_>, layers: &str, old: &str, default: f64) -> Result<f64, UnsupportedValue> {
    let Some(rotary) = keys.value("rope_parameters").and_then(|parameters| parameters.get(layers)) else {
        return keys.number(old, default);
    };
    let rotary = ConfigKeys(rotary);
    rotary.expect("rope_type", "default".into(), &"default".into())?;
    rotary.number("rope_theta", default)
}

/// Distance between layers with global attention, of which the first is layer 0.
fn global_attention_every(keys: ConfigKeys<'_>, layers: usize) -> Result<usize, UnsupportedValue> {
    let Some(found) = keys.value("layer_types") else { return keys.count("global_attn_every_n_layers", 3) };
    let types: Vec<&str> = found.as_array().into_iter().flatten().filter_map(Json::as_str).collect();
    let every =
        types.iter().skip(1).position(|kind| *kind == "full_attention").map_or(layers.max(1), |index| index + 1);
    let expected = |layer: usize| if layer.is_multiple_of(every) { "full_attention" } else { "sliding_attention" };
    match types.iter().copied().eq((0..layers).map(expected)) {
        true => Ok(every),
        false => {
            let expected = format!(
                "{layers} layers, with full_attention in layer 0 and at regular distances, and sliding_attention elsewhere"
            );
            Err(UnsupportedValue::new("layer_types", found, &expected))
        }
    }
}
