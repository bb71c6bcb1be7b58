/// A collective operation that could not be done. The group is then of no use any more.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// MPI refused or failed.
    #[error("{operation} failed: MPI error {code}: {text}")]
    Mpi {
        /// The MPI function.
        operation: &'static str,
        /// MPI's error code.
        code: i32,
        /// MPI's words for it.
        text: String,
    },
    /// Another rank has ended, so this operation can never be complete.
    #[error("{operation}: rank {rank} has left the group")]
    RankGone {
        /// What was tried.
        operation: &'static str,
        /// The rank that is gone.
        rank: usize,
    },
    /// Not all ranks took part in time, or nothing moved between them for too long.
    #[error("{operation}: deadline exceeded, still waiting for {}", ranks(missing))]
    Deadline {
        /// What was tried.
        operation: &'static str,
        /// The ranks that are suspected: those that did not answer, else those that had not come to the operation; empty where
        /// all had come and all answer.
        missing: Vec<usize>,
    },
    /// The ranks did not do the same thing.
    #[error("{operation}: {what}")]
    Mismatch {
        /// What was tried.
        operation: &'static str,
        /// How the ranks differ, or which argument makes no sense.
        what: String,
    },
    /// A bucket lies where this reducer cannot read.
    #[error("{reducer} cannot reduce a bucket in {place}")]
    Unreachable {
        /// The reducer.
        reducer: &'static str,
        /// Where the bucket is.
        place: Place,
    },
    /// The MPI library cannot be used in the way this crate needs.
    #[error("MPI cannot be used: {0}")]
    Unusable(String),
}

use crate::Place;

/// Result of a collective operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn ranks(missing: &[usize]) -> String {
    match missing {
        [] => "other ranks".to_owned(),
        [rank] => format!("rank {rank}"),
        ranks => format!("ranks {}", ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}
