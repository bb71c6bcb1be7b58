//! Which checkpoints there are, which of them are sound, and reading from them.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::tensors::{self, Inspector};
use super::{Manifest, ObjectEntry, Place, RollbackPoint};
use crate::error::{Error, Result};
use crate::hash::{Hasher, Mark};
use crate::listing::Object;
use crate::run::{CHECKPOINTS, MANIFEST, in_checkpoint};
use crate::store::Store;

/// No manifest comes near this; a larger object under its name is something else.
pub(super) const LARGEST_MANIFEST: u64 = 256 << 20;

/// A committed checkpoint in a listing. Nothing of it has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its name.
    pub name: String,
    /// Where it stands among the others.
    pub place: Place,
    /// Bytes of all its objects.
    pub bytes: u64,
}

/// A committed checkpoint that was not taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PassedOver {
    /// Its name.
    pub name: String,
    /// What is wrong with it.
    pub why: String,
    /// Whether nothing is wrong with the manifest, and the caller cannot use what it describes.
    pub sound: bool,
}

/// A checkpoint of which every byte was read and found sound. It can be sent to others, which then read it as it was found,
/// or not at all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    /// What it holds.
    pub manifest: Manifest,
    /// [`Mark`]s of its objects.
    marks: BTreeMap<String, u64>,
}

/// The checkpoint to go on from (with its name), if any is sound, and those that were passed over, newest first.
pub type Selection = (Option<(String, Verified)>, Vec<PassedOver>);

/// All folders of the run with a checkpoint's name, and the objects in each (paths relative to the run).
pub(super) fn folders(run: &Store) -> Result<BTreeMap<Place, Vec<Object>>> {
    let mut folders = BTreeMap::<Place, Vec<Object>>::new();
    for object in run.list(CHECKPOINTS)? {
        let name = object.path.split('/').nth(1);
        if let Some(place) = name.and_then(Place::of) {
            folders.entry(place).or_default().push(object);
        }
    }
    Ok(folders)
}

pub(super) fn committed(place: Place, objects: &[Object]) -> bool {
    let manifest = in_checkpoint(&place.name(), MANIFEST);
    objects.iter().any(|object| object.path == manifest)
}

/// The committed checkpoints of a run, newest first: by attempt, then by step.
///
/// # Errors
/// What the store says.
pub fn list(run: &Store) -> Result<Vec<Listed>> {
    let committed = folders(run)?.into_iter().rev().filter(|(place, objects)| committed(*place, objects));
    let listed = committed.map(|(place, objects)| {
        let bytes = objects.iter().map(|object| object.bytes).sum();
        Listed { name: place.name(), place, bytes }
    });
    Ok(listed.collect())
}

/// The manifest of a checkpoint, checked in itself; the objects are not looked at.
///
/// # Errors
/// [`Error::NotFound`] if the checkpoint is not committed, [`Error::Damaged`] if the manifest is not what was
/// written or is of another format; else what the store says.
pub fn read_manifest(run: &Store, checkpoint: &str) -> Result<Manifest> {
    let name = in_checkpoint(checkpoint, MANIFEST);
    looking_twice(run, || {
        let text = run.get_at_most(&name, LARGEST_MANIFEST)?;
        Manifest::from_text(&text, &run.url_of(&name), checkpoint)
    })
}

/// Over a network a wrong answer is possible though the object is sound; one that comes twice is believed.
fn looking_twice<T>(run: &Store, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    match look() {
        Err(error) if error.is_damaged() && !run.is_local() => {
            tracing::warn!("reading again: {error}");
            look()
        }
        looked => looked,
    }
}

