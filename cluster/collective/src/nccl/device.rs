use std::ffi::c_void;

use crate::Result;

/// A card as sums need it: a compute stream, which somebody else gives work to, and a stream for sums beside it.
///
/// # Safety
/// [`Device::stream`] is a stream of the device that lives as long as the value. The address that [`Device::narrow`] gives holds as
/// many bf16 values as it was asked for, until the stream is past the next [`Device::widen`].
pub unsafe trait Device: Send + Sync {
    /// A place in the order of a stream's work.
    type Mark: Send;

    /// The device, as its driver counts.
    fn number(&self) -> usize;

    /// Lets what this thread calls go to the device.
    ///
    /// # Errors
    /// What the driver says; so below.
    fn enter(&self) -> Result<()>;

    /// The stream for sums, as the driver knows it.
    fn stream(&self) -> *mut c_void;

    /// Behind all that the compute stream was given so far.
    ///
    /// # Errors
    /// As above.
    fn mark_compute(&self) -> Result<Self::Mark>;

    /// Behind all that the stream for sums was given so far.
    ///
    /// # Errors
    /// As above.
    fn mark_sums(&self) -> Result<Self::Mark>;

    /// Lets what the stream for sums is given from here on wait until `mark` is reached.
    ///
    /// # Errors
    /// As above.
    fn hold_sums(&self, mark: &Self::Mark) -> Result<()>;

    /// Whether all work before `mark` is done.
    ///
    /// # Errors
    /// As above, or the work itself failed.
    fn is_reached(&self, mark: &Self::Mark) -> Result<bool>;

    /// Gives the stream for sums the rounding of `count` f32 at address `from` to bf16, to nearest, ties to even; where they will be.
    ///
    /// # Errors
    /// As above.
    fn narrow(&self, from: u64, count: usize) -> Result<u64>;

    /// Gives the stream for sums the way back of the last [`Device::narrow`], to address `to`.
    ///
    /// # Errors
    /// As above.
    fn widen(&self, to: u64, count: usize) -> Result<()>;
}
