use crate::{Error, Result};

/// One rank's end of a group of ranks: host bytes and small numbers, for agreement between the ranks.
///
/// Every operation must be called by all ranks, in the same order and with equal lengths and roots. With `mpi` each may fail with
/// [`Error::Deadline`] (see [`Options`](crate::mpi::Options)). An error leaves the group unusable: the only sensible reaction is to
/// end the process.
pub trait Group: Send {
    /// This rank's number, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn world(&self) -> usize;

    /// The backend's name: `local` or `mpi`.
    fn name(&self) -> &'static str;

    /// Replaces `values` by their sum over all ranks, element by element.
    ///
    /// # Errors
    /// A rank is gone, or the lengths differ (seen by `local` always, by `mpi` only sometimes).
    fn all_reduce_sum_f64(&mut self, values: &mut [f64]) -> Result<()>;

    /// Replaces `bytes` on every rank by those of `root`. The lengths may differ before.
    ///
    /// # Errors
    /// A rank is gone, or `root` is none of the ranks.
    fn broadcast_bytes(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<()>;

    /// Brings every rank's `bytes` to `root`, which gets them in rank order; the others get `None`.
    ///
    /// # Errors
    /// A rank is gone, or `root` is none of the ranks.
    fn gather_bytes(&mut self, bytes: &[u8], root: usize) -> Result<Option<Vec<Vec<u8>>>>;

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// A rank is gone.
    fn barrier(&mut self) -> Result<()>;

    /// Leaves the group in order, after the last operation: see [`Endpoints::finish`](crate::Endpoints::finish).
    ///
    /// # Errors
    /// What the backend says.
    fn finish(self: Box<Self>) -> Result<()>;
}

pub(crate) fn check_root(operation: &'static str, root: usize, world: usize) -> Result<()> {
    if root < world {
        return Ok(());
    }
    Err(Error::Mismatch { operation, what: format!("root {root} in a world of {world}") })
}
