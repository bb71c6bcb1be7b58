//! Exit codes of `lambert` and `lambert-worker`.

/// Everything asked for was done.
pub const DONE: i32 = 0;
/// Something failed on the way.
pub const FAILED: i32 = 1;
/// The command line or the configuration is wrong; nothing was started.
pub const USAGE: i32 = 2;
/// The guard has given the run up: its rollbacks are used up, and losses or gradients are bad again (`EX_DATAERR`).
pub const DIVERGED: i32 = 65;
/// A worker has not heard from its coordinator for `cluster.limits.coordinator_seconds`, which is no failure of the worker
/// (`EX_UNAVAILABLE`).
pub const UNSUPERVISED: i32 = 69;
/// Another start would fail in the same way: a damaged shard, memory that runs out in a step (`EX_SOFTWARE`).
pub const FINAL: i32 = 70;
/// A card has failed in a way that it does not come back from while the process lives (`EX_IOERR`).
pub const CARD: i32 = 74;
/// Stopped by a signal, with a checkpoint: the same command goes on from there, and a queue starts it again (`EX_TEMPFAIL`).
pub const STOPPED: i32 = 75;
/// Stopped by a person (`lambert stop`, Ctrl-C, scancel), with a checkpoint: nobody else starts it again (`EX_PROTOCOL`).
pub const ENDED: i32 = 76;
/// Another coordinator has taken the run over, or the run was moved or removed; nobody should start this one again, or requeue it (`EX_NOPERM`).
pub const REPLACED: i32 = 77;
