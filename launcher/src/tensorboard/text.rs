//! Text summaries, which TensorBoard renders as Markdown.

use super::proto::{Event, Metadata, PluginData, STRING, Shape, Summary, Tensor, Value};

/// Returns an event with a text summary at step 0.
pub fn event(wall_time: f64, tag: &str, markdown: &str) -> Event {
    let plugin_data = Some(PluginData { plugin_name: "text".to_owned(), ..PluginData::default() });
    let string_val = vec![markdown.as_bytes().to_vec()];
    let tensor = Some(Tensor { dtype: STRING, tensor_shape: Some(Shape {}), string_val, ..Tensor::default() });
    let metadata = Some(Metadata { plugin_data });
    let value = vec![Value { tag: tag.to_owned(), tensor, metadata, ..Value::default() }];
    Event { wall_time, summary: Some(Summary { value }), ..Event::default() }
}

/// Indents `text` as a code block.
pub fn code(text: &str) -> String {
    text.lines().map(|line| format!("    {line}\n")).collect()
}
