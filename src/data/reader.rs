//! Builds the micro-batches of a rank. Draws the samples of a global batch, assigns them to ranks and
//! micro-batches, and decodes and masks them.

use std::collections::BTreeSet;

use lambert_config::run::Pair;
use lambert_dataset::{DatasetError, Samples, ShardPrefetch};
use lambert_plan::batch_partition::BatchPartition;

use super::batch::{MaskedSample, MicroBatch};
use super::halves::halves;
use super::order::{EpochOrder, SampleLocation};
use super::row_group_cache::RowGroupCache;
use super::{BatchRequest, GlobalBatch, LoaderOptions, SampleSource};
use crate::masking::{self, MaskVocab};

/// Builds global batches.
pub struct BatchReader {
    source: SampleSource,
    vocab: MaskVocab,
    sizes: Vec<u64>,
    order: Option<EpochOrder>,
    groups: RowGroupCache,
}

impl BatchReader {
    /// Creates a reader, and loads the vocabulary of the dataset.
    pub fn new(source: SampleSource) -> Result<Self, DatasetError> {
        let special = &source.dataset.manifest().special;
        let vocabulary = source.dataset.vocabulary()?;
        let vocab = MaskVocab {
            mask_id: special.mask,
            unk_id: special.unk,
            special_ids: [special.pad, special.cls, special.sep],
            continuations: continuations(&vocabulary),
        };
        let (expected, found) = (source.dataset.manifest().vocabulary.size, vocab.continuations.len());
        if found != expected {
            let (url, path) = (source.dataset.url().to_owned(), &source.dataset.manifest().vocabulary.path);
            let message = format!("vocabulary.size is {expected}, but {path} has {found} lines");
            return Err(DatasetError::Manifest { url, message });
        }
        let sizes = source.dataset.row_groups().iter().map(|group| group.rows).collect();
        let groups = RowGroupCache::new(source.dataset.clone());
        Ok(Self { source, vocab, sizes, order: None, groups })
    }

