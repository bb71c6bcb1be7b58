//! Lists and selects checkpoints.

use std::collections::BTreeMap;

use super::objects::{VerifiedCheckpoint, read_manifest, verify};
use super::{AttemptStep, Manifest, Rollbacks};
use crate::error::Result;
use crate::object::Object;
use crate::run::{CHECKPOINTS, MANIFEST, in_checkpoint};
use crate::store::Store;

/// A committed checkpoint in a listing. Its objects were not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedCheckpoint {
    /// Its name.
    pub name: String,
    /// Attempt and step.
    pub position: AttemptStep,
    /// Total size of its objects, including the manifest, bytes.
    pub bytes: u64,
}

/// A committed checkpoint that the selection skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedCheckpoint {
    /// Checkpoint name.
    pub name: String,
    /// Reason.
    pub why: String,
    /// True if the caller rejected the manifest; false if the checkpoint is damaged.
    pub is_rejected: bool,
}

/// The selected checkpoint with its name (`None` if no checkpoint is usable), and the skipped checkpoints, newest
/// first.
pub type CheckpointSelection = (Option<(String, VerifiedCheckpoint)>, Vec<SkippedCheckpoint>);

/// Lists the objects of each checkpoint, committed or not. The paths are relative to the run.
pub(super) fn folders(run: &Store) -> Result<BTreeMap<AttemptStep, Vec<Object>>> {
    let mut folders = BTreeMap::<AttemptStep, Vec<Object>>::new();
    for object in run.list(CHECKPOINTS)? {
        let name = object.path.split('/').nth(1);
        if let Some(position) = name.and_then(AttemptStep::parse) {
            folders.entry(position).or_default().push(object);
        }
    }
    Ok(folders)
}

pub(super) fn is_committed_in(position: AttemptStep, objects: &[Object]) -> bool {
    let manifest = in_checkpoint(&position.name(), MANIFEST);
    objects.iter().any(|object| object.path == manifest)
}

/// Lists the committed checkpoints of a run, sorted newest first by attempt and then by step.
///
/// # Errors
/// A store error.
pub fn list(run: &Store) -> Result<Vec<ListedCheckpoint>> {
    let committed = folders(run)?.into_iter().rev().filter(|(position, objects)| is_committed_in(*position, objects));
    let listed = committed.map(|(position, objects)| {
        let bytes = objects.iter().map(|object| object.bytes).sum();
        ListedCheckpoint { name: position.name(), position, bytes }
    });
    Ok(listed.collect())
}

/// Lists the positions of the committed checkpoints of a run, newest first.
///
/// # Errors
/// As for [`list`].
pub fn positions(run: &Store) -> Result<Vec<AttemptStep>> {
    Ok(list(run)?.into_iter().map(|listed| listed.position).collect())
}

/// Selects the newest checkpoint that verifies. Selects a checkpoint that a rollback invalidated only if no valid
/// checkpoint verifies.
///
/// # Errors
/// A store error. If the store is unreachable while a checkpoint is read, returns the error instead of an older
/// checkpoint.
pub fn newest_verified(run: &Store) -> Result<CheckpointSelection> {
    let rollbacks = Rollbacks::of(run, &positions(run)?)?;
    match newest_fitting(run, |manifest| rollbacks.invalid_reason(manifest))? {
        (None, _) => newest_fitting(run, |_| None),
        found => Ok(found),
    }
}

/// Returns the newest checkpoint that verifies, as [`newest_verified`]. Logs a warning for each checkpoint that was skipped.
/// `None` if no checkpoint verifies.
///
/// # Errors
/// As for [`newest_verified`].
pub fn newest_with_warnings(run: &Store) -> Result<Option<VerifiedCheckpoint>> {
    let (newest, skipped) = newest_verified(run)?;
    for SkippedCheckpoint { name, why, .. } in skipped {
        tracing::warn!("skipped checkpoint {name}: {why}");
    }
    Ok(newest.map(|(_, verified)| verified))
}

