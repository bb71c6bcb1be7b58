//! Which documents are left out because another one is equal or alike. Of such documents the first in the corpus
//! stays; those of `exclude` come before all others.

use std::collections::{BTreeMap, HashSet};

use super::PrepError;
use super::heads::{EXCLUDED, Head, SIGNATURE, similarity};
use super::job::{Job, Run};
use super::spill::{DocumentId, Totals};

/// Documents that are left out.
#[derive(Debug, Default)]
pub struct Removed {
    documents: HashSet<DocumentId>,
    cells: BTreeMap<u16, Totals>,
    /// How many, by reason.
    pub counts: BTreeMap<&'static str, u64>,
}

impl Removed {
    /// Whether a document is left out.
    pub fn contains(&self, id: DocumentId) -> bool {
        self.documents.contains(&id)
    }

    /// What is left of `totals` of some cells.
    pub fn subtract(&self, cells: std::ops::Range<u16>, totals: &mut Totals) {
        for (_, removed) in self.cells.range(cells) {
            *totals -= *removed;
        }
    }

    /// All of them, in no order.
    pub fn ids(&self) -> impl Iterator<Item = &DocumentId> {
        self.documents.iter()
    }

    fn add(&mut self, head: &Head, reason: &'static str) {
        if self.documents.insert(head.id) {
            *self.cells.entry(head.cell).or_default() += head.totals;
            *self.counts.entry(reason).or_default() += 1;
        }
    }
}

/// A document and where its head stands.
#[derive(Clone, Copy)]
struct Entry {
    head: Head,
    run: u32,
    number: u32,
}

impl Entry {
    /// Excluded documents first, then the order of the corpus.
    fn order(&self) -> (bool, DocumentId) {
        (self.head.cell != EXCLUDED, self.head.id)
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
    let mut entries = entries(runs)?;
    entries.sort_unstable_by_key(|entry| (entry.head.hash, entry.order()));
    for group in entries.chunk_by(|left, right| left.head.hash == right.head.hash) {
        let excluded = group[0].head.cell == EXCLUDED;
        if excluded || rules.remove_duplicates || rules.remove_near_duplicates > 0.0 {
            let reason = if excluded { "documents: in the excluded set" } else { "documents: duplicate" };
            group[1..]
                .iter()
                .filter(|entry| entry.head.cell != EXCLUDED)
                .for_each(|entry| removed.add(&entry.head, reason));
        }
    }
    if rules.remove_near_duplicates > 0.0 {
        entries.retain(|entry| !removed.contains(entry.head.id));
        entries.sort_unstable_by_key(Entry::order);
        alike(runs, &entries, rules.remove_near_duplicates, &mut removed)?;
    }
    Ok(removed)
}

fn entries(runs: &[Run]) -> Result<Vec<Entry>, PrepError> {
    let mut entries = Vec::new();
    for (number, run) in runs.iter().enumerate() {
        run.each_head(|index, bytes| {
            entries.push(Entry { head: Head::read(bytes), run: number as u32, number: index as u32 });
        })?;
    }
    Ok(entries)
}

/// Removes documents that resemble an earlier one.
fn alike(runs: &[Run], entries: &[Entry], least: f64, removed: &mut Removed) -> Result<(), PrepError> {
    let mut positions: Vec<Vec<u32>> = runs.iter().map(|run| vec![u32::MAX; run.contents.heads as usize]).collect();
    for (index, entry) in entries.iter().enumerate() {
        positions[entry.run as usize][entry.number as usize] = index as u32;
    }
    let width = 4 * SIGNATURE / BANDS;
    for band in 0..BANDS {
        let mut keys: Vec<(u128, u32)> = Vec::new();
        for (run, positions) in runs.iter().zip(&positions) {
            run.each_head(|number, bytes| {
                let start = Head::bytes(false) + band * width;
                let key = bytes[start..start + width].try_into().map_or(0, u128::from_le_bytes);
                if positions[number] != u32::MAX {
                    keys.push((key, positions[number]));
                }
            })?;
        }
        keys.sort_unstable();
        for group in keys.chunk_by(|left, right| left.0 == right.0).filter(|group| group.len() > 1) {
            compare(runs, entries, group, least, removed)?;
        }
    }
    Ok(())
}

fn compare(
    runs: &[Run],
    entries: &[Entry],
    group: &[(u128, u32)],
    least: f64,
    removed: &mut Removed,
) -> Result<(), PrepError> {
    let mut kept: Vec<(Entry, Vec<u8>)> = Vec::new();
    for &(_, index) in group {
        let entry = entries[index as usize];
        if removed.contains(entry.head.id) {
            continue;
        }
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
