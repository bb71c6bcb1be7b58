//! The input formats: a file each, and the list of them.

mod jsonl;
mod parquet;
mod sentences;
mod text;
mod wikipedia;

use super::format::Registry;

/// Every input format, in the order in which messages name them. A new one is its file and a line here.
pub const FORMATS: Registry =
    Registry::new(&text::Text, &[&sentences::Sentences, &jsonl::JsonLines, &parquet::Parquet, &wikipedia::Wikipedia]);
