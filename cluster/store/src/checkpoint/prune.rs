//! Retention rules, and the removal of old checkpoints and orphaned objects.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::objects::verify;
use super::select::{folders, is_committed_in};
use super::{AttemptStep, Rollbacks};
use crate::error::Result;
use crate::lease::Lease;
use crate::object::Object;
use crate::run::{CHECKPOINTS, MANIFEST, checkpoint, in_checkpoint};
use crate::store::Store;
use crate::temp_files::{self, SearchDepth};

/// Retention rules. A checkpoint is kept if any rule selects it. While a valid checkpoint exists, only `named` selects
/// checkpoints that a rollback invalidated. An invalidated checkpoint therefore never takes the place of a valid one.
#[derive(Debug, Clone, Default)]
pub struct Retention {
    /// Number of newest checkpoints to keep; 0 counts as 1.
    pub last: usize,
    /// Keeps the first checkpoint at or after each multiple of this number of steps; 0 turns this rule off. (A save
    /// that is due at a multiple can be delayed by the previous save.)
    pub every_steps: u64,
    /// Names of checkpoints to keep, such as the best by held-out loss.
    pub named: BTreeSet<String>,
    /// Name of a checkpoint that was just written or verified. Pruning assumes that it is intact and does not read it
    /// again.
    pub known_intact: Option<String>,
    /// Names of checkpoints that are known to be damaged. The `last` newest intact checkpoints are kept as well.
    pub known_damaged: BTreeSet<String>,
}

/// Removed checkpoints and objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Names of the removed checkpoints.
    pub checkpoints: Vec<String>,
    /// Number of removed objects, including those of uncommitted checkpoints.
    pub objects: usize,
    /// Size of the removed objects, bytes.
    pub bytes: u64,
    /// Number of removed temporary files that killed processes had left (local stores only).
    pub half_written: usize,
}

/// Removes all checkpoints except the `keep` newest ones (at least one) and the newest checkpoint that verifies.
///
/// # Errors
/// A store error.
pub fn prune(run: &Store, keep: usize) -> Result<Pruned> {
    retain(run, &Retention { last: keep, ..Retention::default() })
}

/// Removes all checkpoints except those that `retention` selects and the newest checkpoint that verifies. Also removes
/// the objects of uncommitted checkpoints, unless the current attempt may still be writing them. Also removes orphaned
/// temporary files anywhere in the run.
///
/// # Errors
/// A store error. Some of the objects may have been removed before the error.
pub fn retain(run: &Store, retention: &Retention) -> Result<Pruned> {
    let mut pruned = remove_unretained(run, retention, || Ok(()))?;
    pruned.half_written += temp_files::remove(run, "", SearchDepth::Tree, ORPHAN_AGE)?;
    Ok(pruned)
}

/// Like [`retain`], for the attempt that holds `lease`. Checks the lease before each removal. Searches for temporary
/// files only in the checkpoints and in the root folder of the run. Other folders can have many objects.
///
/// # Errors
/// As for [`retain`], or a lost lease.
pub fn retain_under(lease: &Lease, run: &Store, retention: &Retention) -> Result<Pruned> {
    let mut pruned = remove_unretained(run, retention, || lease.check())?;
    pruned.half_written += temp_files::remove(run, "", SearchDepth::Directory, ORPHAN_AGE)?;
    Ok(pruned)
}

/// Minimum age of an orphaned temporary file outside the checkpoints. A younger file may still be in use.
const ORPHAN_AGE: Duration = Duration::from_secs(3600);

/// Removes the checkpoints that are not retained, and the remains of uncommitted checkpoints. Calls `check` before each
/// removal, and stops if `check` fails.
fn remove_unretained(run: &Store, retention: &Retention, check: impl Fn() -> Result<()>) -> Result<Pruned> {
    check()?;
    // The newest lease is read before the checkpoints are listed. In the other order, an attempt could commit a
    // checkpoint after the listing and lose its lease before the lease is read. That checkpoint would then look
    // uncommitted and be removed.
    let attempt = Lease::newest(run)?;
    let folders = folders(run)?;
    let mut pruned = Pruned::default();
    for position in to_delete(run, &folders, retention, attempt)? {
        check()?;
        let objects = &folders[&position];
        if is_committed_in(position, objects) {
            pruned.checkpoints.push(position.name());
        }
        remove(run, position, objects, &mut pruned)?;
    }
    let committed = committed_newest_first(&folders);
    for name in run.list_folders(CHECKPOINTS)? {
        // No process writes to this folder any more.
        if AttemptStep::parse(&name).is_some_and(|position| !may_be_in_progress(position, &committed, attempt)) {
            pruned.half_written += temp_files::remove(run, &checkpoint(&name), SearchDepth::Tree, Duration::ZERO)?;
        }
    }
    Ok(pruned)
}

