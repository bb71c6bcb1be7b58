//! Buffers tokenized documents and spills them to disk, sorted by cell.
//!
//! A cell is a hash partition of the documents. The document ID and the seed determine the cell of a document. Once the
//! corpus size is known, adjacent cells are combined into buckets, and a large cell is divided into several. A bucket fits into memory and has enough documents
//! for pairs.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::fingerprints::{self, DocumentFingerprint, EXCLUDED};
use super::rejected::{FirstRejected, RejectedItem};
use super::totals::DocumentTotals;
use super::{PrepError, work_file};
use crate::record::{DocumentId, RECORD_HEADER_BYTES, ids};
use crate::source::WorkPart;

/// Number of cells for training documents. The held-out cells follow.
pub const TRAIN_CELLS: u16 = 1024;
/// Number of cells for held-out documents.
pub const HELD_OUT_CELLS: u16 = 64;
/// Number of slices per cell. Slices divide cells that are too large for one bucket.
pub const SLICES_PER_CELL: u16 = 1024;

impl DocumentId {
    /// Returns the cell of the document. It is a held-out cell with probability `held_out`.
    fn cell(self, seed: u64, held_out: f64) -> u16 {
        let mut rng = self.key(seed, "cell").rng();
        if rng.chance(held_out) {
            TRAIN_CELLS + rng.below(u64::from(HELD_OUT_CELLS)) as u16
        } else {
            rng.below(u64::from(TRAIN_CELLS)) as u16
        }
    }

    /// Returns the slice of the document within its cell.
    pub fn slice(self, seed: u64) -> u16 {
        self.key(seed, "part").rng().below(u64::from(SLICES_PER_CELL)) as u16
    }
}

/// JSON trailer of a spill file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SpillContents {
    /// Batches whose documents are in this file.
    pub batches: Vec<FinishedBatch>,
    /// Input files that were read to their end.
    pub files: Vec<FinishedFile>,
    /// Counts of the documents in this file.
    pub totals: DocumentTotals,
    /// Counts by source index.
    pub sources: BTreeMap<u32, SourceTotals>,
    /// Number of skipped items by reason.
    pub rejected: BTreeMap<String, u64>,
    /// First skipped items by reason.
    #[serde(default)]
    pub rejected_examples: FirstRejected,
    /// Offset of the fingerprints. They are in document order, except that excluded documents come last.
    #[serde(rename = "heads_at")]
    pub fingerprints_offset: u64,
    /// Number of fingerprints.
    #[serde(rename = "heads")]
    pub fingerprints: u64,
    /// Offset of the cell table at the end of the body. The table has one [`CellEntry`] per cell.
    #[serde(rename = "cells_at")]
    pub cells_offset: u64,
    /// True if the fingerprints include MinHash signatures.
    #[serde(rename = "signed")]
    pub has_signatures: bool,
}

/// A batch whose documents are all in a spill file.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct FinishedBatch {
    /// File number.
    pub file: u32,
    /// Index of the batch in its file.
    pub number: u32,
    /// True if this is the last batch of its file.
    #[serde(rename = "last")]
    pub is_last: bool,
    /// Hash of the documents as they were read.
    pub digest: u64,
}

/// Identity of an input file at the time it was read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishedFile {
    /// File number.
    pub file: u32,
    /// SHA-256 of the file before decompression.
    pub sha256: String,
    /// Modification stamp.
    pub stamp: String,
}

/// Location of the documents of a cell in a spill file. The documents are sorted by slice and document ID.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CellEntry {
    /// Offset of the first document.
    pub offset: u64,
    /// Size of the documents, bytes.
    pub bytes: u64,
    /// Index of the fingerprint of the first document.
    pub first_fingerprint: u64,
    /// Counts of the documents.
    pub totals: DocumentTotals,
}

impl CellEntry {
    /// Size of an entry in the cell table, bytes.
    pub const BYTES: usize = 48;

    fn write(&self) -> [u8; Self::BYTES] {
        let DocumentTotals { documents, sentences, tokens } = self.totals;
        let mut bytes = [0; Self::BYTES];
        let words = [self.offset, self.bytes, self.first_fingerprint, documents, sentences, tokens];
        bytes.chunks_exact_mut(8).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
        bytes
    }

