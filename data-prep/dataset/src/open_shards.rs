//! Open shards of a dataset. Their number is limited, and the shard that was opened first is closed first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::DatasetError;
use super::shard_file::Identity;
use super::shard_reader::ShardReader;

/// Maximum number of open shards. Many systems limit a process to about a thousand open files.
const MAX_OPEN: usize = 128;

/// Open shards of a dataset.
pub struct OpenShards {
    slots: Vec<Mutex<ShardState>>,
    /// Indices of open shards, in the order of opening.
    opened: Mutex<VecDeque<usize>>,
}

/// State of a shard.
#[derive(Default)]
struct ShardState {
    reader: Option<Arc<ShardReader>>,
    /// Identity of the file that was verified when the shard was last opened.
    checked: Option<Identity>,
}

impl OpenShards {
    /// Creates the table for `shards` shards, all closed.
    pub fn new(shards: usize) -> Self {
        Self { slots: (0..shards).map(|_| Mutex::default()).collect(), opened: Mutex::default() }
    }

    /// Returns the reader of shard `index`. If the shard is not open, calls `open`. Its argument is the identity of the
    /// file that was verified at an earlier open, if any. If the disk is full, closes all other shards and calls `open`
    /// again.
    pub fn get(
        &self,
        index: usize,
        open: impl Fn(Option<Identity>) -> Result<(ShardReader, Identity), DatasetError>,
    ) -> Result<Arc<ShardReader>, DatasetError> {
        // A poisoned lock means that another thread panicked while it opened the shard. This call tries to open the
        // shard again.
        let mut slot = self.slots[index].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reader) = &slot.reader {
            return Ok(reader.clone());
        }
        let (reader, checked) = open(slot.checked).or_else(|error| {
            if !error.is_full_disk() {
                return Err(error);
            }
            // An evicted file takes disk space as long as it is open.
            self.close_others(index);
            open(slot.checked)
        })?;
        let reader = Arc::new(reader);
        *slot = ShardState { reader: Some(reader.clone()), checked: Some(checked) };
        drop(slot);
        self.close_oldest(index);
        Ok(reader)
    }

    /// Adds the shard `opened` to the list of open shards. If more than [`MAX_OPEN`] shards are open, closes the shard
    /// that was opened first. Threads that use its reader can still read.
    fn close_oldest(&self, opened: usize) {
        let mut all = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_back(opened);
        let oldest = if all.len() > MAX_OPEN { all.pop_front() } else { None };
        drop(all);
        if let Some(oldest) = oldest {
            self.slots[oldest].lock().unwrap_or_else(PoisonError::into_inner).reader = None;
        }
    }

    /// Closes all other shards. Threads that use their readers can still read.
    fn close_others(&self, index: usize) {
        for (_, slot) in self.slots.iter().enumerate().filter(|(other, _)| *other != index) {
            // If a shard is locked, another thread is about to read it. It stays open.
            if let Ok(mut slot) = slot.try_lock() {
                slot.reader = None;
            }
        }
    }
}
