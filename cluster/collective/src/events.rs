//! Debug events of the collectives: `RUST_LOG=lambert_collective=debug` shows them.

use crate::Error;

/// Logs that all ranks of a backend are connected.
pub fn joined(backend: &'static str, rank: usize, world: usize) {
    tracing::debug!(backend, rank, world, "all-reduce is set up");
}

/// Logs that an operation makes no progress and that the other ranks are probed. `number` is the number of the
/// operation among the operations of its kind.
pub fn stalled(operation: &'static str, number: u64) {
    tracing::debug!(operation, number, "no progress; probing the other ranks");
}

/// Logs that an operation fails, with the suspected ranks. A suspected rank does not reply or has not started the
/// operation. `ranks` is empty if all ranks have started the operation.
pub fn unanswered(operation: &'static str, ranks: &[usize]) {
    tracing::debug!(operation, ?ranks, "ranks do not reply or have not started; giving up");
}

/// Logs the error that aborts a backend.
pub fn aborted(backend: &'static str, error: &Error) {
    tracing::debug!(backend, %error, "aborted");
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Runs `work` and returns the debug events that this thread logs during the run.
    pub fn logged(work: impl FnOnce()) -> String {
        // tracing disables an event for good if the first thread that reaches the event has no subscriber. Therefore
        // all threads get a subscriber.
        let discard = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_writer(std::io::sink);
        let _ = tracing::subscriber::set_global_default(discard.finish());
        let file = tempfile::NamedTempFile::new().unwrap();
        let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
        tracing::subscriber::with_default(lines.with_writer(file.reopen().unwrap()).finish(), work);
        std::fs::read_to_string(file.path()).unwrap()
    }

    #[test]
    fn events_have_their_fields() {
        let error = Error::RankGone { operation: "barrier", rank: 3 };
        let log = logged(|| {
            joined("mpi", 1, 4);
            stalled("barrier", 7);
            unanswered("barrier", &[2, 3]);
            aborted("nccl", &error);
        });
        for expected in [
            "DEBUG lambert_collective::events: all-reduce is set up backend=\"mpi\" rank=1 world=4",
            "no progress; probing the other ranks operation=\"barrier\" number=7",
            "giving up operation=\"barrier\" ranks=[2, 3]",
            "aborted backend=\"nccl\" error=barrier: rank 3 has left the group",
        ] {
            assert!(log.contains(expected), "no {expected} in {log}");
        }
    }
}