    /// Parses an entry of the cell table.
    pub fn read(bytes: &[u8]) -> Self {
        let word = |index: usize| bytes[index * 8..index * 8 + 8].try_into().map_or(0, u64::from_le_bytes);
        let totals = DocumentTotals { documents: word(3), sentences: word(4), tokens: word(5) };
        Self { offset: word(0), bytes: word(1), first_fingerprint: word(2), totals }
    }
}

/// Counts of a source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceTotals {
    /// Decompressed bytes of the documents, including markup.
    pub text_bytes: u64,
    /// Number of documents in the files.
    pub found: u64,
    /// Counts of the accepted documents, before duplicates are removed.
    pub kept: DocumentTotals,
}

impl std::ops::AddAssign for SourceTotals {
    fn add_assign(&mut self, other: Self) {
        self.text_bytes += other.text_bytes;
        self.found += other.found;
        self.kept += other.kept;
    }
}

/// Size, in bytes, of a document record whose token IDs have `width` bytes each.
pub const fn record_bytes(totals: &DocumentTotals, width: usize) -> u64 {
    RECORD_HEADER_BYTES as u64 + 2 * totals.sentences + totals.tokens * width as u64
}

/// Iterates over the complete document records in `bytes`.
pub fn records(bytes: &[u8], width: usize) -> impl Iterator<Item = (DocumentId, &[u8])> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        let word = |at: usize| left.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let id = DocumentId { file: word(0)?, ordinal: word(4)? };
        let totals = DocumentTotals { documents: 1, sentences: u64::from(word(8)?), tokens: u64::from(word(12)?) };
        let (document, rest) = left.split_at_checked(record_bytes(&totals, width) as usize)?;
        left = rest;
        Some((id, document))
    })
}

/// Buffers documents and writes them to spill files.
pub struct SpillBuffer {
    seed: u64,
    held_out: f64,
    width: usize,
    has_signatures: bool,
    bytes: Vec<u8>,
    fingerprints: Vec<u8>,
    documents: Vec<BufferedDocument>,
    contents: SpillContents,
}

struct BufferedDocument {
    cell: u16,
    slice: u16,
    id: DocumentId,
    /// Start of the range in `bytes`. The range is empty if the document is excluded.
    start: usize,
    end: usize,
    /// Offset in `fingerprints`.
    fingerprint: usize,
    totals: DocumentTotals,
}

impl SpillBuffer {
    /// Creates an empty buffer. If `has_signatures`, documents get MinHash signatures for near-duplicate detection.
    pub fn new(seed: u64, held_out: f64, width: usize, has_signatures: bool) -> Self {
        let (bytes, fingerprints, documents, contents) = (Vec::new(), Vec::new(), Vec::new(), SpillContents::default());
        Self { seed, held_out, width, has_signatures, bytes, fingerprints, documents, contents }
    }

