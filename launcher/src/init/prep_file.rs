//! The preparation file: a configuration of the folder configs, with the sources of the user.

use super::corpus::{HEADING, TextSource};
use super::document::Document;
use super::layout::Layout;
use super::run_file::dataset;
use crate::cli::Size;

/// Name of the vocabulary file; a run keeps its vocabulary under the same name.
pub const VOCABULARY: &str = lambert_store::run::VOCABULARY;

/// Returns the preparation file of the folder configs for a model of this size.
pub fn shipped(size: Size) -> Document {
    Document::parse(match size {
        Size::Small => include_str!("../../../configs/prep-books.toml"),
        _ => include_str!("../../../configs/prep-books-wiki-128.toml"),
    })
}

/// Builds the preparation file of the dataset with the sequence length `length`, tokens.
pub fn build(size: Size, sources: &[TextSource], length: u32, layout: &Layout) -> Document {
    let mut document = shipped(size);
    document.title = Vec::new();
    document.replace(HEADING, sources.iter().map(|source| source.section.clone()).collect());
    document.section("[output]").set("url", dataset(length));
    document.section("[vocabulary]").set("file", VOCABULARY);
    document.section("[samples]").set("sequence_length", i64::from(length));
    if layout.is_slurm {
        document.section("[slurm]").suggest("partition", "NAME").suggest("account", "NAME");
    }
    document
}

/// Vocabulary size, tokens. A small model would spend most of its parameters on the embeddings of a large vocabulary.
pub fn vocabulary_size(size: Size) -> u32 {
    if size == Size::Small { 8192 } else { 30522 }
}
