//! Standard error and standard output: progress, log lines and what the workers print, none of which may tear the other.
//!
//! A command writes them itself, and waits for whoever reads. One that has others to look after calls [`detach`]: from then on a
//! thread for each stream writes, out of a bounded queue.

mod queue;

use std::io::{self, IsTerminal, Write};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::cli::LogFormat;
pub use queue::{Bar, Progress};
use queue::{Queue, Sink};

/// Text that waits for the reader of a stream, bytes.
const LONGEST: usize = 1 << 20;
/// How long the process waits at its end for the readers of standard output and standard error, each.
const LAST_WRITES: Duration = Duration::from_secs(2);

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

struct Detached {
    output: Queue,
    error: Queue,
}

static DETACHED: OnceLock<Detached> = OnceLock::new();

/// From now on this process never waits for a reader of its output: what nobody reads is dropped and counted. [`finish`] belongs
/// to it.
///
/// # Errors
/// The system gives no thread.
pub fn detach() -> io::Result<()> {
    if DETACHED.get().is_none() {
        let output = Queue::start("stdout", LONGEST, Output { closed: false })?;
        let error = Queue::start("stderr", LONGEST, Errors { bar: None })?;
        let _ = DETACHED.set(Detached { output, error });
    }
    Ok(())
}

/// Waits a little for what [`detach`]ed output is not written yet, and says what was dropped.
pub fn finish() {
    let Some(detached) = DETACHED.get() else { return };
    let start = Instant::now();
    let unread = detached.output.finish(LAST_WRITES);
    if unread > 0 {
        line(&format!("lambert: {unread} lines for standard output were dropped: it was not read"));
    }
    // Standard error has been written meanwhile.
    detached.error.finish(LAST_WRITES.saturating_sub(start.elapsed()).max(LAST_WRITES / 4));
}

/// Writes a line to standard error. That nobody reads it is no reason to end a run, so failures are let go.
pub fn line(text: &str) {
    to_stderr(format!("{text}\n").as_bytes());
}

fn to_stderr(bytes: &[u8]) {
    match DETACHED.get() {
        Some(detached) => detached.error.push(bytes.to_vec()),
        None => drop(bars().suspend(|| io::stderr().lock().write_all(bytes))),
    }
}

/// Writes a line of results to standard output, and waits for its reader. That it (`| head`) has seen enough is no failure.
pub fn result(text: &str) -> io::Result<()> {
    let write = || {
        let mut output = io::stdout().lock();
        writeln!(output, "{text}").and_then(|()| output.flush())
    };
    // The thread of a detached standard error may hold the bars for long.
    let written = if DETACHED.get().is_some() { write() } else { bars().suspend(write) };
    written.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

/// Writes a record to standard output as a line, once [`detach`]ed.
pub fn record(text: &str) {
    if let Some(detached) = DETACHED.get() {
        detached.output.push(format!("{text}\n").into_bytes());
    }
}

/// Draws or removes a progress bar at the bottom of the terminal, once [`detach`]ed.
pub fn draw(bar: Bar) {
    if let Some(detached) = DETACHED.get() {
        detached.error.draw(bar);
    }
}

/// Standard output, until it is closed.
struct Output {
    closed: bool,
}

impl Sink for Output {
    fn write(&mut self, lines: &[u8]) {
        let write = || write_all(rustix::stdio::stdout(), lines);
        // The bar's lock is for a terminal only: it must not be held while another reader is awaited.
        let written = match (self.closed, io::stdout().is_terminal()) {
            (true, _) => return,
            (false, true) => bars().suspend(write),
            (false, false) => write(),
        };
        if let Err(error) = written {
            self.closed = true;
            if error != rustix::io::Errno::PIPE {
                tracing::warn!("cannot print records any longer, the run goes on: {error}");
            }
        }
    }

    fn gap(&self, lines: u64) -> String {
        json!({ "event": "dropped", "lines": lines }).to_string()
    }

    fn draw(&mut self, _: Bar) {}
}

/// Standard error, with the progress bar.
struct Errors {
    bar: Option<ProgressBar>,
}

impl Sink for Errors {
    fn write(&mut self, lines: &[u8]) {
        // A closed one is no reason to end a run.
        let _ = bars().suspend(|| write_all(rustix::stdio::stderr(), lines));
    }

    fn gap(&self, lines: u64) -> String {
        format!("lambert: {lines} lines were dropped here: standard error was not read")
    }

    fn draw(&mut self, bar: Bar) {
        match bar {
            Bar::Shown(Progress { position, length, message }) => {
                let bar = self.bar.get_or_insert_with(|| show(new_bar(length)));
                bar.set_length(length);
                bar.set_position(position);
                bar.set_message(message);
            }
            Bar::Removed => self.bar.take().iter().for_each(ProgressBar::finish_and_clear),
        }
    }
}

fn new_bar(length: u64) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}").unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style)
}

/// Writes past the locks of the standard library, which a thread that is blocked here would keep from all others.
fn write_all(stream: BorrowedFd<'_>, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(stream, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(rustix::io::Errno::INTR) => {}
            // Whoever shares the stream has made it non-blocking.
            Err(rustix::io::Errno::AGAIN) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
        to_stderr(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
