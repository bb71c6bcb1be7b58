//! The second half, first step: the documents of each bucket to samples, sorted by the keys of the global shuffle.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::PrepError;
use super::collected::Collected;
use super::duplicates::Removed;
use super::heads::Head;
use super::held_out::{self, Selection};
use super::job::{Job, Run};
use super::spill::{self, HELD_OUT_CELLS, PARTS, TRAIN_CELLS};
use super::totals::Totals;
use crate::record::{DocumentId, ids};
use crate::samples::{self, Bucket, Rules};
use lambert_dataset::HeldOut;
use lambert_dataset::random::Key;

/// Documents that a bucket should hold at the least, so that pairs are of many documents.
const DOCUMENTS: u64 = 16;
/// How often as many tokens a bucket may hold, if it holds few documents.
const MOST: u64 = 16;
/// Buckets of a selection at the most: all cells together divide evenly into that many.
const SELECTED_BUCKETS: u32 = 64;
/// One of the two datasets.
#[derive(Debug, Clone)]
pub struct Split {
    /// `train` or `held-out`.
    pub name: &'static str,
    /// How much goes in.
    pub totals: Totals,
    /// Parts of cells, numbered through all cells.
    parts: Vec<Range<u32>>,
    rule: Rule,
}

/// Which documents of its cells a split has.
#[derive(Debug, Clone)]
enum Rule {
    /// Those that were drawn.
    Drawn { only: Option<DocumentId>, except: Option<DocumentId> },
    /// Those that were chosen, or those that were not, or blocks of them.
    Selected { selection: Arc<Selection>, held_out: bool },
}

impl Split {
    /// Both datasets, as the documents that are there divide into them.
    pub fn all(job: &Job<'_>, runs: &[Run], removed: &Removed) -> Result<Vec<Self>, PrepError> {
        let of_cells = totals(runs)?;
        let totals = |cells: Range<u16>| {
            let mut sum = Totals::default();
            of_cells[usize::from(cells.start)..usize::from(cells.end)].iter().for_each(|cell| sum += *cell);
            removed.subtract(cells, &mut sum);
            sum
        };
        let cells = TRAIN_CELLS..TRAIN_CELLS + HELD_OUT_CELLS;
        let (mut train, mut held_out) = (totals(0..TRAIN_CELLS), totals(cells));
        let mut lone = None;
        if job.config.samples.held_out > 0.0 && held_out.documents == 0 && train.documents > 1 {
            lone = least(job, runs, removed)?;
            if let Some(head) = lone {
                held_out = head.totals;
                train -= head.totals;
            }
        }
        let asked = job.config.samples.held_out;
        if asked > 0.0 && !held_out::is_met(asked, held_out.tokens, train.tokens + held_out.tokens) {
            return Ok(Self::selected(job, Selection::new(job, runs, removed)?));
        }
        let buckets = |totals, cells| bucket_count(totals, cells, job.scale.bucket);
        let held_out_parts = match lone {
            Some(head) => {
                let part = u32::from(head.cell) * u32::from(PARTS) + u32::from(head.id.part(job.config.samples.seed));
                std::iter::once(part..part + 1).collect()
            }
            None => divide(TRAIN_CELLS, HELD_OUT_CELLS, buckets(held_out, HELD_OUT_CELLS)),
        };
        let lone = lone.map(|head| head.id);
        let train_parts = divide(0, TRAIN_CELLS, buckets(train, TRAIN_CELLS));
        Ok(vec![
            Self::drawn("train", train, train_parts, None, lone),
            Self::drawn("held-out", held_out, held_out_parts, lone, None),
        ])
    }

    fn drawn(
        name: &'static str,
        totals: Totals,
        parts: Vec<Range<u32>>,
        only: Option<DocumentId>,
        except: Option<DocumentId>,
    ) -> Self {
        Self { name, totals, parts, rule: Rule::Drawn { only, except } }
    }

