//! What follows from a run's configuration before anything is computed: networks, losses, micro-batches, steps, memory.
//!
//! - [`architecture`]: descriptions of networks: their segments, modules and tensors
//! - [`objectives`]: the losses of a run
//! - [`flops`]: floating-point operations of training, by formula
//! - [`memory`]: bytes of its training state, and those that this host has
//! - [`batch_partition`]: which samples of a global batch a rank works on, and in which micro-batches
//! - [`timeline`]: the stages of a run laid end to end, in steps
//! - [`schedule`]: the learning rate of a step

pub mod architecture;
pub mod batch_partition;
pub mod flops;
pub mod memory;
pub mod objectives;
pub mod schedule;
pub mod timeline;
