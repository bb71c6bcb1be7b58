//! Lists, verifies, selects and reads checkpoints.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::tensors::{self, TensorValidator};
use super::{AttemptStep, Manifest, ObjectEntry, Rollbacks};
use crate::error::{Error, Result};
use crate::hash::{Hasher, Xxh3};
use crate::object::Object;
use crate::run::{CHECKPOINTS, MANIFEST, WEIGHTS, checkpoint as path_of, in_checkpoint};
use crate::store::Store;

/// Maximum size of a manifest, bytes. A larger object cannot be a manifest.
pub(super) const MAX_MANIFEST_BYTES: u64 = 256 << 20;

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

/// A checkpoint whose objects were all read and verified. The value can be serialized and sent to other processes. Each
/// of them then either reads exactly the verified bytes or fails.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerifiedCheckpoint {
    /// The manifest.
    pub manifest: Manifest,
    /// XXH3 hash of each object, keyed by the name of the object within the checkpoint.
    hashes: BTreeMap<String, u64>,
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

/// Reads the manifest of a checkpoint and verifies its checksum. Does not read the other objects.
///
/// # Errors
/// [`Error::NoCheckpoint`] if the checkpoint is not committed, [`Error::Damaged`] if the manifest is damaged or of an
/// unsupported format, or another store error.
pub fn read_manifest(run: &Store, checkpoint: &str) -> Result<Manifest> {
    let name = in_checkpoint(checkpoint, MANIFEST);
    let missing = || Error::NoCheckpoint { run: run.url().to_owned(), name: checkpoint.to_owned() };
    retry_if_damaged(run, || {
        let text = run.get_at_most(&name, MAX_MANIFEST_BYTES);
        let text = text.map_err(|error| if error.is_not_found() { missing() } else { error })?;
        Manifest::from_text(&text, &run.url_of(&name), checkpoint)
    })
}

/// Calls `look`. If an object in a remote store appears damaged, calls `look` once more and returns the second result.
/// (A network response can be wrong although the object is intact.)
fn retry_if_damaged<T>(run: &Store, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    match look() {
        Err(error) if error.is_damaged() && !run.is_local() => {
            tracing::warn!("rereading after damage: {error}");
            look()
        }
        looked => looked,
    }
}

/// Reads all objects of a checkpoint and verifies sizes and checksums. Also checks that each safetensors object has a
/// valid header and only finite elements, because training can resume only from such objects.
///
/// # Errors
/// [`Error::NoCheckpoint`] or [`Error::Damaged`] if the checkpoint is not intact, or another store error.
pub fn verify(run: &Store, checkpoint: &str) -> Result<VerifiedCheckpoint> {
    verify_objects(run, checkpoint, read_manifest(run, checkpoint)?)
}

/// Like [`verify`], but reads only the weights. The result has no other objects.
///
/// # Errors
/// As for [`verify`].
pub fn verify_weights(run: &Store, checkpoint: &str) -> Result<VerifiedCheckpoint> {
    let mut manifest = read_manifest(run, checkpoint)?;
    manifest.objects.retain(|entry| entry.path == WEIGHTS);
    verify_objects(run, checkpoint, manifest)
}

fn verify_objects(run: &Store, checkpoint: &str, manifest: Manifest) -> Result<VerifiedCheckpoint> {
    run.report_expected(manifest.bytes());
    // Sizes are checked first, because one request lists them, and they find most damage.
    let sizes = sizes(run, checkpoint)?;
    for entry in &manifest.objects {
        let name = in_checkpoint(checkpoint, &entry.path);
        expect_size(run, &name, entry, sizes.get(&name).copied())?;
    }
    let hashes = Mutex::new(BTreeMap::new());
    let entries = Mutex::new(manifest.objects.iter());
    let next = || lock(&entries).next();
    let verify = || {
        while let Some(entry) = next() {
            let hash = retry_if_damaged(run, || check_content(run, checkpoint, entry))?;
            lock(&hashes).insert(entry.path.clone(), hash);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..PARALLEL.min(manifest.objects.len())).map(|_| scope.spawn(verify)).collect();
        let mut ended = threads.into_iter().map(|thread| thread.join());
        ended.try_for_each(|read| read.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })?;
    let hashes = hashes.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(VerifiedCheckpoint { manifest, hashes })
}

