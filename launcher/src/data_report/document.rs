//! Report of a dataset as headings, tables and charts.

use lambert_data_prep::inspect::DecodedSample;
use lambert_data_prep::statistics::{DatasetStatistics, TokenCount};
use lambert_dataset::{MANIFEST, RejectedExample, SourceCounts};

use super::chart;
use crate::report::chart::ChartError;
use crate::report::document::{Block, head};
use crate::text::{counted, percent, size};

/// Builds the report.
///
/// # Errors
/// A chart that cannot be drawn.
pub fn build(dataset: &DatasetStatistics) -> Result<Vec<Block>, ChartError> {
    let mut blocks = vec![heading("Dataset"), Block::Table(counts(dataset)), Block::Paragraph(extent(dataset))];
    if !dataset.sources.is_empty() {
        blocks.extend([heading("Sources"), Block::Table(sources(&dataset.sources))]);
        blocks.push(paragraph("Sources are counted for both splits together."));
    }
    if !dataset.counts.rejected.is_empty() {
        let rows = dataset.counts.rejected.iter().map(|(reason, count)| vec![reason.clone(), count.to_string()]);
        blocks.extend([heading("Left out or repaired"), with_head(&["reason", "count"], rows)]);
        blocks.push(paragraph("The counts cover both splits."));
    }
    if !dataset.rejected.is_empty() {
        let names = ["reason", "file", "place", "start of the text"];
        blocks.push(heading("Left out or repaired: the first of each reason"));
        blocks.push(with_head(&names, dataset.rejected.iter().map(rejected)));
    }
    let lengths = &dataset.lengths;
    let picture = chart::lengths(&lengths.histogram, lengths.sequence_length)?;
    blocks.extend([heading("Lengths"), Block::Picture(picture, "Number of samples by length in tokens".to_owned())]);
    blocks.extend([Block::Table(length_rows(dataset)), heading("Tokens"), Block::Table(token_rows(dataset))]);
    let picture = chart::frequencies(&dataset.vocabulary.by_rank)?;
    blocks.push(Block::Picture(picture, "Occurrences of each token, by rank".to_owned()));
    for (title, tokens) in
        [("Most frequent tokens", &dataset.vocabulary.frequent), ("Least frequent tokens", &dataset.vocabulary.rare)]
    {
        blocks.extend([heading(title), with_head(&["token", "id", "count", "share"], tokens.iter().map(token))]);
    }
    blocks.extend(duplicates(dataset));
    if !dataset.examples.is_empty() {
        blocks.push(heading("Examples"));
        blocks.push(with_head(
            &["row", "tokens", "first segment", "second segment"],
            dataset.examples.iter().map(sample),
        ));
    }
    blocks.push(Block::Paragraph(format!("Written by lambert {}.", lambert_control::version_text())));
    Ok(blocks)
}

fn heading(text: &str) -> Block {
    Block::Heading(text.to_owned())
}

fn paragraph(text: &str) -> Block {
    Block::Paragraph(text.to_owned())
}

