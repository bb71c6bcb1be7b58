//! Buckets of documents. Generates the samples of each bucket, sorted by their global shuffle keys. A bucket is a range
//! of cells, or of slices within a cell ([`super::spill`]).

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::PrepError;
use super::duplicates::RemovedDocuments;
use super::fingerprints::DocumentFingerprint;
use super::held_out::{self, HeldOutSelection};
use super::job::{JobContext, SpillFile};
use super::sort_buffer::SortBuffer;
use super::spill::{self, HELD_OUT_CELLS, SLICES_PER_CELL, TRAIN_CELLS};
use super::totals::DocumentTotals;
use crate::record::{DocumentId, ids};
use crate::samples::{self, DocumentBucket, SamplingRules};
use lambert_dataset::HeldOut;
use lambert_dataset::random::Key;

/// Minimum number of documents per bucket, so that pairs mix many documents.
const MIN_DOCUMENTS: u64 = 16;
/// Upper limit on the size of a bucket, as a multiple of `bucket_tokens`. A bucket may exceed `bucket_tokens` in order
/// to have [`MIN_DOCUMENTS`] documents.
const MAX_OVERSIZE: u64 = 16;
/// Upper limit on the number of buckets of a split with the rule [`SplitRule::BySelection`]. The 1,088 cells divide
/// evenly into 64 buckets.
const MAX_SELECTION_BUCKETS: u32 = 64;

/// One of the two datasets.
#[derive(Debug, Clone)]
pub struct DatasetSplit {
    /// `train` or `held-out`.
    pub name: &'static str,
    /// Counts of the documents in this split.
    pub totals: DocumentTotals,
    /// Range of slices of each bucket. Slices are numbered across all cells.
    slices: Vec<Range<u32>>,
    rule: SplitRule,
}

/// Rule that selects the documents of a split.
#[derive(Debug, Clone)]
enum SplitRule {
    /// By cell: all documents in the cells of the split. `only` limits the split to one document, and `except` leaves
    /// one document out.
    ByCell { only: Option<DocumentId>, except: Option<DocumentId> },
    /// By selection: the selected documents or blocks if `is_held_out`, otherwise the rest of the corpus.
    BySelection { selection: Arc<HeldOutSelection>, is_held_out: bool },
}

impl DatasetSplit {
    /// Divides the documents into the training and the held-out split.
    pub fn train_and_held_out(
        job: &JobContext<'_>,
        spill_files: &[SpillFile],
        removed: &RemovedDocuments,
    ) -> Result<Vec<Self>, PrepError> {
        let cell_totals = cell_totals(spill_files)?;
        let totals = |cells: Range<u16>| {
            let mut sum = DocumentTotals::default();
            cell_totals[usize::from(cells.start)..usize::from(cells.end)].iter().for_each(|cell| sum += *cell);
            removed.subtract(cells, &mut sum);
            sum
        };
        let cells = TRAIN_CELLS..TRAIN_CELLS + HELD_OUT_CELLS;
        let (mut train, mut held_out) = (totals(0..TRAIN_CELLS), totals(cells));
        let mut fallback = None;
        if job.config.samples.held_out > 0.0 && held_out.documents == 0 && train.documents > 1 {
            fallback = fallback_document(job, spill_files, removed)?;
            if let Some(fingerprint) = fallback {
                held_out = fingerprint.totals;
                train -= fingerprint.totals;
            }
        }
        let target = job.config.samples.held_out;
        if target > 0.0 && !held_out::is_close_enough(target, held_out.tokens, train.tokens + held_out.tokens) {
            return Ok(Self::by_selection(job, HeldOutSelection::new(job, spill_files, removed)?));
        }
        let buckets = |totals, cells| bucket_count(totals, cells, job.limits.bucket_tokens);
        let held_out_slices = match fallback {
            Some(fingerprint) => {
                let slice = u32::from(fingerprint.cell) * u32::from(SLICES_PER_CELL)
                    + u32::from(fingerprint.id.slice(job.config.samples.seed));
                std::iter::once(slice..slice + 1).collect()
            }
            None => divide_cells(TRAIN_CELLS, HELD_OUT_CELLS, buckets(held_out, HELD_OUT_CELLS)),
        };
        let fallback = fallback.map(|fingerprint| fingerprint.id);
        let train_slices = divide_cells(0, TRAIN_CELLS, buckets(train, TRAIN_CELLS));
        Ok(vec![
            Self::by_cell("train", train, train_slices, None, fallback),
            Self::by_cell("held-out", held_out, held_out_slices, fallback, None),
        ])
    }

