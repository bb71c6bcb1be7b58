//! Output to stderr and stdout. The progress bars, log lines and worker output do not interleave. A quiet command
//! (`--quiet`) writes only its result and errors.
//!
//! Short commands write directly and wait for the reader of the stream. Long-running commands call [`detach`]. After
//! that, one thread per stream writes lines from a bounded queue.
//!
//! With `--log json`, every line on stderr is a JSON object, in the format of the log lines.
//!
//! Text for a terminal has no control characters (printable.rs), except colors and cursor movements of lambert itself.

mod printable;
mod queue;

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use lambert_progress::terminal::{self, LOG_FILTER, has_colors, is_quiet, show, suspend};
use serde_json::json;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};

use crate::cli::LogFormat;
use printable::{PrintableWriter, printable};
pub use queue::{Bar, BarState};
use queue::{OutputQueue, Sink};

/// Maximum number of queued bytes per stream.
const MAX_QUEUED_BYTES: usize = 1 << 20;
/// Target of the JSON lines that are not log lines. `RUST_LOG` does not filter them.
const OUTPUT: &str = "output";
/// Log filter of a quiet command.
pub const QUIET_FILTER: &str = "error";
/// Time limit per stream for flushing at exit.
const LAST_WRITES: Duration = Duration::from_secs(2);

/// Moves a terminal's cursor to its first column and line, and clears what follows.
const CLEAR: &str = "\x1b[H\x1b[J";

/// True if stdout is a terminal that can move its cursor.
pub fn is_output_terminal() -> bool {
    io::stdout().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

struct Detached {
    output: OutputQueue,
    error: OutputQueue,
}

static DETACHED: OnceLock<Detached> = OnceLock::new();
static FORMAT: OnceLock<LogFormat> = OnceLock::new();

/// Starts the threads that write to stdout and stderr. From then on, output does not wait for readers. If a reader is
/// too slow, the oldest lines are dropped and counted. Call [`finish`] before exit.
///
/// # Errors
/// The system cannot start a thread.
pub fn detach() -> io::Result<()> {
    if DETACHED.get().is_none() {
        let output = OutputQueue::start("stdout", MAX_QUEUED_BYTES, Output { closed: false })?;
        let error = OutputQueue::start("stderr", MAX_QUEUED_BYTES, Errors { bar: None })?;
        let _ = DETACHED.set(Detached { output, error });
    }
    Ok(())
}

/// Waits a limited time until the queued lines are written, and reports dropped lines. Does nothing without [`detach`].
pub fn finish() {
    let Some(detached) = DETACHED.get() else { return };
    let start = Instant::now();
    let unread = detached.output.finish(LAST_WRITES);
    if unread > 0 {
        error(&format!("lambert: dropped {unread} lines of stdout: stdout was not read"));
    }
    // The stderr thread has already written lines while this thread waited for stdout.
    detached.error.finish(LAST_WRITES.saturating_sub(start.elapsed()).max(LAST_WRITES / 4));
}

/// True if every line on stderr is a JSON object.
pub fn is_json() -> bool {
    FORMAT.get() == Some(&LogFormat::Json)
}

/// Writes a line to stderr, unless the command is quiet. A failed write is ignored: a closed stderr must not end a run.
pub fn line(text: &str) {
    match is_json() {
        _ if is_quiet() => {}
        true => tracing::info!(target: OUTPUT, "{text}"),
        false => write_text(text),
    }
}

/// Like [`line()`], for a line that a rank printed. `host` is the host of the rank, if known. `plain` is the line if it is not
/// JSON.
pub fn rank_line(rank: usize, host: Option<&str>, text: &str, plain: &str) {
    match is_json() {
        _ if is_quiet() => {}
        true => tracing::info!(target: OUTPUT, rank, host, "{text}"),
        false => write_text(plain),
    }
}

/// Writes an error to stderr. A failed write is ignored.
pub fn error(text: &str) {
    match is_json() {
        true => tracing::error!(target: OUTPUT, "{text}"),
        false => write_text(text),
    }
}

/// Writes the error with which the program ends, and its exit code.
pub fn final_error(text: &str, exit_code: i32) {
    match is_json() {
        true => tracing::error!(target: OUTPUT, exit_code, "{text}"),
        false => write_text(&format!("lambert: error: {text}")),
    }
}

fn write_text(text: &str) {
    to_stderr(format!("{}\n", shown(text, io::stderr().is_terminal())).as_bytes());
}

/// Text for a stream.
fn shown(text: &str, is_terminal: bool) -> Cow<'_, str> {
    if is_terminal { printable(text) } else { text.into() }
}

fn to_stderr(bytes: &[u8]) {
    match DETACHED.get() {
        Some(detached) => detached.error.push(bytes.to_vec()),
        None => drop(suspend(|| io::stderr().lock().write_all(bytes))),
    }
}

