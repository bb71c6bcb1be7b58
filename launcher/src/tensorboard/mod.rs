//! TensorBoard event files of a run.
//!
//! - [`proto`]: the messages of TensorFlow's event.proto and summary.proto; [`file`](mod@file): records and file names
//! - [`scalars`]: tags and values of a step record; [`text`]: text summaries;
//!   [`hyperparameters`]: the configuration for the hparams plugin
//! - [`writer`]: writes the effective history, and removes undone steps from the plots; [`export`]: event file of a run
//!   in a store

pub mod export;
pub mod file;
pub mod hyperparameters;
pub mod proto;
pub mod scalars;
pub mod text;
pub mod writer;
