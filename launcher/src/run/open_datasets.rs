//! Datasets that the checks of a start share. Opening a dataset with thousands of shards in an object store takes half a minute.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lambert_dataset::{Dataset, DatasetError};

/// Opens each dataset once. Clones share the open datasets.
#[derive(Clone, Default)]
pub struct OpenDatasets(Arc<Mutex<BTreeMap<String, Arc<Dataset>>>>);

impl OpenDatasets {
    /// Returns the dataset at `url`. The first call for a URL opens the dataset and checks the sizes of its files.
    ///
    /// # Errors
    /// The dataset cannot be opened. The next call tries again.
    pub fn open(&self, url: &str) -> Result<Arc<Dataset>, DatasetError> {
        let known = self.lock().get(url).cloned();
        if let Some(dataset) = known {
            return Ok(dataset);
        }
        // The lock is free while the dataset is opened, because a file system can hang.
        let dataset = Arc::new(Dataset::open(url)?);
        self.lock().insert(url.to_owned(), Arc::clone(&dataset));
        Ok(dataset)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Dataset>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
