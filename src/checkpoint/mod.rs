//! Saves and restores the training state.
//!
//! - `begin`: creates the state before the first step of a run
//! - [`resume`]: loads the newest checkpoint that passes verification and fits the configuration
//! - [`saver`]: schedules asynchronous saves
//! - `save`: one save in progress
//! - [`snapshot`]: host copy of the state, from which a save is written
//! - [`commit`]: commit by rank 0 after all ranks have written
//! - `pruner`: deletes old checkpoints
//! - [`retry_state`]: retries after failures
//! - [`time_limit`]: time limits of a save; `running_clock`: their clock, which leaves out suspensions
//! - [`rollback`]: the checkpoint that the attempt after a rollback starts from, and the samples that it skips
//! - [`records`]: step records between two checkpoints
//! - [`EngineState`]: counters and history stored in the manifest
//! - `changed_data`: data of a stage that changed between a checkpoint and a start
//! - `chosen`: the checkpoint that a user names, or the newest intact one
//! - `files`: objects of a checkpoint
//! - `load`: reads a verified checkpoint into a state or a model
//! - `shared_read`: reads the objects once for all ranks
//! - `teacher`: teacher of the run, which has a copy of it
//! - `teacher_record`: its record in the manifest
//! - `tensor_loader`: streaming of an object into the training state

mod begin;
mod changed_data;
mod chosen;
pub mod commit;
mod engine_state;
mod files;
mod load;
mod pruner;
pub mod records;
mod resume;
pub mod retry_state;
pub mod rollback;
mod running_clock;
mod save;
pub mod saver;
mod shared_read;
pub mod snapshot;
mod teacher;
mod teacher_record;
mod tensor_loader;
pub mod time_limit;

pub use chosen::read_chosen;
pub use engine_state::EngineState;
pub use files::ReadMode;
pub use load::{read_model, read_state};
pub use resume::{ResumeOrigin, resume};
pub use saver::Saver;
pub use teacher::read_teacher;
