//! DeBERTa-v2 (arXiv 2006.03654): attention to contents and to relative positions. Parameter names are those of
//! transformers' `DebertaV2ForMaskedLM` without `legacy`.
//!
//! With the enhanced mask decoder, the last layer is applied twice in place of once. Keys and values are the output of the
//! layer below. The first queries are this output plus the absolute positions, the second queries are the first result.

use lambert_config::run::{Family, Model};
use serde_json::{Value as Json, json};

use super::imported::{ConfigKeys, ImportedModel, UnsupportedValue};
use super::post_norm::Variant;
use super::transformers::{ExportedShape, TransformersModel};
use super::{CostUnit, Head, Module, ModuleKind, Network, Op, Segment, SegmentKind, SegmentOutput, TensorId, names};

/// Describes the network of a configuration with at least the heads `needed`, for `layers` layers and `vocabulary`
/// tokens.
pub fn network(model: &Model, needed: &[Head], layers: usize, vocabulary: usize) -> Network {
    let variant = Variant::new(model, &[Head::MaskedLanguage], needed, name);
    let mut network = Variant { has_positions: false, ..variant }.network(layers, vocabulary);
    let output = |segment: usize| SegmentOutput { segment, output: 0 };
    let side = |inputs, modules| Segment::outside_layers(SegmentKind::Side, inputs, modules);
    let relative = output(1);
    network.segments.insert(1, side(Vec::new(), relative_positions(model)));
    for (index, segment) in network.segments.iter_mut().enumerate().skip(2) {
        // The table of relative positions lies between the embeddings and the first layer.
        segment.inputs = vec![output(if index == 2 { 0 } else { index - 1 })];
        if let SegmentKind::Layer { .. } = segment.kind {
            segment.inputs.push(relative);
            segment.score_products = 3;
        }
    }
    let heads = network.segments.pop();
    let is_layer = |segment: &mut Segment| matches!(segment.kind, SegmentKind::Layer { .. });
    if model.enhanced_decoder
        && let Some(last) = network.segments.pop_if(is_layer)
    {
        let op = Op::Table { rows: model.positions, width: model.hidden };
        let positions = Module::new(ModuleKind::PositionEmbeddings, CostUnit::Token, op);
        let (below, queries) = (last.inputs[0], network.segments.len());
        network.segments.push(side(vec![below], vec![positions]));
        let first = Segment { inputs: vec![below, relative, output(queries)], ..last };
        let inputs = vec![below, relative, output(queries + 1)];
        let second = Segment { kind: SegmentKind::Decoder { application: layers }, inputs, ..first.clone() };
        network.segments.extend([first, second]);
    }
    let top = output(network.segments.len() - 1);
    network.segments.extend(heads.map(|heads| Segment { inputs: vec![top], ..heads }));
    network
}

fn relative_positions(model: &Model) -> Vec<Module> {
    let (rows, width) = (2 * model.position_buckets, model.hidden);
    vec![
        Module::new(ModuleKind::RelativeEmbeddings, CostUnit::Token, Op::Table { rows, width }),
        Module::new(ModuleKind::RelativeNorm, CostUnit::Token, Op::Norm { width }),
    ]
}

fn name(id: TensorId) -> String {
    let part = match id.module {
        ModuleKind::WordEmbeddings => "deberta.embeddings.word_embeddings",
        ModuleKind::PositionEmbeddings => "deberta.embeddings.position_embeddings",
        ModuleKind::EmbeddingNorm => "deberta.embeddings.LayerNorm",
        ModuleKind::RelativeEmbeddings => "deberta.encoder.rel_embeddings",
        ModuleKind::RelativeNorm => "deberta.encoder.LayerNorm",
        ModuleKind::Query => "attention.self.query_proj",
        ModuleKind::Key => "attention.self.key_proj",
        ModuleKind::Value => "attention.self.value_proj",
        ModuleKind::Transform => "lm_predictions.lm_head.dense",
        ModuleKind::TransformNorm => "lm_predictions.lm_head.LayerNorm",
        ModuleKind::Decoder => "lm_predictions.lm_head.decoder",
        ModuleKind::PredictionBias => "lm_predictions.lm_head",
        part => names::of_layer(part),
    };
    names::join(id, "deberta.encoder.layer", part)
}

