use std::time::Instant;

use crate::{Bucket, MemoryLocation, Result};

/// Handle of one rank for asynchronous all-reduce of gradient buckets.
///
/// All ranks must start the same buckets, with equal lengths, in the same order. Several buckets may be in flight at
/// once, also during operations of the [`Group`](crate::Group). Buckets are summed in the background, roughly in the
/// order of their starts. A rank may wait for them at any time and in any order. After an error the group is unusable.
pub trait Reducer: Send {
    /// Name of the backend: `local`, `mpi` or `nccl`.
    fn name(&self) -> &'static str;

    /// True if the reducer can access buckets in `location`.
    fn supports(&self, location: MemoryLocation) -> bool {
        location == MemoryLocation::Host
    }

    /// Starts an in-place all-reduce (sum) of `bucket`. The result is bitwise identical on all ranks. With `local` and
    /// `mpi` it is also reproducible: the same values, world size and bucket lengths give the same bits.
    ///
    /// # Errors
    /// [`Error::UnsupportedLocation`](crate::Error::UnsupportedLocation) if the reducer cannot access the memory, or an
    /// error of the backend.
    fn start(&mut self, bucket: Bucket) -> Result<Box<dyn PendingAllReduce>>;
}

/// All-reduce in flight. The backend no longer accesses the bucket after [`PendingAllReduce::wait`] has returned, even
/// with an error, or after this value was dropped. Dropping this value before completion abandons the all-reduce and
/// makes an `mpi` or `nccl` group unusable.
pub trait PendingAllReduce: Send {
    /// Blocks until the bucket contains the sum. `deadline` applies in addition to the timeouts of the backend
    /// ([`MpiOptions`](crate::mpi::MpiOptions), [`NcclOptions`](crate::nccl::NcclOptions)). `local` has no timeouts.
    ///
    /// # Errors
    /// [`Error::RankGone`](crate::Error::RankGone), [`Error::Mismatch`](crate::Error::Mismatch) if the buckets of the
    /// ranks differ, or [`Error::Deadline`](crate::Error::Deadline). The bucket may then contain partial sums.
    fn wait(self: Box<Self>, deadline: Option<Instant>) -> Result<()>;
}

/// All-reduce of values that the operation owns.
pub(crate) struct OwnedAllReduce {
    // This field is declared first and is therefore dropped first. Until then, the all-reduce may access the values.
    pending: Box<dyn PendingAllReduce>,
    values: Vec<f32>,
}

impl OwnedAllReduce {
    pub fn start(reducer: &mut dyn Reducer, mut values: Vec<f32>) -> Result<Self> {
        // SAFETY: moving the vector does not move its memory. Nothing accesses it before `wait` returns, and it is
        // freed after the pending all-reduce is dropped.
        let bucket = unsafe { Bucket::host(values.as_mut_ptr(), values.len()) };
        Ok(Self { pending: reducer.start(bucket)?, values })
    }

    /// Waits for the sums and returns them.
    pub fn wait(self, deadline: Option<Instant>) -> Result<Vec<f32>> {
        self.pending.wait(deadline)?;
        Ok(self.values)
    }
}

/// Blocking all-reduce (sum) of `values` in host memory.
///
/// # Errors
/// As for [`Reducer::start`] and [`PendingAllReduce::wait`].
pub fn all_reduce(reducer: &mut dyn Reducer, values: &mut [f32], deadline: Option<Instant>) -> Result<()> {
    // SAFETY: `values` stays mutably borrowed until the all-reduce has been waited for or dropped.
    let bucket = unsafe { Bucket::host(values.as_mut_ptr(), values.len()) };
    reducer.start(bucket)?.wait(deadline)
}
