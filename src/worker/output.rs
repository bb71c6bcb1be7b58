//! Standard output: results, which a reader may have seen enough of.

use std::io::{self, Write};

use crate::error::Error;

/// Writes a line of results. That its reader (`| head`) has gone is no failure.
///
/// # Errors
/// It cannot be written for another reason, as a full disk.
pub fn line(text: &str) -> Result<(), Error> {
    let mut output = io::stdout().lock();
    let written = writeln!(output, "{text}").and_then(|()| output.flush());
    written.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(Error::Output(error)) })
}
