/// Error of a collective operation. The group is unusable afterwards.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An MPI function returned an error.
    #[error("{operation} failed: MPI error {code}: {text}")]
    Mpi {
        /// MPI function.
        operation: &'static str,
        /// MPI error code.
        code: i32,
        /// Text of `MPI_Error_string`.
        text: String,
    },
    /// Another rank has left, so the operation cannot complete.
    #[error("{operation}: rank {rank} has left the group")]
    RankGone {
        /// Operation that failed.
        operation: &'static str,
        /// Rank that has left.
        rank: usize,
    },
    /// Some ranks did not take part in time, or no data arrived for too long.
    #[error("{operation}: deadline exceeded, still waiting for {}{detail}", format_missing(missing))]
    Deadline {
        /// Operation that failed.
        operation: &'static str,
        /// Suspected ranks. These are the ranks that did not respond or, if all responded, the ranks that had not
        /// started the operation. Empty if all ranks responded and had started the operation, or if the backend cannot
        /// find out.
        missing: Vec<usize>,
        /// Text that follows the ranks: what NCCL knows about them, or empty.
        detail: String,
    },
    /// The calls of the ranks do not match, or an argument is invalid.
    #[error("{operation}: {detail}")]
    Mismatch {
        /// Operation that failed.
        operation: &'static str,
        /// Difference between the ranks, or the invalid argument.
        detail: String,
    },
    /// The reducer cannot access the memory of the bucket.
    #[error("{reducer} cannot all-reduce a bucket in {location}")]
    UnsupportedLocation {
        /// Name of the reducer.
        reducer: &'static str,
        /// Memory of the bucket.
        location: MemoryLocation,
    },
    /// NCCL returned an error.
    #[error("{operation} failed: NCCL error {code}: {text}{}", in_parentheses(last))]
    Nccl {
        /// NCCL function, or the operation during which NCCL reported an asynchronous error.
        operation: &'static str,
        /// NCCL error code (`ncclResult_t`).
        code: i32,
        /// Text of `ncclGetErrorString`.
        text: String,
        /// Text of `ncclGetLastError`, or an empty text.
        last: String,
    },
    /// NCCL is missing or unusable.
    #[error("{0}")]
    NcclUnavailable(String),
    /// A stream or event operation of a device failed.
    #[error("{operation} failed on device {ordinal}: {text}")]
    Device {
        /// Operation that failed.
        operation: &'static str,
        /// Device ordinal.
        ordinal: usize,
        /// Error text of the driver.
        text: String,
    },
    /// The MPI library is unusable.
    #[error("MPI cannot be used: {0}")]
    MpiUnavailable(String),
}

use crate::{MemoryLocation, format_ranks};

/// Result of a collective operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// True if a retry cannot succeed because NCCL does not work on this machine. This is the case if NCCL is missing,
    /// if the GPU driver is too old, or if NCCL rejects an argument or a call.
    pub fn is_nccl_unsupported(&self) -> bool {
        // ncclInvalidArgument, ncclInvalidUsage.
        const INVALID_CALL: [i32; 2] = [4, 5];
        match self {
            Self::NcclUnavailable(_) => true,
            Self::Nccl { code, last, .. } => {
                INVALID_CALL.contains(code) || last.contains("driver version is insufficient")
            }
            _ => false,
        }
    }
}

fn in_parentheses(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" ({text})") }
}

fn format_missing(missing: &[usize]) -> String {
    if missing.is_empty() { "other ranks".to_owned() } else { format_ranks(missing) }
}
