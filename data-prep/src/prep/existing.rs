//! First step. Looks for the datasets of an earlier job with the same inputs and settings.

use std::path::Path;

use lambert_dataset::{Corpus, Dataset, DatasetError, Manifest};
use rustix::fs::Access;
use rustix::io::Errno;

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
    // The held-out dataset was removed later: `train` is published last.
    if held_out.is_none() && has_held_out(&train.manifest) {
        return Ok(None);
    }
    Ok(Some(std::iter::once(train).chain(held_out).collect()))
}

/// True if the preparation of `train` also wrote a held-out dataset.
fn has_held_out(train: &Manifest) -> bool {
    let used: u64 = train.sources.iter().filter(|source| !source.excluded).map(|source| source.documents).sum();
    // The share is only recorded if documents were selected for it.
    match &train.held_out {
        Some(share) => share.achieved > 0.0,
        None => train.samples.held_out > 0.0 && used > train.counts.documents,
    }
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

/// Checks that the folders of the datasets are writable or can be created, so that a job whose datasets cannot be written fails
/// before it starts. Does nothing for an object store.
///
/// # Errors
/// `output.url` is a file, or a folder is read-only or cannot be created.
pub fn check_output_folder(job: &JobContext<'_>) -> Result<(), PrepError> {
    let Some(folder) = work_folder::local_path(&job.config.output.url) else { return Ok(()) };
    if folder.exists() && !folder.is_dir() {
        let message = format!("{} is a file; expected a folder, which is created if it is missing", folder.display());
        return Err(PrepError::InvalidSetting { key: "output.url".to_owned(), message });
    }
    let splits = if job.config.samples.held_out > 0.0 { &["train", "held-out"][..] } else { &["train"] };
    splits.iter().try_for_each(|split| check_writable(&folder.join(split)))
}

/// Checks the nearest existing folder above `path`, or `path` itself. Nothing is created, because another process may create
/// the same folder at that moment.
fn check_writable(path: &Path) -> Result<(), PrepError> {
    let mut above = path.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    // A link without target counts: a folder cannot have its name.
    let nearest = above.find(|path| path.symlink_metadata().is_ok()).unwrap_or(Path::new("/"));
    let writable = match nearest.is_dir() {
        true => rustix::fs::access(nearest, Access::WRITE_OK | Access::EXEC_OK),
        false => Err(Errno::NOTDIR),
    };
    let operation = if nearest == path { "write to" } else { "create" };
    writable.map_err(|source| PrepError::WorkIo { operation, path: path.to_owned(), source: source.into() })
}

/// Returns `found` if its corpus is `corpus`, and [`PrepError::DatasetExists`] otherwise.
pub fn check_corpus(found: PreparedDataset, corpus: &Corpus) -> Result<PreparedDataset, PrepError> {
    if found.manifest.corpus == *corpus { Ok(found) } else { Err(PrepError::DatasetExists { url: found.url }) }
}

/// URL of the dataset `split` of a job.
pub fn dataset_url(job: &JobContext<'_>, split: &str) -> String {
    format!("{}/{split}", job.config.output.url.trim_end_matches('/'))
}
