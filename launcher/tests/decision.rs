//! Tests of the decision function of the coordinator, with chosen scenarios and random sequences of events.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "decision/attempts.rs"]
mod attempts;
#[path = "decision/nodes.rs"]
mod nodes;
#[path = "decision/progress.rs"]
mod progress;
#[path = "decision/random.rs"]
mod random;
#[path = "decision/requests.rs"]
mod requests;
#[path = "decision/results.rs"]
mod results;
#[path = "decision/scenario.rs"]
mod scenario;