/// Maximum number of attempts to read the newest checkpoint while checkpoints are pruned.
const READ_ATTEMPTS: usize = 10;

/// Selects a checkpoint with `select` and reads it with `read`. If the read fails because the checkpoint was pruned in the
/// meantime, as `is_pruned` determines, a newer checkpoint exists. This function then starts again with `select`.
///
/// # Errors
/// An error of one of the functions.
pub fn read_unless_pruned<C, T, E>(
    mut select: impl FnMut() -> std::result::Result<C, E>,
    mut read: impl FnMut(&C) -> std::result::Result<T, E>,
    is_pruned: impl Fn(&C) -> std::result::Result<bool, E>,
) -> std::result::Result<(C, T), E> {
    let mut left = READ_ATTEMPTS;
    loop {
        let selected = select()?;
        left -= 1;
        match read(&selected) {
            Err(_) if left > 0 && is_pruned(&selected)? => {}
            read => return Ok((selected, read?)),
        }
    }
}

/// Selects the newest checkpoint that verifies and that `reject` accepts. `reject` gets the manifest and returns `None`
/// to accept it, or the reason to reject it. Calls `reject` before it reads any object of the checkpoint. Considers
/// rollbacks only if `reject` does. If a checkpoint is pruned while it is being read, lists the run again, because a
/// newer checkpoint must exist.
///
/// # Errors
/// As for [`newest_verified`].
pub fn newest_fitting(run: &Store, reject: impl Fn(&Manifest) -> Option<String>) -> Result<CheckpointSelection> {
    let mut passed_over = Vec::<SkippedCheckpoint>::new();
    let mut listings = 1;
    'listing: loop {
        for ListedCheckpoint { name, .. } in list(run)? {
            if passed_over.iter().any(|over| over.name == name) {
                continue;
            }
            let (why, is_rejected) = match check(run, &name, &reject)? {
                Verdict::Fits(verified) => return Ok((Some((name, *verified)), newest_first(passed_over))),
                Verdict::Rejected(why) => (why, true),
                Verdict::Unusable(_) if listings < MAX_LISTINGS && !is_committed(run, &name)? => {
                    listings += 1;
                    continue 'listing;
                }
                Verdict::Unusable(why) => (why, false),
            };
            passed_over.push(SkippedCheckpoint { name, why, is_rejected });
        }
        return Ok((None, newest_first(passed_over)));
    }
}

/// Maximum number of listings, in case checkpoints are pruned faster than they can be read.
const MAX_LISTINGS: usize = 20;

enum Verdict {
    Fits(Box<VerifiedCheckpoint>),
    /// The caller rejects the manifest.
    Rejected(String),
    /// An object is missing or damaged.
    Unusable(String),
}

fn check(run: &Store, name: &str, reject: impl Fn(&Manifest) -> Option<String>) -> Result<Verdict> {
    let verdict = read_manifest(run, name).and_then(|manifest| match reject(&manifest) {
        Some(why) => Ok(Verdict::Rejected(why)),
        None => verify(run, name).map(|verified| Verdict::Fits(Box::new(verified))),
    });
    match verdict {
        Err(error) if error.is_damaged() || error.is_not_found() => Ok(Verdict::Unusable(error.to_string())),
        verdict => verdict,
    }
}

fn newest_first(mut passed_over: Vec<SkippedCheckpoint>) -> Vec<SkippedCheckpoint> {
    passed_over.sort_by_key(|over| std::cmp::Reverse(AttemptStep::parse(&over.name)));
    passed_over
}

/// Returns true if a checkpoint is committed. It need not be intact. Call this after an object could not be read. If
/// the checkpoint is still committed, the object is damaged. If not, pruning has removed the checkpoint, because
/// pruning deletes the manifest first.
///
/// # Errors
/// A store error.
pub fn is_committed(run: &Store, checkpoint: &str) -> Result<bool> {
    run.head(&in_checkpoint(checkpoint, MANIFEST)).map(|found| found.is_some())
}
