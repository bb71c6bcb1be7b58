use std::time::Instant;

use crate::{Bucket, Place, Result};

/// One rank's end of the sums of gradients.
///
/// All ranks start the same buckets, of equal lengths, in the same order. Several may be under way at once, beside operations
/// of the [`Group`](crate::Group), and each rank may await them when it likes and in any order: they are summed in the
/// background, about in the order of the starts. An error leaves the group unusable.
pub trait Reducer: Send {
    /// The backend's name.
    fn name(&self) -> &'static str;

    /// Whether it can sum a bucket there.
    fn reaches(&self, place: Place) -> bool {
        place == Place::Host
    }

    /// Begins to replace `bucket`'s values, on every rank, by their sum over all ranks, element by element. The sum has
    /// the same bits on all ranks, and the same again when the same world sums the same numbers.
    ///
    /// # Errors
    /// [`Error::Unreachable`](crate::Error::Unreachable) for memory that this reducer cannot read, or what the backend says.
    fn start(&mut self, bucket: Bucket) -> Result<Box<dyn Pending>>;
}

/// A reduction under way. An implementor never touches the bucket's memory again after [`Pending::wait`] has returned,
/// with an error too, or after the value was dropped, which gives the reduction up.
pub trait Pending: Send {
    /// Returns when the bucket holds the sum. `deadline` is a limit beside those of the backend: `mpi` and `nccl`
    /// have their own ([`mpi::Options`](crate::mpi::Options), [`nccl::Options`](crate::nccl::Options)), `local` has none.
    ///
    /// # Errors
    /// A rank is gone, the ranks' buckets differ, or [`Error::Deadline`](crate::Error::Deadline). The bucket may hold sums of
    /// some of the ranks then.
    fn wait(self: Box<Self>, deadline: Option<Instant>) -> Result<()>;
}

/// Values of its own that are summed over all ranks in the background.
pub(crate) struct Numbers {
    // Dropped before the values: it may touch them until then.
    pending: Box<dyn Pending>,
    values: Vec<f32>,
}

impl Numbers {
    /// Begins.
    pub fn start(reducer: &mut dyn Reducer, mut values: Vec<f32>) -> Result<Self> {
        // SAFETY: the memory of `values` stays where it is when the vector moves; nothing reads or writes it before `wait` has awaited
        // the reduction, and it is freed after the reduction was dropped.
        let bucket = unsafe { Bucket::host(values.as_mut_ptr(), values.len()) };
        Ok(Self { pending: reducer.start(bucket)?, values })
    }

    /// The sums.
    pub fn wait(self, deadline: Option<Instant>) -> Result<Vec<f32>> {
        self.pending.wait(deadline)?;
        Ok(self.values)
    }
}

/// Sums `values` over all ranks: one bucket in main memory, awaited at once.
///
/// # Errors
/// As those of [`Reducer::start`] and [`Pending::wait`].
pub fn all_reduce(reducer: &mut dyn Reducer, values: &mut [f32], deadline: Option<Instant>) -> Result<()> {
    // SAFETY: `values` stays mutably borrowed until the reduction was awaited or dropped, after which nothing touches it.
    let bucket = unsafe { Bucket::host(values.as_mut_ptr(), values.len()) };
    reducer.start(bucket)?.wait(deadline)
}
