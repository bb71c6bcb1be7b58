//! Threads that read the runs' stores.

use std::sync::Arc;
use std::time::Duration;

use lambert_store::{RetryPolicy, Store};

use super::board::Board;
use super::run::WatchedRun;
use crate::panics;

/// Pause between two reads of a run.
pub const PERIOD: Duration = Duration::from_secs(3);

/// Time after the last request for data during which the runs are still read.
const IDLE: Duration = Duration::from_secs(30);

/// Timeout of a read, after which the page shows a note.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Starts reading the runs, each on its own thread: a store that does not answer delays only its own run. While nobody
/// looks at the page, the threads wait.
///
/// # Errors
/// A thread cannot be started.
pub fn start(stores: Vec<Store>) -> std::io::Result<Arc<Board>> {
    let retry = RetryPolicy { total_timeout: TIMEOUT, request_timeout: TIMEOUT, ..RetryPolicy::default() };
    let runs: Vec<WatchedRun> =
        stores.into_iter().map(|store| WatchedRun::new(store.with_retry_policy(retry.clone()))).collect();
    let first = runs.iter().map(|run| run.last().clone()).collect();
    let board = Arc::new(Board::new(first, PERIOD.as_secs_f64()));
    for (index, mut run) in runs.into_iter().enumerate() {
        let board = Arc::clone(&board);
        std::thread::Builder::new().name(format!("watch-{index}")).spawn(move || {
            panics::mark_optional();
            loop {
                board.update(index, run.refresh());
                std::thread::sleep(PERIOD);
                board.wait_for_viewer(IDLE);
            }
        })?;
    }
    Ok(board)
}