fn committed_newest_first(folders: &BTreeMap<AttemptStep, Vec<Object>>) -> Vec<AttemptStep> {
    let newest_first = folders.iter().rev();
    newest_first
        .filter(|(position, objects)| is_committed_in(**position, objects))
        .map(|(position, _)| *position)
        .collect()
}

/// Removes a checkpoint. Deletes the manifest first, so that the checkpoint is no longer committed. If the process is
/// killed midway, a later pruning removes the remaining objects.
fn remove(run: &Store, position: AttemptStep, objects: &[Object], pruned: &mut Pruned) -> Result<()> {
    let manifest = in_checkpoint(&position.name(), MANIFEST);
    if objects.iter().any(|object| object.path == manifest) {
        run.delete(&manifest)?;
    }
    let names: Vec<String> =
        objects.iter().map(|object| object.path.clone()).filter(|path| *path != manifest).collect();
    run.delete_all(&names)?;
    pruned.objects += objects.len();
    pruned.bytes += objects.iter().map(|object| object.bytes).sum::<u64>();
    Ok(())
}

fn to_delete(
    run: &Store,
    folders: &BTreeMap<AttemptStep, Vec<Object>>,
    retention: &Retention,
    attempt: Option<u32>,
) -> Result<Vec<AttemptStep>> {
    let all = committed_newest_first(folders);
    let rollbacks = Rollbacks::of(run, &all)?;
    let (invalidated, valid): (Vec<AttemptStep>, Vec<AttemptStep>) =
        all.iter().partition(|position| rollbacks.invalidate(**position));
    // If no valid checkpoint exists, a run resumes from an invalidated one.
    let candidates = if valid.is_empty() { &invalidated } else { &valid };
    let mut retained = retention.select(candidates);
    retained.extend(invalidated.iter().filter(|position| retention.named.contains(&position.name())));
    if retained.len() < all.len() {
        let intact = newest_intact(run, candidates, retention)?;
        retained.extend(if intact.is_none() { newest_intact(run, &invalidated, retention)? } else { intact });
    }
    let kept = |position: &AttemptStep, objects: &[Object]| {
        if is_committed_in(*position, objects) {
            retained.contains(position)
        } else {
            may_be_in_progress(*position, &all, attempt)
        }
    };
    Ok(folders.iter().filter(|(position, objects)| !kept(position, objects)).map(|(position, _)| *position).collect())
}

impl Retention {
    /// Selects the checkpoints of `all` (newest first) that a rule retains.
    fn select(&self, all: &[AttemptStep]) -> BTreeSet<AttemptStep> {
        let last = self.last.max(1);
        // Damaged checkpoints are kept as long as intact ones, but not in their place.
        let usable = all.iter().filter(|position| !self.known_damaged.contains(&position.name()));
        let newest = all.iter().take(last).chain(usable.take(last));
        let named = all.iter().filter(|position| self.named.contains(&position.name()));
        newest.chain(named).copied().chain(self.milestones(all)).collect()
    }

    /// Returns the first checkpoint of `all` (sorted newest first) at or after each multiple of `every_steps`. If
    /// several attempts saved that step, returns the checkpoint of the newest attempt.
    fn milestones(&self, all: &[AttemptStep]) -> impl Iterator<Item = AttemptStep> {
        let mut first = BTreeMap::<u64, AttemptStep>::new();
        for position in all {
            let multiple = position.step.checked_div(self.every_steps).filter(|multiple| *multiple > 0);
            let Some(multiple) = multiple else { continue };
            let known = first.entry(multiple).or_insert(*position);
            if position.step < known.step {
                *known = *position;
            }
        }
        first.into_values()
    }
}

/// Returns the newest checkpoint of `all` (newest first) that verifies.
fn newest_intact(run: &Store, all: &[AttemptStep], retention: &Retention) -> Result<Option<AttemptStep>> {
    for position in all {
        let name = position.name();
        if retention.known_intact.as_deref() == Some(&name) {
            return Ok(Some(*position));
        }
        match verify(run, &name) {
            Ok(_) => return Ok(Some(*position)),
            Err(error) if error.is_damaged() || error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// True if the attempt with the newest lease may still be writing this uncommitted checkpoint. Saves of an attempt
/// never overlap, so an uncommitted checkpoint that is older than the newest committed one was abandoned.
fn may_be_in_progress(position: AttemptStep, committed: &[AttemptStep], attempt: Option<u32>) -> bool {
    let newest = committed.first();
    Some(position.attempt) >= attempt && newest.is_none_or(|newest| position > *newest)
}
