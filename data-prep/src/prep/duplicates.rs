//! Removal of exact and near-duplicate documents. Among equal or similar documents, the first in the corpus is kept.
//! Documents of `exclude` come before all others.
//!
//! Fingerprints are partitioned on disk, and one partition at a time is compared in memory. Memory also contains up to
//! one bit per document.

use std::collections::{BTreeMap, BTreeSet};

use super::PrepError;
use super::fingerprints::{DocumentFingerprint, EXCLUDED, SIGNATURE_VALUES, similarity};
use super::job::{JobContext, SpillFile};
use super::partitions::Partitions;
use super::rejected::EXAMPLES;
use super::totals::DocumentTotals;
use crate::record::DocumentId;

/// Documents that are removed.
#[derive(Debug, Default)]
pub struct RemovedDocuments {
    files: BTreeMap<u32, RemovedInFile>,
    cells: BTreeMap<u16, DocumentTotals>,
    /// Number of removed documents by reason.
    pub counts: BTreeMap<&'static str, u64>,
    /// The first removed documents of the corpus by reason.
    pub examples: BTreeMap<&'static str, BTreeSet<DocumentId>>,
}

/// Removed documents of one file.
#[derive(Debug, Default)]
struct RemovedInFile {
    /// One bit per document, indexed by ordinal.
    bits: Vec<u64>,
    count: u64,
}

impl RemovedDocuments {
    /// True if the document is removed.
    pub fn contains(&self, id: DocumentId) -> bool {
        let word = self.files.get(&id.file).and_then(|file| file.bits.get(id.ordinal as usize / 64));
        word.is_some_and(|word| word >> (id.ordinal % 64) & 1 == 1)
    }

    /// Subtracts the removed documents of a range of cells from `totals`.
    pub fn subtract(&self, cells: std::ops::Range<u16>, totals: &mut DocumentTotals) {
        for (_, removed) in self.cells.range(cells) {
            *totals -= *removed;
        }
    }

    /// Number of removed documents in each file, by file number.
    pub fn by_file(&self) -> impl Iterator<Item = (u32, u64)> {
        self.files.iter().map(|(number, file)| (*number, file.count))
    }

    fn add(&mut self, fingerprint: &DocumentFingerprint, reason: &'static str) {
        if self.contains(fingerprint.id) {
            return;
        }
        let (file, word) = (self.files.entry(fingerprint.id.file).or_default(), fingerprint.id.ordinal as usize / 64);
        file.bits.resize(file.bits.len().max(word + 1), 0);
        file.bits[word] |= 1 << (fingerprint.id.ordinal % 64);
        file.count += 1;
        *self.cells.entry(fingerprint.cell).or_default() += fingerprint.totals;
        *self.counts.entry(reason).or_default() += 1;
        let examples = self.examples.entry(reason).or_default();
        examples.insert(fingerprint.id);
        if examples.len() > EXAMPLES {
            examples.pop_last();
        }
    }
}

/// A document with the location of its fingerprint.
#[derive(Clone, Copy)]
struct DuplicateCandidate {
    key: u128,
    fingerprint: DocumentFingerprint,
    spill_file: u32,
    index: u32,
}

/// Size of a serialized [`DuplicateCandidate`], bytes: key, fingerprint, spill file and fingerprint index.
const CANDIDATE_BYTES: usize = 16 + DocumentFingerprint::size(false) + 8;

impl DuplicateCandidate {
    /// Sort key. Excluded documents come before all others. Otherwise the order is that of the document IDs.
    fn sort_key(&self) -> (bool, DocumentId) {
        (self.fingerprint.cell != EXCLUDED, self.fingerprint.id)
    }

    fn write(&self) -> Vec<u8> {
        let mut record = self.key.to_le_bytes().to_vec();
        self.fingerprint.write(&mut record);
        record.extend([self.spill_file, self.index].iter().flat_map(|word| word.to_le_bytes()));
        record
    }

