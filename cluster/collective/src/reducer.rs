use std::time::Instant;

use crate::{Bucket, MemoryLocation, Result};

/// One rank's handle for asynchronous all-reduce of gradient buckets.
///
/// All ranks start the same buckets, with equal lengths, in the same order. Several may be in flight at once, concurrently with
/// operations of the [`Group`](crate::Group). A rank may wait for them at any time and in any order: they are summed in the
/// background, roughly in the order of the starts. After an error the group is unusable.
pub trait Reducer: Send {
    /// Name of the backend: `local`, `mpi` or `nccl`.
    fn name(&self) -> &'static str;

    /// True if the reducer can access buckets in `location`.
    fn supports(&self, location: MemoryLocation) -> bool {
        location == MemoryLocation::Host
    }

    /// Starts an in-place all-reduce (sum) of `bucket`. The result is bitwise identical on all ranks and reproducible: the same
    /// values in the same world give the same bits.
    ///
    /// # Errors
    /// [`Error::UnsupportedLocation`](crate::Error::UnsupportedLocation) if the reducer cannot access the memory; errors of the
    /// backend.
    fn start(&mut self, bucket: Bucket) -> Result<Box<dyn PendingAllReduce>>;
}

/// All-reduce in flight. After [`PendingAllReduce::wait`] has returned, with or without an error, or after the value was dropped,
/// the backend no longer accesses the bucket. Dropping it before completion abandons the all-reduce and makes an `mpi` or `nccl`
/// group unusable.
pub trait PendingAllReduce: Send {
    /// Blocks until the bucket holds the sum. `deadline` applies in addition to the backend's own limits
    /// ([`MpiOptions`](crate::mpi::MpiOptions), [`NcclOptions`](crate::nccl::NcclOptions)); `local` has none.
    ///
    /// # Errors
    /// [`Error::RankGone`](crate::Error::RankGone), [`Error::Mismatch`](crate::Error::Mismatch) if the ranks' buckets differ, or
    /// [`Error::Deadline`](crate::Error::Deadline). The bucket may then hold partial sums.
    fn wait(self: Box<Self>, deadline: Option<Instant>) -> Result<()>;
}

/// All-reduce of values that the operation owns.
pub(crate) struct OwnedAllReduce {
    // Declared first, so dropped first: it may access the values until then.
    pending: Box<dyn PendingAllReduce>,
    values: Vec<f32>,
}

impl OwnedAllReduce {
    pub fn start(reducer: &mut dyn Reducer, mut values: Vec<f32>) -> Result<Self> {
        // SAFETY: moving the vector does not move its memory. Nothing accesses it before `wait` returns, and it is freed after
        // the pending all-reduce is dropped.
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