    /// If the dataset is in an object store, starts to download the shards that contain sample `cursor` and the samples
    /// after it.
    pub fn fetch_ahead(&mut self, cursor: u64) -> Result<Option<ShardPrefetch>, DatasetError> {
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

    /// Number of row groups decoded so far.
    pub fn decoded_row_groups(&self) -> u64 {
        self.groups.decoded
    }

    /// Builds a global batch that starts at sample number `cursor`, on `threads` threads.
    pub fn global_batch(
        &mut self,
        options: &LoaderOptions,
        cursor: u64,
        request: BatchRequest,
        threads: usize,
    ) -> Result<GlobalBatch, DatasetError> {
        let (locations, end) = self.next_locations(options, cursor, request.samples);
        let touched = locations.iter().map(|(_, location)| location.row_group).collect();
        self.groups.load_lengths(&touched, threads)?;
        let lengths: Vec<u16> = locations.iter().map(|(_, location)| self.groups.length(*location)).collect();
        let objective = &self.source.objective;
        let masked_tokens = lengths.iter().map(|length| objective.predictions(usize::from(*length)) as u64).sum();

        let (shards, budget, layout) = (options.shards, options.micro_batch_tokens, options.layout);
        let partitions = match request.split_key {
            None => vec![BatchPartition::new(&lengths, shards, budget, layout)],
            Some(key) => halves(lengths.len(), key)
                .map(|half| BatchPartition::for_subset(&lengths, &half, shards, budget, layout))
                .into(),
        };
        let own_shards = || partitions.iter().flat_map(|partition| &partition.ranks[options.own_shards()]);
        let shard_micro_batches = own_shards().map(Vec::len).collect();
        let micro_batch_plans = || own_shards().flatten();
        let own_locations: Vec<(u64, SampleLocation)> =
            micro_batch_plans().flat_map(|plan| &plan.samples).map(|sample| locations[*sample]).collect();
        let retained = self.window(end - 1);
        let mut samples = self.gather(&own_locations, &retained, threads)?.into_iter();
        self.groups.retain(&retained);
        let padding = self.source.dataset.manifest().special.pad;
        let micro_batches = micro_batch_plans().map(|plan| {
            let samples: Vec<MaskedSample> = samples.by_ref().take(plan.samples.len()).collect();
            MicroBatch::new(plan, padding, &samples)
        });
        let micro_batches = micro_batches.collect();

        let (epoch, sample_range, tokens) =
            (locations[0].0, cursor..end, partitions.iter().map(BatchPartition::tokens).sum::<usize>());
        let imbalance =
            partitions.iter().map(|partition| partition.imbalance() * partition.tokens() as f64).sum::<f64>()
                / tokens.max(1) as f64;
        let mut batch = GlobalBatch {
            epoch,
            sample_range,
            lengths,
            padding: 0,
            imbalance,
            masked_tokens,
            micro_batches,
            shard_micro_batches,
        };
        batch.padding = tokens as u64 - batch.tokens();
        Ok(batch)
    }

    /// Returns the epochs and locations of the next `size` samples from `cursor` on, without skipped samples. Also
    /// returns the number of the sample that follows.
    fn next_locations(
        &mut self,
        options: &LoaderOptions,
        cursor: u64,
        size: usize,
    ) -> (Vec<(u64, SampleLocation)>, u64) {
        let mut locations = Vec::with_capacity(size);
        let mut number = cursor;
        while locations.len() < size {
            let (epoch, location) = self.location(number);
            if !options.skipped.contains(number, self.source.dataset.row_groups()[location.row_group].shard) {
                locations.push((epoch, location));
            }
            number += 1;
        }
        (locations, number)
    }

    /// Epoch and location of sample `number`, counted over all epochs.
    fn location(&mut self, number: u64) -> (u64, SampleLocation) {
        let rows = self.source.dataset.rows();
        let (epoch, index) = (number / rows, number % rows);
        if !self.source.shuffle {
            return (epoch, self.in_file_order(index));
        }
        (epoch, self.order(epoch).at(index))
    }

    fn order(&mut self, epoch: u64) -> &EpochOrder {
        let order = self.order.take().filter(|order| order.epoch() == epoch);
        self.order.insert(order.unwrap_or_else(|| EpochOrder::new(&self.sizes, self.source.seed, epoch)))
    }

    fn in_file_order(&self, index: u64) -> SampleLocation {
        let groups = self.source.dataset.row_groups();
        let row_group = groups.partition_point(|group| group.first_row <= index) - 1;
        SampleLocation { row_group, row: (index - groups[row_group].first_row) as usize }
    }

    /// Row groups in the window of sample `number`, which the next batch is likely to read.
    fn window(&mut self, number: u64) -> BTreeSet<usize> {
        let (epoch, location) = self.location(number);
        if !self.source.shuffle {
            return BTreeSet::from([location.row_group]);
        }
        let rows = self.source.dataset.rows();
        self.order(epoch).window(number % rows).iter().copied().collect()
    }

    /// Reads and masks the samples at `own_locations`.
    fn gather(
        &mut self,
        own_locations: &[(u64, SampleLocation)],
        retained: &BTreeSet<usize>,
        threads: usize,
    ) -> Result<Vec<MaskedSample>, DatasetError> {
        let (source, vocab) = (&self.source, &self.vocab);
        let locations: Vec<SampleLocation> = own_locations.iter().map(|(_, location)| *location).collect();
        self.groups.gather(&locations, retained, threads, |samples, index| {
            masked(source, vocab, samples, own_locations[index])
        })
    }
}

/// Masks the sample at `location`, a row of the decoded row group `samples`.
fn masked(
    source: &SampleSource,
    vocab: &MaskVocab,
    samples: &Samples,
    (epoch, location): (u64, SampleLocation),
) -> MaskedSample {
    let (objective, mut ids) = (&source.objective, samples.ids(location.row).to_vec());
    let number = source.dataset.row_groups()[location.row_group].first_row + location.row as u64;
    let epoch = if source.shuffle { epoch } else { 0 };
    let key = masking::key(source.seed, objective, epoch, number);
    let masked_tokens = masking::mask(&mut ids, objective, vocab, key);
    let pair = objective.pair != Pair::None;
    MaskedSample {
        ids,
        segment_b_start: samples.segment_b_start[location.row],
        pair_label: pair.then(|| samples.pair_label[location.row]),
        masked_tokens,
        loss_scale: source.test.factor(number),
    }
}

/// Returns one flag per entry of a vocab.txt. The flag is true if the entry continues a word.
fn continuations(vocabulary: &[u8]) -> Vec<bool> {
    let lines = vocabulary.strip_suffix(b"\n").unwrap_or(vocabulary).split(|byte| *byte == b'\n');
    lines.map(|token| token.starts_with(b"##")).collect()
}
