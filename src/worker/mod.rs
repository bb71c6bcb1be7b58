//! Worker process of a rank: run session, control channel, and host resources.
//!
//! - [`session`]: configuration, world, control channel, store and device of a rank
//! - [`control`]: worker end of the control channel
//! - [`datasets`]: datasets of the stages and of evaluations
//! - [`agreement`]: votes of the ranks in the all-reduce of each step
//! - [`rank_devices`]: check and record of the devices of the ranks
//! - [`attempts`]: records of earlier attempts
//! - [`nccl_report`]: version, variables and transports of NCCL
//! - `gpu_monitor`: values and Xid errors of the GPU of a rank
//! - [`gpu_advice`]: warnings about settings that slow a GPU down
//! - [`micro_batch_size`]: micro-batch sizes that fit into GPU memory
//! - [`matmul_peak`]: matmul throughput of a device
//! - [`peak_memory`]: peak memory of a rank
//! - [`stopwatch`]: elapsed time
//! - [`trace`]: Chrome traces of selected steps
//! - [`output`]: results on standard output
//! - [`logs`]: log file of a rank on its host
//! - [`open_files`]: limit of open files
//! - [`cleanup`]: removal of the files of the launcher from a host
//! - [`host_share`]: CPUs per rank
//! - `cpu_affinity`: CPU pinning
//! - `start_line`: log lines of the start of a rank
//! - [`leave`]: exit with threads that cannot be joined
//! - [`environment`]: environment variables of GPU libraries

pub mod agreement;
pub mod attempts;
pub mod cleanup;
pub mod control;
mod cpu_affinity;
pub mod datasets;
pub mod environment;
pub mod gpu_advice;
mod gpu_monitor;
pub mod host_share;
pub mod leave;
pub mod logs;
pub mod matmul_peak;
pub mod micro_batch_size;
pub mod nccl_report;
pub mod open_files;
pub mod output;
pub mod peak_memory;
pub mod rank_devices;
pub mod session;
mod start_line;
pub mod stopwatch;
pub mod trace;
