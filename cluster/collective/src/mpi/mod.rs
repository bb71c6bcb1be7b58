//! Ranks as processes joined by MPI.
//!
//! The functions of MPI are called directly: the safe layer of the `mpi` crate has no in-place reduction, ends
//! the process on errors, and finalizes MPI when a value is dropped, which makes a rank that unwinds wait for
//! the others for ever.
//!
//! When a rank dies, Open MPI's `mpirun` sees it (a process that ends by a signal, with a non-zero code, or
//! without [`Endpoints::finish`]) and ends all others of the job, also those inside an operation. A rank that hangs
//! without dying is the coordinator's business; a reduction with a deadline notices one that does not come.

mod group;
mod library;
mod reducer;

use crate::{Endpoints, Result};
use group::MpiGroup;
use library::Communicator;
pub use library::version;
use reducer::MpiReducer;

/// Joins the world that `mpirun` or `srun` has started this process in. Blocks until all ranks have come. There can be one
/// in the life of a process. Its ends may be moved to any thread; dropping them does not finalize MPI, see
/// [`Endpoints::finish`].
///
/// # Errors
/// MPI is already initialized, gives no thread support, or is of an unknown make. (Some failures to start, such as a
/// launcher that is gone, make Open MPI end the process by itself.)
pub fn init() -> Result<Endpoints> {
    let world = Communicator::init()?;
    // Messages of the two ends must not be taken for each other's.
    let buckets = world.duplicate()?;
    Ok(Endpoints { group: Box::new(MpiGroup::new(world)), reducer: Box::new(MpiReducer::new(buckets)) })
}
