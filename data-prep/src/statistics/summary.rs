//! Statistics of a dataset, as in the JSON report.

use lambert_dataset::random::{Key, Permutation};
use lambert_dataset::tokenizer::Tokenizer;
use lambert_dataset::{Corpus, Counts, Dataset, DatasetError, HeldOut, RejectedExample, SourceCounts};
use serde::Serialize;

use super::ScanOptions;
use super::duplicates::DuplicateTable;
use super::tally::Tally;
use crate::inspect::{DecodedSample, InspectError, decode};

/// Number of tokens in each list of tokens.
const LISTED: usize = 30;
/// Number of repeated samples that are decoded.
const REPEATED: usize = 10;
/// Number of decoded examples.
const EXAMPLES: u64 = 3;

/// Statistics of a dataset.
#[derive(Debug, Clone, Serialize)]
pub struct DatasetStatistics {
    /// Dataset URL.
    pub url: String,
    /// SHA-256 of the manifest, which identifies the dataset.
    pub sha256: String,
    /// `train` or `held-out`.
    pub split: String,
    /// Corpus from which the dataset was made.
    pub corpus: Corpus,
    /// Counts in the manifest.
    pub counts: Counts,
    /// Number of shards.
    pub shards: usize,
    /// Size of all shards, bytes.
    pub bytes: u64,
    /// Entropy of the token frequencies of the whole dataset, nats.
    pub unigram_entropy: f64,
    /// Statistics of each source in the manifest, for both splits together.
    pub sources: Vec<SourceCounts>,
    /// Examples of what the preparation rejected or repaired, for both splits together.
    pub rejected: Vec<RejectedExample>,
    /// Achieved held-out fraction, if it misses the configured one.
    pub held_out: Option<HeldOut>,
    /// Samples that were read. The values below describe only these.
    pub read: ReadExtent,
    /// Lengths of samples.
    pub lengths: LengthStatistics,
    /// Use of the vocabulary.
    pub vocabulary: VocabularyStatistics,
    /// Words.
    pub words: WordStatistics,
    /// Duplicates.
    pub duplicates: DuplicateStatistics,
    /// Decoded samples from pseudo-random rows.
    pub examples: Vec<DecodedSample>,
}

/// Extent of a read.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct ReadExtent {
    /// Number of samples.
    pub samples: u64,
    /// Number of tokens, with special tokens.
    pub tokens: u64,
    /// True if all samples were read.
    pub is_complete: bool,
    /// Seed that chose the samples if not all were read.
    pub seed: Option<u64>,
}

/// Lengths of samples, in tokens with special tokens.
#[derive(Debug, Clone, Serialize)]
pub struct LengthStatistics {
    /// Maximum length of the dataset.
    pub sequence_length: usize,
    /// Minimum length.
    pub min: usize,
    /// Median length.
    pub median: usize,
    /// Mean length.
    pub mean: f64,
    /// Maximum length of the samples.
    pub max: usize,
    /// Fraction of padding tokens if every sample is padded to `sequence_length`.
    pub padding: f64,
    /// Length and number of samples, for each length that occurs.
    pub histogram: Vec<(usize, u64)>,
}

/// Use of the vocabulary. `[PAD]`, `[CLS]`, `[SEP]` and `[MASK]` are not counted.
#[derive(Debug, Clone, Serialize)]
pub struct VocabularyStatistics {
    /// Number of tokens in the vocabulary, with special tokens.
    pub size: usize,
    /// Number of different tokens that occur.
    pub used: usize,
    /// Number of tokens that never occur, without special tokens.
    pub never_used: usize,
    /// Fraction of tokens that are `[UNK]`.
    pub unknown: f64,
    /// Most frequent tokens.
    pub frequent: Vec<TokenCount>,
    /// Least frequent tokens among those that occur.
    pub rare: Vec<TokenCount>,
    /// Number of occurrences of the tokens that occur, most frequent first.
    #[serde(skip)]
    pub by_rank: Vec<u64>,
}

/// Frequency of a token.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenCount {
    /// ID.
    pub id: u32,
    /// Text in the vocabulary.
    pub token: String,
    /// Number of occurrences.
    pub count: u64,
    /// Fraction of all tokens without `[PAD]`, `[CLS]`, `[SEP]` and `[MASK]`.
    pub share: f64,
}

/// Words. A word is split into tokens if the vocabulary lacks it.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct WordStatistics {
    /// Number of words, with words that became `[UNK]`.
    pub words: u64,
    /// Fraction of words that are one token.
    pub single_token: f64,
    /// Number of tokens that continue a word (`##ing`).
    pub continuations: u64,
}

/// Samples with the same token IDs as another sample.
#[derive(Debug, Clone, Serialize)]
pub struct DuplicateStatistics {
    /// Number of distinct samples. An estimate if `hash_share` is below 1.
    pub distinct: u64,
    /// Number of samples that repeat another sample. An estimate if `hash_share` is below 1.
    pub repeated: u64,
    /// Fraction of the samples read that repeat another sample.
    pub share: f64,
    /// Fraction of distinct samples that were counted: 1, or less if there are too many for the memory.
    pub hash_share: f64,
    /// Most frequent repeated samples.
    pub most_frequent: Vec<RepeatedSample>,
    /// Number of documents that the preparation removed because they equal or resemble another document.
    pub removed_documents: u64,
}

