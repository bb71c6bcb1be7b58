//! Readers of decompressed bytes.

use std::io::{BufRead, Read, Result};

/// A buffered reader of decompressed bytes.
pub type BoxedReader = Box<dyn BufRead + Send>;

/// Implements [`Read::read`] for a [`BufRead`].
pub fn read_buffered(input: &mut impl BufRead, buffer: &mut [u8]) -> Result<usize> {
    let count = input.fill_buf()?.read(buffer)?;
    input.consume(count);
    Ok(count)
}
