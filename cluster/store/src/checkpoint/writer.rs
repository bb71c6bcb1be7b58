//! Writing a checkpoint: objects from all ranks, then the manifest from one.

use bytes::Bytes;

use super::select::LARGEST_MANIFEST;
use super::tensors::{self, Fault, Inspector};
use super::{Manifest, ObjectEntry, Place};
use crate::error::{Error, Result};
use crate::hash::Hasher;
use crate::lease::Lease;
use crate::run::{MANIFEST, checkpoint, in_checkpoint};
use crate::store::Store;
use crate::store::Upload;

/// An object of a checkpoint on its way to the store.
#[derive(Debug)]
pub struct PendingObject {
    upload: Upload,
    object: String,
    url: String,
    bytes: u64,
}

impl PendingObject {
    /// Whether the write has ended, well or not.
    pub fn is_done(&mut self) -> bool {
        self.upload.is_done()
    }

    /// Where it is written.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Waits for the end; the entry has no slices.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for tensors that no reader would take; else what the store said.
    pub fn wait(self) -> Result<ObjectEntry> {
        let sha256 = self.upload.wait()?;
        Ok(ObjectEntry { path: self.object, bytes: self.bytes, sha256, slices: Vec::new() })
    }
}

/// A checkpoint being written. Every rank makes its own for the same step and attempt; it is cheap to clone and
/// works from any thread.
#[derive(Debug, Clone)]
pub struct Writer {
    run: Store,
    name: String,
}

impl Writer {
    /// A writer of the checkpoint of `step` by `attempt` in the run at `run`. Nothing is written yet.
    pub fn new(run: &Store, step: u64, attempt: u32) -> Self {
        Self { run: run.clone(), name: Place { attempt, step }.name() }
    }

    /// The checkpoint's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The URL of the manifest, which makes the checkpoint exist.
    pub fn manifest_url(&self) -> String {
        self.run.url_of(&in_checkpoint(&self.name, MANIFEST))
    }

    /// Writes one object and returns its entry for the manifest, without slices.
    ///
    /// # Errors
    /// A name that is none, [`Error::NotFinite`], else what the store says.
    pub fn put_object(&self, object: &str, bytes: Bytes) -> Result<ObjectEntry> {
        self.start_object(object, bytes)?.wait()
    }

    /// Starts to write one object and returns at once. The bytes must be a snapshot: they are read until the
    /// write is done. (`Bytes::from_owner` takes over a buffer without copying it.)
    ///
    /// # Errors
    /// A name that is none; everything else comes out of the [`PendingObject`].
    pub fn start_object(&self, object: &str, bytes: Bytes) -> Result<PendingObject> {
        crate::names::check(object)?;
        let size = bytes.len() as u64;
        let path = in_checkpoint(&self.name, object);
        let url = self.run.url_of(&path);
        let upload = match object.ends_with(tensors::SUFFIX) {
            true => self.run.put_digested(&path, bytes, {
                let url = url.clone();
                move |bytes| digest(bytes, url)
            })?,
            false => self.run.put_in_background(&path, bytes)?,
        };
        Ok(PendingObject { upload, object: object.to_string(), url, bytes: size })
    }

    /// Makes the checkpoint exist: checks that every object is there with its size and that the lease is held,
    /// then creates the manifest. Called by one rank, after all have put their objects.
    ///
    /// # Errors
    /// [`Error::LeaseLost`]; [`Error::Damaged`] for an object that is missing or has another size;
    /// [`Error::Refused`] for a manifest that is not this checkpoint's; [`Error::Exists`]; else what the store
    /// says.
    pub fn commit(&self, manifest: &Manifest, lease: &Lease) -> Result<()> {
        if let Some(why) = self.objection(manifest, lease) {
            return Err(Error::Refused { url: self.manifest_url(), why });
        }
        self.check_objects(manifest)?;
        let text = manifest.to_text().map_err(|fault| Error::Refused {
            url: self.manifest_url(),
            why: format!("it cannot be written as JSON: {fault}"),
        })?;
        lease.check()?;
        let name = in_checkpoint(&self.name, MANIFEST);
        let text = Bytes::from(text);
        // A commit that seemed to fail may have arrived after all; done again, it is no conflict with itself.
        if self.run.put_new(&name, text.clone())? || self.run.get_at_most(&name, LARGEST_MANIFEST)? == text {
            return Ok(());
        }
        Err(Error::Exists { url: self.run.url_of(&name) })
    }

    /// Takes back what a failed save has left in a folder, so that a full disk does not stay full. In a bucket nothing is
    /// done, because a manifest whose answer was lost may still arrive: pruning removes the objects after a later commit.
    ///
    /// # Errors
    /// What the store says.
    pub fn abandon(&self) -> Result<()> {
        if !self.run.is_local() || self.run.head(&in_checkpoint(&self.name, MANIFEST))?.is_some() {
            return Ok(());
        }
        let left = self.run.list(&checkpoint(&self.name))?;
        left.iter().try_for_each(|object| self.run.delete(&object.path))
    }

    fn objection(&self, manifest: &Manifest, lease: &Lease) -> Option<String> {
        if manifest.name() != self.name {
            return Some(format!("the manifest is that of {}", manifest.name()));
        }
        if manifest.attempt != lease.attempt() {
            return Some(format!("the lease is that of attempt {}", lease.attempt()));
        }
        manifest.fault()
    }

    fn check_objects(&self, manifest: &Manifest) -> Result<()> {
        let found = self.run.list(&checkpoint(&self.name))?;
        for entry in &manifest.objects {
            let name = in_checkpoint(&self.name, &entry.path);
            let bytes = found.iter().find(|object| object.path == name).map(|object| object.bytes);
            if bytes != Some(entry.bytes) {
                return Err(Error::Damaged {
                    url: self.run.url_of(&name),
                    what: "size",
                    expected: format!("{} bytes", entry.bytes),
                    found: bytes.map_or("no object".into(), |bytes| format!("{bytes} bytes")),
                });
            }
        }
        Ok(())
    }
}

/// Bytes that are hashed and looked into together, while they are in the processor's cache.
const PIECE: usize = 256 << 10;

/// The SHA-256 of the tensors in `bytes`, if all their numbers are finite: what is read refuses others.
fn digest(bytes: &[u8], url: String) -> Result<String> {
    let (mut hasher, mut inspector) = (Hasher::new(), Inspector::new(bytes.len() as u64));
    for piece in bytes.chunks(PIECE) {
        hasher.update(piece);
        inspector.update(piece);
    }
    match inspector.finish() {
        Some(Fault::NotFinite { tensor, element }) => Err(Error::NotFinite { url, tensor, element }),
        Some(Fault::Malformed(_)) | None => Ok(hasher.finish()),
    }
}
