//! Machine code for a card (a cubin), from the compiler or from a file that the compiler's code was kept in. The driver reads it
//! without knowing its length, so that damaged code must never get there.

use std::path::Path;
use std::{fs, io};

use lambert_store::hash::sha256;

/// A whole cubin, as a compiler made it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cubin(Vec<u8>);

/// Hexadecimal digits of the SHA-256 that a kept file begins with.
const DIGITS: usize = 64;

impl Cubin {
    /// What a compiler has given.
    pub(super) fn compiled(code: Vec<u8>) -> Self {
        Self(code)
    }

    /// The code.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// What [`Cubin::keep`] has written to `file`; `None` where that is not there, or not as it was written.
    pub(super) fn read(file: &Path) -> Option<Self> {
        let sealed = fs::read(file).ok()?;
        let (digest, code) = sealed.split_at_checked(DIGITS)?;
        let is_sound = !code.is_empty() && digest == sha256(code).as_bytes();
        if !is_sound {
            tracing::warn!("{} is damaged: the kernels are compiled again", file.display());
        }
        is_sound.then(|| Self(code.to_vec()))
    }

    /// Writes a file that is whole or not there: the SHA-256 of the code, then the code.
    pub(super) fn keep(&self, file: &Path) -> io::Result<()> {
        let folder = file.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let mut writing = tempfile::NamedTempFile::new_in(folder)?;
        io::Write::write_all(&mut writing, sha256(&self.0).as_bytes())?;
        io::Write::write_all(&mut writing, &self.0)?;
        writing.persist(file).map(drop).map_err(|error| error.error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_code_is_never_given_to_the_driver() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("below/kernels.sealed");
        assert_eq!(Cubin::read(&file), None);
        let code = Cubin::compiled(b"\x7fELF and more".to_vec());
        code.keep(&file).unwrap();
        assert_eq!(Cubin::read(&file), Some(code));
        let kept = fs::read(&file).unwrap();
        for i in 0..kept.len() {
            let mut changed = kept.clone();
            changed[i] ^= 1;
            fs::write(&file, changed).unwrap();
            assert_eq!(Cubin::read(&file), None, "byte {i}");
            fs::write(&file, &kept[..i]).unwrap();
            assert_eq!(Cubin::read(&file), None, "cut at {i}");
        }
    }
}
