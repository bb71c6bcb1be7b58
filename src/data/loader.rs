//! Global batches are made ahead of the training loop, by a thread of its own that takes others to help where the loop would
//! wait.

use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};
use lambert_config::memory;
use lambert_config::run::{Objective, Test};
use lambert_data_prep::dataset::{Dataset, DatasetError};
use lambert_data_prep::random::Key;

use super::batch::MicroBatch;
use super::reader::Reader;
use crate::error::Error;
use crate::recovery::skipped_samples::Detours;
use crate::torch;

/// A dataset and how its samples are drawn and masked.
#[derive(Clone)]
pub struct Source {
    /// The dataset.
    pub dataset: Arc<Dataset>,
    /// What is masked.
    pub objective: Objective,
    /// Seed of order and masks.
    pub seed: u64,
    /// Whether epochs are shuffled; evaluation reads in the order of the files.
    pub shuffle: bool,
    /// Faults on purpose.
    pub test: Test,
}

/// Which global batches are wanted, and which part of each.
#[derive(Debug, Clone)]
pub struct Demand {
    /// Samples of this dataset that were used before, over all epochs.
    pub cursor: u64,
    /// Samples that are not drawn.
    pub detours: Detours,
    /// Tokens of a micro-batch at most.
    pub micro_batch_tokens: usize,
    /// This rank.
    pub rank: usize,
    /// All ranks.
    pub world: usize,
    /// Parts that a global batch is cut into, of which each rank has about as many: those of the world, if nothing else is asked.
    pub parts: usize,
    /// Threads that read at the same time at most.
    pub threads: usize,
    /// Samples of a global batch at most.
    pub largest: usize,
}

/// What a rank needs to know of one global batch.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GlobalBatch {
    /// Epoch of its first sample.
    pub epoch: u64,
    /// Numbers of its samples, counted over all epochs; those that were passed over are among them.
    pub drawn: Range<u64>,
    /// Length of every sample in tokens, those of other ranks included.
    pub lengths: Vec<u16>,
    /// Tokens of padding in the micro-batches of all ranks.
    pub padding: u64,
    /// Tokens of the part with the most over the mean, padding included; 0 if the samples could not be read.
    pub balance: f64,
    /// Tokens to be hidden in all: what the mean of the masked-language loss is taken over. It follows from the lengths
    /// alone, so that every rank knows it before its first backward pass; where no word is short enough for what is left
    /// of a sample's share, a few less are hidden.
    pub masked_tokens: u64,
    /// The micro-batches of this rank; perhaps none.
    pub micro_batches: Vec<MicroBatch>,
    /// How many of them each of the rank's parts has; of a batch in halves, first those of one half, then of the other.
    pub leaves: Vec<usize>,
}

impl Demand {
    /// The parts of a global batch that are this rank's.
    pub fn own(&self) -> Range<usize> {
        self.parts * self.rank / self.world..self.parts * (self.rank + 1) / self.world
    }
}

/// A global batch to be made.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Samples.
    pub samples: usize,
    /// If it is to be divided into two halves first, what decides which samples are in which.
    pub halves: Option<Key>,
}

impl Wanted {
    /// One of so many samples, as a whole.
    pub fn whole(samples: usize) -> Self {
        Self { samples, halves: None }
    }
}

/// This rank's micro-batches of a global batch, or of a half of it.
#[derive(Debug, Clone, Copy)]
pub struct Share<'a> {
    /// All that is known of the global batch.
    pub batch: &'a GlobalBatch,
    /// The micro-batches.
    pub micro_batches: &'a [MicroBatch],
    /// How many of them each of the rank's parts has.
    pub leaves: &'a [usize],
}

impl<'a> Share<'a> {
    /// The micro-batches of each of the rank's parts.
    pub fn leaves(self) -> impl Iterator<Item = &'a [MicroBatch]> {
        let mut rest = self.micro_batches;
        self.leaves.iter().map(move |count| {
            let (leaf, after) = rest.split_at(*count);
            rest = after;
            leaf
        })
    }
}

impl GlobalBatch {
    /// All that is this rank's.
    pub fn whole(&self) -> Share<'_> {
        Share { batch: self, micro_batches: &self.micro_batches, leaves: &self.leaves }
    }

    /// What is this rank's of each half, of one that was divided into halves; of one without samples two shares of nothing.
    pub fn halves(&self) -> [Share<'_>; 2] {
        let (first, second) = self.leaves.split_at(self.leaves.len() / 2);
        let (before, behind) = self.micro_batches.split_at(first.iter().sum());
        [(before, first), (behind, second)].map(|(micro_batches, leaves)| Share { batch: self, micro_batches, leaves })
    }

    /// Tokens without padding.
    pub fn tokens(&self) -> u64 {
        self.lengths.iter().map(|length| u64::from(*length)).sum()
    }

    /// Samples that were passed over.
    pub fn passed(&self) -> u64 {
        self.drawn.end - self.drawn.start - self.lengths.len() as u64
    }
}

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
