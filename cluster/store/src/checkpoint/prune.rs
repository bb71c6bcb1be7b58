//! Removing checkpoints that are no longer wanted, and objects that belong to none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::select::{committed, folders, verify};
use super::{Place, RollbackPoint};
use crate::error::Result;
use crate::lease::Lease;
use crate::leftovers::{self, Depth};
use crate::listing::Object;
use crate::run::{CHECKPOINTS, MANIFEST, checkpoint, in_checkpoint};
use crate::store::Store;

/// Which checkpoints to keep. A checkpoint that any of the rules wants is kept. Those that a rollback has undone count for none
/// but the names, so that they push no other out.
#[derive(Debug, Clone, Default)]
pub struct Retention {
    /// The newest so many; at least one is kept whatever this says.
    pub last: usize,
    /// The first checkpoint at or after each multiple of this, for ever; 0: none. Not only at the multiple itself: a
    /// checkpoint that was due there may have had to wait for the end of the one before.
    pub every_steps: u64,
    /// Checkpoints by name, such as the best by held-out loss.
    pub named: BTreeSet<String>,
    /// A checkpoint that the caller knows to be sound, because it has just written or verified it: saves reading
    /// it again.
    pub known_sound: Option<String>,
}

/// What was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Names of the checkpoints that are gone.
    pub checkpoints: Vec<String>,
    /// Number of objects removed, those of unfinished checkpoints included.
    pub objects: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Number of half-written files of killed processes removed (local stores only).
    pub half_written: usize,
}

/// Keeps the newest `keep` checkpoints (at least one), and always the newest that verifies.
///
/// # Errors
/// What the store says.
pub fn prune(run: &Store, keep: usize) -> Result<Pruned> {
    retain(run, &Retention { last: keep, ..Retention::default() })
}

/// Keeps what `retention` says, and always the newest checkpoint that verifies. Objects of unfinished checkpoints
/// go too, unless the running attempt may still be writing them, and so do half-written files anywhere in the run.
///
/// # Errors
/// What the store says; whatever was removed until then was not wanted.
pub fn retain(run: &Store, retention: &Retention) -> Result<Pruned> {
    let mut pruned = remove_unwanted(run, retention, || Ok(()))?;
    pruned.half_written += leftovers::remove(run, "", Depth::Tree, ABANDONED)?;
    Ok(pruned)
}

/// Like [`retain`] for the attempt that holds `lease`, which is checked before anything is removed. Of the run's folders only
/// the checkpoints and the run's own are searched for half-written files: those of metrics have an object a save.
///
/// # Errors
/// As there, and the loss of the lease.
pub fn retain_under(lease: &Lease, run: &Store, retention: &Retention) -> Result<Pruned> {
    let mut pruned = remove_unwanted(run, retention, || lease.check())?;
    pruned.half_written += leftovers::remove(run, "", Depth::Folder, ABANDONED)?;
    Ok(pruned)
}

/// A file outside of checkpoints that nobody has written to for so long has lost its writer.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Removes the checkpoints that are not wanted, and what is left of unfinished ones, as long as `check` permits it.
fn remove_unwanted(run: &Store, retention: &Retention, check: impl Fn() -> Result<()>) -> Result<Pruned> {
    check()?;
    // The lease before the listing: what the attempt that holds it, or one before, commits meanwhile is in the listing then. The
    // other way round, a checkpoint that was committed in between by an attempt that has a successor now would look like the
    // leftovers of a dead one.
    let attempt = Lease::newest(run)?;
    let folders = folders(run)?;
    let mut pruned = Pruned::default();
    for place in doomed(run, &folders, retention, attempt)? {
        check()?;
        let objects = &folders[&place];
        if committed(place, objects) {
            pruned.checkpoints.push(place.name());
        }
        remove(run, place, objects, &mut pruned)?;
    }
    let committed = committed_newest_first(&folders);
    for name in run.list_folders(CHECKPOINTS)? {
        // Nobody can be writing there.
        if Place::of(&name).is_some_and(|place| !may_be_written(place, &committed, attempt)) {
            pruned.half_written += leftovers::remove(run, &checkpoint(&name), Depth::Tree, Duration::ZERO)?;
        }
    }
    Ok(pruned)
}

