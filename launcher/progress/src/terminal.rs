//! Stderr as a terminal: visibility of bars, colors, output above the bars.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, Instant};

use anstream::{AutoStream, ColorChoice};
use console::Term;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, TermLike};

/// Log lines without `RUST_LOG`: all, except for those of the tokenizers library about the tables of each vocabulary.
pub const LOG_FILTER: &str = "info,tk_encode=warn";

/// Environment variable with which `lambert` passes its `--log json` on to `lambert-worker`: `json`.
pub const LOG_FORMAT: &str = "LAMBERT_LOG_FORMAT";

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

/// True if text on stderr is colored. Colors need a terminal. The variables `NO_COLOR`, `CLICOLOR`, `CLICOLOR_FORCE` and
/// `TERM` have the same effect as for help texts, which clap writes with the same library.
pub fn has_colors() -> bool {
    AutoStream::choice(&io::stderr()) != ColorChoice::Never
}

/// All bars of this process.
pub(crate) fn bars() -> &'static MultiProgress {
    static BARS: OnceLock<MultiProgress> = OnceLock::new();
    BARS.get_or_init(|| {
        let term = Term::buffered_stderr();
        MultiProgress::with_draw_target(match term.is_term() {
            true => ProgressDrawTarget::term_like(Box::new(Screen { term, has_text: AtomicBool::new(false) })),
            false => ProgressDrawTarget::hidden(),
        })
    })
}

/// Adds `bar` at the bottom of the terminal.
pub fn show(bar: ProgressBar) -> ProgressBar {
    bars().add(bar)
}

/// Terminal on which indicatif draws. After the terminal is closed, drawing has no effect: indicatif panics if it fails.
///
/// indicatif leaves the cursor at the end of the line, where the `^C` of a terminal would
/// begin a new line, and the bar would stay above it. So each write ends with the cursor at the start of the line.
#[derive(Debug)]
struct Screen {
    term: Term,
    /// True if there is text that is not written yet.
    has_text: AtomicBool,
}

impl Screen {
    fn add(&self, add: impl FnOnce(&Term) -> io::Result<()>) -> io::Result<()> {
        self.has_text.store(true, Ordering::Relaxed);
        ignored(add(&self.term))
    }
}

/// Ignores a failure to draw.
#[allow(clippy::unnecessary_wraps, reason = "the type of the functions of `TermLike`")]
fn ignored(_: io::Result<()>) -> io::Result<()> {
    Ok(())
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        self.term.size().1
    }

    fn height(&self) -> u16 {
        self.term.size().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        ignored(self.term.move_cursor_up(n))
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        ignored(self.term.move_cursor_down(n))
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        ignored(self.term.move_cursor_right(n))
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        ignored(self.term.move_cursor_left(n))
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.add(|term| term.write_line(text))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.add(|term| term.write_str(text))
    }

    fn clear_line(&self) -> io::Result<()> {
        self.add(Term::clear_line)
    }

    /// Writes bar and cursor movement at once: a signal cannot come between them.
    fn flush(&self) -> io::Result<()> {
        if self.has_text.swap(false, Ordering::Relaxed) {
            ignored(self.term.write_str("\r"))?;
        }
        ignored(self.term.flush())
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
    bars().suspend(write)
}
