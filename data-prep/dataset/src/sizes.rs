//! Sizes of the files of a dataset, which the manifest has.

use std::collections::BTreeMap;

use super::parallel::parallel;
use super::{Dataset, DatasetError};

/// Number of concurrent requests for the sizes of remote files.
const REMOTE_THREADS: usize = 16;

impl Dataset {
    /// Checks that all files exist and have the sizes in the manifest. Lists a remote dataset. If that fails, for example because
    /// the credentials do not permit it, requests the size of each file.
    pub fn check_sizes(&self) -> Result<(), DatasetError> {
        let manifest = self.manifest();
        let vocabulary = (manifest.vocabulary.path.as_str(), manifest.vocabulary.bytes);
        let shards = manifest.shards.iter().map(|shard| (shard.path.as_str(), shard.bytes));
        let files: Vec<_> = shards.chain([vocabulary]).collect();
        let listed = self.listed_sizes();
        let unlisted: Vec<_> =
            files.into_iter().filter(|(file, expected)| listed.get(*file) != Some(expected)).collect();
        let threads = if self.is_remote() { REMOTE_THREADS } else { 1 };
        parallel(threads, unlisted.len(), |index| self.check_size(unlisted[index].0, unlisted[index].1)).map(drop)
    }

    /// Returns the sizes of the files of a remote dataset. Empty for a local dataset, or if it cannot be listed.
    fn listed_sizes(&self) -> BTreeMap<String, u64> {
        let objects = if self.is_remote() { self.store.list("").unwrap_or_default() } else { Vec::new() };
        objects.into_iter().map(|object| (object.path, object.bytes)).collect()
    }

    fn check_size(&self, file: &str, expected: u64) -> Result<(), DatasetError> {
        match self.store.head(file).map_err(|source| self.store_error(source))? {
            Some(found) if found == expected => Ok(()),
            found => Err(DatasetError::Size { url: self.url().to_owned(), file: file.to_owned(), expected, found }),
        }
    }

    /// Returns an error that names the expected size if `error` shows that a remote shard is missing or too short. Otherwise
    /// returns `error`.
    pub(crate) fn or_size_error(&self, shard: usize, error: DatasetError) -> DatasetError {
        let shard = &self.manifest().shards[shard];
        let is_permanent = |source: &lambert_store::Error| {
            source.is_not_found() || matches!(source, lambert_store::Error::Failed { attempts: 1, .. })
        };
        match &error {
            DatasetError::Store { source, .. } if self.is_remote() && is_permanent(source) => {
                let size_error = self.check_size(&shard.path, shard.bytes).err();
                size_error.filter(|found| matches!(found, DatasetError::Size { .. })).unwrap_or(error)
            }
            _ => error,
        }
    }
}
