//! Start of a server whose address may be in use for a while: the previous coordinator of a run releases its port up to
//! half a minute after another one on the same host has taken the run over.

use std::error::Error;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::failure::chain;

/// Pause between two tries.
const PAUSE: Duration = Duration::from_secs(3);

/// Starts a server. If its address is in use, logs one warning, which begins with `problem`, and tries again until the
/// run ends. Returns `None` if the run has ended: `stopped` has a message or is disconnected.
///
/// # Errors
/// Any other error of `start`.
pub fn start_when_free<S, E: Error + 'static, T>(
    problem: &str,
    stopped: &Receiver<T>,
    is_in_use: impl Fn(&E) -> bool,
    start: impl FnMut() -> Result<S, E>,
) -> Result<Option<S>, E> {
    start_after_pauses(PAUSE, problem, stopped, is_in_use, start)
}

fn start_after_pauses<S, E: Error + 'static, T>(
    pause: Duration,
    problem: &str,
    stopped: &Receiver<T>,
    is_in_use: impl Fn(&E) -> bool,
    mut start: impl FnMut() -> Result<S, E>,
) -> Result<Option<S>, E> {
    let mut has_warned = false;
    loop {
        match start() {
            Err(error) if is_in_use(&error) => {
                if !std::mem::replace(&mut has_warned, true) {
                    tracing::warn!("{problem}: {}; trying again until the run ends", chain(&error));
                }
                match stopped.recv_timeout(pause) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(_) | Err(RecvTimeoutError::Disconnected) => return Ok(None),
                }
            }
            started => return started.map(Some),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, ErrorKind};
    use std::sync::mpsc::channel;

    use super::*;

    fn in_use(error: &io::Error) -> bool {
        error.kind() == ErrorKind::AddrInUse
    }

    fn attempt<T>(stopped: &Receiver<T>, start: impl FnMut() -> io::Result<u32>) -> io::Result<Option<u32>> {
        start_after_pauses(Duration::from_millis(1), "not served", stopped, in_use, start)
    }

    #[test]
    fn an_address_in_use_is_tried_again() {
        let (_running, stopped) = channel::<()>();
        let mut tries = 0;
        let started = attempt(&stopped, || {
            tries += 1;
            if tries < 4 { Err(ErrorKind::AddrInUse.into()) } else { Ok(tries) }
        });
        assert_eq!(started.unwrap(), Some(4));
    }

    #[test]
    fn the_end_of_the_run_ends_the_tries() {
        let (running, stopped) = channel::<()>();
        running.send(()).unwrap();
        assert_eq!(attempt(&stopped, || Err(ErrorKind::AddrInUse.into())).unwrap(), None);
        drop(running);
        assert_eq!(attempt(&stopped, || Err(ErrorKind::AddrInUse.into())).unwrap(), None);
    }

    #[test]
    fn other_errors_are_final() {
        let (_running, stopped) = channel::<()>();
        let error = attempt(&stopped, || Err(ErrorKind::PermissionDenied.into())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }
}
