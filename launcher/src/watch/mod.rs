//! Web page that shows runs, served on the loopback interface.
//!
//! - [`token`]: the access token in the page's URL; [`server`]: HTTP routes and headers; [`assets`]: files of the page
//! - [`poll`]: threads that read the runs' stores; [`run`]: what they keep of a run
//! - [`board`]: data of all runs in memory, and what is new since a revision
//! - [`point`]: measurements of a step; [`progress`]: samples, tokens, hours and FLOPs up to a step
//! - [`steps`]: steps of a run in bounded memory; [`series`]: curves, reduced to buckets
//! - [`marks`]: checkpoints, restarts, rollbacks, growth; [`timeline`]: stages and skipped samples
//! - [`info`]: state, ranks and notes

pub mod assets;
pub mod board;
pub mod info;
pub mod marks;
pub mod point;
pub mod poll;
pub mod progress;
pub mod run;
pub mod series;
pub mod server;
pub mod steps;
pub mod timeline;
pub mod token;

#[cfg(test)]
mod tests;
