//! The shards of a dataset that are open: a limited number, the least recently opened closed first.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::DatasetError;
use super::file::{Identity, Reader};

/// Shards that are open at the same time: a process may have some thousand files.
const OPEN: usize = 128;

/// See the module.
pub struct OpenShards {
    slots: Vec<Mutex<Slot>>,
    /// Shards that are open, the least recently opened first.
    opened: Mutex<VecDeque<usize>>,
}

/// A shard, as far as it is known.
#[derive(Default)]
struct Slot {
    reader: Option<Arc<Reader>>,
    /// The file that was checked.
    checked: Option<Identity>,
}

impl OpenShards {
    /// For so many shards, none of them open.
    pub fn new(shards: usize) -> Self {
        Self { slots: (0..shards).map(|_| Mutex::default()).collect(), opened: Mutex::default() }
    }

    /// The reader of shard `index`. Where it is not open, `open` opens it; it is given the file that it has checked before, and
    /// tried again after all other shards were closed if the disk is full.
    pub fn get(
        &self,
        index: usize,
        open: impl Fn(Option<Identity>) -> Result<(Reader, Identity), DatasetError>,
    ) -> Result<Arc<Reader>, DatasetError> {
        // A poisoned lock only means that another thread failed to open the shard: try again here.
        let mut slot = self.slots[index].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reader) = &slot.reader {
            return Ok(reader.clone());
        }
        let (reader, checked) = open(slot.checked).or_else(|error| {
            if !error.is_full_disk() {
                return Err(error);
            }
            // What was removed takes space as long as it is open.
            self.close_others(index);
            open(slot.checked)
        })?;
        let reader = Arc::new(reader);
        *slot = Slot { reader: Some(reader.clone()), checked: Some(checked) };
        drop(slot);
        self.close_oldest(index);
        Ok(reader)
    }

    /// Closes what was opened first, if there are too many open with `opened`. Who reads it goes on reading it.
    fn close_oldest(&self, opened: usize) {
        let mut all = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        all.push_back(opened);
        let oldest = if all.len() > OPEN { all.pop_front() } else { None };
        drop(all);
        if let Some(oldest) = oldest {
            self.slots[oldest].lock().unwrap_or_else(PoisonError::into_inner).reader = None;
        }
    }

    /// Closes all shards but one. Who reads one goes on reading it.
    fn close_others(&self, index: usize) {
        for (_, slot) in self.slots.iter().enumerate().filter(|(other, _)| *other != index) {
            // Of one that is locked another thread is just about to read.
            if let Ok(mut slot) = slot.try_lock() {
                slot.reader = None;
            }
        }
    }
}
