//! Statistics of a dataset from its samples: lengths, token frequencies, words and duplicates. The memory is bounded for
//! datasets of any size: one row group per thread, one count per token of the vocabulary and thread, and a table of at
//! most [`MAX_HASHES`] hashes.

mod duplicates;
mod rows;
mod summary;
mod tally;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use lambert_dataset::parallel::parallel;
use lambert_dataset::tokenizer::Tokenizer;
use lambert_dataset::{Dataset, DatasetError};

use crate::inspect::InspectError;
pub use duplicates::MAX_HASHES;
use duplicates::{DuplicateTable, hash};
pub use summary::{
    DatasetStatistics, DuplicateStatistics, LengthStatistics, ReadExtent, RepeatedSample, TokenCount,
    VocabularyStatistics, WordStatistics,
};
use tally::{Tally, TokenKinds};

/// Options of a scan.
pub struct ScanOptions<'a> {
    /// Number of threads.
    pub threads: usize,
    /// Minimum number of samples to read. `None`: all.
    pub samples: Option<u64>,
    /// Seed that chooses the samples if not all are read.
    pub seed: u64,
    /// Called with the number of samples that were read, and of those to read.
    pub progress: &'a (dyn Fn(u64, u64) + Sync),
}

/// Reads the dataset at `url` and returns its statistics. They do not depend on the number of threads.
///
/// # Errors
/// The dataset or its vocabulary cannot be read, or a shard is damaged.
pub fn scan(url: &str, options: &ScanOptions<'_>) -> Result<DatasetStatistics, InspectError> {
    let dataset = Dataset::open(url)?;
    let lowercase = dataset.manifest().lowercase;
    let tokenizer = Tokenizer::named(&dataset.vocabulary()?, lowercase, &dataset.vocabulary_url())?;
    let groups = rows::chosen(dataset.row_groups(), dataset.rows(), options);
    let (tally, duplicates) = read(&dataset, &tokenizer, &groups, options)?;
    summary::summarize(&dataset, &tokenizer, tally, &duplicates, options)
}

/// Reads row groups on several threads.
fn read(
    dataset: &Dataset,
    tokenizer: &Tokenizer,
    groups: &[usize],
    options: &ScanOptions<'_>,
) -> Result<(Tally, DuplicateTable), DatasetError> {
    let total = groups.iter().map(|group| dataset.row_groups()[*group].rows).sum();
    let (next, done) = (AtomicUsize::new(0), AtomicU64::new(0));
    let duplicates = Mutex::new(DuplicateTable::new(total));
    let kinds = TokenKinds::new(tokenizer);
    let work = |_| -> Result<Tally, DatasetError> {
        let mut tally = Tally::new(dataset.manifest());
        while let Some(&group) = groups.get(next.fetch_add(1, Ordering::Relaxed)) {
            // After a failure the other threads stop, too.
            let samples = dataset.read(group).inspect_err(|_| next.store(groups.len(), Ordering::Relaxed))?;
            let first_row = dataset.row_groups()[group].first_row;
            let rows = (0..samples.rows()).map(|row| (first_row + row as u64, samples.ids(row)));
            let hashes: Vec<(u64, u64)> = rows.clone().map(|(row, ids)| (hash(ids), row)).collect();
            duplicates.lock().unwrap_or_else(PoisonError::into_inner).add(&hashes);
            rows.for_each(|(_, ids)| tally.add(ids, &kinds));
            let rows = samples.rows() as u64;
            (options.progress)(done.fetch_add(rows, Ordering::Relaxed) + rows, total);
        }
        Ok(tally)
    };
    let threads = options.threads.max(1);
    let tallies = parallel(threads, threads, work)?;
    let mut sum = Tally::new(dataset.manifest());
    tallies.iter().for_each(|tally| sum.merge(tally));
    Ok((sum, duplicates.into_inner().unwrap_or_else(PoisonError::into_inner)))
}
