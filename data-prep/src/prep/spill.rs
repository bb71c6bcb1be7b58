//! Documents as token ids, sorted into cells, on their way from the tokenizing threads to the buckets.
//!
//! A document's cell follows from its place in the corpus alone. Buckets are made of neighbouring cells once the size
//! of the corpus is known, so that they fit into memory and hold enough documents for pairs.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::heads::{self, EXCLUDED, Head};
use super::totals::Totals;
use super::{PrepError, sealed};
use crate::record::{DocumentId, RECORD_HEAD, ids};
use crate::source::Part;

/// Cells of the documents to train on; the held-out ones follow.
pub const TRAIN_CELLS: u16 = 1024;
/// Cells of the documents held out.
pub const HELD_OUT_CELLS: u16 = 64;
/// Parts of a cell, for corpora whose cells are too large for memory.
pub const PARTS: u16 = 1024;

impl DocumentId {
    /// Where this document goes: its cell.
    fn cell(self, seed: u64, held_out: f64) -> u16 {
        let mut rng = self.key(seed, "cell").rng();
        if rng.chance(held_out) {
            TRAIN_CELLS + rng.below(u64::from(HELD_OUT_CELLS)) as u16
        } else {
            rng.below(u64::from(TRAIN_CELLS)) as u16
        }
    }

    /// Its part of the cell.
    pub fn part(self, seed: u64) -> u16 {
        self.key(seed, "part").rng().below(u64::from(PARTS)) as u16
    }
}

/// What stands in a run file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Contents {
    /// The batches whose documents are here.
    pub batches: Vec<DoneBatch>,
    /// Files that were read to their end.
    pub files: Vec<ReadFile>,
    /// Documents, sentences and tokens.
    pub totals: Totals,
    /// What was read of each source, by its number.
    pub sources: BTreeMap<u32, SourceTotals>,
    /// What was left out, by reason.
    pub rejected: BTreeMap<String, u64>,
    /// Where the heads of all documents start, in the order of the documents; those of excluded ones are the last.
    pub heads_at: u64,
    /// How many there are.
    pub heads: u64,
    /// Where the table of the cells starts: a [`CellPart`] for each. It ends the body.
    pub cells_at: u64,
    /// Whether the heads have signatures.
    pub signed: bool,
}

/// A batch that was worked through.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct DoneBatch {
    /// The file's number.
    pub file: u32,
    /// The batch's number in the file.
    pub number: u32,
    /// Whether the file ends with it.
    pub last: bool,
    /// Of its documents, as they were read.
    pub digest: u64,
}

/// What a file held when it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadFile {
    /// Its number.
    pub file: u32,
    /// Of its stored bytes.
    pub sha256: String,
    /// Its stamp at that time.
    pub stamp: String,
}

/// A cell's documents in a run file, sorted by their parts of the cell and then by their places in the corpus.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CellPart {
    /// Where they start.
    pub at: u64,
    /// How long they are.
    pub bytes: u64,
    /// The number of the first one's head.
    pub head: u64,
    /// How much they are.
    pub totals: Totals,
}

impl CellPart {
    /// Bytes of one in the table.
    pub const BYTES: usize = 48;

    fn write(&self) -> [u8; Self::BYTES] {
        let Totals { documents, sentences, tokens } = self.totals;
        let mut bytes = [0; Self::BYTES];
        let words = [self.at, self.bytes, self.head, documents, sentences, tokens];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// Reads what stands in the table.
    pub fn read(bytes: &[u8]) -> Self {
        let word = |index: usize| bytes[index * 8..index * 8 + 8].try_into().map_or(0, u64::from_le_bytes);
        let totals = Totals { documents: word(3), sentences: word(4), tokens: word(5) };
        Self { at: word(0), bytes: word(1), head: word(2), totals }
    }
}

/// What was read of a source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceTotals {
    /// Bytes of its documents, decompressed, markup included.
    pub text_bytes: u64,
    /// Documents that were found.
    pub found: u64,
    /// What became of them; duplicates are not yet left out.
    pub kept: Totals,
}

impl std::ops::AddAssign for SourceTotals {
    fn add_assign(&mut self, other: Self) {
        self.text_bytes += other.text_bytes;
        self.found += other.found;
        self.kept += other.kept;
    }
}

/// Bytes of a document's record, whose ids have `width` bytes.
pub const fn record_bytes(totals: &Totals, width: usize) -> u64 {
    RECORD_HEAD as u64 + 2 * totals.sentences + totals.tokens * width as u64
}

/// The records that stand one after another in `bytes`, as far as they are whole.
pub fn records(bytes: &[u8], width: usize) -> impl Iterator<Item = (DocumentId, &[u8])> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        let word = |at: usize| left.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let id = DocumentId { file: word(0)?, ordinal: word(4)? };
        let totals = Totals { documents: 1, sentences: u64::from(word(8)?), tokens: u64::from(word(12)?) };
        let (record, rest) = left.split_at_checked(record_bytes(&totals, width) as usize)?;
        left = rest;
        Some((id, record))
    })
}

/// Collects documents; written to a run file now and then.
pub struct Spill {
    seed: u64,
    held_out: f64,
    width: usize,
    signed: bool,
    bytes: Vec<u8>,
    heads: Vec<u8>,
    records: Vec<Record>,
    contents: Contents,
}

