//! Backend for processes that communicate over MPI.
//!
//! **Threads.** One communication thread per rank initializes MPI and makes all MPI calls (`MPI_THREAD_FUNNELED`).
//! [`Group`] and [`Reducer`] send requests to this thread, so it sums buckets while the rank computes. The thread
//! mostly sleeps while no operation is in flight.
//!
//! **Algorithms.** All operations consist of point-to-point messages. Buckets of up to 32 KiB for each 8 ranks (at most
//! 256 KiB) and f64 sums use recursive doubling. Larger buckets use a ring (reduce-scatter, then all-gather) in
//! segments of at most 256 KiB. Each rank has four segments in flight. The terms of a sum are added in an order that
//! depends only on the world size, the length of the bucket and the index of the element. With two ranks, the order has
//! no effect. MPI reads and writes buffers of this crate, never a bucket, so a canceled bucket is not accessed again.
//!
//! **Timeouts.** An operation is stalled if no segment completes for [`MpiOptions::stall_timeout`]. After half of that
//! time, a waiting rank probes all other ranks. Their communication threads reply even while the ranks compute. At the
//! timeout, [`Error::Deadline`](crate::Error::Deadline) names the ranks that have not replied. A straggler is a rank
//! that has replied but has not started the operation, for example rank 0 while it reads a checkpoint. If all ranks
//! have replied, the waiting ranks wait for stragglers and probe again, up to [`MpiOptions::straggler_timeout`]. Then
//! the error names the stragglers. If all ranks have started the operation and nothing progresses, the error names no
//! rank.
//!
//! **Direct calls.** This backend calls MPI functions directly, not through the safe API of the `mpi` crate. That API
//! aborts the process on errors. It also finalizes MPI on drop, so a rank that unwinds after a panic would block in
//! `MPI_Finalize`.
//!
//! **Dead ranks.** Open MPI's `mpirun` kills all ranks of the job when one rank exits by a signal, with a non-zero
//! code, or without [`Endpoints::finish`]. This happens even if the other ranks are inside an operation.
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

/// Bucket that the communication thread may access while it has locked the mutex. `None` after cancellation.
type SharedBucket = Arc<Mutex<Option<Bucket>>>;

fn lock(bucket: &SharedBucket) -> MutexGuard<'_, Option<Bucket>> {
    bucket.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Options of the MPI backend. They must be equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MpiOptions {
    /// Maximum time without a complete segment if a rank does not reply to probes. Then the operation fails. The
    /// default is 60 s.
    pub stall_timeout: Duration,
    /// Maximum time without a complete segment if all ranks reply to probes but one has not started the operation. Then
    /// the operation fails. The default is 2 hours.
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

/// Initializes MPI in a process started by `mpirun` or `srun`. Blocks until all ranks have called this function. A
/// process can call it only once. The endpoints may be moved to any thread. Dropping the endpoints does not finalize
/// MPI, but [`Endpoints::finish`] does.
///
/// # Errors
/// MPI is already initialized, lacks thread support, or is not Open MPI. Open MPI itself aborts the process on some
/// startup errors, for example if the launcher has died.
pub fn init(options: MpiOptions) -> Result<Endpoints> {
    let (rank, world_size, requests) = thread::start(options)?;
    events::joined("mpi", rank, world_size);
    let reducer = MpiReducer::new(requests.clone());
    Ok(Endpoints { group: Box::new(MpiGroup::new(rank, world_size, requests)), reducer: Box::new(reducer) })
}
