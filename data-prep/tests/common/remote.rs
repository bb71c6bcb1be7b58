//! A dataset in an object store, with a cache folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use lambert_config::run::DatasetCache;
use lambert_dataset::Dataset;
use lambert_dataset::ranges::{self, CHECKSUMS, ShardRanges};
use lambert_store::Store;

use crate::samples::Shape;

/// Number of shards.
pub const SHARDS: u64 = 8;

/// A dataset in a store, with a cache folder.
pub struct Remote {
    pub folder: tempfile::TempDir,
    pub url: String,
    pub store: Store,
}

impl Remote {
    pub fn new(name: &str) -> Self {
        Self::write(name, true)
    }

    /// A dataset of an earlier version, which has checksums only of whole shards.
    pub fn of_earlier_version(name: &str) -> Self {
        Self::write(name, false)
    }

    fn write(name: &str, has_checksums: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let local = folder.path().join("data");
        crate::samples::write(
            &local,
            &Shape { rows: 400, longest: 32, rows_per_group: 10, shards: SHARDS, pieces: 99 },
        );
        if !has_checksums {
            std::fs::remove_file(local.join(CHECKSUMS)).unwrap();
        }
        let url = format!("memory://{name}/data");
        let store = Store::open(&url).unwrap();
        for entry in std::fs::read_dir(&local).unwrap() {
            let path = entry.unwrap().path();
            store.put(path.file_name().unwrap().to_str().unwrap(), std::fs::read(&path).unwrap().into()).unwrap();
        }
        Self { folder, url, store }
    }

    pub fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    /// Opens the dataset as a separate process would, with a cache limit of `bytes`.
    pub fn open(&self, bytes: f64) -> Arc<Dataset> {
        let folder = self.cache().to_str().unwrap().to_owned();
        let settings = DatasetCache { folder, gigabytes: bytes / 1e9 };
        Arc::new(Dataset::open(&self.url).unwrap().with_cache(&settings))
    }

    pub fn local(&self) -> Arc<Dataset> {
        Arc::new(Dataset::open(self.folder.path().join("data").to_str().unwrap()).unwrap())
    }

    /// Checksums of each shard.
    pub fn ranges(&self) -> Vec<ShardRanges> {
        ranges::parse(&self.store.get(CHECKSUMS).unwrap(), self.local().manifest()).unwrap()
    }

    pub fn remove(&self, dataset: &Dataset) {
        dataset.manifest().shards.iter().for_each(|shard| self.store.delete(&shard.path).unwrap());
    }
}

/// Files in a folder whose names end with `ending`.
pub fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_str().unwrap().ends_with(ending)).collect()
}

/// Size of all complete copies in a folder, bytes.
pub fn copied_bytes(folder: &Path) -> u64 {
    let copies = [".range", ".parquet"].into_iter().flat_map(|ending| files(folder, ending));
    copies.map(|copy| std::fs::metadata(copy).unwrap().len()).sum()
}
