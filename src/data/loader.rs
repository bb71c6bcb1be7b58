//! Global batches are made ahead of the training loop, by a thread of its own that takes others to help where the loop would
//! wait.

use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};
use lambert_dataset::DatasetError;
use lambert_plan::memory;

use super::reader::Reader;
use super::{Demand, GlobalBatch, Source, Wanted};
use crate::error::Error;
use crate::torch;

/// A thread that reads ahead.
pub struct Loader {
    batches: Receiver<Result<GlobalBatch, DatasetError>>,
    /// It ends with what it said if it panicked.
    thread: Option<JoinHandle<Result<(), String>>>,
}

impl Loader {
    /// Starts reading global batches, one after the other.
    pub fn start(
        source: Source,
        demand: Demand,
        wanted: impl Iterator<Item = Wanted> + Send + 'static,
    ) -> std::io::Result<Self> {
        let data = source.dataset.sizes();
        let (sender, batches) = crossbeam_channel::bounded(memory::batches_ahead(demand.largest, demand.world, data));
        let serve = move || match Reader::new(source) {
            Ok(mut reader) => serve(&mut reader, &demand, wanted, &sender),
            // That nobody waits for the error any more is no failure.
            Err(error) => drop(sender.send(Err(error))),
        };
        let work = move || torch::caught(serve);
        let thread = std::thread::Builder::new().name("loader".to_owned()).spawn(work)?;
        Ok(Self { batches, thread: Some(thread) })
    }

    /// The next global batch; `None` after the last, or when [`Loader::finish`] has something to say.
    pub fn next_batch(&mut self) -> Option<Result<GlobalBatch, DatasetError>> {
        self.batches.recv().ok()
    }

    /// Waits for the end of the thread, after the last batch.
    ///
    /// # Errors
    /// What it said if it panicked.
    pub fn finish(&mut self) -> Result<(), Error> {
        let ended = self.thread.take().map_or(Ok(Ok(())), JoinHandle::join);
        let ended = ended.unwrap_or_else(|_| Err("it ended without a word".to_owned()));
        ended.map_err(|message| Error::Panic { thread: "the reader of samples", message })
    }
}

impl Drop for Loader {
    fn drop(&mut self) {
        // A reader that waits with a finished batch wakes up when nobody can take it any more.
        self.batches = crossbeam_channel::never();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Serves global batches until nobody takes them.
fn serve(
    reader: &mut Reader,
    demand: &Demand,
    wanted: impl Iterator<Item = Wanted>,
    batches: &Sender<Result<GlobalBatch, DatasetError>>,
) {
    let (mut cursor, mut threads) = (demand.cursor, 1);
    let _ahead = match reader.fetch_ahead(cursor) {
        Ok(ahead) => ahead,
        Err(error) => return drop(batches.send(Err(error))),
    };
    for wanted in wanted {
        let batch = reader.global_batch(demand, cursor, wanted, threads);
        threads = next_threads(threads, demand.threads, batches.is_empty(), batches.is_full());
        let end = batch.as_ref().ok().map(|batch| batch.drawn.end);
        let taken = batches.send(batch).is_ok();
        match end.filter(|_| taken) {
            Some(end) => cursor = end,
            None => return,
        }
    }
}

/// Threads for the next batch: one more, up to `most`, while no batch waits for the training loop; one less while the loop is
/// behind.
fn next_threads(threads: usize, most: usize, starving: bool, full: bool) -> usize {
    match (starving, full) {
        (true, _) => (threads + 1).min(most.max(1)),
        (false, true) => (threads - 1).max(1),
        (false, false) => threads,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_reader_keeps_its_words() {
        let (sender, batches) = crossbeam_channel::bounded::<Result<GlobalBatch, DatasetError>>(1);
        let serve = move || {
            let _held = sender;
            panic!("row {} is not there", 7);
        };
        let thread = std::thread::spawn(move || torch::caught(serve));
        let mut loader = Loader { batches, thread: Some(thread) };
        assert!(loader.next_batch().is_none());
        let error = loader.finish().unwrap_err();
        assert_eq!(error.to_string(), "a mistake in lambert itself, in the reader of samples: row 7 is not there");
        loader.finish().unwrap();
    }
}
