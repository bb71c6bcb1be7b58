//! Saves and restores the training state.
//!
//! - [`resume`]: loads the newest checkpoint that verifies and fits the configuration
//! - [`saver`]: schedules asynchronous saves; `save`: one save in progress; [`snapshot`]: the host copy that it
//!   writes; [`commit`]: rank 0's commit once all ranks have written; `pruner`: deletes old checkpoints;
//!   [`retry_state`]: retries after failures; [`time_limit`]: time limits of a save
//! - [`rollback`]: start of the attempt after a rollback, and the samples that it skips
//! - [`records`]: step records between two checkpoints
//! - [`EngineState`]: counters and history stored in the manifest
//! - `files`, `tensor_loader`: objects of a checkpoint, and their streaming into the state

pub mod commit;
mod engine_state;
mod files;
mod pruner;
pub mod records;
mod resume;
pub mod retry_state;
pub mod rollback;
mod save;
pub mod saver;
pub mod snapshot;
mod tensor_loader;
pub mod time_limit;

pub use engine_state::EngineState;
pub use resume::{ResumeOrigin, read_chosen, read_model, read_state, resume};
pub use saver::Saver;