/// Writes a result line to stdout and waits for the reader of stdout. A closed pipe (`| head`) is not an error.
pub fn result(text: &str) -> io::Result<()> {
    let text = shown(text, is_output_terminal());
    let write = || {
        let mut output = StandardOutput;
        writeln!(output, "{text}").and_then(|()| output.flush())
    };
    // After `detach`, the stderr thread may hold the progress-bar lock for a long time, so this function avoids the
    // lock.
    let written = if DETACHED.get().is_some() { write() } else { suspend(write) };
    written.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

/// Calls `content` to write results to stdout. Must not be called after [`detach`]. A closed pipe is not an error.
pub fn results(content: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>) -> io::Result<()> {
    results_to_reader(content).map(drop)
}

/// Like [`results`]; returns false if the reader closed the pipe.
pub fn results_to_reader(content: impl FnOnce(&mut (dyn Write + Send)) -> io::Result<()>) -> io::Result<bool> {
    let mut output = io::BufWriter::new(StandardOutput);
    let written = match is_output_terminal() {
        true => content(&mut PrintableWriter(&mut output)),
        false => content(&mut output),
    };
    match written.and_then(|()| output.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(error),
    }
}

/// Replaces the content of the terminal at stdout by `text`. Returns false if the terminal is gone.
pub fn screen(text: &str) -> io::Result<bool> {
    let mut output = StandardOutput;
    let written = writeln!(output, "{CLEAR}{}", printable(text)).and_then(|()| output.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

/// Standard output. Its errors name it.
struct StandardOutput;

impl StandardOutput {
    fn name(error: io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("cannot write to standard output: {error}"))
    }
}

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stdout().write(bytes).map_err(Self::name)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().flush().map_err(Self::name)
    }
}

/// Writes a record line to stdout. Has no effect before [`detach`].
pub fn record(text: &str) {
    if let Some(detached) = DETACHED.get() {
        detached.output.push(format!("{}\n", shown(text, is_output_terminal())).into_bytes());
    }
}

/// Draws or removes the progress bar. Has no effect before [`detach`].
pub fn draw(bar: Bar) {
    if let Some(detached) = DETACHED.get() {
        detached.error.draw(bar);
    }
}

/// Writer to stdout. After an error, writes no more.
struct Output {
    closed: bool,
}

impl Sink for Output {
    fn write(&mut self, lines: &[u8]) {
        let write = || write_all(rustix::stdio::stdout(), lines);
        // Only writes to a terminal need the progress-bar lock. A write to a blocked pipe must not hold the lock.
        let written = match (self.closed, io::stdout().is_terminal()) {
            (true, _) => return,
            (false, true) => suspend(write),
            (false, false) => write(),
        };
        if let Err(error) = written {
            self.closed = true;
            if error != rustix::io::Errno::PIPE {
                tracing::warn!("cannot write records to stdout; training continues without them: {error}");
            }
        }
    }

    fn gap(&self, lines: u64) -> String {
        json!({ "event": "dropped", "lines": lines }).to_string()
    }

    fn draw(&mut self, _: Bar) {}
}

/// Writer to stderr, which also draws the progress bar.
struct Errors {
    bar: Option<ProgressBar>,
}

impl Sink for Errors {
    fn write(&mut self, lines: &[u8]) {
        // A closed stderr must not end a run.
        let _ = suspend(|| write_all(rustix::stdio::stderr(), lines));
    }

    fn gap(&self, lines: u64) -> String {
        let text = format!("lambert: dropped {lines} lines here: stderr was not read");
        if !is_json() {
            return text;
        }
        let mut timestamp = String::new();
        // A failure leaves the timestamp empty.
        let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
        json!({ "timestamp": timestamp, "level": "WARN", "fields": { "message": text } }).to_string()
    }

    fn draw(&mut self, bar: Bar) {
        match bar {
            Bar::Shown(BarState { position, length, message }) => {
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

/// Writes all bytes without the standard library's lock on the stream. A blocked writer would hold that lock, and all
/// other writers would have to wait.
fn write_all(stream: BorrowedFd<'_>, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(stream, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(rustix::io::Errno::INTR) => {}
            // Another process that shares the stream made it non-blocking.
            Err(rustix::io::Errno::AGAIN) => std::thread::sleep(Duration::from_millis(20)),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Installs the log subscriber on stderr, filtered by `RUST_LOG` (default: info). A quiet command logs errors only, and
/// shows no progress. Call this function first.
pub fn begin(format: LogFormat, is_quiet: bool) {
    terminal::begin(is_quiet);
    let _ = FORMAT.set(format);
    let filter = match is_quiet {
        true => EnvFilter::new(QUIET_FILTER),
        false => EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER)),
    };
    // The directive is valid.
    let filter = match format!("{OUTPUT}=info").parse() {
        Ok(directive) => filter.add_directive(directive),
        Err(_) => filter,
    };
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(AboveBars).with_target(false);
    // A second call has no effect: the first subscriber stays.
    let _ = match format {
        LogFormat::Text => lines.with_ansi(has_colors()).try_init(),
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
    /// Writes whole lines from tracing-subscriber. Never returns an error: tracing-subscriber would print the error to
    /// the same stream and panic.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        to_stderr(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
