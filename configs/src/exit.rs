//! Exit codes of `lambert` and `lambert-worker`.

/// Everything asked for was done.
pub const DONE: i32 = 0;
/// Something failed on the way.
pub const FAILED: i32 = 1;
/// The command line or the configuration is wrong; nothing was started.
pub const USAGE: i32 = 2;
/// A card has failed in a way that it does not come back from while the process lives (`EX_IOERR`).
pub const CARD: i32 = 74;
/// Stopped on request, with a checkpoint: the same command goes on from there (`EX_TEMPFAIL`).
pub const STOPPED: i32 = 75;
/// Stopped by `lambert stop`, with a checkpoint: whoever asked starts it again, and nobody queues it (`EX_PROTOCOL`).
pub const ENDED: i32 = 76;
/// Another coordinator has taken the run over; nobody should start this one again, or requeue it (`EX_NOPERM`).
pub const REPLACED: i32 = 77;
