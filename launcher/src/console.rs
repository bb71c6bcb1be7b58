//! Standard error: progress, log lines and what the workers say, none of which may tear the other.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::cli::LogFormat;

/// All lines and bars of this process; lines go above a bar that is being drawn.
fn bars() -> &'static MultiProgress {
    static BARS: OnceLock<MultiProgress> = OnceLock::new();
    BARS.get_or_init(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()))
}

/// Whether a person sees standard error as it is written.
pub fn is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Puts `bar` at the bottom of the terminal.
pub fn show(bar: ProgressBar) -> ProgressBar {
    bars().add(bar)
}

/// Writes a line to standard error. That nobody reads it is no reason to end a run, so failures are let go.
pub fn line(text: &str) {
    bars().suspend(|| {
        let _ = writeln!(io::stderr().lock(), "{text}");
    });
}

/// Writes a line of results to standard output. That its reader (`| head`) has seen enough is no failure.
pub fn result(text: &str) -> io::Result<()> {
    let written = bars().suspend(|| {
        let mut output = io::stdout().lock();
        writeln!(output, "{text}").and_then(|()| output.flush())
    });
    written.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

/// Sends log lines of this process to standard error; `RUST_LOG` says which (information and worse if unset).
pub fn log(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(AboveBars).with_target(false);
    // A second call changes nothing: the first subscriber stays.
    let _ = match format {
        LogFormat::Text => lines.with_ansi(is_terminal()).try_init(),
        LogFormat::Json => lines.json().try_init(),
    };
}

struct AboveBars;

impl<'a> MakeWriter<'a> for AboveBars {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        Self
    }
}

impl Write for AboveBars {
    /// tracing-subscriber hands over whole lines; it would report a failure to the same place, and panic.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = bars().suspend(|| io::stderr().lock().write_all(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
