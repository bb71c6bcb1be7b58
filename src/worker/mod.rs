//! A rank's process: its place in the run, the control channel, and the host it runs on.
//!
//! - [`session`]: what a rank holds while it trains: configuration, world, control channel, store
//! - [`control`]: the worker's end of the control channel
//! - [`agreement`]: what ranks tell each other after a step
//! - [`nccl_report`]: what NCCL has chosen to sum with
//! - [`micro_batch_size`]: whether micro-batches fit into the GPUs, and how large they are where that is left open
//! - [`peak`]: the speed of a device; [`stopwatch`]: seconds; [`trace`]: what a rank does in chosen steps
//! - [`output`]: results on standard output; [`logs`]: what a rank prints, in a file of its host
//! - [`cleanup`]: what its launcher leaves on a host, removed; [`host_share`]: a rank's part of its host; `cpu_affinity`: on which
//!   processors it runs
//! - [`leave`]: the end of a worker beside threads that are stuck; [`environment`]: the environment of this process

pub mod agreement;
pub mod cleanup;
pub mod control;
mod cpu_affinity;
pub mod environment;
pub mod host_share;
pub mod leave;
pub mod logs;
pub mod micro_batch_size;
pub mod nccl_report;
pub mod output;
pub mod peak;
pub mod session;
pub mod stopwatch;
pub mod trace;
