//! Progress bars and colors on the terminal of both programs, `lambert` and `lambert-worker`.
//!
//! - [`Progress`]: progress of a command, drawn once the command has run for two seconds
//! - [`terminal`]: stderr as a terminal: visibility of bars, colors, output above the bars
//! - [`signals`]: removal of the bars and of temporary files before a signal ends the process
//! - [`text`]: sizes, rates and times left
//!
//! Bars are drawn only if stderr is a terminal and the command is not quiet. Otherwise this crate writes nothing.

mod display;
mod reporter;
pub mod signals;
mod state;
pub mod terminal;
pub mod text;

pub use reporter::Progress;
pub use state::Unit;