fn with_head(names: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Block {
    Block::Table(std::iter::once(head(names)).chain(rows).collect())
}

/// Table of two columns.
fn pairs(rows: &[(&str, String)]) -> Vec<Vec<String>> {
    let rows = rows.iter().map(|(name, value)| vec![(*name).to_owned(), value.clone()]);
    std::iter::once(head(&["property", "value"])).chain(rows).collect()
}

fn counts(dataset: &DatasetStatistics) -> Vec<Vec<String>> {
    let counts = &dataset.counts;
    let mut rows = vec![
        ("split", dataset.split.clone()),
        ("documents", counts.documents.to_string()),
        ("sentences", counts.sentences.to_string()),
        ("samples", counts.samples.to_string()),
        ("tokens", counts.tokens.to_string()),
        ("shards", format!("{} ({})", dataset.shards, size(dataset.bytes))),
        ("unigram entropy", format!("{:.4} nats/token", dataset.unigram_entropy)),
    ];
    if let Some(held_out) = &dataset.held_out {
        let (achieved, configured) = (percent(held_out.achieved), percent(held_out.configured));
        rows.push(("held-out share", format!("{achieved} ({configured} requested)")));
    }
    let sha256 = format!("SHA-256 of {MANIFEST}");
    rows.push((&sha256, dataset.sha256.clone()));
    if !dataset.corpus.sha256.is_empty() {
        rows.push(("SHA-256 of the corpus", dataset.corpus.sha256.clone()));
    }
    pairs(&rows)
}

fn rejected(example: &RejectedExample) -> Vec<String> {
    let offset = example.offset.map(|offset| format!("position {offset}"));
    let place = offset.or_else(|| example.document.map(|document| format!("document {document}")));
    let title = example.title.as_ref().map(|title| format!("title: {title}"));
    let text = title.unwrap_or_else(|| example.text.clone());
    vec![example.reason.clone(), example.file.clone(), place.unwrap_or_default(), text]
}

/// States which samples the report describes.
fn extent(dataset: &DatasetStatistics) -> String {
    let (read, all) = (&dataset.read, dataset.counts.samples);
    match read.seed {
        None => format!("All {} were read.", counted(read.samples, "sample")),
        Some(seed) => format!(
            "{} of {all} samples ({}) were read, in row groups chosen with seed {seed}. Lengths, tokens and duplicates \
             below describe only these. Repetitions of samples that were not read are missing.",
            read.samples,
            percent(read.samples as f64 / all.max(1) as f64)
        ),
    }
}

fn sources(sources: &[SourceCounts]) -> Vec<Vec<String>> {
    let names =
        ["source", "format", "files", "stored", "text", "documents", "used", "duplicates", "sentences", "tokens"];
    let row = |(number, source): (usize, &SourceCounts)| {
        vec![
            number.to_string(),
            format!("{}{}", source.format, if source.excluded { " (excluded)" } else { "" }),
            source.files.to_string(),
            size(source.stored_bytes),
            size(source.text_bytes),
            source.found.to_string(),
            source.documents.to_string(),
            source.duplicates.to_string(),
            source.sentences.to_string(),
            source.tokens.to_string(),
        ]
    };
    std::iter::once(head(&names)).chain(sources.iter().enumerate().map(row)).collect()
}

fn length_rows(dataset: &DatasetStatistics) -> Vec<Vec<String>> {
    let lengths = &dataset.lengths;
    pairs(&[
        ("maximum of the dataset", format!("{} tokens", lengths.sequence_length)),
        ("shortest, longest sample", format!("{}, {} tokens", lengths.min, lengths.max)),
        ("median", format!("{} tokens", lengths.median)),
        ("mean", format!("{:.1} tokens", lengths.mean)),
        ("padding at the maximum", percent(lengths.padding)),
    ])
}

fn token_rows(dataset: &DatasetStatistics) -> Vec<Vec<String>> {
    let (vocabulary, words) = (&dataset.vocabulary, &dataset.words);
    pairs(&[
        ("vocabulary", format!("{} tokens", vocabulary.size)),
        ("used", format!("{} tokens", vocabulary.used)),
        ("never used", format!("{} tokens", vocabulary.never_used)),
        ("[UNK]", format!("{:.3}% of the tokens", 100.0 * vocabulary.unknown)),
        ("words", words.words.to_string()),
        ("words of one token", percent(words.single_token)),
        ("tokens that continue a word", words.continuations.to_string()),
    ])
}

fn token(token: &TokenCount) -> Vec<String> {
    let share = format!("{:.3}%", 100.0 * token.share);
    vec![token.token.clone(), token.id.to_string(), token.count.to_string(), share]
}

fn duplicates(dataset: &DatasetStatistics) -> Vec<Block> {
    let duplicates = &dataset.duplicates;
    let rows = pairs(&[
        ("distinct samples", duplicates.distinct.to_string()),
        ("repetitions", format!("{} ({})", duplicates.repeated, percent(duplicates.share))),
        ("documents removed by the preparation", duplicates.removed_documents.to_string()),
    ]);
    let mut blocks = vec![heading("Duplicates"), Block::Table(rows)];
    blocks.push(paragraph("Duplicates are samples with the same token IDs."));
    if duplicates.hash_share < 1.0 {
        let share = format!("1/{:.0}", 1.0 / duplicates.hash_share);
        blocks.push(Block::Paragraph(format!(
            "To bound memory use, these numbers are estimated from {share} of the distinct samples, selected by hash."
        )));
    }
    if !duplicates.most_frequent.is_empty() {
        let row = |repeated: &lambert_data_prep::statistics::RepeatedSample| {
            std::iter::once(repeated.count.to_string()).chain(sample(&repeated.sample)).collect()
        };
        let names = ["occurrences", "row", "tokens", "first segment", "second segment"];
        blocks.extend([heading("Most frequent samples"), with_head(&names, duplicates.most_frequent.iter().map(row))]);
    }
    blocks
}

fn sample(sample: &DecodedSample) -> Vec<String> {
    let second = sample.second.clone().unwrap_or_default();
    vec![sample.row.to_string(), sample.length.to_string(), sample.first.clone(), second]
}
