//! Log events of the collectives, all at debug level: `RUST_LOG=lambert_collective=debug` shows them.

use crate::Error;

/// Reports that the ranks of a backend are joined and can sum.
pub fn joined(backend: &'static str, rank: usize, world: usize) {
    tracing::debug!(backend, rank, world, "all-reduce is set up");
}

/// Reports that nothing moves in operation `number` of its kind, and that the other ranks were asked where they are.
pub fn stalled(operation: &'static str, number: u64) {
    tracing::debug!(operation, number, "no progress; asking the other ranks");
}

/// Reports the ranks that an operation was given up for; none if all answer and nothing moves.
pub fn unanswered(operation: &'static str, ranks: &[usize]) {
    tracing::debug!(operation, ?ranks, "ranks do not answer or have not come; giving up");
}

/// Reports the first error of a backend, after which it does nothing more.
pub fn aborted(backend: &'static str, error: &Error) {
    tracing::debug!(backend, %error, "aborted");
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Runs `work`; gives what it logs on this thread at debug level.
    pub fn logged(work: impl FnOnce()) -> String {
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
            "no progress; asking the other ranks operation=\"barrier\" number=7",
            "giving up operation=\"barrier\" ranks=[2, 3]",
            "aborted backend=\"nccl\" error=barrier: rank 3 has left the group",
        ] {
            assert!(log.contains(expected), "no {expected} in {log}");
        }
    }
}
