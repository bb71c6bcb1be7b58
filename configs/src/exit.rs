//! Exit codes of `lambert` and `lambert-worker`.

/// Success.
pub const DONE: i32 = 0;
/// Failure.
pub const FAILED: i32 = 1;
/// Invalid command line, configuration or set-up of the machines.
pub const USAGE: i32 = 2;
/// The run diverged again after all rollbacks were used up (`EX_DATAERR`).
pub const DIVERGED: i32 = 65;
/// The coordinator did not answer a worker for `cluster.limits.coordinator_seconds` (`EX_UNAVAILABLE`).
pub const UNSUPERVISED: i32 = 69;
/// Permanent failure, for example a damaged shard, or out of memory in a step. Do not retry (`EX_SOFTWARE`).
pub const PERMANENT_FAILURE: i32 = 70;
/// A GPU failed in a way that the process cannot recover from (`EX_IOERR`).
pub const GPU_FAILED: i32 = 74;
/// Stopped by a signal, with a checkpoint. The same command resumes the run. A batch system should requeue the job
/// (`EX_TEMPFAIL`).
pub const INTERRUPTED: i32 = 75;
/// Stopped by a user (`lambert stop`, Ctrl-C, scancel), with a checkpoint. Do not requeue (`EX_PROTOCOL`).
pub const STOPPED_BY_USER: i32 = 76;
/// Another coordinator has taken over the run, or the run was moved or removed. Do not restart or requeue
/// (`EX_NOPERM`).
pub const TAKEN_OVER: i32 = 77;
