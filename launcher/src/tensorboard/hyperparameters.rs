//! Hyperparameters of a run for TensorBoard's hparams plugin.

use std::collections::BTreeMap;

use prost::Message;
use toml::Value;

use super::proto;
use super::proto::{
    Event, FLOAT, HParamsPluginData, HyperparameterValue, Metadata, PluginData, SessionStartInfo, Shape, Summary,
    Tensor,
};

/// Tag that the plugin expects.
const TAG: &str = "_hparams_/session_start_info";

/// Returns an event with the numbers, strings and booleans of a configuration. The name of each value is its key, for
/// example `stage.0.steps`.
pub fn event(wall_time: f64, config: &Value) -> Event {
    let mut hparams = BTreeMap::new();
    collect("", config, &mut hparams);
    let session = SessionStartInfo { hparams, group_name: String::new(), start_time_secs: wall_time };
    let content = HParamsPluginData { version: 0, session_start_info: Some(session) }.encode_to_vec();
    let plugin_data = Some(PluginData { plugin_name: "hparams".to_owned(), content });
    let tensor = Tensor { dtype: FLOAT, tensor_shape: Some(Shape {}), float_val: vec![0.0], ..Tensor::default() };
    let metadata = Some(Metadata { plugin_data });
    let value = proto::Value { tag: TAG.to_owned(), tensor: Some(tensor), metadata, ..proto::Value::default() };
    Event { wall_time, summary: Some(Summary { value: vec![value] }), ..Event::default() }
}

fn collect(key: &str, value: &Value, found: &mut BTreeMap<String, HyperparameterValue>) {
    let inner = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    let mut leaf = HyperparameterValue::default();
    match value {
        Value::Table(table) => return table.iter().for_each(|(name, value)| collect(&inner(name), value, found)),
        Value::Array(values) => {
            return values
                .iter()
                .enumerate()
                .for_each(|(index, value)| collect(&inner(&index.to_string()), value, found));
        }
        Value::Integer(number) => leaf.number_value = Some(*number as f64),
        Value::Float(number) => leaf.number_value = Some(*number),
        Value::Boolean(flag) => leaf.bool_value = Some(*flag),
        Value::String(text) => leaf.string_value = Some(text.clone()),
        Value::Datetime(time) => leaf.string_value = Some(time.to_string()),
    }
    found.insert(key.to_owned(), leaf);
}