struct Record {
    cell: u16,
    part: u16,
    id: DocumentId,
    /// In the bytes; the same place where the document is excluded.
    start: usize,
    end: usize,
    /// In the heads.
    head: usize,
    totals: Totals,
}

impl Spill {
    /// An empty one; `signed` if near-duplicates are to be found.
    pub fn new(seed: u64, held_out: f64, width: usize, signed: bool) -> Self {
        let (bytes, heads, records, contents) = (Vec::new(), Vec::new(), Vec::new(), Contents::default());
        Self { seed, held_out, width, signed, bytes, heads, records, contents }
    }

    /// Bytes collected.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.heads.len() + self.records.len() * size_of::<Record>()
    }

    /// Whether nothing was noted since the last writing.
    pub fn is_empty(&self) -> bool {
        self.contents.batches.is_empty() && self.contents.files.is_empty()
    }

    /// Adds a document: `tokens` holds its sentences one after another, `lengths` their tokens. Of one that is only
    /// there to be excluded nothing but the head is kept.
    pub fn push(&mut self, id: DocumentId, lengths: &[u16], tokens: &[u32], excluded: bool) {
        let totals = Totals { documents: 1, sentences: lengths.len() as u64, tokens: tokens.len() as u64 };
        let cell = if excluded { EXCLUDED } else { id.cell(self.seed, self.held_out) };
        let (start, head) = (self.bytes.len(), self.heads.len());
        Head { id, cell, totals, hash: heads::hash(tokens) }.write(&mut self.heads);
        if self.signed {
            heads::signature(tokens).iter().for_each(|value| self.heads.extend_from_slice(&value.to_le_bytes()));
        }
        self.contents.heads += 1;
        if !excluded {
            self.write_tokens(id, lengths, tokens);
            self.contents.totals += totals;
        }
        let (part, end) = (id.part(self.seed), self.bytes.len());
        self.records.push(Record { cell, part, id, start, end, head, totals });
    }

    fn write_tokens(&mut self, id: DocumentId, lengths: &[u16], tokens: &[u32]) {
        for head in [id.file, id.ordinal, lengths.len() as u32, tokens.len() as u32] {
            self.bytes.extend_from_slice(&head.to_le_bytes());
        }
        lengths.iter().for_each(|length| self.bytes.extend_from_slice(&length.to_le_bytes()));
        ids::write(tokens, self.width, &mut self.bytes);
    }

    /// What was collected since the last writing.
    pub fn totals(&self) -> Totals {
        self.contents.totals
    }

    /// Adds to what was read of a source.
    pub fn count(&mut self, source: usize, read: SourceTotals) {
        *self.contents.sources.entry(source as u32).or_default() += read;
    }

    /// Counts something that was left out.
    pub fn reject(&mut self, reason: &str, count: u64) {
        *self.contents.rejected.entry(reason.to_owned()).or_default() += count;
    }

    /// Notes that all documents of a batch were pushed.
    pub fn end_batch(&mut self, batch: DoneBatch) {
        self.contents.batches.push(batch);
    }

    /// Notes that a file was read to its end.
    pub fn end_file(&mut self, file: ReadFile) {
        self.contents.files.push(file);
    }

    /// The name of a run file: no two of a preparation are the same, whichever part writes them.
    fn name(&self, part: Part) -> Option<String> {
        let (batch, file) = (self.contents.batches.first(), self.contents.files.first());
        let part = part.map_or(0, |(index, _)| index);
        batch.map(|batch| format!("run-{:06}-{:06}.docs", batch.file, batch.number)).or_else(|| {
            // This part read a file to its end without doing its last batch.
            file.map(|file| format!("read-{:06}-{part:06}.docs", file.file))
        })
    }

    /// Writes everything to a run file in `folder` and starts anew.
    pub fn write(&mut self, folder: &Path, part: Part) -> Result<(), PrepError> {
        let Some(name) = self.name(part) else { return Ok(()) };
        let path = folder.join(name);
        let mut contents = std::mem::take(&mut self.contents);
        // Excluded documents have the greatest cell.
        self.records.sort_unstable_by_key(|record| (record.cell, record.part, record.id));
        sealed::write(&path, |output| {
            let mut at = 0;
            for record in &self.records {
                at += (record.end - record.start) as u64;
                output.write_all(&self.bytes[record.start..record.end])?;
            }
            let width = Head::bytes(self.signed);
            (contents.heads_at, contents.signed) = (at, self.signed);
            contents.cells_at = at + (self.heads.len()) as u64;
            for record in &self.records {
                output.write_all(&self.heads[record.head..record.head + width])?;
            }
            cells(&self.records).iter().try_for_each(|cell| output.write_all(&cell.write()))?;
            Ok(contents)
        })?;
        self.records.clear();
        self.heads.clear();
        self.bytes.clear();
        Ok(())
    }
}

/// What each cell has of sorted records.
fn cells(records: &[Record]) -> Vec<CellPart> {
    let mut cells = vec![CellPart::default(); usize::from(TRAIN_CELLS + HELD_OUT_CELLS)];
    let mut at = 0;
    for (number, record) in records.iter().enumerate().filter(|(_, record)| record.cell != EXCLUDED) {
        let cell = &mut cells[usize::from(record.cell)];
        if cell.totals.documents == 0 {
            (cell.at, cell.head) = (at, number as u64);
        }
        let length = (record.end - record.start) as u64;
        cell.bytes += length;
        cell.totals += record.totals;
        at += length;
    }
    cells
}
