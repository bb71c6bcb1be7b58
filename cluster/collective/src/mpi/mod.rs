//! Ranks as processes joined by MPI.
//!
//! **One thread of each rank owns MPI**: it initializes it, and no other calls it (`MPI_THREAD_FUNNELED`). What the ends of a
//! rank do are requests to this thread, so buckets are summed while the rank computes. It sleeps while nothing is under way.
//!
//! **Sums are made of point-to-point messages**, in a fixed order. A bucket of more than 32 KiB goes around a ring
//! (reduce-scatter, then all-gather) in segments of at most 256 KiB, of which each rank has four under way; a smaller one, and the
//! sum of f64, is made by recursive doubling. The order of a sum's terms follows from the world and, from three ranks on, from
//! the element's place in its bucket. MPI reads and writes memory of this crate only, never a bucket's, so a bucket that was given
//! up is not touched again, whatever MPI still holds.
//!
//! **Nothing waits for ever.** An operation is hung when no segment has been complete for
//! [`Options::stall`](crate::mpi::Options::stall). After half of that time the ranks that wait ask all others where they are;
//! communication threads answer, also while their ranks compute. When the limit is over, those that have not answered are named
//! in [`Error::Deadline`](crate::Error::Deadline). If all have answered and some have not come to the operation, they are alive:
//! a straggler, or rank 0 reading a checkpoint. The others go on waiting and asking, up to
//! [`Options::absence`](crate::mpi::Options::absence), then name them. If all have come and nothing moves, nobody is named.
//!
//! The functions of MPI are called directly: the safe layer of the `mpi` crate ends the process on errors, and finalizes MPI
//! when a value is dropped, which makes a rank that unwinds wait for the others for ever.
//!
//! When a rank dies, Open MPI's `mpirun` sees it (a process that ends by a signal, with a non-zero code, or
//! without [`Endpoints::finish`]) and ends all others of the job, also those inside an operation.

mod exchange;
mod group;
mod lanes;
mod library;
mod pace;
mod reducer;
mod roll_call;
mod schedule;
mod thread;
mod tree;
mod watch;
mod wire;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::{Bucket, Endpoints, Result, events};
use group::MpiGroup;
pub use library::version;
use reducer::MpiReducer;
pub use wire::Wire;

/// What a reduction is called in errors.
const BUCKET: &str = "reduction of a bucket";

/// A bucket that the communication thread may touch while it holds this; none when it was given up.
type Slot = Arc<Mutex<Option<Bucket>>>;

fn lock(slot: &Slot) -> MutexGuard<'_, Option<Bucket>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How ranks deal with each other; equal on all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// How long an operation may go without a complete segment before ranks that do not answer are given up; 60 s by default.
    pub stall: Duration,
    /// How long an operation may go without a complete segment for the sake of a rank that answers but has not come to it; 2 hours
    /// by default.
    pub absence: Duration,
    /// The format that gradients travel in.
    pub wire: Wire,
}

impl Default for Options {
    fn default() -> Self {
        Self { stall: Duration::from_secs(60), absence: Duration::from_secs(7200), wire: Wire::default() }
    }
}

/// Joins the world that `mpirun` or `srun` has started this process in. Blocks until all ranks have come. There can be one
/// in the life of a process. Its ends may be moved to any thread; dropping them does not finalize MPI, see
/// [`Endpoints::finish`].
///
/// # Errors
/// MPI is already initialized, gives no thread support, or is of an unknown make. (Some failures to start, such as a
/// launcher that is gone, make Open MPI end the process by itself.)
pub fn init(options: Options) -> Result<Endpoints> {
    let (rank, world, requests) = thread::start(options)?;
    events::joined("mpi", rank, world);
    let reducer = MpiReducer::new(requests.clone());
    Ok(Endpoints { group: Box::new(MpiGroup::new(rank, world, requests)), reducer: Box::new(reducer) })
}
