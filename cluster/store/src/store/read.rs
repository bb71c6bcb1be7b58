//! Reads of large objects: piece by piece, or whole and hashed on the way.

use bytes::Bytes;

use super::{Store, transfer};
use crate::error::{Cause, Error, Result};
use crate::{hash, local_read};

impl Store {
    /// Reads the first `bytes` bytes of an object and hands them to `take` piece by piece, in order. The next
    /// pieces are fetched in parallel meanwhile, so memory stays bounded whatever the size.
    ///
    /// # Errors
    /// [`Error::NotFound`], an object that is shorter, else what the store says. `take` may have seen the first
    /// pieces then.
    pub fn read_pieces(&self, path: &str, bytes: u64, take: impl FnMut(&[u8])) -> Result<()> {
        match self.local_path(path)? {
            Some(file) => local_read::pieces(&file, bytes, take).map_err(|source| self.read_error(path, &source)),
            None => {
                let (store, name, place) = self.ask("read", path)?;
                transfer::download(store, name, place, bytes, take)
            }
        }
    }

    /// Like [`Store::read_pieces`] for a `take` that takes little time: a folder's files are read on the calling thread.
    ///
    /// # Errors
    /// As there.
    pub fn read_pieces_here(&self, path: &str, bytes: u64, take: impl FnMut(&[u8])) -> Result<()> {
        match self.local_path(path)? {
            Some(file) => local_read::pieces_here(&file, bytes, take).map_err(|source| self.read_error(path, &source)),
            None => self.read_pieces(path, bytes, take),
        }
    }

    /// The first `bytes` bytes of an object and their SHA-256, computed while they come in. That much memory is
    /// taken at once: check the object's size first.
    ///
    /// # Errors
    /// [`Error::NotFound`], an object that is shorter, no memory, else what the store says.
    pub fn get_hashed(&self, path: &str, bytes: u64) -> Result<(Bytes, String)> {
        self.check_memory(path, bytes)?;
        if let Some(file) = self.local_path(path)? {
            // Zeroed pages that nobody has touched cost nothing until the file is read into them.
            let mut whole = vec![0; bytes as usize];
            let sha256 = local_read::whole(&file, &mut whole).map_err(|source| self.read_error(path, &source))?;
            return Ok((whole.into(), sha256));
        }
        let (mut whole, mut hasher) = (Vec::with_capacity(bytes as usize), hash::Hasher::new());
        self.read_pieces(path, bytes, |piece| {
            hasher.update(piece);
            whole.extend_from_slice(piece);
        })?;
        Ok((whole.into(), hasher.finish()))
    }

    /// An allocation that fails ends the process; one that is only tried is an error like any other.
    fn check_memory(&self, path: &str, bytes: u64) -> Result<()> {
        let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
        Vec::<u8>::new().try_reserve_exact(wanted).map_err(|source| self.read_error(path, &source))
    }

    fn read_error(&self, path: &str, source: &(dyn std::error::Error + 'static)) -> Error {
        let (operation, url) = ("read", self.url_of(path));
        let kind = source.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        match kind {
            Some(std::io::ErrorKind::NotFound) => Error::NotFound { operation, url },
            Some(std::io::ErrorKind::PermissionDenied) => Error::Denied { operation, url, source: Cause::new(source) },
            _ => Error::Failed { operation, url, attempts: 1, seconds: 0.0, source: Cause::new(source) },
        }
    }
}
