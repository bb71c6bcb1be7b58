//! Inspection of a dataset: its manifest, and some samples decoded to text.

use serde::Serialize;

use lambert_dataset::random::{Key, Permutation};
use lambert_dataset::tokenizer::{Tokenizer, TokenizerError};
use lambert_dataset::{Dataset, DatasetError, Manifest, NO_PAIR};

/// Result of [`inspect()`].
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// Dataset URL.
    pub url: String,
    /// SHA-256 of the manifest, which identifies the dataset.
    pub sha256: String,
    /// Manifest.
    pub manifest: Manifest,
    /// True if every file was hashed and every row was read.
    pub verified: bool,
    /// Samples from pseudo-random rows of the dataset. A dataset always yields the same samples.
    pub samples: Vec<DecodedSample>,
}

/// A sample decoded to text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DecodedSample {
    /// Row number in the dataset.
    pub row: u64,
    /// Number of tokens, including special tokens.
    pub length: usize,
    /// First segment, without `[CLS]` and `[SEP]`.
    pub first: String,
    /// Second segment, if any.
    pub second: Option<String>,
    /// True if the second segment was replaced (NSP) or swapped (SOP). `None` without a pair objective.
    pub pair_label: Option<bool>,
}

/// Failure to inspect a dataset.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The dataset cannot be read.
    #[error("cannot read the dataset")]
    Dataset(#[from] DatasetError),
    /// The vocabulary cannot be used.
    #[error("cannot decode the samples")]
    Tokenizer(#[from] TokenizerError),
}

/// Opens the dataset at `url` and decodes up to `samples` rows. If `verify`, also hashes every file and reads every
/// row.
///
/// # Errors
/// The dataset or its vocabulary cannot be read, or verification fails.
pub fn inspect(url: &str, samples: usize, verify: bool) -> Result<Inspection, InspectError> {
    inspect_dataset(url, &Dataset::open(url)?, samples, verify, |_, _| {})
}

/// Like [`inspect()`], for an open dataset. While it reads every row, calls `progress` with the number of rows that were
/// read and their total number.
///
/// # Errors
/// As for [`inspect()`].
pub fn inspect_dataset(
    url: &str,
    dataset: &Dataset,
    samples: usize,
    verify: bool,
    progress: impl Fn(u64, u64),
) -> Result<Inspection, InspectError> {
    if verify {
        dataset.verify_files()?;
        progress(0, dataset.rows());
        dataset.verify_rows(|rows| progress(rows, dataset.rows()))?;
    }
    let manifest = dataset.manifest().clone();
    let tokenizer = Tokenizer::named(&dataset.vocabulary()?, manifest.lowercase, &dataset.vocabulary_url())?;
    let permutation = Permutation::new(dataset.rows(), Key::new(0));
    let samples = (0..dataset.rows().min(samples as u64))
        .map(|index| decode(dataset, &tokenizer, permutation.at(index)))
        .collect::<Result<_, _>>()?;
    let sha256 = dataset.manifest_sha256().to_owned();
    Ok(Inspection { url: url.to_owned(), sha256, manifest, verified: verify, samples })
}

/// Decodes the sample in a row.
pub(crate) fn decode(dataset: &Dataset, tokenizer: &Tokenizer, row: u64) -> Result<DecodedSample, DatasetError> {
    let group = dataset.row_groups().partition_point(|group| group.first_row <= row) - 1;
    let samples = dataset.read(group)?;
    let index = (row - dataset.row_groups()[group].first_row) as usize;
    let (ids, start) = (samples.ids(index), usize::from(samples.segment_b_start[index]));
    let framed = |ids: &[u32]| {
        let special = tokenizer.special();
        let inner: Vec<u32> = ids.iter().copied().filter(|&id| id != special.cls && id != special.sep).collect();
        tokenizer.decode(&inner)
    };
    let (first, second) = if start == 0 { (ids, None) } else { (&ids[..start], Some(framed(&ids[start..]))) };
    let pair_label = match samples.pair_label[index] {
        NO_PAIR => None,
        label => Some(label == 1),
    };
    Ok(DecodedSample { row, length: ids.len(), first: framed(first), second, pair_label })
}
