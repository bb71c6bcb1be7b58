//! The input formats. Each format has one file.

mod jsonl;
mod parquet;
mod sentences;
mod text;
mod wikipedia;

use super::format::FormatRegistry;

/// All input formats, in the order used in messages. To add a format, add its file and list it here.
pub const FORMATS: FormatRegistry = FormatRegistry::new(
    &text::TextFormat,
    &[&sentences::SentencesFormat, &jsonl::JsonlFormat, &parquet::ParquetFormat, &wikipedia::WikipediaFormat],
);
