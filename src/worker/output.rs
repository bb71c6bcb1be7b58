//! Results on standard output, whose reader may close the pipe early.

use std::io::{self, Write};

use crate::error::Error;

/// Writes a line of results.
///
/// # Errors
/// The reader closed the pipe (`| head`), which ends a command with exit code 0; see [`Error::is_closed_output`]. Or
/// another write error, such as a full disk.
pub fn line(text: &str) -> Result<(), Error> {
    let mut output = io::stdout().lock();
    writeln!(output, "{text}").and_then(|()| output.flush()).map_err(Error::Output)
}
