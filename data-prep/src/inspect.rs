//! A dataset for a person to look at: its manifest and some samples as text.

use serde::Serialize;

use lambert_dataset::random::{Key, Permutation};
use lambert_dataset::tokenizer::{Tokenizer, TokenizerError};
use lambert_dataset::{Dataset, DatasetError, Manifest, NO_PAIR};

/// What [`inspect()`] found.
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// Where the dataset is.
    pub url: String,
    /// Its identity: the sha256 of its manifest.
    pub sha256: String,
    /// Its manifest.
    pub manifest: Manifest,
    /// Whether every file was hashed and every row read.
    pub verified: bool,
    /// Samples from all over the dataset, always the same ones.
    pub samples: Vec<Decoded>,
}

/// A sample as text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decoded {
    /// Its number in the dataset.
    pub row: u64,
    /// Tokens, special pieces included.
    pub length: usize,
    /// The first segment, without `[CLS]` and `[SEP]`.
    pub first: String,
    /// The second segment, if there is one.
    pub second: Option<String>,
    /// Whether the second segment was replaced or swapped; `None` without a pair objective.
    pub pair_label: Option<bool>,
}

/// Why a dataset cannot be inspected.
#[derive(Debug, thiserror::Error)]
pub enum InspectError {
    /// The dataset cannot be read.
    #[error("cannot inspect the dataset")]
    Dataset(#[from] DatasetError),
    /// Its vocabulary cannot be used.
    #[error("cannot decode the samples")]
    Tokenizer(#[from] TokenizerError),
}

/// Opens the dataset at `url` and decodes up to `samples` of its rows; `verify` also re-hashes and reads everything.
///
/// # Errors
/// The first thing that is wrong with the dataset.
pub fn inspect(url: &str, samples: usize, verify: bool) -> Result<Inspection, InspectError> {
    let dataset = Dataset::open(url)?;
    if verify {
        dataset.verify()?;
    }
    let manifest = dataset.manifest().clone();
    let tokenizer = Tokenizer::named(&dataset.vocabulary()?, manifest.lowercase, &format!("{url}/vocab.txt"))?;
    let permutation = Permutation::new(dataset.rows(), Key::new(0));
    let samples = (0..dataset.rows().min(samples as u64))
        .map(|index| decode(&dataset, &tokenizer, permutation.at(index)))
        .collect::<Result<_, _>>()?;
    let sha256 = dataset.manifest_sha256().to_owned();
    Ok(Inspection { url: url.to_owned(), sha256, manifest, verified: verify, samples })
}

fn decode(dataset: &Dataset, tokenizer: &Tokenizer, row: u64) -> Result<Decoded, DatasetError> {
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
    Ok(Decoded { row, length: ids.len(), first: framed(first), second, pair_label })
}