    fn by_cell(
        name: &'static str,
        totals: DocumentTotals,
        slices: Vec<Range<u32>>,
        only: Option<DocumentId>,
        except: Option<DocumentId>,
    ) -> Self {
        Self { name, totals, slices, rule: SplitRule::ByCell { only, except } }
    }

    /// Builds both splits from a selection. A document of either split can be in any cell, so the buckets of each split
    /// cover all cells.
    fn by_selection(job: &JobContext<'_>, selection: HeldOutSelection) -> Vec<Self> {
        let selection = Arc::new(selection);
        let split = |name, totals: DocumentTotals, is_held_out| {
            let cells = TRAIN_CELLS + HELD_OUT_CELLS;
            let buckets = bucket_count(totals, cells, job.limits.bucket_tokens).min(MAX_SELECTION_BUCKETS);
            let rule = SplitRule::BySelection { selection: selection.clone(), is_held_out };
            Self { name, totals, slices: divide_cells(0, cells, buckets), rule }
        };
        vec![split("train", selection.train, false), split("held-out", selection.held_out, true)]
    }

    /// The selection, if the assignment by cell missed the target share.
    pub fn selection(&self) -> Option<&HeldOutSelection> {
        match &self.rule {
            SplitRule::ByCell { .. } => None,
            SplitRule::BySelection { selection, .. } => Some(selection),
        }
    }

    /// Returns the achieved held-out share, if the configuration requests a share above 0.
    pub fn held_out(job: &JobContext<'_>, splits: &[Self]) -> Option<HeldOut> {
        let target = job.config.samples.held_out;
        let [train, held_out] = splits else { return None };
        let achieved = held_out::share(held_out.totals.tokens, train.totals.tokens + held_out.totals.tokens);
        let summary = HeldOut { configured: target, achieved, block_tokens: None };
        (target > 0.0).then(|| train.selection().map_or(summary, |selection| selection.summary(target)))
    }

    /// File name prefix of the split in the work folder. Each rule has its own prefix, so files of another rule are not
    /// reused.
    pub fn file_prefix(&self) -> String {
        match &self.rule {
            SplitRule::ByCell { .. } => self.name.to_owned(),
            SplitRule::BySelection { .. } => format!("{}-selected", self.name),
        }
    }

    /// Number of buckets.
    pub fn buckets(&self) -> usize {
        if self.totals.documents == 0 { 0 } else { self.slices.len() }
    }

    /// Estimates the number of tokens in each bucket from the totals of its cells.
    pub fn tokens(&self, cell_totals: &[DocumentTotals]) -> Vec<u64> {
        let tokens = |slices: &Range<u32>| {
            let (cells, slices) = (cells_of(slices), slices.end - slices.start);
            let whole: u64 =
                cell_totals[usize::from(cells.start)..usize::from(cells.end)].iter().map(|cell| cell.tokens).sum();
            let here = whole * u64::from(slices) / (u64::from(cells.end - cells.start) * u64::from(SLICES_PER_CELL));
            here.min(self.totals.tokens)
        };
        self.slices[..self.buckets()].iter().map(tokens).collect()
    }

    /// Returns the sentence ranges of a document in this split. `ends` has the end offset of each sentence, in tokens.
    fn sentence_ranges(&self, id: DocumentId, ends: &[u32]) -> Vec<Range<usize>> {
        match &self.rule {
            SplitRule::ByCell { only, except } if only.is_none_or(|only| only == id) && *except != Some(id) => {
                std::iter::once(0..ends.len()).collect()
            }
            SplitRule::ByCell { .. } => Vec::new(),
            SplitRule::BySelection { selection, is_held_out } => selection.sentence_ranges(id, ends, *is_held_out),
        }
    }

    /// True if the split contains only a few of the documents in its cells.
    fn is_sparse(&self) -> bool {
        matches!(self.rule, SplitRule::BySelection { is_held_out: true, .. })
    }
}

/// Sums the counts of each cell over all spill files.
pub fn cell_totals(spill_files: &[SpillFile]) -> Result<Vec<DocumentTotals>, PrepError> {
    let mut totals = vec![DocumentTotals::default(); usize::from(TRAIN_CELLS + HELD_OUT_CELLS)];
    for spill_file in spill_files {
        let cells = spill_file.cell_entries(0..TRAIN_CELLS + HELD_OUT_CELLS)?;
        totals.iter_mut().zip(cells).for_each(|(total, cell)| *total += cell.totals);
    }
    Ok(totals)
}

/// Returns the cells that contain a range of slices.
fn cells_of(slices: &Range<u32>) -> Range<u16> {
    let width = u32::from(SLICES_PER_CELL);
    (slices.start / width) as u16..slices.end.div_ceil(width) as u16
}

