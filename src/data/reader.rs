//! Builds the micro-batches of a rank. Draws the samples of a global batch, assigns them to ranks and
//! micro-batches, and decodes and masks them.

use std::collections::BTreeSet;
use std::sync::Arc;

use lambert_config::run::Pair;
use lambert_dataset::tokenizer::TokenTable;
use lambert_dataset::{Dataset, DatasetError, Samples};
use lambert_plan::batch_partition::BatchPartition;

use super::batch::{MaskedSample, MicroBatch};
use super::dataset_reader::DatasetReader;
use super::global_batch::DatasetPart;
use super::halves::halves;
use super::mixture::MixtureOrder;
use super::order::SampleLocation;
use super::{BatchRequest, GlobalBatch, LoaderOptions, MixturePosition, SampleSource};
use crate::masking::{self, MaskVocab, TokenWeights};

/// Builds global batches.
pub struct BatchReader {
    source: SampleSource,
    /// Vocabulary of each dataset. Only the weights of the tokens differ.
    vocabs: Vec<MaskVocab>,
    order: MixtureOrder,
    datasets: Vec<DatasetReader>,
}

/// Sample of a global batch.
#[derive(Clone, Copy)]
struct Draw {
    /// Index of the dataset in the mixture.
    dataset: usize,
    /// Epoch of the dataset.
    epoch: u64,
    location: SampleLocation,
}

impl BatchReader {
    /// Creates a reader, and loads the vocabulary of the datasets.
    pub fn new(source: SampleSource) -> Result<Self, DatasetError> {
        // All datasets have the same vocabulary and special tokens.
        let first = &source.mixture.datasets()[0];
        let special = &first.manifest().special;
        let tokens = TokenTable::read(&first.vocabulary()?, &first.vocabulary_url())?;
        let vocab = MaskVocab {
            mask_id: special.mask,
            unk_id: special.unk,
            special_ids: [special.pad, special.cls, special.sep],
            continuations: (0..tokens.size() as u32).map(|id| tokens.is_continuation(id)).collect(),
            replacements: tokens.replacements().into(),
            weights: None,
            phrases: source.phrases.clone(),
        };
        let (expected, found) = (first.manifest().vocabulary.size, vocab.continuations.len());
        if found != expected {
            let (url, path) = (first.url().to_owned(), &first.manifest().vocabulary.path);
            let message = format!("vocabulary.size is {expected}, but {path} has {found} tokens");
            return Err(DatasetError::Manifest { url, message });
        }
        let exponent = source.objective.mask_frequency_exponent;
        let weighted = |dataset: &Arc<Dataset>| {
            let weights = match exponent > 0.0 {
                true => Some(TokenWeights::new(&dataset.token_counts()?, exponent)),
                false => None,
            };
            Ok(MaskVocab { weights, ..vocab.clone() })
        };
        let vocabs = source.mixture.datasets().iter().map(weighted).collect::<Result<_, DatasetError>>()?;
        let order = source.mixture.order(source.seed);
        let reader = |dataset: &Arc<Dataset>| DatasetReader::new(dataset.clone(), source.shuffle, source.seed);
        let datasets = source.mixture.datasets().iter().map(reader).collect();
        Ok(Self { source, vocabs, order, datasets })
    }

    /// Starts to download the row groups from `position` on, for each dataset in an object store. `samples` is the number of
    /// samples that will be read, if it is known.
    pub fn start_prefetch(&mut self, position: &MixturePosition, samples: Option<u64>) -> Result<(), DatasetError> {
        let shares = self.source.mixture.download_shares();
        let starts = position.dataset_numbers(&self.order.taken(position.next));
        let ends = samples.map(|samples| position.dataset_numbers(&self.order.taken(position.next + samples)));
        for (index, dataset) in self.datasets.iter_mut().enumerate().filter(|(index, _)| shares[*index] > 0.0) {
            dataset.start_prefetch(starts[index], ends.as_ref().map(|ends| ends[index]), shares[index])?;
        }
        Ok(())
    }

    /// Number of row groups decoded so far.
    pub fn decoded_row_groups(&self) -> u64 {
        self.datasets.iter().map(|dataset| dataset.groups.decoded).sum()
    }

