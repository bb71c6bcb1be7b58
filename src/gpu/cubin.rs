//! Compiled GPU code (cubin) and its cache file. The driver infers the length of a cubin from its contents, so
//! corrupt code must never reach the driver.

use std::path::Path;
use std::{fs, io};

use lambert_store::hash::sha256;

/// A complete cubin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cubin(Vec<u8>);

/// Number of hexadecimal digits of the SHA-256 at the start of a cache file.
const DIGEST_DIGITS: usize = 64;

impl Cubin {
    /// Wraps the output of the compiler.
    pub(super) fn new(code: Vec<u8>) -> Self {
        Self(code)
    }

    /// Machine code.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads a file written by [`Cubin::save`]. Returns `None` if it is missing or corrupt.
    pub(super) fn load(file: &Path) -> Option<Self> {
        let contents = fs::read(file).ok()?;
        let (digest, code) = contents.split_at_checked(DIGEST_DIGITS)?;
        let is_intact = !code.is_empty() && digest == sha256(code).as_bytes();
        if !is_intact {
            tracing::warn!("{} is damaged; recompiling the kernels", file.display());
        }
        is_intact.then(|| Self(code.to_vec()))
    }

    /// Atomically writes the SHA-256 of the code, then the code.
    pub(super) fn save(&self, file: &Path) -> io::Result<()> {
        let dir = file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(dir)?;
        let mut temp_file = tempfile::NamedTempFile::new_in(dir)?;
        io::Write::write_all(&mut temp_file, sha256(&self.0).as_bytes())?;
        io::Write::write_all(&mut temp_file, &self.0)?;
        temp_file.persist(file).map(drop).map_err(|error| error.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_corrupt_cache_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("below/kernels.sealed");
        assert_eq!(Cubin::load(&file), None);
        let code = Cubin::new(b"\x7fELF and more".to_vec());
        code.save(&file).unwrap();
        assert_eq!(Cubin::load(&file), Some(code));
        let saved = fs::read(&file).unwrap();
        for i in 0..saved.len() {
            let mut changed = saved.clone();
            changed[i] ^= 1;
            fs::write(&file, changed).unwrap();
            assert_eq!(Cubin::load(&file), None, "byte {i}");
            fs::write(&file, &saved[..i]).unwrap();
            assert_eq!(Cubin::load(&file), None, "cut at {i}");
        }
    }
}