/// Sizes of the objects of a checkpoint in the store, by name.
fn sizes(run: &Store, checkpoint: &str) -> Result<BTreeMap<String, u64>> {
    let found = run.list(&path_of(checkpoint))?;
    Ok(found.into_iter().map(|object| (object.path, object.bytes)).collect())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum number of objects that are read concurrently. A large run has many small objects, which wait for the store.
const PARALLEL: usize = 16;

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

/// Reads one object of a checkpoint and verifies it against the manifest.
///
/// # Errors
/// [`Error::NotFound`] if the manifest does not list the object, [`Error::Damaged`] if the object is missing or was
/// changed, or another store error.
pub fn read_object(run: &Store, manifest: &Manifest, object: &str) -> Result<Bytes> {
    run.report_expected(manifest.object(object).map_or(0, |entry| entry.bytes));
    read_reported_object(run, manifest, object)
}

/// Like [`read_object`], for an object whose size the caller has reported as expected.
pub(super) fn read_reported_object(run: &Store, manifest: &Manifest, object: &str) -> Result<Bytes> {
    // The store confirms the size here, before memory of that size is allocated.
    let (name, entry) = checked_entry(run, manifest, object)?;
    retry_if_damaged(run, || {
        let (bytes, found) = run.get_hashed(&name, entry.bytes)?;
        check_sha256(run, &name, entry, found).map(|()| bytes)
    })
}

/// Receives an object in pieces.
pub trait ObjectSink {
    /// Discards all pieces received so far. Called each time before the object is sent from the beginning.
    fn restart(&mut self);
    /// Receives the next bytes.
    fn update(&mut self, piece: &[u8]);
}

/// Streams one object of a verified checkpoint to `sink`. The data is valid only if this function succeeds, because the
/// hash is compared after the last piece.
///
/// # Errors
/// As for [`read_object`].
pub fn stream_object(
    run: &Store,
    verified: &VerifiedCheckpoint,
    object: &str,
    sink: &mut impl ObjectSink,
) -> Result<()> {
    // The content was verified, so its size needs no request of its own.
    let (name, entry) = entry(run, &verified.manifest, object)?;
    run.report_expected(entry.bytes);
    retry_if_damaged(run, || {
        sink.restart();
        let mut xxh3 = Xxh3::new();
        run.read_pieces_inline(&name, entry.bytes, |piece| {
            xxh3.update(piece);
            sink.update(piece);
        })?;
        let found = xxh3.finish();
        if verified.hashes.get(object) == Some(&found) {
            return Ok(());
        }
        let (what, expected) = ("content", "the verified bytes".to_string());
        Err(Error::Damaged { url: run.url_of(&name), what, expected, found: "different bytes".to_string() })
    })
}

/// Checks the size of an object and returns its name and its entry.
fn checked_entry<'a>(run: &Store, manifest: &'a Manifest, object: &str) -> Result<(String, &'a ObjectEntry)> {
    let (name, entry) = entry(run, manifest, object)?;
    expect_size(run, &name, entry, run.head(&name)?)?;
    Ok((name, entry))
}

/// Returns the name and the entry of an object.
fn entry<'a>(run: &Store, manifest: &'a Manifest, object: &str) -> Result<(String, &'a ObjectEntry)> {
    let name = in_checkpoint(&manifest.name(), object);
    let missing = || Error::NotFound { operation: "read", url: run.url_of(&name) };
    let entry = manifest.object(object).ok_or_else(missing)?;
    Ok((name, entry))
}

/// Compares the size of the object `name` in the store with its entry. `found` is `None` if there is no object.
fn expect_size(run: &Store, name: &str, entry: &ObjectEntry, found: Option<u64>) -> Result<()> {
    let found = match found {
        Some(bytes) if bytes == entry.bytes => return Ok(()),
        Some(bytes) => format!("{bytes} bytes"),
        None => "no object".to_string(),
    };
    let expected = format!("{} bytes", entry.bytes);
    Err(Error::Damaged { url: run.url_of(name), what: "size", expected, found })
}

/// Verifies the content of an object and returns its XXH3 hash.
fn check_content(run: &Store, checkpoint: &str, entry: &ObjectEntry) -> Result<u64> {
    let name = in_checkpoint(checkpoint, &entry.path);
    let (mut hasher, mut xxh3) = (Hasher::new(), Xxh3::new());
    let mut inspector = entry.path.ends_with(tensors::SUFFIX).then(|| TensorValidator::new(entry.bytes));
    run.read_pieces(&name, entry.bytes, |piece| {
        hasher.update(piece);
        xxh3.update(piece);
        inspector.iter_mut().for_each(|inspector| inspector.update(piece));
    })?;
    check_sha256(run, &name, entry, hasher.finish())?;
    // The checksum matches. Now check that the tensors are usable, too.
    let problem = inspector.and_then(TensorValidator::finish);
    let expected = "valid safetensors with finite elements".to_string();
    problem.map_or(Ok(xxh3.finish()), |found| {
        Err(Error::Damaged { url: run.url_of(&name), what: "content", expected, found: found.to_string() })
    })
}

fn check_sha256(run: &Store, name: &str, entry: &ObjectEntry, found: String) -> Result<()> {
    if found == entry.sha256 {
        return Ok(());
    }
    Err(Error::Damaged { url: run.url_of(name), what: "sha256", expected: entry.sha256.clone(), found })
}
