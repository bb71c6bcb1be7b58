//! First step. Looks for the datasets of an earlier job with the same inputs and settings.

use lambert_dataset::{Corpus, Dataset, DatasetError};

use super::{JobContext, PrepError, PrepProgress, PreparedDataset, corpus};

/// Returns the datasets if they all exist and match this job and corpus.
pub fn existing_datasets(
    job: &JobContext<'_>,
    threads: usize,
    progress: &dyn PrepProgress,
) -> Result<Option<Vec<PreparedDataset>>, PrepError> {
    let Some(found) = find_dataset(job, "train")? else { return Ok(None) };
    let corpus = corpus::current(job, threads, progress)?;
    let train = check_corpus(found, &corpus)?;
    let held_out = find_dataset(job, "held-out")?.map(|found| check_corpus(found, &corpus)).transpose()?;
    Ok(Some(std::iter::once(train).chain(held_out).collect()))
}

/// Returns an existing dataset of this job.
///
/// # Errors
/// The dataset belongs to another job or cannot be read.
pub fn find_dataset(job: &JobContext<'_>, split: &str) -> Result<Option<PreparedDataset>, PrepError> {
    let url = dataset_url(job, split);
    match Dataset::open(&url) {
        Ok(dataset) if dataset.manifest().preparation == job.fingerprint => {
            Ok(Some(PreparedDataset { url, manifest: dataset.manifest().clone() }))
        }
        Err(DatasetError::NoManifest { .. }) => Ok(None),
        Ok(_) => Err(PrepError::DatasetExists { url }),
        Err(error) => Err(error.into()),
    }
}

/// Returns `found` if its corpus is `corpus`, and [`PrepError::DatasetExists`] otherwise.
pub fn check_corpus(found: PreparedDataset, corpus: &Corpus) -> Result<PreparedDataset, PrepError> {
    if found.manifest.corpus == *corpus { Ok(found) } else { Err(PrepError::DatasetExists { url: found.url }) }
}

/// URL of the dataset `split` of a job.
pub fn dataset_url(job: &JobContext<'_>, split: &str) -> String {
    format!("{}/{split}", job.config.output.url.trim_end_matches('/'))
}
