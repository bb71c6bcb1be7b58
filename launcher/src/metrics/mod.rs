//! Step records and evaluations of a run, as lines and as tables.
//!
//! - [`line`](mod@line): a record as stored, and its fields by name
//! - [`history`]: records and evaluations of all attempts in the order of execution, and which of them are undone
//! - [`json_lines`], [`csv`], [`columns`] (Parquet): output formats; [`table`]: their rows and columns;
//!   [`column_types`]: types of the columns
//! - [`follow`]: JSON lines of a run that is followed

pub mod column_types;
pub mod columns;
pub mod csv;
pub mod follow;
pub mod history;
pub mod json_lines;
pub mod line;
pub mod table;

/// Records of a run cannot be written as lines or as a table.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error(transparent)]
    Store(#[from] lambert_store::Error),
    #[error("cannot parse a record")]
    Record(#[from] serde_json::Error),
    /// The output cannot be written.
    #[error(transparent)]
    Output(#[from] std::io::Error),
}