    /// Builds a global batch that starts at mixture number `cursor`, on `threads` threads.
    pub fn global_batch(
        &mut self,
        options: &LoaderOptions,
        cursor: u64,
        request: BatchRequest,
        threads: usize,
    ) -> Result<GlobalBatch, DatasetError> {
        let starts = options.position.dataset_numbers(&self.order.taken(cursor));
        self.datasets.iter_mut().zip(starts).for_each(|(dataset, start)| dataset.report_position(start));
        let (draws, end) = self.next_draws(options, cursor, request.samples);
        for (dataset_index, dataset) in self.datasets.iter_mut().enumerate() {
            let own = draws.iter().filter(|draw| draw.dataset == dataset_index);
            dataset.groups.load_lengths(&own.map(|draw| draw.location.row_group).collect(), threads)?;
        }
        let length = |draw: &Draw| self.datasets[draw.dataset].groups.length(draw.location);
        let lengths: Vec<u16> = draws.iter().map(length).collect();
        let objective = &self.source.objective;
        let masked_tokens = lengths.iter().map(|length| objective.predictions(usize::from(*length)) as u64).sum();

        let (shards, budget, layout) = (options.batch_shards, options.micro_batch_tokens, options.layout);
        let partitions = match request.split_key {
            None => vec![BatchPartition::new(&lengths, shards, budget, layout)],
            Some(key) => halves(lengths.len(), key)
                .map(|half| BatchPartition::for_subset(&lengths, &half, shards, budget, layout))
                .into(),
        };
        let own_shards = || partitions.iter().flat_map(|partition| &partition.ranks[options.own_shards()]);
        let shard_micro_batches = own_shards().map(Vec::len).collect();
        let micro_batch_plans = || own_shards().flatten();
        let own_draws: Vec<Draw> =
            micro_batch_plans().flat_map(|plan| &plan.samples).map(|sample| draws[*sample]).collect();
        let ends = options.position.dataset_numbers(&self.order.taken(end));
        let mut samples = self.gather(&own_draws, &ends, threads)?.into_iter();
        let padding = self.source.mixture.datasets()[0].manifest().special.pad;
        let micro_batches = micro_batch_plans().map(|plan| {
            let samples: Vec<MaskedSample> = samples.by_ref().take(plan.samples.len()).collect();
            let batch = MicroBatch::new(plan, padding, &samples);
            if self.source.objective.span_boundary_weight > 0.0 { batch.with_span_targets() } else { batch }
        });
        let micro_batches = micro_batches.collect();

        let (sample_range, tokens) = (cursor..end, partitions.iter().map(BatchPartition::tokens).sum::<usize>());
        let imbalance =
            partitions.iter().map(|partition| partition.imbalance() * partition.tokens() as f64).sum::<f64>()
                / tokens.max(1) as f64;
        let mut batch = GlobalBatch {
            datasets: dataset_parts(&draws, ends),
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

    /// Returns the next `size` samples from `cursor` on, without skipped samples. Also returns the mixture number of the
    /// sample that follows.
    fn next_draws(&mut self, options: &LoaderOptions, cursor: u64, size: usize) -> (Vec<Draw>, u64) {
        let mut draws = Vec::with_capacity(size);
        let mut number = cursor;
        while draws.len() < size {
            let sample = self.order.at(number);
            let dataset = sample.dataset;
            let reader = &mut self.datasets[dataset];
            let (epoch, location) = reader.location(options.position.dataset_number(sample));
            let shard = reader.dataset.row_groups()[location.row_group].shard;
            if !options.skipped.contains(number) && !options.skips_shard(dataset, shard) {
                draws.push(Draw { dataset, epoch, location });
            }
            number += 1;
        }
        (draws, number)
    }

    /// Reads and masks the samples `own_draws`, and returns them in order. Then keeps only the row groups in the window of
    /// the last sample before each position in `ends`.
    fn gather(&mut self, own_draws: &[Draw], ends: &[u64], threads: usize) -> Result<Vec<MaskedSample>, DatasetError> {
        let source = &self.source;
        let mut ordered: Vec<Option<MaskedSample>> = own_draws.iter().map(|_| None).collect();
        for (dataset_index, (dataset, end)) in self.datasets.iter_mut().zip(ends).enumerate() {
            let retained = end.checked_sub(1).map_or_else(BTreeSet::new, |last| dataset.window(last));
            let own: Vec<usize> =
                (0..own_draws.len()).filter(|index| own_draws[*index].dataset == dataset_index).collect();
            let locations: Vec<SampleLocation> = own.iter().map(|index| own_draws[*index].location).collect();
            let vocab = &self.vocabs[dataset_index];
            let mask = |samples: &Samples, index: usize| masked(source, vocab, samples, own_draws[own[index]]);
            let samples = dataset.groups.gather(&locations, &retained, threads, mask)?;
            own.iter().zip(samples).for_each(|(index, sample)| ordered[*index] = Some(sample));
            dataset.groups.retain(&retained);
        }
        Ok(ordered.into_iter().flatten().collect())
    }
}

/// Counts the samples of each dataset. `ends` are the positions of the datasets after the batch.
fn dataset_parts(draws: &[Draw], ends: Vec<u64>) -> Vec<DatasetPart> {
    let part = |(dataset_index, cursor_after): (usize, u64)| {
        let mut own = draws.iter().filter(|draw| draw.dataset == dataset_index);
        let epoch = own.next().map(|draw| draw.epoch);
        DatasetPart { samples: own.count() as u64 + u64::from(epoch.is_some()), epoch, cursor_after }
    };
    ends.into_iter().enumerate().map(part).collect()
}

/// Masks the sample of `draw`, a row of the decoded row group `samples`.
fn masked(source: &SampleSource, vocab: &MaskVocab, samples: &Samples, draw: Draw) -> MaskedSample {
    let Draw { dataset, epoch, location } = draw;
    let (objective, mut ids) = (&source.objective, samples.ids(location.row).to_vec());
    let dataset = &source.mixture.datasets()[dataset];
    let row = dataset.row_groups()[location.row_group].first_row + location.row as u64;
    let epoch = if source.shuffle { epoch } else { 0 };
    let key = masking::key(source.seed, objective, epoch, row);
    // Samples in the same row of different datasets have independent masks.
    let key = if source.mixture.is_single() { key } else { key.with_bytes(dataset.manifest_sha256().as_bytes()) };
    let masked_tokens = masking::mask(&mut ids, objective, vocab, key);
    let pair = objective.pair != Pair::None;
    MaskedSample {
        ids,
        segment_b_start: samples.segment_b_start[location.row],
        pair_label: pair.then(|| samples.pair_label[location.row]),
        masked_tokens,
        loss_scale: source.fault_injection.factor(row),
    }
}
