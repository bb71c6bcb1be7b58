//! Derives from a run's configuration: network descriptions, losses, micro-batches, step positions, memory
//! requirements.
//!
//! - [`architecture`]: network descriptions: segments, modules and tensors
//! - [`objectives`]: losses of a run
//! - [`flops`]: floating-point operations of training, by formula
//! - [`memory`]: memory requirements in bytes, and the memory of this host
//! - [`batch_partition`]: assignment of a global batch's samples to ranks and micro-batches
//! - [`timeline`]: position of a step in the run's stages
//! - [`scaling`]: duration of all-reduces and steps on a cluster
//! - [`estimate`]: time, memory, communication and checkpoints of a run on a machine
//! - [`schedule`]: learning rate of a step

pub mod architecture;
pub mod batch_partition;
pub mod estimate;
pub mod flops;
pub mod memory;
pub mod objectives;
pub mod scaling;
pub mod schedule;
pub mod timeline;