fn committed_newest_first(folders: &BTreeMap<Place, Vec<Object>>) -> Vec<Place> {
    let newest_first = folders.iter().rev();
    newest_first.filter(|(place, objects)| committed(**place, objects)).map(|(place, _)| *place).collect()
}

/// The manifest goes first: from then on the checkpoint does not exist, and what a kill leaves of it belongs to
/// none and goes the next time.
fn remove(run: &Store, place: Place, objects: &[Object], pruned: &mut Pruned) -> Result<()> {
    let manifest = in_checkpoint(&place.name(), MANIFEST);
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

fn doomed(
    run: &Store,
    folders: &BTreeMap<Place, Vec<Object>>,
    retention: &Retention,
    attempt: Option<u32>,
) -> Result<Vec<Place>> {
    let all = committed_newest_first(folders);
    let oldest = all.last().map_or(0, |place| place.attempt);
    let rollbacks = RollbackPoint::read_from(run, oldest)?;
    let is_undone = |place: &Place| rollbacks.iter().any(|rollback| rollback.invalidates(*place));
    let (undone, valid): (Vec<Place>, Vec<Place>) = all.iter().partition(|place| is_undone(place));
    // Where nothing else is left, a run goes on from one that was undone.
    let counted = if valid.is_empty() { &undone } else { &valid };
    let mut wanted = retention.wanted(counted);
    wanted.extend(undone.iter().filter(|place| retention.named.contains(&place.name())));
    if wanted.len() < all.len() {
        let sound = newest_sound(run, counted, retention)?;
        wanted.extend(if sound.is_none() { newest_sound(run, &undone, retention)? } else { sound });
    }
    let kept = |place: &Place, objects: &[Object]| {
        if committed(*place, objects) { wanted.contains(place) } else { may_be_written(*place, &all, attempt) }
    };
    Ok(folders.iter().filter(|(place, objects)| !kept(place, objects)).map(|(place, _)| *place).collect())
}

impl Retention {
    /// Those of `all` (newest first) that a rule wants.
    fn wanted(&self, all: &[Place]) -> BTreeSet<Place> {
        let newest = all.iter().take(self.last.max(1));
        let named = all.iter().filter(|place| self.named.contains(&place.name()));
        newest.chain(named).copied().chain(self.milestones(all)).collect()
    }

    /// The first of `all` (newest first) at or after each multiple of `every_steps`; of several at a step the newest.
    fn milestones(&self, all: &[Place]) -> impl Iterator<Item = Place> {
        let mut first = BTreeMap::<u64, Place>::new();
        for place in all {
            let multiple = place.step.checked_div(self.every_steps).filter(|multiple| *multiple > 0);
            let Some(multiple) = multiple else { continue };
            let known = first.entry(multiple).or_insert(*place);
            if place.step < known.step {
                *known = *place;
            }
        }
        first.into_values()
    }
}

/// The newest of `all` (newest first) that verifies.
fn newest_sound(run: &Store, all: &[Place], retention: &Retention) -> Result<Option<Place>> {
    for place in all {
        let name = place.name();
        if retention.known_sound.as_deref() == Some(&name) {
            return Ok(Some(*place));
        }
        match verify(run, &name) {
            Ok(_) => return Ok(Some(*place)),
            Err(error) if error.is_damaged() || error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Whether a checkpoint without manifest may be one that the running attempt is writing: saves of an attempt
/// never overtake each other, so one that is older than the attempt's newest commit was given up.
fn may_be_written(place: Place, committed: &[Place], attempt: Option<u32>) -> bool {
    let newest = committed.first();
    Some(place.attempt) >= attempt && newest.is_none_or(|newest| place > *newest)
}