    fn read(record: &[u8]) -> Self {
        let (key, rest) = record.split_at(16);
        let (fingerprint, location) = rest.split_at(DocumentFingerprint::size(false));
        let word = |at: usize| location[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        let key = key.try_into().map_or(0, u128::from_le_bytes);
        Self { key, fingerprint: DocumentFingerprint::read(fingerprint), spill_file: word(0), index: word(4) }
    }
}

/// Number of LSH bands of a signature, with four values each. Two documents are compared if they agree in at least one
/// band. The probability of a comparison is 0.9998 at similarity 0.8, and 0.64 at similarity 0.5.
const BANDS: usize = 16;
/// Upper limit on the number of comparisons of a document with other documents of its group.
const MAX_COMPARED: usize = 8;

/// Finds the documents to remove by the rules of the configuration.
pub fn find_duplicates(job: &JobContext<'_>, spill_files: &[SpillFile]) -> Result<RemovedDocuments, PrepError> {
    let rules = &job.config.documents;
    let mut removed = RemovedDocuments::default();
    let has_exclude = !job.config.exclude.is_empty();
    if !rules.remove_duplicates && rules.remove_near_duplicates == 0.0 && !has_exclude {
        return Ok(removed);
    }
    let removes_exact = rules.remove_duplicates || rules.remove_near_duplicates > 0.0;
    let key = |fingerprint: &[u8]| u128::from(DocumentFingerprint::read(fingerprint).hash);
    for_each_group(partition_by_key(job, spill_files, &removed, key)?, |group| {
        let is_excluded = group[0].fingerprint.cell == EXCLUDED;
        if is_excluded || removes_exact {
            let reason = if is_excluded { "documents: in the excluded set" } else { "documents: duplicate" };
            let others = group[1..].iter().filter(|candidate| candidate.fingerprint.cell != EXCLUDED);
            others.for_each(|candidate| removed.add(&candidate.fingerprint, reason));
        }
        Ok(())
    })?;
    if rules.remove_near_duplicates > 0.0 {
        remove_near_duplicates(job, spill_files, rules.remove_near_duplicates, &mut removed)?;
    }
    Ok(removed)
}

/// Partitions the documents by key. Leaves out the documents in `removed`.
fn partition_by_key(
    job: &JobContext<'_>,
    spill_files: &[SpillFile],
    removed: &RemovedDocuments,
    key: impl Fn(&[u8]) -> u128,
) -> Result<Partitions, PrepError> {
    let fingerprints: u64 = spill_files.iter().map(|spill_file| spill_file.contents.fingerprints).sum();
    let bytes = fingerprints * (CANDIDATE_BYTES + size_of::<DuplicateCandidate>()) as u64;
    let mut partitions = Partitions::new(job.folder(), bytes, job.memory.sort_buffer().min(job.limits.compare_bytes))?;
    for (file_index, spill_file) in spill_files.iter().enumerate() {
        let mut result = Ok(());
        spill_file.for_each_fingerprint(|index, bytes| {
            let candidate = DuplicateCandidate {
                key: key(bytes),
                fingerprint: DocumentFingerprint::read(bytes),
                spill_file: file_index as u32,
                index: index as u32,
            };
            if result.is_ok() && !removed.contains(candidate.fingerprint.id) {
                result = partitions.push(candidate.key as u64, &candidate.write());
            }
        })?;
        result?;
    }
    Ok(partitions)
}

/// Calls `each` with every group of two or more documents that have the same key. A group is sorted by
/// [`DuplicateCandidate::sort_key`].
fn for_each_group(
    partitions: Partitions,
    mut each: impl FnMut(&[DuplicateCandidate]) -> Result<(), PrepError>,
) -> Result<(), PrepError> {
    partitions.for_each(|records| {
        let mut candidates: Vec<DuplicateCandidate> =
            records.chunks_exact(CANDIDATE_BYTES).map(DuplicateCandidate::read).collect();
        candidates.sort_unstable_by_key(|candidate| (candidate.key, candidate.sort_key()));
        let mut groups = candidates.chunk_by(|left, right| left.key == right.key).filter(|group| group.len() > 1);
        groups.try_for_each(&mut each)
    })
}

/// Removes each document that is similar to an earlier document.
fn remove_near_duplicates(
    job: &JobContext<'_>,
    spill_files: &[SpillFile],
    min_similarity: f64,
    removed: &mut RemovedDocuments,
) -> Result<(), PrepError> {
    let width = 4 * SIGNATURE_VALUES / BANDS;
    for band in 0..BANDS {
        let start = DocumentFingerprint::size(false) + band * width;
        let key = |fingerprint: &[u8]| fingerprint[start..start + width].try_into().map_or(0, u128::from_le_bytes);
        for_each_group(partition_by_key(job, spill_files, removed, key)?, |group| {
            remove_near_duplicates_in_group(spill_files, group, min_similarity, removed)
        })?;
    }
    Ok(())
}

/// Removes each document of a group that is similar to an earlier document of the group.
fn remove_near_duplicates_in_group(
    spill_files: &[SpillFile],
    group: &[DuplicateCandidate],
    min_similarity: f64,
    removed: &mut RemovedDocuments,
) -> Result<(), PrepError> {
    let mut kept: Vec<(DuplicateCandidate, Vec<u8>)> = Vec::new();
    for &candidate in group {
        let signature = spill_files[candidate.spill_file as usize].signature(candidate.index as usize)?;
        let earlier = kept.iter().find(|(_, other)| similarity(other, &signature) >= min_similarity);
        match earlier {
            Some((first, _)) if candidate.fingerprint.cell != EXCLUDED => {
                let is_excluded = first.fingerprint.cell == EXCLUDED;
                let reason =
                    if is_excluded { "documents: like one in the excluded set" } else { "documents: near-duplicate" };
                removed.add(&candidate.fingerprint, reason);
            }
            _ if kept.len() < MAX_COMPARED => kept.push((candidate, signature)),
            _ => {}
        }
    }
    Ok(())
}
