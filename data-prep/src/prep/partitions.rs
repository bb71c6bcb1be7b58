//! Hash partitioning of fixed-size records into unnamed temporary files, each small enough for memory. Records with
//! equal keys share a file.

use std::fs::File;
use std::io::{BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use super::PrepError;
use lambert_dataset::random::Key;

/// Upper limit on the number of files. Each file needs a file descriptor and a buffer.
const MAX_FILES: u64 = 256;
const BUFFER_BYTES: usize = 1 << 16;

/// Hash partitions of fixed-size records.
pub struct Partitions {
    files: Vec<BufWriter<File>>,
    folder: PathBuf,
}

impl Partitions {
    /// Creates partitions for `bytes` bytes of records in total. Each partition has about `limit` bytes, or more if
    /// that would require more than [`MAX_FILES`] partitions.
    pub fn new(folder: &Path, bytes: u64, limit: u64) -> Result<Self, PrepError> {
        let count = bytes.div_ceil(limit.max(1)).clamp(1, MAX_FILES);
        let file = |_| tempfile::tempfile_in(folder).map(|file| BufWriter::with_capacity(BUFFER_BYTES, file));
        let files = (0..count).map(file).collect::<Result<_, _>>().map_err(io_error(folder, "create a file in"))?;
        Ok(Self { files, folder: folder.to_owned() })
    }

    /// Adds a record.
    pub fn push(&mut self, key: u64, record: &[u8]) -> Result<(), PrepError> {
        let index = Key::new(key).with_bytes(b"partition").value() % self.files.len() as u64;
        self.files[index as usize].write_all(record).map_err(io_error(&self.folder, "write to"))
    }

    /// Calls `each` with all records of each partition in turn.
    pub fn for_each(self, mut each: impl FnMut(&[u8]) -> Result<(), PrepError>) -> Result<(), PrepError> {
        let mut records = Vec::new();
        for file in self.files {
            records.clear();
            let mut file = file.into_inner().map_err(|error| io_error(&self.folder, "write to")(error.into_error()))?;
            let read = file.rewind().and_then(|()| file.read_to_end(&mut records));
            read.map_err(io_error(&self.folder, "read from"))?;
            each(&records)?;
        }
        Ok(())
    }
}

fn io_error(folder: &Path, operation: &'static str) -> impl FnOnce(std::io::Error) -> PrepError {
    move |source| PrepError::WorkIo { operation, path: folder.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_keys_share_a_partition_and_no_record_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let mut partitions = Partitions::new(folder.path(), 8 * 6000, 8 * 1000).unwrap();
        for number in 0..6000_u64 {
            partitions.push(number % 700, &(number % 700).to_le_bytes()).unwrap();
        }
        let (mut seen, mut files, mut records) = (std::collections::HashSet::new(), 0, 0);
        let all = partitions.for_each(|bytes| {
            let keys: std::collections::HashSet<&[u8]> = bytes.chunks_exact(8).collect();
            assert!(keys.iter().all(|key| seen.insert(key.to_vec())), "a key is in two files");
            (files, records) = (files + 1, records + bytes.len() / 8);
            Ok(())
        });
        all.unwrap();
        assert_eq!((files, records, seen.len()), (6, 6000, 700));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the files have no names");
    }
}
