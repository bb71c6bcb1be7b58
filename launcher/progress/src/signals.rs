//! Removal of the bars and of a command's leftovers before a signal ends the process.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::Duration;

use indicatif::ProgressDrawTarget;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use crate::terminal::bars;

/// Time limit for the removal. A terminal that is stopped blocks writes.
const LIMIT: Duration = Duration::from_millis(500);

static IS_LEFT_TO_COMMAND: AtomicBool = AtomicBool::new(false);

/// From now on, signals have no effect here, because the command handles them.
pub fn leave_to_command() {
    IS_LEFT_TO_COMMAND.store(true, Ordering::Relaxed);
}

/// Function that removes what a command leaves.
type CleanUp = Box<dyn FnOnce() + Send>;

static CLEAN_UP: Mutex<Option<CleanUp>> = Mutex::new(None);

/// From now on, calls `clean_up` before a signal ends the process. The process still ends by the signal. Ignored signals
/// stay ignored. Replaces the function of an earlier call.
pub fn clean_up_before_exit(clean_up: impl FnOnce() + Send + 'static) {
    *CLEAN_UP.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(clean_up));
    clear_bars_before_exit();
}

/// From now on, removes the bars before a signal ends the process. The process still ends by the signal. Ignored signals
/// stay ignored.
pub(crate) fn clear_bars_before_exit() {
    static ONCE: Once = Once::new();
    // Without the handler, a signal leaves the last bar on the terminal, which is no reason to fail.
    ONCE.call_once(|| drop(listen()));
}

fn listen() -> io::Result<()> {
    let handled = [SIGHUP, SIGINT, SIGQUIT, SIGTERM].into_iter().filter(|signal| !ignores(*signal));
    let mut signals = Signals::new(handled)?;
    let end = move || {
        for signal in signals.forever() {
            if !IS_LEFT_TO_COMMAND.load(Ordering::Relaxed) {
                clear();
                if let Some(clean_up) = CLEAN_UP.lock().unwrap_or_else(PoisonError::into_inner).take() {
                    clean_up();
                }
                let _ = emulate_default_handler(signal);
            }
        }
    };
    std::thread::Builder::new().name("bars".into()).spawn(end).map(drop)
}

fn clear() {
    let (sender, cleared) = channel();
    let clear = move || {
        let _ = bars().clear();
        bars().set_draw_target(ProgressDrawTarget::hidden());
        let _ = sender.send(());
    };
    if std::thread::Builder::new().spawn(clear).is_ok() {
        let _ = cleared.recv_timeout(LIMIT);
    }
}

/// Makes sure that this process can wait for its child processes. A parent that ignores SIGCHLD passes this on, and the kernel
/// then discards the exit status of each child. Children start with the default again.
pub fn wait_for_children() {
    if ignores(SIGCHLD) {
        // The handler does nothing else.
        let _ = signal_hook::flag::register(SIGCHLD, Arc::default());
    }
}

/// True if this process ignores `signal`.
pub fn ignores(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
