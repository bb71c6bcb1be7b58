//! Reads, masks and cuts global batches ahead of the training loop, on a thread of its own.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};
use lambert_config::dealing::Division;
use lambert_config::run::{Objective, Pair, Test};
use lambert_data_prep::dataset::{Dataset, DatasetError, Samples};

use super::batch::{MaskedSample, MicroBatch};
use super::detours::Detours;
use super::order::{Order, Place, WINDOW};
use crate::error::Error;
use crate::masking::{self, Pieces};
use crate::torch;

/// Global batches that wait for the training loop at most.
const AHEAD: usize = 3;

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
    /// Tokens of the rank with the most over the mean, padding included; 0 if the samples could not be read.
    pub balance: f64,
    /// Tokens to be hidden in all: what the mean of the masked-language loss is taken over. It follows from the lengths
    /// alone, so that every rank knows it before its first backward pass; where no word is short enough for what is left
    /// of a sample's share, a few less are hidden.
    pub masked_tokens: u64,
    /// The micro-batches of this rank; perhaps none.
    pub micro_batches: Vec<MicroBatch>,
}

impl GlobalBatch {
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
    /// Starts reading global batches of `sizes` samples, one after the other.
    pub fn start(
        source: Source,
        demand: Demand,
        sizes: impl Iterator<Item = usize> + Send + 'static,
    ) -> std::io::Result<Self> {
        let (sender, batches) = crossbeam_channel::bounded(AHEAD);
        let serve = move || match Reader::new(source) {
            Ok(mut reader) => reader.serve(&demand, sizes, &sender),
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

/// A few of the last things that were asked for, by number.
struct Recent<T> {
    items: VecDeque<(usize, Arc<T>)>,
    capacity: usize,
}

impl<T> Recent<T> {
    fn get(&mut self, number: usize, load: impl FnOnce() -> Result<T, DatasetError>) -> Result<Arc<T>, DatasetError> {
        if let Some((_, item)) = self.items.iter().find(|(held, _)| *held == number) {
            return Ok(Arc::clone(item));
        }
        let item = Arc::new(load()?);
        if self.items.len() == self.capacity {
            self.items.pop_front();
        }
        self.items.push_back((number, Arc::clone(&item)));
        Ok(item)
    }
}

/// For each piece of a vocab.txt whether it goes on the word before it.
fn continuations(vocabulary: &[u8]) -> Vec<bool> {
    let lines = vocabulary.strip_suffix(b"\n").unwrap_or(vocabulary).split(|byte| *byte == b'\n');
    lines.map(|piece| piece.starts_with(b"##")).collect()
}

struct Reader {
    source: Source,
    pieces: Pieces,
    sizes: Vec<u64>,
    order: Option<Order>,
    samples: Recent<Samples>,
    lengths: Recent<Vec<u16>>,
}

impl Reader {
    fn new(source: Source) -> Result<Self, DatasetError> {
        let special = &source.dataset.manifest().special;
        let vocabulary = source.dataset.vocabulary()?;
        let pieces = Pieces {
            mask: special.mask,
            unk: special.unk,
            never: [special.pad, special.cls, special.sep],
            continuations: continuations(&vocabulary),
        };
        let sizes = source.dataset.row_groups().iter().map(|group| group.rows).collect();
        // A batch may lie across two windows, and across two epochs.
        let recent = 2 * WINDOW + 2;
        Ok(Self {
            pieces,
            sizes,
            order: None,
            samples: Recent { items: VecDeque::new(), capacity: recent },
            lengths: Recent { items: VecDeque::new(), capacity: recent },
            source,
        })
    }

    fn serve(
        &mut self,
        demand: &Demand,
        sizes: impl Iterator<Item = usize>,
        batches: &Sender<Result<GlobalBatch, DatasetError>>,
    ) {
        let mut cursor = demand.cursor;
        for size in sizes {
            let batch = self.global_batch(demand, cursor, size);
            let end = batch.as_ref().ok().map(|batch| batch.drawn.end);
            let taken = batches.send(batch).is_ok();
            match end.filter(|_| taken) {
                Some(end) => cursor = end,
                None => return,
            }
        }
    }

    /// Epochs and places of the next `size` samples from number `cursor` on, and the number behind the last.
    fn draw(&mut self, demand: &Demand, cursor: u64, size: usize) -> (Vec<(u64, Place)>, u64) {
        let mut places = Vec::with_capacity(size);
        let mut number = cursor;
        while places.len() < size {
            let (epoch, place) = self.place(number);
            if !demand.detours.hold(number, self.source.dataset.row_groups()[place.row_group].shard) {
                places.push((epoch, place));
            }
            number += 1;
        }
        (places, number)
    }

    fn global_batch(&mut self, demand: &Demand, cursor: u64, size: usize) -> Result<GlobalBatch, DatasetError> {
        let (places, end) = self.draw(demand, cursor, size);
        let lengths = places.iter().map(|(_, place)| self.length(*place)).collect::<Result<Vec<u16>, _>>()?;
        let objective = &self.source.objective;
        let masked = lengths.iter().map(|length| objective.predictions(usize::from(*length)) as u64).sum();
        let mut micro_batches = Vec::new();
        let division = Division::new(&lengths, demand.world, demand.micro_batch_tokens);
        for cut in &division.ranks[demand.rank] {
            let samples = cut.samples.iter().map(|sample| self.sample(places[*sample]));
            let samples = samples.collect::<Result<Vec<MaskedSample>, _>>()?;
            let padding = self.source.dataset.manifest().special.pad;
            micro_batches.push(MicroBatch::new(&cut.samples, cut.width, padding, &samples));
        }
        let (epoch, drawn) = (places[0].0, cursor..end);
        let balance = division.balance();
        let mut batch =
            GlobalBatch { epoch, drawn, lengths, padding: 0, balance, masked_tokens: masked, micro_batches };
        batch.padding = division.tokens() as u64 - batch.tokens();
        Ok(batch)
    }

    /// Epoch and place of the sample that is drawn at `index`, counted over all epochs.
    fn place(&mut self, index: u64) -> (u64, Place) {
        let rows = self.source.dataset.rows();
        let (epoch, index) = (index / rows, index % rows);
        if !self.source.shuffle {
            return (epoch, self.in_file_order(index));
        }
        if self.order.as_ref().is_none_or(|order| order.epoch() != epoch) {
            self.order = Some(Order::new(&self.sizes, self.source.seed, epoch));
        }
        let order = self.order.as_ref().expect("just made");
        (epoch, order.at(index))
    }

    fn in_file_order(&self, index: u64) -> Place {
        let groups = self.source.dataset.row_groups();
        let row_group = groups.partition_point(|group| group.first_row <= index) - 1;
        Place { row_group, row: (index - groups[row_group].first_row) as usize }
    }

    fn length(&mut self, place: Place) -> Result<u16, DatasetError> {
        let dataset = &self.source.dataset;
        Ok(self.lengths.get(place.row_group, || dataset.lengths(place.row_group))?[place.row])
    }

    fn sample(&mut self, (epoch, place): (u64, Place)) -> Result<MaskedSample, DatasetError> {
        let dataset = &self.source.dataset;
        let samples = self.samples.get(place.row_group, || dataset.read(place.row_group))?;
        let mut ids = samples.ids(place.row).to_vec();
        let number = dataset.row_groups()[place.row_group].first_row + place.row as u64;
        let epoch = if self.source.shuffle { epoch } else { 0 };
        let key = masking::key(self.source.seed, &self.source.objective, epoch, number);
        let hidden = masking::mask(&mut ids, &self.source.objective, &self.pieces, key);
        let pair = self.source.objective.pair != Pair::None;
        Ok(MaskedSample {
            ids,
            segment_b_start: samples.segment_b_start[place.row],
            pair_label: pair.then(|| samples.pair_label[place.row]),
            hidden,
            factor: self.source.test.factor(number),
        })
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