    /// Buffered bytes.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.fingerprints.len() + self.documents.len() * size_of::<BufferedDocument>()
    }

    /// True if no batch or file was finished since the last write.
    pub fn is_empty(&self) -> bool {
        self.contents.batches.is_empty() && self.contents.files.is_empty()
    }

    /// Adds a document. `tokens` concatenates the sentences, and `lengths` has the number of tokens of each sentence.
    /// If `is_excluded`, only the fingerprint of the document is kept.
    pub fn push(&mut self, id: DocumentId, lengths: &[u16], tokens: &[u32], is_excluded: bool) {
        let totals = DocumentTotals { documents: 1, sentences: lengths.len() as u64, tokens: tokens.len() as u64 };
        let cell = if is_excluded { EXCLUDED } else { id.cell(self.seed, self.held_out) };
        let (start, fingerprint) = (self.bytes.len(), self.fingerprints.len());
        DocumentFingerprint { id, cell, totals, hash: fingerprints::token_hash(tokens) }.write(&mut self.fingerprints);
        if self.has_signatures {
            fingerprints::signature(tokens)
                .iter()
                .for_each(|value| self.fingerprints.extend_from_slice(&value.to_le_bytes()));
        }
        self.contents.fingerprints += 1;
        if !is_excluded {
            self.write_tokens(id, lengths, tokens);
            self.contents.totals += totals;
        }
        let (slice, end) = (id.slice(self.seed), self.bytes.len());
        self.documents.push(BufferedDocument { cell, slice, id, start, end, fingerprint, totals });
    }

    fn write_tokens(&mut self, id: DocumentId, lengths: &[u16], tokens: &[u32]) {
        for head in [id.file, id.ordinal, lengths.len() as u32, tokens.len() as u32] {
            self.bytes.extend_from_slice(&head.to_le_bytes());
        }
        lengths.iter().for_each(|length| self.bytes.extend_from_slice(&length.to_le_bytes()));
        ids::write(tokens, self.width, &mut self.bytes);
    }

    /// Counts of the buffered documents.
    pub fn totals(&self) -> DocumentTotals {
        self.contents.totals
    }

    /// Adds to the counts of a source.
    pub fn add_source_totals(&mut self, source: usize, read: SourceTotals) {
        *self.contents.sources.entry(source as u32).or_default() += read;
    }

    /// Counts skipped items. The first of them is at `offset` in `file`; `example` describes it.
    pub fn reject(&mut self, reason: &str, count: u64, file: u32, offset: u64, example: impl FnOnce() -> RejectedItem) {
        *self.contents.rejected.entry(reason.to_owned()).or_default() += count;
        self.contents.rejected_examples.add(reason, file, offset, example);
    }

    /// Records that all documents of a batch were added.
    pub fn add_finished_batch(&mut self, batch: FinishedBatch) {
        self.contents.batches.push(batch);
    }

    /// Records that a file was read to its end.
    pub fn add_finished_file(&mut self, file: FinishedFile) {
        self.contents.files.push(file);
    }

    /// Name of the next spill file, unique within the preparation job across all parts.
    fn file_name(&self, part: WorkPart) -> Option<String> {
        let (batch, file) = (self.contents.batches.first(), self.contents.files.first());
        let part = part.map_or(0, |(index, _)| index);
        batch.map(|batch| format!("run-{:06}-{:06}.docs", batch.file, batch.number)).or_else(|| {
            // This buffer has no batch, because the last batch of the file belongs to another part.
            file.map(|file| format!("read-{:06}-{part:06}.docs", file.file))
        })
    }

    /// Writes the buffer to a spill file in `folder` and clears it.
    pub fn write_file(&mut self, folder: &Path, part: WorkPart) -> Result<(), PrepError> {
        let Some(name) = self.file_name(part) else { return Ok(()) };
        let path = folder.join(name);
        let mut contents = std::mem::take(&mut self.contents);
        // Excluded documents sort last.
        self.documents.sort_unstable_by_key(|document| (document.cell, document.slice, document.id));
        work_file::write(&path, |output| {
            let mut at = 0;
            for document in &self.documents {
                at += (document.end - document.start) as u64;
                output.write_all(&self.bytes[document.start..document.end])?;
            }
            let width = DocumentFingerprint::size(self.has_signatures);
            (contents.fingerprints_offset, contents.has_signatures) = (at, self.has_signatures);
            contents.cells_offset = at + (self.fingerprints.len()) as u64;
            for document in &self.documents {
                output.write_all(&self.fingerprints[document.fingerprint..document.fingerprint + width])?;
            }
            cell_entries(&self.documents).iter().try_for_each(|cell| output.write_all(&cell.write()))?;
            Ok(contents)
        })?;
        self.documents.clear();
        self.fingerprints.clear();
        self.bytes.clear();
        Ok(())
    }
}

/// Builds the cell table for sorted documents.
fn cell_entries(documents: &[BufferedDocument]) -> Vec<CellEntry> {
    let mut cells = vec![CellEntry::default(); usize::from(TRAIN_CELLS + HELD_OUT_CELLS)];
    let mut at = 0;
    for (number, document) in documents.iter().enumerate().filter(|(_, document)| document.cell != EXCLUDED) {
        let cell = &mut cells[usize::from(document.cell)];
        if cell.totals.documents == 0 {
            (cell.offset, cell.first_fingerprint) = (at, number as u64);
        }
        let length = (document.end - document.start) as u64;
        cell.bytes += length;
        cell.totals += document.totals;
        at += length;
    }
    cells
}