    /// Both datasets of a selection. What a document was drawn for is of no account: each bucket has some neighbouring cells of
    /// all.
    fn selected(job: &Job<'_>, selection: Selection) -> Vec<Self> {
        let selection = Arc::new(selection);
        let split = |name, totals: Totals, held_out| {
            let cells = TRAIN_CELLS + HELD_OUT_CELLS;
            let buckets = bucket_count(totals, cells, job.scale.bucket).min(SELECTED_BUCKETS);
            let rule = Rule::Selected { selection: selection.clone(), held_out };
            Self { name, totals, parts: divide(0, cells, buckets), rule }
        };
        vec![split("train", selection.train, false), split("held-out", selection.held_out, true)]
    }

    /// The selection, if the documents that were drawn did not meet the share.
    pub fn selection(&self) -> Option<&Selection> {
        match &self.rule {
            Rule::Drawn { .. } => None,
            Rule::Selected { selection, .. } => Some(selection),
        }
    }

    /// The share that is held out of what both splits have, if any was asked for.
    pub fn held_out(job: &Job<'_>, splits: &[Self]) -> Option<HeldOut> {
        let asked = job.config.samples.held_out;
        let [train, held_out] = splits else { return None };
        let reached = held_out::share(held_out.totals.tokens, train.totals.tokens + held_out.totals.tokens);
        let drawn = HeldOut { asked, reached, block_tokens: None };
        (asked > 0.0).then(|| train.selection().map_or(drawn, |selection| selection.describe(asked)))
    }

    /// The name of its files in the work folder. Those of another rule, which an older program may have left, have another one.
    pub fn work_name(&self) -> String {
        match &self.rule {
            Rule::Drawn { .. } => self.name.to_owned(),
            Rule::Selected { .. } => format!("{}-selected", self.name),
        }
    }

    /// Buckets.
    pub fn buckets(&self) -> usize {
        if self.totals.documents == 0 { 0 } else { self.parts.len() }
    }

    /// Tokens of each bucket, about: those of its cells, or its share of one.
    pub fn tokens(&self, of_cells: &[Totals]) -> Vec<u64> {
        let tokens = |parts: &Range<u32>| {
            let (cells, parts) = (cells(parts), parts.end - parts.start);
            let whole: u64 =
                of_cells[usize::from(cells.start)..usize::from(cells.end)].iter().map(|cell| cell.tokens).sum();
            let here = whole * u64::from(parts) / (u64::from(cells.end - cells.start) * u64::from(PARTS));
            here.min(self.totals.tokens)
        };
        self.parts[..self.buckets()].iter().map(tokens).collect()
    }

    /// The sentences of a document that belong to this split, as ranges; `ends` says where each sentence ends.
    fn pieces(&self, id: DocumentId, ends: &[u32]) -> Vec<Range<usize>> {
        match &self.rule {
            Rule::Drawn { only, except } if only.is_none_or(|only| only == id) && *except != Some(id) => {
                std::iter::once(0..ends.len()).collect()
            }
            Rule::Drawn { .. } => Vec::new(),
            Rule::Selected { selection, held_out } => selection.pieces(id, ends, *held_out),
        }
    }

    /// Whether only a few documents of its cells are in this split.
    fn is_sparse(&self) -> bool {
        matches!(self.rule, Rule::Selected { held_out: true, .. })
    }
}

/// What all runs have of each cell.
pub fn totals(runs: &[Run]) -> Result<Vec<Totals>, PrepError> {
    let mut totals = vec![Totals::default(); usize::from(TRAIN_CELLS + HELD_OUT_CELLS)];
    for run in runs {
        let cells = run.cells(0..TRAIN_CELLS + HELD_OUT_CELLS)?;
        totals.iter_mut().zip(cells).for_each(|(total, cell)| *total += cell.totals);
    }
    Ok(totals)
}

/// The cells in which some parts lie.
fn cells(parts: &Range<u32>) -> Range<u16> {
    let width = u32::from(PARTS);
    (parts.start / width) as u16..parts.end.div_ceil(width) as u16
}

