//! Comments from the JSON schemas, which have the descriptions of all sections and keys.

use serde_json::Value;

use super::document::Comments;

/// JSON schema of a configuration file.
pub struct Schema {
    /// File name.
    pub name: &'static str,
    /// Content of the file.
    pub text: &'static str,
    root: Value,
}

impl Schema {
    /// Schema of run files.
    pub fn run() -> Self {
        Self::new("run.schema.json", include_str!("../../../configs/run.schema.json"))
    }

    /// Schema of preparation files.
    pub fn prep() -> Self {
        Self::new("prep.schema.json", include_str!("../../../configs/prep.schema.json"))
    }

    fn new(name: &'static str, text: &'static str) -> Self {
        Self { name, text, root: serde_json::from_str(text).unwrap_or_default() }
    }

    /// Node of a dotted path, before its reference is followed.
    fn node(&self, path: &str) -> Option<&Value> {
        path.split('.').try_fold(&self.root, |node, key| {
            let node = self.resolve(node);
            let items = node.get("items").map_or(node, |items| self.resolve(items));
            items.get("properties")?.get(key)
        })
    }

    fn resolve<'a>(&'a self, node: &'a Value) -> &'a Value {
        let pointer = node["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
        pointer.and_then(|pointer| self.root.pointer(pointer)).unwrap_or(node)
    }
}

/// First paragraph of a description.
fn summary(node: &Value) -> Option<String> {
    Some(node["description"].as_str()?.split("\n\n").next()?.replace('`', ""))
}

impl Comments for Schema {
    fn of_section(&self, section: &str) -> Option<String> {
        let node = self.resolve(self.node(section)?);
        summary(node.get("items").map_or(node, |items| self.resolve(items)))
    }

    /// Description and, for a choice, the permitted values.
    fn of_key(&self, section: &str, key: &str) -> Option<String> {
        let node = self.node(&format!("{section}.{key}"))?;
        let choices = self.resolve(node)["oneOf"].as_array().map_or(&[][..], Vec::as_slice);
        let values: Vec<&str> = choices.iter().filter_map(|choice| choice["const"].as_str()).collect();
        let values = if values.is_empty() { String::new() } else { format!(" Values: {}.", values.join(", ")) };
        Some(summary(node)? + &values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_descriptions_with_the_permitted_values() {
        let run = Schema::run();
        assert_eq!(run.of_section("model").as_deref(), Some("Encoder."));
        assert_eq!(run.of_key("stage", "learning_rate").as_deref(), Some("Peak learning rate."));
        assert_eq!(run.of_section("stage").as_deref(), Some("Stage of a run."));
        let decay = "Shape of the decay. Values: linear, polynomial, cosine, one-minus-sqrt, inverse-sqrt, constant.";
        assert_eq!(run.of_key("stage", "decay").as_deref(), Some(decay));
        assert!(run.of_key("cluster", "all_reduce.backend").unwrap().contains("nccl"));
        assert_eq!(run.of_key("stage", "no_such_key"), None);
        let documents = Schema::prep().of_key("source", "documents").unwrap();
        assert!(documents.starts_with("Document boundaries. ") && documents.ends_with("row, sentence."), "{documents}");
    }
}