/// Returns the document that is held out if the held-out cells are empty: the training document with the smallest
/// random key.
fn fallback_document(
    job: &JobContext<'_>,
    spill_files: &[SpillFile],
    removed: &RemovedDocuments,
) -> Result<Option<DocumentFingerprint>, PrepError> {
    let mut smallest: Option<(u64, DocumentFingerprint)> = None;
    for spill_file in spill_files {
        spill_file.for_each_fingerprint(|_, bytes| {
            let fingerprint = DocumentFingerprint::read(bytes);
            let key = fingerprint.id.key(job.config.samples.seed, "least").value();
            if fingerprint.cell < TRAIN_CELLS
                && !removed.contains(fingerprint.id)
                && smallest.is_none_or(|(other, _)| key < other)
            {
                smallest = Some((key, fingerprint));
            }
        })?;
    }
    Ok(smallest.map(|(_, fingerprint)| fingerprint))
}

fn bucket_count(totals: DocumentTotals, cells: u16, tokens: u64) -> u32 {
    let preferred = totals.tokens.div_ceil(tokens).min(totals.documents / MIN_DOCUMENTS);
    let minimum = totals.tokens.div_ceil(MAX_OVERSIZE * tokens);
    preferred.max(minimum).clamp(1, u64::from(cells) * u64::from(SLICES_PER_CELL)).next_power_of_two() as u32
}

fn divide_cells(first: u16, cells: u16, buckets: u32) -> Vec<Range<u32>> {
    let (first, size) =
        (u32::from(first) * u32::from(SLICES_PER_CELL), u32::from(cells) * u32::from(SLICES_PER_CELL) / buckets);
    (0..buckets).map(|bucket| first + bucket * size..first + (bucket + 1) * size).collect()
}

/// Writes the samples of a bucket to `path`.
pub fn write_samples(
    job: &JobContext<'_>,
    spill_files: &[SpillFile],
    removed: &RemovedDocuments,
    split: &DatasetSplit,
    bucket: usize,
    path: &Path,
) -> Result<(), PrepError> {
    let documents = load_documents(job, spill_files, removed, split, bucket)?;
    let weight = |id: DocumentId| job.sources[job.files[id.file as usize].source].weight;
    let rules = SamplingRules { samples: &job.config.samples, special: job.tokenizer.special(), weight: &weight };
    let mut sort_buffer = SortBuffer::new(job);
    let key = Key::new(rules.samples.seed).with_bytes(b"shuffle").with_bytes(split.name.as_bytes()).with(bucket as u64);
    let mut result = Ok(());
    samples::make_samples(&documents, &rules, &mut |ids, start, label| {
        if result.is_ok() {
            result = sort_buffer.push(key, ids, start, label);
        }
    });
    result?;
    drop(documents);
    sort_buffer.finish(path)
}

fn load_documents(
    job: &JobContext<'_>,
    spill_files: &[SpillFile],
    removed: &RemovedDocuments,
    split: &DatasetSplit,
    bucket: usize,
) -> Result<DocumentBucket, PrepError> {
    let (slices, width) = (&split.slices[bucket], ids::width(job.tokenizer.size()));
    let (cells, seed) = (cells_of(slices), job.config.samples.seed);
    let whole = (slices.end - slices.start).is_multiple_of(u32::from(SLICES_PER_CELL));
    let first = u32::from(cells.start) * u32::from(SLICES_PER_CELL);
    let cell_slices = (slices.start - first) as u16..(slices.end - first).min(u32::from(SLICES_PER_CELL)) as u16;
    let mut bytes = Vec::new();
    for spill_file in spill_files {
        let mut found = spill_file.cell_entries(cells.clone())?;
        found.retain(|cell| cell.totals.documents > 0);
        let [first, ..] = found.as_slice() else { continue };
        let (at, length) = if whole {
            let last = found.last().unwrap_or(first);
            (first.offset, last.offset + last.bytes - first.offset)
        } else {
            spill_file.slice_range(first, cell_slices.clone(), seed, width)?
        };
        match split.selection().filter(|_| split.is_sparse()) {
            None => bytes.extend_from_slice(&spill_file.file.read(at, length as usize)?),
            // The cells contain the whole corpus. Only the records of held-out documents are kept in memory.
            Some(selection) => {
                for cell in &found {
                    let records = spill_file.file.read(cell.offset, cell.bytes as usize)?;
                    let selected = spill::records(&records, width).filter(|(id, _)| selection.includes(*id));
                    selected.for_each(|(_, record)| bytes.extend_from_slice(record));
                }
            }
        }
    }
    DocumentBucket::new(
        bytes,
        width,
        |id, ends| if removed.contains(id) { Vec::new() } else { split.sentence_ranges(id, ends) },
    )
    .ok_or_else(|| PrepError::DamagedWorkFile { path: job.spill_folder() })
}