/// The document that is held out where the configured share gives none: the one with the least key.
fn least(job: &Job<'_>, runs: &[Run], removed: &Removed) -> Result<Option<Head>, PrepError> {
    let mut least: Option<(u64, Head)> = None;
    for run in runs {
        run.each_head(|_, bytes| {
            let head = Head::read(bytes);
            let key = head.id.key(job.config.samples.seed, "least").value();
            if head.cell < TRAIN_CELLS && !removed.contains(head.id) && least.is_none_or(|(other, _)| key < other) {
                least = Some((key, head));
            }
        })?;
    }
    Ok(least.map(|(_, head)| head))
}

fn bucket_count(totals: Totals, cells: u16, tokens: u64) -> u32 {
    let wanted = totals.tokens.div_ceil(tokens).min(totals.documents / DOCUMENTS);
    let needed = totals.tokens.div_ceil(MOST * tokens);
    wanted.max(needed).clamp(1, u64::from(cells) * u64::from(PARTS)).next_power_of_two() as u32
}

fn divide(first: u16, cells: u16, buckets: u32) -> Vec<Range<u32>> {
    let (first, size) = (u32::from(first) * u32::from(PARTS), u32::from(cells) * u32::from(PARTS) / buckets);
    (0..buckets).map(|bucket| first + bucket * size..first + (bucket + 1) * size).collect()
}

/// Makes the samples of a bucket in the file `path`.
pub fn make(
    job: &Job<'_>,
    runs: &[Run],
    removed: &Removed,
    split: &Split,
    bucket: usize,
    path: &Path,
) -> Result<(), PrepError> {
    let documents = load(job, runs, removed, split, bucket)?;
    let weight = |id: DocumentId| job.sources[job.files[id.file as usize].source].weight;
    let rules = Rules { samples: &job.config.samples, special: job.tokenizer.special(), weight: &weight };
    let mut collected = Collected::new(job);
    let key = Key::new(rules.samples.seed).with_bytes(b"shuffle").with_bytes(split.name.as_bytes()).with(bucket as u64);
    let mut result = Ok(());
    samples::make(&documents, &rules, &mut |ids, start, label| {
        if result.is_ok() {
            result = collected.push(key, ids, start, label);
        }
    });
    result?;
    drop(documents);
    collected.write(path)
}

fn load(job: &Job<'_>, runs: &[Run], removed: &Removed, split: &Split, bucket: usize) -> Result<Bucket, PrepError> {
    let (parts, width) = (&split.parts[bucket], ids::width(job.tokenizer.size()));
    let (cells, seed) = (cells(parts), job.config.samples.seed);
    let whole = (parts.end - parts.start).is_multiple_of(u32::from(PARTS));
    let first = u32::from(cells.start) * u32::from(PARTS);
    let of_cell = (parts.start - first) as u16..(parts.end - first).min(u32::from(PARTS)) as u16;
    let mut bytes = Vec::new();
    for run in runs {
        let mut found = run.cells(cells.clone())?;
        found.retain(|cell| cell.totals.documents > 0);
        let [first, ..] = found.as_slice() else { continue };
        let (at, length) = if whole {
            let last = found.last().unwrap_or(first);
            (first.at, last.at + last.bytes - first.at)
        } else {
            run.parts(first, of_cell.clone(), seed, width)?
        };
        match split.selection().filter(|_| split.is_sparse()) {
            None => bytes.extend_from_slice(&run.file.read(at, length as usize)?),
            // Of the whole corpus only what is held out is kept in memory.
            Some(selection) => {
                for cell in &found {
                    let records = run.file.read(cell.at, cell.bytes as usize)?;
                    let wanted = spill::records(&records, width).filter(|(id, _)| selection.has(*id));
                    wanted.for_each(|(_, record)| bytes.extend_from_slice(record));
                }
            }
        }
    }
    Bucket::new(bytes, width, |id, ends| if removed.contains(id) { Vec::new() } else { split.pieces(id, ends) })
        .ok_or_else(|| PrepError::Damaged { path: job.runs_folder() })
}
