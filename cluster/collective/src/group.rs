use crate::{Error, Result};

/// Handle of one rank for blocking collectives on bytes in host memory and on a few numbers.
///
/// All ranks must call the same operations in the same order, with equal lengths and roots. With `mpi`, each operation
/// may fail with [`Error::Deadline`] (see [`MpiOptions`](crate::mpi::MpiOptions)). After an error the group is unusable
/// and the process should exit.
pub trait Group: Send {
    /// Rank of this process or thread, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn world_size(&self) -> usize;

    /// Name of the backend: `local` or `mpi`.
    fn name(&self) -> &'static str;

    /// Replaces `values` with their element-wise sum over all ranks.
    ///
    /// # Errors
    /// A rank has left, or the lengths differ. (`local` always detects different lengths, `mpi` does not.)
    fn all_reduce_sum_f64(&mut self, values: &mut [f64]) -> Result<()>;

    /// Replaces `bytes` on every rank with the bytes of rank `root`. The lengths before the call may differ.
    ///
    /// # Errors
    /// A rank has left, or `root` is not a rank.
    fn broadcast_bytes(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<()>;

    /// Gathers the `bytes` of all ranks on rank `root`. On `root`, returns them in rank order. On other ranks, returns
    /// `None`.
    ///
    /// # Errors
    /// A rank has left, or `root` is not a rank.
    fn gather_bytes(&mut self, bytes: &[u8], root: usize) -> Result<Option<Vec<Vec<u8>>>>;

    /// Gathers the `bytes` of all ranks on all ranks, in rank order. Each rank sends about as many bytes as the result has,
    /// so this suits large data.
    ///
    /// # Errors
    /// A rank has left.
    fn all_gather_bytes(&mut self, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>>;

    /// Blocks until all ranks have called this function.
    ///
    /// # Errors
    /// A rank has left.
    fn barrier(&mut self) -> Result<()>;

    /// Shuts down the group after the last operation. See [`Endpoints::finish`](crate::Endpoints::finish).
    ///
    /// # Errors
    /// Errors of the backend.
    fn finish(self: Box<Self>) -> Result<()>;
}

pub(crate) fn check_root(operation: &'static str, root: usize, world_size: usize) -> Result<()> {
    if root < world_size {
        return Ok(());
    }
    Err(Error::Mismatch { operation, detail: format!("root {root} is not a rank of a world of {world_size}") })
}
