//! Which documents are left out because another one is equal or alike. Of such documents the first in the corpus
//! stays; those of `exclude` come before all others.
//!
//! Memory holds a bit for each document, and as many heads as the budget allows: the others wait in files.

use std::collections::BTreeMap;

use super::PrepError;
use super::heads::{EXCLUDED, Head, SIGNATURE, similarity};
use super::job::{Job, Run};
use super::partitions::Partitions;
use super::totals::Totals;
use crate::record::DocumentId;

/// Documents that are left out.
#[derive(Debug, Default)]
pub struct Removed {
    files: BTreeMap<u32, RemovedOfFile>,
    cells: BTreeMap<u16, Totals>,
    /// How many, by reason.
    pub counts: BTreeMap<&'static str, u64>,
}

/// Those of one file.
#[derive(Debug, Default)]
struct RemovedOfFile {
    /// A bit for each document, by its number.
    bits: Vec<u64>,
    count: u64,
}

impl Removed {
    /// Whether a document is left out.
    pub fn contains(&self, id: DocumentId) -> bool {
        let word = self.files.get(&id.file).and_then(|file| file.bits.get(id.ordinal as usize / 64));
        word.is_some_and(|word| word >> (id.ordinal % 64) & 1 == 1)
    }

    /// What is left of `totals` of some cells.
    pub fn subtract(&self, cells: std::ops::Range<u16>, totals: &mut Totals) {
        for (_, removed) in self.cells.range(cells) {
            *totals -= *removed;
        }
    }

    /// How many there are in each file, by its number.
    pub fn by_file(&self) -> impl Iterator<Item = (u32, u64)> {
        self.files.iter().map(|(number, file)| (*number, file.count))
    }

    fn add(&mut self, head: &Head, reason: &'static str) {
        if self.contains(head.id) {
            return;
        }
        let (file, word) = (self.files.entry(head.id.file).or_default(), head.id.ordinal as usize / 64);
        file.bits.resize(file.bits.len().max(word + 1), 0);
        file.bits[word] |= 1 << (head.id.ordinal % 64);
        file.count += 1;
        *self.cells.entry(head.cell).or_default() += head.totals;
        *self.counts.entry(reason).or_default() += 1;
    }
}

/// A document and where its head stands.
#[derive(Clone, Copy)]
struct Entry {
    key: u128,
    head: Head,
    run: u32,
    number: u32,
}

/// Bytes of an [`Entry`] in a file: the key, the head, the run and the number.
const ENTRY: usize = 16 + Head::bytes(false) + 8;

impl Entry {
    /// Excluded documents first, then the order of the corpus.
    fn order(&self) -> (bool, DocumentId) {
        (self.head.cell != EXCLUDED, self.head.id)
    }

    fn write(&self) -> Vec<u8> {
        let mut record = self.key.to_le_bytes().to_vec();
        self.head.write(&mut record);
        record.extend([self.run, self.number].iter().flat_map(|word| word.to_le_bytes()));
        record
    }

    fn read(record: &[u8]) -> Self {
        let (key, rest) = record.split_at(16);
        let (head, place) = rest.split_at(Head::bytes(false));
        let word = |at: usize| place[at..at + 4].try_into().map_or(0, u32::from_le_bytes);
        let key = key.try_into().map_or(0, u128::from_le_bytes);
        Self { key, head: Head::read(head), run: word(0), number: word(4) }
    }
}

/// Bands of the signature that have to be equal for two documents to be compared at all: four values each, which
/// finds documents of similarity 0.8 with a probability of 0.9998, and of 0.5 with 0.64.
const BANDS: usize = 16;
/// Documents of a band with which another one is compared.
const COMPARED: usize = 8;

