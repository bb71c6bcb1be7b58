//! Backend for processes that communicate over MPI.
//!
//! **Threads.** One communication thread per rank initializes MPI and makes all MPI calls (`MPI_THREAD_FUNNELED`). [`Group`] and
//! [`Reducer`] send it requests, so buckets are summed while the rank computes. It sleeps while no operation is in flight.
//!
//! **Algorithms.** All operations consist of point-to-point messages. Buckets above 32 KiB use a ring (reduce-scatter, then
//! all-gather) in segments of at most 256 KiB, four of them in flight per rank. Smaller buckets and f64 sums use recursive doubling.
//! The order of a sum's terms depends only on the world size and, from three ranks on, on the element's index in its bucket. MPI
//! reads and writes buffers of this crate, never a bucket, so a canceled bucket is not accessed again.
//!
//! **Timeouts.** An operation is stalled if no segment completes for [`MpiOptions::stall_timeout`]. After half of that time the
//! waiting ranks probe all others; communication threads reply even while their ranks compute. At the timeout
//! [`Error::Deadline`](crate::Error::Deadline) names the ranks that have not replied. If all have replied but some have not started
//! the operation, these are stragglers, for example rank 0 reading a checkpoint. The others wait and probe again, up to
//! [`MpiOptions::straggler_timeout`], then name them. If all have started the operation and nothing progresses, no rank is named.
//!
//! **Direct calls.** MPI functions are called directly. The safe API of the `mpi` crate aborts the process on errors. It also
//! finalizes MPI on drop, so a rank that unwinds after a panic would block in `MPI_Finalize`.
//!
//! **Dead ranks.** Open MPI's `mpirun` kills all ranks of the job when one exits by a signal, with a non-zero code, or without
//! [`Endpoints::finish`], even if the others are inside an operation.
//!
//! [`Group`]: crate::Group
//! [`Reducer`]: crate::Reducer
//! [`MpiOptions::stall_timeout`]: crate::mpi::MpiOptions::stall_timeout
//! [`MpiOptions::straggler_timeout`]: crate::mpi::MpiOptions::straggler_timeout
//! [`Endpoints::finish`]: crate::Endpoints::finish

mod backoff;
mod exchange;
mod group;
mod library;
mod liveness;
mod pipeline;
mod reducer;
mod schedule;
mod stall_detector;
mod thread;
mod tree;
mod wire;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Bucket, Endpoints, Result, events};
use group::MpiGroup;
pub use library::version;
use reducer::MpiReducer;
pub use wire::WireFormat;

/// Name of the operation in errors.
const BUCKET_ALL_REDUCE: &str = "bucket all-reduce";

/// Bucket that the communication thread may access while it holds the lock; `None` after cancellation.
type SharedBucket = Arc<Mutex<Option<Bucket>>>;

fn lock(bucket: &SharedBucket) -> MutexGuard<'_, Option<Bucket>> {
    bucket.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Options of the MPI backend; equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MpiOptions {
    /// Time without a complete segment after which an operation fails if a rank does not reply to probes; default 60 s.
    pub stall_timeout: Duration,
    /// Time without a complete segment after which an operation fails if a rank replies to probes but has not started the operation;
    /// default 2 hours.
    pub straggler_timeout: Duration,
    /// Number format of gradients on the wire.
    pub wire: WireFormat,
}

impl Default for MpiOptions {
    fn default() -> Self {
        let (stall_timeout, straggler_timeout) = (Duration::from_secs(60), Duration::from_secs(7200));
        Self { stall_timeout, straggler_timeout, wire: WireFormat::default() }
    }
}

/// Initializes MPI in a process started by `mpirun` or `srun`. Blocks until all ranks have called it. Can be called once per process.
/// The endpoints may be moved to any thread. Dropping them does not finalize MPI; call [`Endpoints::finish`].
///
/// # Errors
/// MPI is already initialized, lacks thread support, or is not Open MPI. Open MPI itself aborts the process on some startup errors,
/// for example if the launcher has died.
pub fn init(options: MpiOptions) -> Result<Endpoints> {
    let (rank, world_size, requests) = thread::start(options)?;
    events::joined("mpi", rank, world_size);
    let reducer = MpiReducer::new(requests.clone());
    Ok(Endpoints { group: Box::new(MpiGroup::new(rank, world_size, requests)), reducer: Box::new(reducer) })
}
