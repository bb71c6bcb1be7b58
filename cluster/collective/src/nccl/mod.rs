//! Sums between NVIDIA cards by NCCL, beside a group and a reducer in main memory, which are MPI's in a job.
//!
//! **The library is loaded when the program runs**, the one that libtorch has loaded if there is one ([`Library::open`](crate::nccl::Library::open)); where it is
//! absent, that is an error. The unique id travels over the group. The communicator is non-blocking (`blocking = 0`): a call
//! that NCCL has not finished is polled, never waited for.
//!
//! **Order.** Sums run on a stream of their own ([`Device`](crate::nccl::Device)). A bucket's sum waits, on the device, for what the compute stream was
//! given before [`Reducer::start`](crate::Reducer::start). Buckets are summed in the order of their starts, so that all ranks give NCCL the same calls.
//! [`Pending::wait`](crate::Pending::wait) returns on the host when the device has passed the bucket's last operation: what the host
//! enqueues after that comes after it on every stream.
//!
//! **Nothing waits for ever, and whose fault it is.** NCCL does not tell a straggler from a dead rank. So each bucket has a *roll call*:
//! a sum of a few numbers over the reducer in main memory, started with the bucket and awaited before it. It is complete when all
//! ranks have started the bucket; a straggler is waited for, and a dead rank is named, by the rules of [`mpi`](crate::mpi). It also
//! shows that the ranks' buckets differ, which NCCL would not. From there on, and once this rank's own gradients are computed, the sum
//! has [`Options::stall`](crate::nccl::Options::stall); when that is over, half as long goes into finding out who does not answer. Asynchronous errors are polled all the time. When anything fails the communicator is aborted, which ends its
//! kernels on the device, so that the bucket is left alone; from then on every operation gives the same error.

mod communicator;
mod device;
mod library;
mod log;
mod record;
mod reducer;

use std::sync::Arc;
use std::time::Duration;

use crate::{Group, Reducer, Result, events};
use communicator::Communicator;
pub use device::Device;
pub use library::{Library, UniqueId};
pub use log::Log;
pub use record::{Record, Transports, variables};
use reducer::NcclReducer;

pub use crate::mpi::Wire;

/// How the ranks' cards deal with each other; equal on all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How long NCCL may take to connect all ranks, and for a sum that all ranks have started; 60 s by default.
    pub stall: Duration,
    /// The format that gradients travel in. With bf16 each rank rounds its values to bf16 once, NCCL adds in bf16 as its algorithm
    /// does (a ring rounds each partial sum), and the result is widened: the error grows with the ranks, at most 2^-8 of the
    /// partial sum each time.
    pub wire: Wire,
}

impl Default for Options {
    fn default() -> Self {
        Self { stall: Duration::from_secs(60), wire: Wire::default() }
    }
}

/// Connects the cards of all ranks, which call this together, each with a card of its own. `beside` is the reducer that
/// came with `group`.
///
/// # Errors
/// NCCL refuses or does not connect in time, or a rank is gone.
pub fn join<D: Device + 'static>(
    group: &mut dyn Group,
    beside: Box<dyn Reducer>,
    library: &Arc<Library>,
    device: D,
    options: Options,
) -> Result<Box<dyn Reducer>> {
    let id = shared_id(group, library)?;
    device.enter()?;
    let communicator = Communicator::connect(library, (group.rank(), group.world()), id, options.stall)?;
    events::joined("nccl", group.rank(), group.world());
    Ok(Box::new(NcclReducer::new(communicator, beside, device, group.world(), options)))
}

/// The id that rank 0 has made, or its error on all ranks.
fn shared_id(group: &mut dyn Group, library: &Library) -> Result<UniqueId> {
    let made = if group.rank() == 0 { Some(library.unique_id()) } else { None };
    let mut bytes = made.as_ref().and_then(|made| made.as_ref().ok()).map(UniqueId::to_bytes).unwrap_or_default();
    group.broadcast_bytes(&mut bytes, 0)?;
    match made {
        Some(made) => made,
        None => UniqueId::from_bytes(&bytes).ok_or(crate::Error::RankGone { operation: "ncclGetUniqueId", rank: 0 }),
    }
}
