//! A stream of bytes on its way from a file to a reader.

use std::io::{BufRead, Read, Result};

/// A stream of decompressed bytes.
pub type Input = Box<dyn BufRead + Send>;

/// [`Read::read`] for who has [`BufRead`].
pub fn read_buffered(input: &mut impl BufRead, buffer: &mut [u8]) -> Result<usize> {
    let count = input.fill_buf()?.read(buffer)?;
    input.consume(count);
    Ok(count)
}
