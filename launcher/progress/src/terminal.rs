//! Stderr as a terminal: visibility of bars, colours, output above the bars.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

use anstream::{AutoStream, ColorChoice};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Starts the clock of the command. A quiet command draws no bars. `main` calls this first.
pub fn begin(is_quiet: bool) {
    LazyLock::force(&START);
    IS_QUIET.store(is_quiet, Ordering::Relaxed);
}

/// Time since [`begin`].
pub(crate) fn elapsed() -> Duration {
    START.elapsed()
}

/// True if the command prints only errors and results.
pub fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// True if bars are drawn: stderr is a terminal that can move its cursor, and the command is not quiet.
pub fn shows_bars() -> bool {
    !is_quiet() && !bars().is_hidden()
}

/// True if text on stderr is coloured. Colours need a terminal. The variables `NO_COLOR`, `CLICOLOR`, `CLICOLOR_FORCE` and
/// `TERM` have the same effect as for help texts, which clap writes with the same library.
pub fn has_colours() -> bool {
    AutoStream::choice(&io::stderr()) != ColorChoice::Never
}

/// All bars of this process.
pub(crate) fn bars() -> &'static MultiProgress {
    static BARS: OnceLock<MultiProgress> = OnceLock::new();
    BARS.get_or_init(|| MultiProgress::with_draw_target(ProgressDrawTarget::stderr()))
}

/// True once a bar was drawn.
static HAS_BAR: AtomicBool = AtomicBool::new(false);

/// Adds `bar` at the bottom of the terminal. Call [`return_cursor`] after each change of the bar.
pub fn show(bar: ProgressBar) -> ProgressBar {
    HAS_BAR.store(true, Ordering::Relaxed);
    bars().add(bar)
}

/// Moves the cursor to the start of the bar. indicatif leaves it at the end, where the `^C` of a terminal would begin a new
/// line. The bar would then stay above that line.
pub fn return_cursor() {
    if HAS_BAR.load(Ordering::Relaxed) {
        // Unlike the standard library, this write takes no lock, which a stopped terminal would hold.
        let _ = rustix::io::write(rustix::stdio::stderr(), b"\r");
    }
}

/// Writer of log lines to stderr, above the bars.
#[derive(Debug)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        suspend(|| io::stderr().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Removes the bars, calls `write`, and draws the bars again below the output of `write`.
pub fn suspend<T>(write: impl FnOnce() -> T) -> T {
    let written = bars().suspend(write);
    return_cursor();
    written
}
