//! Writes a checkpoint. All ranks write objects, and then rank 0 writes the manifest.

use bytes::Bytes;

use super::objects::MAX_MANIFEST_BYTES;
use super::tensors::{self, TensorError, TensorValidator};
use super::{AttemptStep, Manifest, ObjectEntry};
use crate::error::{Error, Result};
use crate::hash::Hasher;
use crate::lease::Lease;
use crate::run::{MANIFEST, checkpoint, in_checkpoint};
use crate::store::Store;
use crate::store::Upload;

/// A checkpoint object being uploaded.
#[derive(Debug)]
pub struct PendingObject {
    upload: Upload,
    object: String,
    url: String,
    bytes: u64,
}

impl PendingObject {
    /// True if the upload has succeeded or failed.
    pub fn is_done(&mut self) -> bool {
        self.upload.is_done()
    }

    /// URL of the object.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Waits for the upload and returns the manifest entry, without slices.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for tensors that readers would reject, or another store error.
    pub fn wait(self) -> Result<ObjectEntry> {
        let sha256 = self.upload.wait()?;
        Ok(ObjectEntry { path: self.object, bytes: self.bytes, sha256, slices: Vec::new() })
    }
}

/// Writer of one checkpoint. Every rank creates its own writer for the same step and attempt. A writer is cheap to
/// clone and usable from any thread.
#[derive(Debug, Clone)]
pub struct CheckpointWriter {
    run: Store,
    name: String,
}

impl CheckpointWriter {
    /// Creates a writer for the checkpoint of `step` by `attempt`. Writes nothing yet.
    pub fn new(run: &Store, step: u64, attempt: u32) -> Self {
        Self { run: run.clone(), name: AttemptStep { attempt, step }.name() }
    }

    /// Checkpoint name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// URL of the manifest, which commits the checkpoint.
    pub fn manifest_url(&self) -> String {
        self.run.url_of(&in_checkpoint(&self.name, MANIFEST))
    }

    /// Writes one object and returns its manifest entry, without slices.
    ///
    /// # Errors
    /// An invalid name, [`Error::NotFinite`], or another store error.
    pub fn put_object(&self, object: &str, bytes: Bytes) -> Result<ObjectEntry> {
        self.start_object(object, bytes)?.wait()
    }

    /// Starts the upload of one object. The buffer behind `bytes` must not change until the upload ends.
    /// (`Bytes::from_owner` wraps a buffer without a copy.)
    ///
    /// # Errors
    /// An invalid name. [`PendingObject::wait`] returns all other errors.
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

    /// Commits the checkpoint by creating its manifest. First checks that every object exists and has the recorded
    /// size, and that the lease is held. One rank calls this after all ranks have written their objects.
    ///
    /// # Errors
    /// [`Error::LeaseLost`], [`Error::Damaged`] for an object that is missing or has another size, [`Error::Refused`]
    /// for an invalid manifest or a manifest of another checkpoint, [`Error::Exists`], or another store error.
    pub fn commit(&self, manifest: &Manifest, lease: &Lease) -> Result<()> {
        if let Some(why) = self.reason_to_refuse(manifest, lease) {
            return Err(Error::Refused { url: self.manifest_url(), why });
        }
        self.check_objects(manifest)?;
        let text = manifest.to_text().map_err(|error| Error::Refused {
            url: self.manifest_url(),
            why: format!("it cannot be serialized: {error}"),
        })?;
        lease.check()?;
        let name = in_checkpoint(&self.name, MANIFEST);
        let text = Bytes::from(text);
        // An earlier call may have created the manifest although its response was lost. A repeated call must then
        // succeed.
        if self.run.put_new(&name, text.clone())? || self.run.get_at_most(&name, MAX_MANIFEST_BYTES)? == text {
            return Ok(());
        }
        Err(Error::Exists { url: self.run.url_of(&name) })
    }

    /// Deletes the objects of a failed save from a local store, to free disk space. Does nothing for a bucket, because
    /// the manifest may still appear there later if the response to the commit was lost. In a bucket, pruning deletes
    /// the objects after a later commit.
    ///
    /// # Errors
    /// A store error.
    pub fn abandon(&self) -> Result<()> {
        if !self.run.is_local() || self.run.head(&in_checkpoint(&self.name, MANIFEST))?.is_some() {
            return Ok(());
        }
        let left = self.run.list(&checkpoint(&self.name))?;
        left.iter().try_for_each(|object| self.run.delete(&object.path))
    }

    fn reason_to_refuse(&self, manifest: &Manifest, lease: &Lease) -> Option<String> {
        if manifest.name() != self.name {
            return Some(format!("the manifest belongs to {}", manifest.name()));
        }
        if manifest.attempt != lease.attempt() {
            return Some(format!("the lease belongs to attempt {}", lease.attempt()));
        }
        manifest.invalid_entry()
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

/// Size of a piece, bytes. Each piece is hashed and then validated while it is in the CPU cache.
const PIECE: usize = 256 << 10;

/// Returns the SHA-256 of a safetensors file, or an error if an element is not finite.
fn digest(bytes: &[u8], url: String) -> Result<String> {
    let (mut hasher, mut inspector) = (Hasher::new(), TensorValidator::new(bytes.len() as u64));
    for piece in bytes.chunks(PIECE) {
        hasher.update(piece);
        inspector.update(piece);
    }
    match inspector.finish() {
        Some(TensorError::NotFinite { tensor, element }) => Err(Error::NotFinite { url, tensor, element }),
        Some(TensorError::Malformed(_)) | None => Ok(hasher.finish()),
    }
}