/// Sample that occurs more than once.
#[derive(Debug, Clone, Serialize)]
pub struct RepeatedSample {
    /// Number of occurrences.
    pub count: u64,
    /// Its first occurrence.
    #[serde(flatten)]
    pub sample: DecodedSample,
}

/// Summarizes the counts of a scan.
pub fn summarize(
    dataset: &Dataset,
    tokenizer: &Tokenizer,
    tally: Tally,
    table: &DuplicateTable,
    options: &ScanOptions<'_>,
) -> Result<DatasetStatistics, InspectError> {
    let manifest = dataset.manifest();
    let lengths = lengths(&tally.lengths, manifest.sequence_length);
    let samples = lengths.histogram.iter().map(|(_, count)| count).sum();
    let is_complete = samples == dataset.rows();
    let repeated = |found: super::duplicates::Occurrences| -> Result<RepeatedSample, DatasetError> {
        Ok(RepeatedSample { count: found.count, sample: decode(dataset, tokenizer, found.first_row)? })
    };
    let estimate = |count: u64| (count as f64 / table.share()).round() as u64;
    let copies = table.samples() - table.distinct();
    let duplicates = DuplicateStatistics {
        distinct: estimate(table.distinct()),
        repeated: estimate(copies),
        share: ratio(copies, table.samples()),
        hash_share: table.share(),
        most_frequent: table.most_frequent(REPEATED).into_iter().map(repeated).collect::<Result<_, _>>()?,
        // An untrusted manifest may have any counts.
        removed_documents: manifest.sources.iter().fold(0, |sum, source| sum.saturating_add(source.duplicates)),
    };
    let order = Permutation::new(dataset.rows(), Key::new(options.seed));
    let examples = (0..EXAMPLES.min(dataset.rows())).map(|index| decode(dataset, tokenizer, order.at(index)));
    Ok(DatasetStatistics {
        url: dataset.url().to_owned(),
        sha256: dataset.manifest_sha256().to_owned(),
        split: manifest.split.clone(),
        corpus: manifest.corpus.clone(),
        counts: manifest.counts.clone(),
        shards: manifest.shards.len(),
        bytes: manifest.shard_bytes(),
        unigram_entropy: manifest.unigram_entropy,
        sources: manifest.sources.clone(),
        rejected: dataset.rejected()?,
        held_out: manifest.held_out.clone(),
        read: ReadExtent {
            samples,
            tokens: tally.tokens.iter().sum(),
            is_complete,
            seed: (!is_complete).then_some(options.seed),
        },
        vocabulary: vocabulary(tally.tokens, tokenizer),
        words: WordStatistics {
            words: tally.words,
            single_token: ratio(tally.single_token_words, tally.words),
            continuations: tally.continuations,
        },
        lengths,
        duplicates,
        examples: examples.collect::<Result<_, _>>()?,
    })
}

fn lengths(counts: &[u64], sequence_length: usize) -> LengthStatistics {
    let histogram: Vec<(usize, u64)> =
        counts.iter().enumerate().filter(|(_, count)| **count > 0).map(|(length, count)| (length, *count)).collect();
    let samples: u64 = histogram.iter().map(|(_, count)| count).sum();
    let tokens: u64 = histogram.iter().map(|(length, count)| *length as u64 * count).sum();
    let mut before = 0;
    let median = histogram.iter().find(|(_, count)| {
        before += count;
        2 * before > samples
    });
    LengthStatistics {
        sequence_length,
        min: histogram.first().map_or(0, |(length, _)| *length),
        median: median.map_or(0, |(length, _)| *length),
        mean: ratio(tokens, samples),
        max: histogram.last().map_or(0, |(length, _)| *length),
        padding: if samples == 0 { 0.0 } else { 1.0 - tokens as f64 / (samples as f64 * sequence_length as f64) },
        histogram,
    }
}

fn vocabulary(mut counts: Vec<u64>, tokenizer: &Tokenizer) -> VocabularyStatistics {
    let special = tokenizer.special();
    for id in [special.pad, special.cls, special.sep, special.mask] {
        counts[id as usize] = 0;
    }
    let total = counts.iter().sum();
    let is_candidate = |id: u32| !special.contains(id);
    let mut used: Vec<(u32, u64)> =
        (0..).zip(&counts).filter(|(_, count)| **count > 0).map(|(id, n)| (id, *n)).collect();
    used.sort_by_key(|(id, count)| (std::cmp::Reverse(*count), *id));
    let token = |&(id, count): &(u32, u64)| {
        let token = tokenizer.piece(id).to_owned();
        TokenCount { id, token, count, share: ratio(count, total) }
    };
    VocabularyStatistics {
        size: counts.len(),
        used: used.len(),
        never_used: (0..).zip(&counts).filter(|(id, count)| is_candidate(*id) && **count == 0).count(),
        unknown: ratio(counts[special.unk as usize], total),
        frequent: used.iter().take(LISTED).map(token).collect(),
        rare: used.iter().rev().take(LISTED).map(token).collect(),
        by_rank: used.iter().map(|(_, count)| *count).collect(),
    }
}

fn ratio(count: u64, total: u64) -> f64 {
    if total == 0 { 0.0 } else { count as f64 / total as f64 }
}
