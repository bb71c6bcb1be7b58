//! The training state, to and from the checkpoints of a run.
//!
//! - [`resume`]: the state to go on from, out of the newest checkpoint that verifies and fits
//! - [`saver`]: when to save, and saves beside the training; save: one that is under way, [`snapshot`] the copy that it
//!   writes, [`commit`] what rank 0 does when all ranks have written theirs, pruner what removes
//!   old checkpoints after that, [`retry_state`] what follows failures, [`time_limit`] how long a save may take
//! - [`rollback`]: where the attempt after a rollback starts, and the samples that it skips
//! - [`records`]: the records of steps, between two checkpoints
//! - [`Facts`]: the counters of a checkpoint
//! - files and filler: the objects of a checkpoint, and how they are taken in as they are read

pub mod commit;
mod facts;
mod files;
mod filler;
mod pruner;
pub mod records;
mod resume;
pub mod retry_state;
pub mod rollback;
mod save;
pub mod saver;
pub mod snapshot;
pub mod time_limit;

pub use facts::Facts;
pub use resume::{Origin, read_chosen, read_model, read_state, resume};
pub use saver::Saver;