/// Describes the model as a `DebertaV2Config` of transformers.
pub fn transformers(shape: ExportedShape<'_>) -> TransformersModel {
    let model = shape.model;
    let mut keys = shape.keys(model.positions);
    keys.remove("position_embedding_type");
    keys.insert("legacy".into(), json!(false));
    keys.insert("max_relative_positions".into(), json!(-1));
    keys.insert("norm_rel_ebd".into(), json!("layer_norm"));
    keys.insert("pooler_hidden_size".into(), json!(model.hidden));
    keys.insert("pos_att_type".into(), json!(["p2c", "c2p"]));
    keys.insert("position_biased_input".into(), json!(false));
    keys.insert("position_buckets".into(), json!(model.position_buckets));
    keys.insert("relative_attention".into(), json!(true));
    keys.insert("share_att_key".into(), json!(true));
    let difference = model.enhanced_decoder.then_some(
        "transformers has no enhanced mask decoder: the hidden states are exact, the predictions of masked tokens are not",
    );
    TransformersModel { difference, ..TransformersModel::of_class("DebertaV2ForMaskedLM", "deberta-v2", keys) }
}

/// Names of the MLM head with `legacy`.
const OLD_NAMES: [(&str, &str); 2] =
    [("cls.predictions.transform.", "lm_predictions.lm_head."), ("cls.predictions.", "lm_predictions.lm_head.")];

/// Reads a `DebertaV2Config`. The model has no enhanced mask decoder, because transformers has none.
pub fn imported(keys: ConfigKeys<'_>) -> Result<ImportedModel, UnsupportedValue> {
    for (key, default, expected) in [
        ("relative_attention", json!(false), json!(true)),
        ("share_att_key", json!(false), json!(true)),
        ("position_biased_input", json!(true), json!(false)),
        ("norm_rel_ebd", json!("none"), json!("layer_norm")),
        ("max_relative_positions", json!(-1), json!(-1)),
        ("conv_kernel_size", json!(0), json!(0)),
    ] {
        keys.expect(key, default, &expected)?;
    }
    let types = keys.value("pos_att_type").cloned().unwrap_or_default();
    // Versions before transformers 4 store a text such as `p2c|c2p`.
    let mut names: Vec<&str> = match &types {
        Json::String(text) => text.split('|').collect(),
        types => types.as_array().into_iter().flatten().filter_map(Json::as_str).collect(),
    };
    names.sort_unstable();
    if names != ["c2p", "p2c"] {
        return Err(UnsupportedValue::new("pos_att_type", &types, r#"["p2c","c2p"]"#));
    }
    let defaults = Model { layers: 24, hidden: 1536, heads: 24, intermediate: 6144, ..Family::DebertaV2.model() };
    let model = keys.post_norm_model(Model { enhanced_decoder: false, ..defaults })?;
    keys.expect("embedding_size", model.hidden.into(), &model.hidden.into())?;
    let buckets = keys.value("position_buckets").cloned().unwrap_or(json!(-1));
    let Some(position_buckets) = buckets.as_u64().filter(|buckets| (1..1 << 20).contains(buckets)) else {
        return Err(UnsupportedValue::new("position_buckets", &buckets, "a number above 0"));
    };
    let model = Model { position_buckets: position_buckets as usize, ..model };
    Ok(ImportedModel {
        model,
        vocabulary: keys.count("vocab_size", 128100)?,
        first_position: 0,
        prefix: "deberta.",
        old_names: &OLD_NAMES,
    })
}