/// Finds what is to be left out by the rules of the configuration.
pub fn find(job: &Job<'_>, runs: &[Run]) -> Result<Removed, PrepError> {
    let rules = &job.config.documents;
    let mut removed = Removed::default();
    let excluding = !job.config.exclude.is_empty();
    if !rules.remove_duplicates && rules.remove_near_duplicates == 0.0 && !excluding {
        return Ok(removed);
    }
    let equal = rules.remove_duplicates || rules.remove_near_duplicates > 0.0;
    let key = |head: &[u8]| u128::from(Head::read(head).hash);
    groups(partitioned(job, runs, &removed, key)?, |group| {
        let excluded = group[0].head.cell == EXCLUDED;
        if excluded || equal {
            let reason = if excluded { "documents: in the excluded set" } else { "documents: duplicate" };
            let others = group[1..].iter().filter(|entry| entry.head.cell != EXCLUDED);
            others.for_each(|entry| removed.add(&entry.head, reason));
        }
        Ok(())
    })?;
    if rules.remove_near_duplicates > 0.0 {
        alike(job, runs, rules.remove_near_duplicates, &mut removed)?;
    }
    Ok(removed)
}

/// The documents that are not in `removed`, those with equal keys together.
fn partitioned(
    job: &Job<'_>,
    runs: &[Run],
    removed: &Removed,
    key: impl Fn(&[u8]) -> u128,
) -> Result<Partitions, PrepError> {
    let heads: u64 = runs.iter().map(|run| run.contents.heads).sum();
    let in_memory = heads * (ENTRY + size_of::<Entry>()) as u64;
    let mut partitions = Partitions::new(job.folder(), in_memory, job.memory.sorted().min(job.scale.compared))?;
    for (number, run) in runs.iter().enumerate() {
        let mut result = Ok(());
        run.each_head(|index, bytes| {
            let entry = Entry { key: key(bytes), head: Head::read(bytes), run: number as u32, number: index as u32 };
            if result.is_ok() && !removed.contains(entry.head.id) {
                result = partitions.push(entry.key as u64, &entry.write());
            }
        })?;
        result?;
    }
    Ok(partitions)
}

/// Calls `each` with the documents that share a key, in order, where there are two or more.
fn groups(partitions: Partitions, mut each: impl FnMut(&[Entry]) -> Result<(), PrepError>) -> Result<(), PrepError> {
    partitions.each(|records| {
        let mut entries: Vec<Entry> = records.chunks_exact(ENTRY).map(Entry::read).collect();
        entries.sort_unstable_by_key(|entry| (entry.key, entry.order()));
        let mut groups = entries.chunk_by(|left, right| left.key == right.key).filter(|group| group.len() > 1);
        groups.try_for_each(&mut each)
    })
}

/// Removes documents that resemble an earlier one.
fn alike(job: &Job<'_>, runs: &[Run], least: f64, removed: &mut Removed) -> Result<(), PrepError> {
    let width = 4 * SIGNATURE / BANDS;
    for band in 0..BANDS {
        let start = Head::bytes(false) + band * width;
        let key = |head: &[u8]| head[start..start + width].try_into().map_or(0, u128::from_le_bytes);
        groups(partitioned(job, runs, removed, key)?, |group| compare(runs, group, least, removed))?;
    }
    Ok(())
}

/// Removes what resembles an earlier document of the group.
fn compare(runs: &[Run], group: &[Entry], least: f64, removed: &mut Removed) -> Result<(), PrepError> {
    let mut kept: Vec<(Entry, Vec<u8>)> = Vec::new();
    for &entry in group {
        let signature = runs[entry.run as usize].signature(entry.number as usize)?;
        let like = kept.iter().find(|(_, other)| similarity(other, &signature) >= least);
        match like {
            Some((first, _)) if entry.head.cell != EXCLUDED => {
                let excluded = first.head.cell == EXCLUDED;
                let reason =
                    if excluded { "documents: like one in the excluded set" } else { "documents: near-duplicate" };
                removed.add(&entry.head, reason);
            }
            _ if kept.len() < COMPARED => kept.push((entry, signature)),
            _ => {}
        }
    }
    Ok(())
}
