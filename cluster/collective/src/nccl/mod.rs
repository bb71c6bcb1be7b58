//! Backend for NVIDIA GPUs that communicate over NCCL. It also needs the group and the reducer of another backend,
//! which work in host memory. In a job, this is the MPI backend.
//!
//! **Library.** NCCL is loaded at run time ([`NcclLibrary::open`]). If libtorch has already loaded NCCL, that copy is
//! used. A missing NCCL is an error. Rank 0 broadcasts the unique ID over the group. The communicator is non-blocking
//! (`blocking = 0`): the backend polls for completion instead of blocking in NCCL.
//!
//! **Ordering.** All-reduces run on a separate communication stream ([`NcclDevice`]). On the device, the all-reduce of
//! a bucket waits for the work that was enqueued on the compute stream before [`Reducer::start`]. Buckets are reduced
//! in the order of their starts, so all ranks make the same NCCL calls. [`PendingAllReduce::wait`] returns when the
//! device has completed the last operation on the bucket. Work that the host enqueues afterwards, on any stream, sees
//! the sum.
//!
//! **Timeouts.** NCCL cannot distinguish a straggler from a dead rank. Each bucket therefore has an *arrival check*, an
//! all-reduce of four numbers in host memory. The arrival check starts together with the bucket and completes when all
//! ranks have started the bucket. [`PendingAllReduce::wait`] first waits for the arrival check. During this wait, the
//! timeouts of [`mpi`](crate::mpi) for stragglers and dead ranks apply. The arrival check also detects buckets of
//! different lengths, which NCCL does not. [`NcclOptions::stall_timeout`] starts when the arrival check and the
//! gradients of this rank are complete. After this timeout, the backend determines which ranks do not respond. If all
//! do, it asks the RAS service of NCCL which ranks are behind. This takes at most three quarters of the timeout.
//!
//! **Failures.** While the backend waits, it polls for asynchronous NCCL errors. After any failure it aborts the
//! communicator. The abort stops the NCCL kernels on the device, so the bucket is no longer accessed. All later
//! operations return the same error.
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
mod ras;
mod reducer;
mod report;

use std::sync::Arc;
use std::time::Duration;

use crate::{Group, Reducer, Result, events};
use communicator::{EnterDevice, NcclCommunicator};
pub use device::NcclDevice;
pub use library::{NcclLibrary, UniqueId};
pub use log::NcclLog;
use reducer::NcclReducer;
pub use report::{NcclReport, Transports, environment_variables};

pub use crate::mpi::WireFormat;

/// Options of the NCCL backend. The timeouts and the format must be equal on all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NcclOptions {
    /// Timeout of the connection of all ranks. The default is 300 s.
    pub connect_timeout: Duration,
    /// Timeout of an all-reduce that all ranks have started. The default is 60 s.
    pub stall_timeout: Duration,
    /// Number format of gradients on the wire. With bf16, each rank rounds its values once, and NCCL sums in bf16. A
    /// ring rounds each partial sum, by at most 2^-8 of the partial sum. The error therefore grows with the number of
    /// ranks.
    pub wire: WireFormat,
    /// Address of the RAS service of NCCL on this host. `None`: it is not asked. The default is that of NCCL. May differ
    /// between ranks.
    pub ras: Option<String>,
}

impl Default for NcclOptions {
    fn default() -> Self {
        let ras = ras::address(|name| std::env::var(name).ok());
        let [connect_timeout, stall_timeout] = [300, 60].map(Duration::from_secs);
        Self { connect_timeout, stall_timeout, wire: WireFormat::default(), ras }
    }
}

/// Initializes an NCCL communicator of all ranks. All ranks must call this, each with a different GPU. `group` and
/// `host_reducer` are from the same endpoints.
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
    let device = Arc::new(device);
    let entered = Arc::clone(&device);
    let enter_device: EnterDevice = Arc::new(move || entered.make_current());
    let timeouts = [options.connect_timeout, options.stall_timeout];
    let communicator = NcclCommunicator::connect(library, (rank, world_size), id, enter_device, timeouts)?;
    events::joined("nccl", rank, world_size);
    Ok(Box::new(NcclReducer::new(communicator, host_reducer, device, (rank, world_size), options)))
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
