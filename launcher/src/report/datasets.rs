//! Training data of a checkpoint: the datasets that its manifest names, and their own manifests if these can be read.

use std::time::Duration;

use lambert_config::RunConfig;
use lambert_dataset::{MANIFEST, Manifest, sha256_hex};
use lambert_store::checkpoint::Manifest as Checkpoint;
use lambert_store::{RetryPolicy, Store};

/// Maximum size of a manifest that is read, bytes.
const MAX_MANIFEST_BYTES: u64 = 256 << 20;
/// Time limit for a store that does not answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Dataset from which a checkpoint has read samples.
#[derive(Debug)]
pub struct TrainingData {
    /// SHA-256 of the manifest of the dataset. The manifest contains the checksums of all files.
    pub sha256: String,
    /// Samples that the run has taken from the dataset over all epochs, with skipped samples.
    pub samples_read: u64,
    /// Last two parts of the dataset's URL, and its manifest. `None` if no dataset with this SHA-256 is at the place that
    /// the configuration names.
    pub found: Option<(String, Manifest)>,
}

/// Reads the manifests of the datasets of a checkpoint.
pub fn of_checkpoint(config: &RunConfig, checkpoint: &Checkpoint) -> Vec<TrainingData> {
    let stages = config.stage.iter().enumerate();
    let mut urls: Vec<&str> = stages.flat_map(|(index, stage)| stage.datasets(index)).map(|(_, url)| url).collect();
    urls.sort_unstable();
    urls.dedup();
    let mut readable: Vec<(String, (String, Manifest))> = urls
        .into_iter()
        .filter_map(|url| {
            let (sha256, manifest) = read(url)?;
            Some((sha256, (short_name(url), manifest)))
        })
        .collect();
    let mut data = |(sha256, samples): (&String, &u64)| {
        let found = readable.iter().position(|(readable, _)| readable == sha256);
        let found = found.map(|index| readable.swap_remove(index).1);
        TrainingData { sha256: sha256.clone(), samples_read: *samples, found }
    };
    checkpoint.cursor.iter().map(&mut data).collect()
}

/// Returns the SHA-256 and the content of the manifest of the dataset at `url`.
fn read(url: &str) -> Option<(String, Manifest)> {
    let store = Store::open(url).ok()?;
    let policy = RetryPolicy { total_timeout: TIMEOUT, request_timeout: TIMEOUT, ..RetryPolicy::default() };
    let bytes = store.with_retry_policy(policy).get_at_most(MANIFEST, MAX_MANIFEST_BYTES).ok()?;
    Some((sha256_hex(&bytes), Manifest::from_json(&bytes).ok()?))
}

/// Last two parts of a path or URL, without the folders of the host.
pub fn short_name(url: &str) -> String {
    let parts: Vec<&str> = url.split('/').filter(|part| !part.is_empty()).collect();
    parts[parts.len().saturating_sub(2)..].join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_datasets_leave_out_the_folders_of_the_host() {
        assert_eq!(short_name("/home/me/data/books/train/"), "books/train");
        assert_eq!(short_name("s3://bucket/train"), "bucket/train");
        assert_eq!([short_name("train"), short_name("")], ["train", ""]);
    }

    #[test]
    fn a_place_without_a_dataset_has_no_manifest() {
        assert_eq!(read("memory://no-dataset").map(|(sha256, _)| sha256), None);
        assert_eq!(read("nonsense://x").map(|(sha256, _)| sha256), None);
    }
}
