//! A rank's part of one global batch after the other: drawn, dealt, decoded, masked and cut.

use std::collections::BTreeSet;

use lambert_config::run::Pair;
use lambert_dataset::{DatasetError, FetchAhead, Samples};
use lambert_plan::batch_partition::Division;

use super::batch::{MaskedSample, MicroBatch};
use super::groups::Groups;
use super::halves::halves;
use super::order::{Order, Place};
use super::{Demand, GlobalBatch, Source, Wanted};
use crate::masking::{self, Pieces};

/// Makes global batches.
pub struct Reader {
    source: Source,
    pieces: Pieces,
    sizes: Vec<u64>,
    order: Option<Order>,
    groups: Groups,
}

impl Reader {
    /// For a dataset and how its samples are drawn and masked.
    pub fn new(source: Source) -> Result<Self, DatasetError> {
        let special = &source.dataset.manifest().special;
        let vocabulary = source.dataset.vocabulary()?;
        let pieces = Pieces {
            mask: special.mask,
            unk: special.unk,
            never: [special.pad, special.cls, special.sep],
            continuations: continuations(&vocabulary),
        };
        let (expected, found) = (source.dataset.manifest().vocabulary.size, pieces.continuations.len());
        if found != expected {
            let (url, path) = (source.dataset.url().to_owned(), &source.dataset.manifest().vocabulary.path);
            let message = format!("vocabulary.size is {expected}, and {path} has {found} lines");
            return Err(DatasetError::Manifest { url, message });
        }
        let sizes = source.dataset.row_groups().iter().map(|group| group.rows).collect();
        let groups = Groups::new(source.dataset.clone());
        Ok(Self { source, pieces, sizes, order: None, groups })
    }

    /// Begins to fetch the shards that the samples from number `cursor` on are in, if they lie in an object store.
    pub fn fetch_ahead(&mut self, cursor: u64) -> Result<Option<FetchAhead>, DatasetError> {
        let (rows, dataset) = (self.source.dataset.rows(), self.source.dataset.clone());
        let (epoch, index) = (cursor / rows, cursor % rows);
        let groups: Vec<usize> = match self.source.shuffle {
            true => self.order(epoch).row_groups_from(index).to_vec(),
            false => (self.in_file_order(index).row_group..self.sizes.len()).collect(),
        };
        let mut seen = BTreeSet::new();
        let shards = groups.iter().map(|group| dataset.row_groups()[*group].shard).filter(|shard| seen.insert(*shard));
        dataset.fetch_ahead(&shards.collect::<Vec<_>>())
    }

    /// Row groups decoded so far.
    pub fn decoded(&self) -> u64 {
        self.groups.decoded
    }

