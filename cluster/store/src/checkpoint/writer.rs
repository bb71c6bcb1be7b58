//! Writing a checkpoint: objects from all ranks, then the manifest from one.

use bytes::Bytes;

use super::{MANIFEST, Manifest, ObjectEntry, Place, path};
use crate::error::{Error, Result};
use crate::lease::Lease;
use crate::store::Store;

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

    /// Writes one object and returns its entry for the manifest, without slices.
    ///
    /// # Errors
    /// A name that is none, else what the store says.
    pub fn put_object(&self, object: &str, bytes: Bytes) -> Result<ObjectEntry> {
        crate::names::check(object)?;
        let size = bytes.len() as u64;
        let sha256 = self.run.put_hashed(&path(&self.name, object), bytes)?;
        Ok(ObjectEntry { path: object.to_string(), bytes: size, sha256, slices: Vec::new() })
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
            return Err(Error::Refused { url: self.run.url_of(&path(&self.name, MANIFEST)), why });
        }
        self.check_objects(manifest)?;
        let text = manifest.to_text().map_err(|fault| Error::Refused {
            url: self.run.url_of(&path(&self.name, MANIFEST)),
            why: format!("it cannot be written as JSON: {fault}"),
        })?;
        lease.check()?;
        let manifest = path(&self.name, MANIFEST);
        let created = self.run.put_new(&manifest, Bytes::from(text))?;
        if created { Ok(()) } else { Err(Error::Exists { url: self.run.url_of(&manifest) }) }
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
        let found = self.run.list(&format!("{}/{}", super::FOLDER, self.name))?;
        for entry in &manifest.objects {
            let name = path(&self.name, &entry.path);
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
