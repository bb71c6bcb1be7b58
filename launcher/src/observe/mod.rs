//! Everything that watches a run under a coordinator. An observer sees what happens and what is decided, and changes neither.
//!
//! - [`Observer`]: what one implements; [`OBSERVERS`]: the list of all there are
//! - [`console`]: the log and the progress [`display`] on standard error; [`json_lines`]: `lambert run --json`;
//!   [`status_file`]: `status.json` and `coordinator.json` in the run's store
//! - [`tracker`]: the run's status and [`pace`], derived from what happens, which all observers are given
//!
//! From [`crate::run`] this module imports [`decide`](crate::decide) alone.

pub mod console;
pub mod display;
pub mod json_lines;
pub mod pace;
pub mod status_file;
pub mod tracker;

#[cfg(test)]
mod tests;

use lambert_config::RunConfig;

use crate::decide::{Action, Event, Seconds, State, Verdict};
use crate::status::{Coordinator, Status};
use crate::store_writer::{StoreWriter, Urgency};

pub use json_lines::Records;
pub use pace::Pace;
use tracker::StatusTracker;

/// Makes an observer of a run; `None` where the run does not want it. One that cannot work warns and is `None`, too: a run
/// does not fail because nobody watches it.
pub type Make = fn(&Setup<'_>) -> Option<Box<dyn Observer>>;

/// All observers, in the order in which they are told. A new one is a file beside these and a line here.
pub const OBSERVERS: &[Make] = &[status_file::make, console::make, json_lines::make];

/// Watches a run under a coordinator.
///
/// The coordinator calls these methods on its own thread and waits for them: an observer that writes to a disk or a network
/// does so on a thread. It deals with its own errors; a run goes on without what could not be shown.
pub trait Observer {
    /// The run begins under this coordinator.
    fn begin(&mut self, _begin: &RunBegin<'_>) {}

    /// Something happened.
    fn observe(&mut self, observation: &Observation<'_>);

    /// The run ends under this coordinator. Nothing comes after it.
    fn end(&mut self, _end: &RunEnd<'_>) {}
}

/// What observers are made from.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// The run's configuration.
    pub config: &'a RunConfig,
    /// The run's URL.
    pub url: &'a str,
    /// Steps of all stages.
    pub steps: u64,
    /// How step records are given out.
    pub records: Records,
    /// Writes to the run's store, on a thread.
    pub writer: &'a StoreWriter,
}

/// The beginning of a run under a coordinator.
#[derive(Debug, Clone, Copy)]
pub struct RunBegin<'a> {
    /// The first actions.
    pub actions: &'a [Action],
    /// The state of the decision.
    pub state: &'a State,
    /// The run's status.
    pub status: &'a Status,
}

/// An event and what follows from it.
#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    /// When it happened.
    pub at: Seconds,
    /// What happened.
    pub event: &'a Event,
    /// What is done now.
    pub actions: &'a [Action],
    /// The state of the decision afterwards.
    pub state: &'a State,
    /// The run's status afterwards. Its list of ranks is of the last observation that has an `urgency`.
    pub status: &'a Status,
    /// How soon those who show the status should show it; `None`: with a later one.
    pub urgency: Option<Urgency>,
    /// Speed, the event's step included.
    pub pace: &'a Pace,
}

/// The end of a run under a coordinator.
#[derive(Debug, Clone, Copy)]
pub struct RunEnd<'a> {
    /// How it ended.
    pub verdict: &'a Verdict,
    /// The state of the decision.
    pub state: &'a State,
    /// The run's last status. A run that another coordinator has taken over keeps the state that it was in.
    pub status: &'a Status,
}

/// The observers of a run, and the status that they are given.
pub struct Observers {
    tracker: StatusTracker,
    observers: Vec<Box<dyn Observer>>,
}

impl Observers {
    /// Makes those of [`OBSERVERS`] that the run wants. `before` is the status that the run's last coordinator left.
    pub fn make(config: &RunConfig, url: &str, records: Records, before: Status, writer: &StoreWriter) -> Self {
        let tracker = StatusTracker::new(config, url, before, Coordinator::of_process());
        let steps = tracker.status().progress.steps;
        Self::made_by(OBSERVERS, tracker, &Setup { config, url, steps, records, writer })
    }

    fn made_by(list: &[Make], tracker: StatusTracker, setup: &Setup<'_>) -> Self {
        Self { tracker, observers: list.iter().filter_map(|make| make(setup)).collect() }
    }

    /// Tells all that the run begins.
    pub fn begin(&mut self, actions: &[Action], state: &State) {
        let begin = RunBegin { actions, state, status: self.tracker.status() };
        self.observers.iter_mut().for_each(|observer| observer.begin(&begin));
    }

    /// Tells all what happened.
    pub fn observe(&mut self, at: Seconds, event: &Event, actions: &[Action], state: &State) {
        let urgency = self.tracker.observe(at, event, actions, state);
        let (status, pace) = (self.tracker.status(), self.tracker.pace());
        let observation = Observation { at, event, actions, state, status, urgency, pace };
        self.observers.iter_mut().for_each(|observer| observer.observe(&observation));
    }

    /// Takes in how many requests the control channel of the current attempt has refused.
    pub fn set_refused(&mut self, times: u64) {
        self.tracker.set_refused(times);
    }

    /// Tells all that the run is over under this coordinator.
    pub fn end(&mut self, verdict: &Verdict, state: &State) {
        self.tracker.end(verdict, state);
        let end = RunEnd { verdict, state, status: self.tracker.status() };
        self.observers.iter_mut().for_each(|observer| observer.end(&end));
    }
}
