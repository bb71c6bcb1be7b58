//! First step. Looks for the datasets of an earlier job with the same inputs and settings.

use lambert_dataset::{Corpus, Dataset, DatasetError};

use super::{JobContext, PrepError, PrepProgress, PreparedDataset, corpus, work_folder};

/// Returns the datasets if they all exist and match this job and corpus.
///
/// # Errors
/// One of the datasets belongs to another job: a held-out dataset of another job may have documents of the new `train`.
pub fn existing_datasets(
    job: &JobContext<'_>,
    threads: usize,
    progress: &dyn PrepProgress,
) -> Result<Option<Vec<PreparedDataset>>, PrepError> {
    let (train, held_out) = (find_dataset(job, "train")?, find_dataset(job, "held-out")?);
    let Some(found) = train else { return Ok(None) };
    let corpus = corpus::current(job, threads, progress)?;
    let train = check_corpus(found, &corpus)?;
    let held_out = held_out.map(|found| check_corpus(found, &corpus)).transpose()?;
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

/// Checks that the output folder exists or can be created, so that a job whose datasets cannot be written fails before it starts.
/// Does nothing for an object store.
///
/// # Errors
/// `output.url` is a file, or the folder cannot be created.
pub fn check_output_folder(job: &JobContext<'_>) -> Result<(), PrepError> {
    let Some(folder) = work_folder::local_path(&job.config.output.url) else { return Ok(()) };
    if folder.exists() && !folder.is_dir() {
        let message = format!("{} is a file; expected a folder, which is created if it is missing", folder.display());
        return Err(PrepError::InvalidSetting { key: "output.url".to_owned(), message });
    }
    let missing = || folder.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    let created: Vec<_> = missing().map(ToOwned::to_owned).collect();
    std::fs::create_dir_all(&folder)
        .and_then(|()| created.iter().try_for_each(std::fs::remove_dir))
        .map_err(|source| PrepError::WorkIo { operation: "create", path: folder.clone(), source })
}

/// Returns `found` if its corpus is `corpus`, and [`PrepError::DatasetExists`] otherwise.
pub fn check_corpus(found: PreparedDataset, corpus: &Corpus) -> Result<PreparedDataset, PrepError> {
    if found.manifest.corpus == *corpus { Ok(found) } else { Err(PrepError::DatasetExists { url: found.url }) }
}

/// URL of the dataset `split` of a job.
pub fn dataset_url(job: &JobContext<'_>, split: &str) -> String {
    format!("{}/{split}", job.config.output.url.trim_end_matches('/'))
}
