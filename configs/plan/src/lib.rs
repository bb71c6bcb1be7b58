//! Derives network descriptions, losses, micro-batches, step positions and memory requirements from the configuration
//! of a run.
//!
//! - [`architecture`]: network descriptions: segments, modules and tensors
//! - [`objectives`]: losses of a run
//! - [`flops`]: floating-point operations of training, by formula
//! - [`distillation`]: network of a teacher, and the tensors that start from it
//! - [`memory`]: memory requirements in bytes, and the memory of this host
//! - [`batch_partition`]: assignment of the samples of a global batch to ranks and micro-batches
//! - [`durations`]: durations in tokens, and the steps that they take
//! - [`muon`]: orthogonalizations of Muon, and the ranks that compute them
//! - [`timeline`]: position of a step in the stages of a run
//! - [`scaling`]: duration of all-reduces and steps on a cluster
//! - [`estimate`]: time, memory, communication and checkpoints of a run on a machine
//! - [`schedule`]: learning rate of a step

pub mod architecture;
pub mod batch_partition;
pub mod distillation;
pub mod durations;
pub mod estimate;
pub mod flops;
pub mod memory;
pub mod mixture;
pub mod muon;
pub mod objectives;
pub mod scaling;
pub mod schedule;
pub mod timeline;
