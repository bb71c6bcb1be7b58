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
    /// NCCL refused or failed.
    #[error("{operation} failed: NCCL error {code}: {text}{}", detail(last))]
    Nccl {
        /// NCCL's function, or what was under way when NCCL told.
        operation: &'static str,
        /// NCCL's error code.
        code: i32,
        /// `ncclGetErrorString` of it.
        text: String,
        /// `ncclGetLastError`; empty where there is none.
        last: String,
    },
    /// There is no NCCL, or one that this crate cannot use.
    #[error("{0}")]
    NoNccl(String),
    /// A device's streams or events failed.
    #[error("{operation} failed on device {number}: {text}")]
    Device {
        /// What was tried.
        operation: &'static str,
        /// The device, as its driver counts.
        number: usize,
        /// The driver's words.
        text: String,
    },
    /// The MPI library cannot be used in the way this crate needs.
    #[error("MPI cannot be used: {0}")]
    Unusable(String),
}

use crate::Place;

/// Result of a collective operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether NCCL refuses to work here at all: a driver that is too old, an argument or a use that it does not allow. Trying again
    /// does not help.
    pub fn is_refusal(&self) -> bool {
        // ncclInvalidArgument, ncclInvalidUsage.
        const REFUSED: [i32; 2] = [4, 5];
        match self {
            Self::NoNccl(_) => true,
            Self::Nccl { code, last, .. } => REFUSED.contains(code) || last.contains("driver version is insufficient"),
            _ => false,
        }
    }
}

fn detail(last: &str) -> String {
    if last.is_empty() { String::new() } else { format!(" ({last})") }
}

fn ranks(missing: &[usize]) -> String {
    match missing {
        [] => "other ranks".to_owned(),
        [rank] => format!("rank {rank}"),
        ranks => format!("ranks {}", ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}
