//! A file as a stream of its decompressed bytes.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::prep::PrepError;

/// Opens `path`; what it is compressed with shows in its first bytes, not in its name. `counter` grows with the
/// stored bytes that were read.
pub fn open(path: &Path, counter: Arc<AtomicU64>) -> Result<Box<dyn BufRead + Send>, PrepError> {
    let fault = |operation| move |source| PrepError::Input { path: path.to_owned(), operation, source };
    let file = File::open(path).map_err(fault("open"))?;
    let mut stored = BufReader::with_capacity(1 << 17, Counted { file, counter });
    let magic = stored.fill_buf().map_err(fault("read"))?;
    Ok(if magic.starts_with(b"BZh") { buffered(bzip2::bufread::MultiBzDecoder::new(stored)) } else { Box::new(stored) })
}

fn buffered(reader: impl Read + Send + 'static) -> Box<dyn BufRead + Send> {
    Box::new(BufReader::with_capacity(1 << 17, reader))
}

struct Counted {
    file: File,
    counter: Arc<AtomicU64>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.counter.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}
