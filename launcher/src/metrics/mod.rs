//! Step records and evaluations of a run, as lines and as tables.
//!
//! - [`line`](mod@line): a record as stored, and its fields by name
//! - [`history`]: records and evaluations of all attempts in the order of execution, and which of them are undone
//! - [`json_lines`], [`csv`], [`columns`] (Parquet): output formats; [`table`]: their rows and columns

pub mod columns;
pub mod csv;
pub mod history;
pub mod json_lines;
pub mod line;
pub mod table;
