//! Backend for NVIDIA GPUs that communicate over NCCL. It complements a group and a reducer in host memory (in a job, those of MPI).
//!
//! **Library.** NCCL is loaded at run time; if libtorch has already loaded it, that copy is used ([`NcclLibrary::open`]). It is an error
//! if NCCL is missing. The unique ID is broadcast over the group. The communicator is non-blocking (`blocking = 0`): the backend polls
//! for completion instead of blocking in NCCL.
//!
//! **Ordering.** All-reduces run on a separate communication stream ([`NcclDevice`]). On the device, a bucket's all-reduce waits for the
//! work that was enqueued on the compute stream before [`Reducer::start`]. Buckets are reduced in the order of their starts, so all ranks
//! make the same NCCL calls. [`PendingAllReduce::wait`] returns when the device has completed the bucket's last operation. Work that the
//! host enqueues afterwards, on any stream, sees the sum.
//!
//! **Timeouts.** NCCL cannot distinguish a straggler from a dead rank. Each bucket therefore has an *arrival check*: an all-reduce of four
//! numbers in host memory, started with the bucket and waited for before it. It completes when all ranks have started the bucket.
//! Stragglers are waited for and dead ranks are named, by the rules of [`mpi`](crate::mpi). It also detects buckets of different
//! lengths, which NCCL does not. [`NcclOptions::stall_timeout`] starts when the arrival check and this rank's own gradients are
//! complete. After the timeout, the backend spends up to half as long again on finding the ranks that do not respond.
//!
//! **Failures.** Asynchronous NCCL errors are polled while waiting. After any failure the communicator is aborted, which stops its
//! kernels on the device, so the bucket is no longer accessed. All later operations return the same error.
//!
//! [`NcclLibrary::open`]: crate::nccl::NcclLibrary::open
//! [`NcclDevice`]: crate::nccl::NcclDevice
//! [`NcclOptions::stall_timeout`]: crate::nccl::NcclOptions::stall_timeout
//! [`Reducer::start`]: crate::Reducer::start
//! [`PendingAllReduce::wait`]: crate::PendingAllReduce::wait

mod communicator;
mod device;
mod library;
mod log;
mod reducer;
mod report;

use std::sync::Arc;
use std::time::Duration;

use crate::{Group, Reducer, Result, events};
use communicator::NcclCommunicator;
pub use device::NcclDevice;
pub use library::{NcclLibrary, UniqueId};
pub use log::NcclLog;
use reducer::NcclReducer;
pub use report::{NcclReport, Transports, environment_variables};

pub use crate::mpi::WireFormat;

/// Options of the NCCL backend; equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NcclOptions {
    /// Timeout of communicator initialization, and of an all-reduce that all ranks have started; default 60 s.
    pub stall_timeout: Duration,
    /// Number format of gradients on the wire. With bf16 each rank rounds its values once and NCCL sums in bf16. A ring rounds each
    /// partial sum by at most 2^-8 of it, so the error grows with the number of ranks.
    pub wire: WireFormat,
}

impl Default for NcclOptions {
    fn default() -> Self {
        Self { stall_timeout: Duration::from_secs(60), wire: WireFormat::default() }
    }
}

/// Initializes an NCCL communicator of all ranks. Collective; each rank passes a different GPU. `host_reducer` is the reducer of the
/// same endpoints as `group`.
///
/// # Errors
/// NCCL returns an error or does not connect in time, or a rank has left.
pub fn init<D: NcclDevice + 'static>(
    group: &mut dyn Group,
    host_reducer: Box<dyn Reducer>,
    library: &Arc<NcclLibrary>,
    device: D,
    options: NcclOptions,
) -> Result<Box<dyn Reducer>> {
    let id = broadcast_unique_id(group, library)?;
    device.make_current()?;
    let (rank, world_size) = (group.rank(), group.world_size());
    let communicator = NcclCommunicator::connect(library, (rank, world_size), id, options.stall_timeout)?;
    events::joined("nccl", rank, world_size);
    Ok(Box::new(NcclReducer::new(communicator, host_reducer, device, world_size, options)))
}

/// Broadcasts the unique ID of rank 0. If rank 0 cannot create one, all ranks return an error.
fn broadcast_unique_id(group: &mut dyn Group, library: &NcclLibrary) -> Result<UniqueId> {
    let created = if group.rank() == 0 { Some(library.unique_id()) } else { None };
    let mut bytes = created.as_ref().and_then(|id| id.as_ref().ok()).map(UniqueId::to_bytes).unwrap_or_default();
    group.broadcast_bytes(&mut bytes, 0)?;
    match created {
        Some(id) => id,
        None => UniqueId::from_bytes(&bytes).ok_or(crate::Error::RankGone { operation: "ncclGetUniqueId", rank: 0 }),
    }
}
