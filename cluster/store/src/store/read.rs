//! Reads large objects: in pieces, or whole with a SHA-256.

use bytes::Bytes;

use super::{Store, transfer};
use crate::error::{Cause, Error, Result};
use crate::{hash, local_read};

impl Store {
    /// Reads the first `bytes` bytes of an object and passes them to `take` in order. Prefetches the next pieces in
    /// parallel, with bounded memory.
    ///
    /// # Errors
    /// [`Error::NotFound`], a shorter object, or another store error. `take` may have received some pieces before the
    /// error.
    pub fn read_pieces(&self, path: &str, bytes: u64, take: impl FnMut(&[u8])) -> Result<()> {
        match self.local_path(path)? {
            Some(file) => {
                local_read::pieces(&file, bytes, self.counting(take)).map_err(|source| self.read_error(path, &source))
            }
            None => {
                let (store, name, request) = self.prepare("read", path)?;
                transfer::download(store, name, request, bytes, take)
            }
        }
    }

    /// Like [`Store::read_pieces`], but reads local files on the calling thread. Use this if `take` is cheap.
    ///
    /// # Errors
    /// As for [`Store::read_pieces`].
    pub fn read_pieces_inline(&self, path: &str, bytes: u64, take: impl FnMut(&[u8])) -> Result<()> {
        match self.local_path(path)? {
            Some(file) => {
                let take = self.counting(take);
                local_read::pieces_inline(&file, bytes, take).map_err(|source| self.read_error(path, &source))
            }
            None => self.read_pieces(path, bytes, take),
        }
    }

    /// Reads the first `bytes` bytes of an object and computes their SHA-256 during the read. Allocates `bytes` bytes
    /// before the read, so check the size of the object first.
    ///
    /// # Errors
    /// [`Error::NotFound`], a shorter object, out of memory, or another store error.
    pub fn get_hashed(&self, path: &str, bytes: u64) -> Result<(Bytes, String)> {
        self.check_memory(path, bytes)?;
        if let Some(file) = self.local_path(path)? {
            // The kernel commits zeroed pages only when the file is read into them.
            let mut whole = vec![0; bytes as usize];
            let count = |bytes| self.report_transferred(bytes);
            let sha256 =
                local_read::whole(&file, &mut whole, count).map_err(|source| self.read_error(path, &source))?;
            return Ok((whole.into(), sha256));
        }
        let (mut whole, mut hasher) = (Vec::with_capacity(bytes as usize), hash::Hasher::new());
        self.read_pieces(path, bytes, |piece| {
            hasher.update(piece);
            whole.extend_from_slice(piece);
        })?;
        Ok((whole.into(), hasher.finish()))
    }

    /// Returns a function that passes pieces of an object to `take` and reports their sizes.
    fn counting(&self, mut take: impl FnMut(&[u8])) -> impl FnMut(&[u8]) {
        move |piece| {
            take(piece);
            self.report_transferred(piece.len() as u64);
        }
    }

    /// Tries to allocate `bytes` bytes and returns an error if that fails. A failed allocation elsewhere would abort
    /// the process.
    fn check_memory(&self, path: &str, bytes: u64) -> Result<()> {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        Vec::<u8>::new().try_reserve_exact(size).map_err(|source| self.read_error(path, &source))
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