/// Reads everything of a checkpoint and compares sizes and checksums with its manifest. Objects that are
/// safetensors must also have a sound header and finite numbers: nothing can be trained from others.
///
/// # Errors
/// [`Error::NotFound`] or [`Error::Damaged`] if it is not sound; else what the store says.
pub fn verify(run: &Store, checkpoint: &str) -> Result<Verified> {
    let manifest = read_manifest(run, checkpoint)?;
    // Sizes first: they are cheap, and most damage shows in them.
    for entry in &manifest.objects {
        check_size(run, checkpoint, entry)?;
    }
    let mut marks = BTreeMap::new();
    for some in manifest.objects.chunks(PARALLEL) {
        std::thread::scope(|scope| {
            let look = |entry| scope.spawn(move || looking_twice(run, || check_content(run, checkpoint, entry)));
            let threads: Vec<_> = some.iter().map(look).collect();
            threads.into_iter().zip(some).try_for_each(|(thread, entry)| {
                let mark = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                marks.insert(entry.path.clone(), mark);
                Ok(())
            })
        })?;
    }
    Ok(Verified { manifest, marks })
}

/// Objects that are read at the same time: enough to keep a processor hashing while others wait.
const PARALLEL: usize = 4;

/// The newest checkpoint that verifies, and those that were passed over on the way to it. One that a rollback has undone is only taken
/// where there is no other.
///
/// # Errors
/// What the store says. A store that cannot be reached proves nothing about a checkpoint, so it is an error and
/// never a reason to take an older one.
pub fn newest_verified(run: &Store) -> Result<Selection> {
    let oldest = list(run)?.last().map_or(0, |listed| listed.place.attempt);
    let rollbacks = RollbackPoint::read_from(run, oldest)?;
    match newest_fitting(run, |manifest| rollbacks.iter().find_map(|rollback| rollback.objection(manifest)))? {
        (None, _) => newest_fitting(run, |_| None),
        found => Ok(found),
    }
}

/// Like [`newest_verified`], of those that `misfit` has nothing to say against; it is asked before any object is read.
/// Where a checkpoint is pruned while it is read, the run is listed again: there is a newer one then.
///
/// # Errors
/// As there.
pub fn newest_fitting(run: &Store, misfit: impl Fn(&Manifest) -> Option<String>) -> Result<Selection> {
    let mut passed_over = Vec::<PassedOver>::new();
    let mut listings = 1;
    'listing: loop {
        for Listed { name, .. } in list(run)? {
            if passed_over.iter().any(|over| over.name == name) {
                continue;
            }
            let (why, sound) = match judge(run, &name, &misfit)? {
                Judged::Fits(verified) => return Ok((Some((name, *verified)), newest_first(passed_over))),
                Judged::Misfit(why) => (why, true),
                Judged::Unsound(_) if listings < MOST_LISTINGS && !is_committed(run, &name)? => {
                    listings += 1;
                    continue 'listing;
                }
                Judged::Unsound(why) => (why, false),
            };
            passed_over.push(PassedOver { name, why, sound });
        }
        return Ok((None, newest_first(passed_over)));
    }
}

/// A run whose checkpoints are pruned faster than they can be read is not listed for ever.
const MOST_LISTINGS: usize = 20;

enum Judged {
    Fits(Box<Verified>),
    /// The manifest is sound, and the caller cannot use what it describes.
    Misfit(String),
    /// Something of it is missing or damaged.
    Unsound(String),
}

fn judge(run: &Store, name: &str, misfit: impl Fn(&Manifest) -> Option<String>) -> Result<Judged> {
    let judged = read_manifest(run, name).and_then(|manifest| match misfit(&manifest) {
        Some(why) => Ok(Judged::Misfit(why)),
        None => verify(run, name).map(|verified| Judged::Fits(Box::new(verified))),
    });
    match judged {
        Err(error) if error.is_damaged() || error.is_not_found() => Ok(Judged::Unsound(error.to_string())),
        judged => judged,
    }
}

fn newest_first(mut passed_over: Vec<PassedOver>) -> Vec<PassedOver> {
    passed_over.sort_by_key(|over| std::cmp::Reverse(Place::of(&over.name)));
    passed_over
}

/// Whether a checkpoint exists, be it sound or not. Pruning removes the manifest first: an object that cannot be read is
/// damage only where this is true afterwards.
///
/// # Errors
/// What the store says.
pub fn is_committed(run: &Store, checkpoint: &str) -> Result<bool> {
    run.head(&in_checkpoint(checkpoint, MANIFEST)).map(|found| found.is_some())
}