    /// The next samples from number `cursor` on, read by `threads` threads.
    pub fn global_batch(
        &mut self,
        demand: &Demand,
        cursor: u64,
        wanted: Wanted,
        threads: usize,
    ) -> Result<GlobalBatch, DatasetError> {
        let (places, end) = self.draw(demand, cursor, wanted.samples);
        let touched = places.iter().map(|(_, place)| place.row_group).collect();
        self.groups.measure(&touched, threads)?;
        let lengths: Vec<u16> = places.iter().map(|(_, place)| self.groups.length(*place)).collect();
        let objective = &self.source.objective;
        let masked_tokens = lengths.iter().map(|length| objective.predictions(usize::from(*length)) as u64).sum();

        let (parts, budget) = (demand.parts, demand.micro_batch_tokens);
        let divisions = match wanted.halves {
            None => vec![Division::new(&lengths, parts, budget)],
            Some(key) => halves(lengths.len(), key).map(|half| Division::of(&lengths, &half, parts, budget)).into(),
        };
        let parts = || divisions.iter().flat_map(|division| &division.ranks[demand.own()]);
        let leaves = parts().map(Vec::len).collect();
        let cuts = || parts().flatten();
        let own: Vec<(u64, Place)> = cuts().flat_map(|cut| &cut.samples).map(|sample| places[*sample]).collect();
        let kept = self.window(end - 1);
        let mut samples = self.gather(&own, &kept, threads)?.into_iter();
        self.groups.keep(&kept);
        let padding = self.source.dataset.manifest().special.pad;
        let micro_batches = cuts().map(|cut| {
            let samples: Vec<MaskedSample> = samples.by_ref().take(cut.samples.len()).collect();
            MicroBatch::new(&cut.samples, cut.width, padding, &samples)
        });
        let micro_batches = micro_batches.collect();

        let (epoch, drawn, tokens) = (places[0].0, cursor..end, divisions.iter().map(Division::tokens).sum::<usize>());
        let balance = divisions.iter().map(|division| division.balance() * division.tokens() as f64).sum::<f64>()
            / tokens.max(1) as f64;
        let mut batch =
            GlobalBatch { epoch, drawn, lengths, padding: 0, balance, masked_tokens, micro_batches, leaves };
        batch.padding = tokens as u64 - batch.tokens();
        Ok(batch)
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

    /// Epoch and place of the sample that is drawn at `number`, counted over all epochs.
    fn place(&mut self, number: u64) -> (u64, Place) {
        let rows = self.source.dataset.rows();
        let (epoch, index) = (number / rows, number % rows);
        if !self.source.shuffle {
            return (epoch, self.in_file_order(index));
        }
        (epoch, self.order(epoch).at(index))
    }

    fn order(&mut self, epoch: u64) -> &Order {
        let order = self.order.take().filter(|order| order.epoch() == epoch);
        self.order.insert(order.unwrap_or_else(|| Order::new(&self.sizes, self.source.seed, epoch)))
    }

    fn in_file_order(&self, index: u64) -> Place {
        let groups = self.source.dataset.row_groups();
        let row_group = groups.partition_point(|group| group.first_row <= index) - 1;
        Place { row_group, row: (index - groups[row_group].first_row) as usize }
    }

    /// The row groups among which the sample drawn at `number` lies with its neighbours: what the next batch may need, too.
    fn window(&mut self, number: u64) -> BTreeSet<usize> {
        let (epoch, place) = self.place(number);
        if !self.source.shuffle {
            return BTreeSet::from([place.row_group]);
        }
        let rows = self.source.dataset.rows();
        self.order(epoch).window(number % rows).iter().copied().collect()
    }

    /// The samples at `own`, masked.
    fn gather(
        &mut self,
        own: &[(u64, Place)],
        kept: &BTreeSet<usize>,
        threads: usize,
    ) -> Result<Vec<MaskedSample>, DatasetError> {
        let (source, pieces) = (&self.source, &self.pieces);
        let places: Vec<Place> = own.iter().map(|(_, place)| *place).collect();
        self.groups.gather(&places, kept, threads, |samples, index| masked(source, pieces, samples, own[index]))
    }
}

/// The sample of `epoch` at `place`, in whose row group `samples` are, masked.
fn masked(source: &Source, pieces: &Pieces, samples: &Samples, (epoch, place): (u64, Place)) -> MaskedSample {
    let (objective, mut ids) = (&source.objective, samples.ids(place.row).to_vec());
    let number = source.dataset.row_groups()[place.row_group].first_row + place.row as u64;
    let epoch = if source.shuffle { epoch } else { 0 };
    let key = masking::key(source.seed, objective, epoch, number);
    let hidden = masking::mask(&mut ids, objective, pieces, key);
    let pair = objective.pair != Pair::None;
    MaskedSample {
        ids,
        segment_b_start: samples.segment_b_start[place.row],
        pair_label: pair.then(|| samples.pair_label[place.row]),
        hidden,
        factor: source.test.factor(number),
    }
}

/// For each piece of a vocab.txt whether it goes on the word before it.
fn continuations(vocabulary: &[u8]) -> Vec<bool> {
    let lines = vocabulary.strip_suffix(b"\n").unwrap_or(vocabulary).split(|byte| *byte == b'\n');
    lines.map(|piece| piece.starts_with(b"##")).collect()
}
