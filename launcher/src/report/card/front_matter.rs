//! YAML at the start of a model card: the metadata that the Hugging Face Hub reads.

/// Metadata that only the user knows.
#[derive(Debug, Clone, Default)]
pub struct CardLabels {
    /// License identifier of the Hub, such as `apache-2.0`.
    pub license: Option<String>,
    /// Language codes, such as `en`.
    pub languages: Vec<String>,
    /// Name on the Hub of the model whose weights the training started from.
    pub base_model: Option<String>,
}

/// Formats the front matter. `model_type` is the type in `config.json`, such as `bert`.
pub fn render(labels: &CardLabels, model_type: &str, is_discriminator: bool) -> String {
    let mut yaml = "---\nlibrary_name: transformers\n".to_owned();
    let objective = match is_discriminator {
        true => "replaced-token-detection",
        false => {
            yaml += "pipeline_tag: fill-mask\n";
            "masked-language-modeling"
        }
    };
    yaml += &list("tags", [model_type, objective, "lambert"].iter().copied());
    if let Some(license) = &labels.license {
        yaml += &format!("license: {}\n", quoted(license));
    }
    if !labels.languages.is_empty() {
        yaml += &list("language", labels.languages.iter().map(String::as_str));
    }
    if let Some(base) = &labels.base_model {
        yaml += &format!("base_model: {}\n", quoted(base));
    }
    yaml + "---\n"
}

fn list<'a>(key: &str, values: impl Iterator<Item = &'a str>) -> String {
    let lines: String = values.map(|value| format!("- {}\n", quoted(value))).collect();
    format!("{key}:\n{lines}")
}

/// Text in quotation marks, because `no` (Norwegian) without them is false. A JSON string is also a YAML string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_labels_are_left_out() {
        let bare = render(&CardLabels::default(), "bert", false);
        let tags = "tags:\n- \"bert\"\n- \"masked-language-modeling\"\n- \"lambert\"\n";
        assert_eq!(bare, format!("---\nlibrary_name: transformers\npipeline_tag: fill-mask\n{tags}---\n"));
        let license = Some("cc-by-4.0".to_owned());
        let labels = CardLabels { license, languages: vec!["no".to_owned()], base_model: Some("a/b".to_owned()) };
        let full = render(&labels, "bert", false);
        let end = "license: \"cc-by-4.0\"\nlanguage:\n- \"no\"\nbase_model: \"a/b\"\n---\n";
        assert!(full.ends_with(end), "{full}");
    }
}
