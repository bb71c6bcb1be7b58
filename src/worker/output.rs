//! Results on standard output, whose reader may close the pipe early.

use std::io::{self, Write};

use crate::error::Error;

/// Writes a line of results. A closed pipe (`| head`) is not an error.
///
/// # Errors
/// Any other write error, such as a full disk.
pub fn line(text: &str) -> Result<(), Error> {
    let mut output = io::stdout().lock();
    let written = writeln!(output, "{text}").and_then(|()| output.flush());
    written.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(Error::Output(error)) })
}