/// One object of a checkpoint, whole and checked against the manifest.
///
/// # Errors
/// [`Error::NotFound`] for an object that the manifest does not name or the store does not have,
/// [`Error::Damaged`] if it is not what was written; else what the store says.
pub fn read_object(run: &Store, manifest: &Manifest, object: &str) -> Result<Bytes> {
    // Only now that the store itself gives this size is memory taken for it.
    let (name, entry) = sized(run, manifest, object)?;
    looking_twice(run, || {
        let (bytes, found) = run.get_hashed(&name, entry.bytes)?;
        same_sha256(run, &name, entry, found).map(|()| bytes)
    })
}

/// Takes an object piece by piece.
pub trait Sink {
    /// Forgets what came: the object comes again from its beginning.
    fn restart(&mut self);
    /// Takes the next bytes.
    fn update(&mut self, piece: &[u8]);
}

/// Hands one object of a checkpoint to `sink` and looks meanwhile whether it is still what was verified: what the sink has
/// taken is to be trusted if this succeeds, and not before.
///
/// # Errors
/// As for [`read_object`].
pub fn stream_object(run: &Store, verified: &Verified, object: &str, sink: &mut impl Sink) -> Result<()> {
    let (name, entry) = sized(run, &verified.manifest, object)?;
    looking_twice(run, || {
        sink.restart();
        let mut mark = Mark::new();
        run.read_pieces_here(&name, entry.bytes, |piece| {
            mark.update(piece);
            sink.update(piece);
        })?;
        let found = mark.finish();
        if verified.marks.get(object) == Some(&found) {
            return Ok(());
        }
        let (what, expected) = ("content", "that which was verified".to_string());
        Err(Error::Damaged { url: run.url_of(&name), what, expected, found: "another".to_string() })
    })
}

/// The place and the entry of an object that has the size its entry says.
fn sized<'a>(run: &Store, manifest: &'a Manifest, object: &str) -> Result<(String, &'a ObjectEntry)> {
    let checkpoint = manifest.name();
    let name = in_checkpoint(&checkpoint, object);
    let missing = || Error::NotFound { operation: "read", url: run.url_of(&name) };
    let entry = manifest.object(object).ok_or_else(missing)?;
    check_size(run, &checkpoint, entry)?;
    Ok((name, entry))
}

fn check_size(run: &Store, checkpoint: &str, entry: &ObjectEntry) -> Result<()> {
    let name = in_checkpoint(checkpoint, &entry.path);
    let found = match run.head(&name)? {
        Some(bytes) if bytes == entry.bytes => return Ok(()),
        Some(bytes) => format!("{bytes} bytes"),
        None => "no object".to_string(),
    };
    let expected = format!("{} bytes", entry.bytes);
    Err(Error::Damaged { url: run.url_of(&name), what: "size", expected, found })
}

/// Reads an object whole; gives the mark of its bytes.
fn check_content(run: &Store, checkpoint: &str, entry: &ObjectEntry) -> Result<u64> {
    let name = in_checkpoint(checkpoint, &entry.path);
    let (mut hasher, mut mark) = (Hasher::new(), Mark::new());
    let mut inspector = entry.path.ends_with(tensors::SUFFIX).then(|| Inspector::new(entry.bytes));
    run.read_pieces(&name, entry.bytes, |piece| {
        hasher.update(piece);
        mark.update(piece);
        inspector.iter_mut().for_each(|inspector| inspector.update(piece));
    })?;
    same_sha256(run, &name, entry, hasher.finish())?;
    // The writer's bytes, but are they a training state?
    let fault = inspector.and_then(Inspector::finish);
    let expected = "sound safetensors with finite numbers".to_string();
    fault.map_or(Ok(mark.finish()), |found| {
        Err(Error::Damaged { url: run.url_of(&name), what: "content", expected, found: found.to_string() })
    })
}

fn same_sha256(run: &Store, name: &str, entry: &ObjectEntry, found: String) -> Result<()> {
    if found == entry.sha256 {
        return Ok(());
    }
    Err(Error::Damaged { url: run.url_of(name), what: "sha256", expected: entry.sha256.clone(), found })
}
