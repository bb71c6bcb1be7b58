//! Observers of a run. An observer receives events and decisions but cannot change them.
//!
//! - [`Observer`]: the trait; [`OBSERVERS`]: all implementations
//! - [`console`]: log and progress [`display`] on stderr, without many [`repeats`]
//! - [`json_lines`]: `lambert run --json`; [`status_file`]:
//!   `status.json` and `coordinator.json` in the store of the run; [`notify`]: `notify.command`; [`prometheus`]:
//!   metrics for Prometheus; [`tensorboard`]: event files for TensorBoard; [`page`]: web page of the run
//! - [`busy_address`]: start of a server whose address is in use
//! - [`tracker`]: status, [`throughput`] and [`goodput`] of the run, derived from events and passed to all observers
//!
//! The module depends on [`decide`](crate::decide), not on [`crate::run`].

pub mod busy_address;
pub mod console;
pub mod display;
pub mod goodput;
pub mod json_lines;
pub mod notify;
pub mod page;
pub mod prometheus;
pub mod repeats;
pub mod status_file;
pub mod tensorboard;
pub mod throughput;
pub mod tracker;

#[cfg(test)]
mod tests;

use lambert_config::RunConfig;

use crate::decide::{Action, CoordinatorState, Event, Seconds, Verdict};
use crate::status::{CoordinatorProcess, Status};
use crate::store_writer::{StoreWriter, Urgency};

pub use json_lines::RecordOutput;
pub use throughput::{StepCosts, Throughput};
use tracker::StatusTracker;

/// Function that creates an observer. Returns `None` if the run does not need the observer. If the observer cannot
/// start, logs a warning and returns `None`, because a run must not fail for lack of an observer.
pub type MakeObserver = fn(&ObserverSetup<'_>) -> Option<Box<dyn Observer>>;

/// All observers, in call order. To add an observer, add a module to this directory and an entry to this list.
pub const OBSERVERS: &[MakeObserver] = &[
    status_file::make,
    console::make,
    json_lines::make,
    notify::make,
    prometheus::make,
    tensorboard::make,
    page::make,
];

/// Observes a run under one coordinator.
///
/// The coordinator calls these methods on its own thread. Therefore an observer must write to a disk or a network on
/// another thread. Observers handle their own errors.
pub trait Observer {
    /// Called when the coordinator starts.
    fn begin(&mut self, _begin: &RunBegin<'_>) {}

    /// Called after each event.
    fn observe(&mut self, observation: &Observation<'_>);

    /// Called last, when the coordinator ends.
    fn end(&mut self, _end: &RunEnd<'_>) {}
}

/// Inputs for creating observers.
#[derive(Debug, Clone, Copy)]
pub struct ObserverSetup<'a> {
    /// The run's configuration.
    pub config: &'a RunConfig,
    /// The run's URL.
    pub url: &'a str,
    /// Total number of steps of all stages.
    pub steps: u64,
    /// Output of step records.
    pub records: RecordOutput,
    /// Background writer for the store of the run.
    pub writer: &'a StoreWriter,
}

/// Start of a run under a coordinator.
#[derive(Debug, Clone, Copy)]
pub struct RunBegin<'a> {
    /// Initial actions.
    pub actions: &'a [Action],
    /// Coordinator state.
    pub state: &'a CoordinatorState,
    /// Run status.
    pub status: &'a Status,
}

/// An event and the resulting actions.
#[derive(Debug, Clone, Copy)]
pub struct Observation<'a> {
    /// Time of the event.
    pub at: Seconds,
    pub event: &'a Event,
    /// Actions taken in response.
    pub actions: &'a [Action],
    /// Coordinator state after the event.
    pub state: &'a CoordinatorState,
    /// Run status after the event. The list of ranks in the status is up to date only if `urgency` is set.
    pub status: &'a Status,
    /// Urgency of showing the status. `None`: a later observation will show the status.
    pub urgency: Option<Urgency>,
    /// Throughput, including the step that this event reports, if any.
    pub throughput: &'a Throughput,
}

/// End of a run under a coordinator.
#[derive(Debug, Clone, Copy)]
pub struct RunEnd<'a> {
    /// Outcome.
    pub verdict: &'a Verdict,
    /// Coordinator state.
    pub state: &'a CoordinatorState,
    /// Final run status. If another coordinator took over the run, the status describes the run before the takeover.
    pub status: &'a Status,
}

/// The observers of a run and the status tracker that feeds them.
pub struct Observers {
    tracker: StatusTracker,
    observers: Vec<Box<dyn Observer>>,
}

impl Observers {
    /// Creates the observers of [`OBSERVERS`] that the run needs. `before` is the last status of the previous
    /// coordinator.
    pub fn make(config: &RunConfig, url: &str, records: RecordOutput, before: Status, writer: &StoreWriter) -> Self {
        let tracker = StatusTracker::new(config, url, before, CoordinatorProcess::of_process());
        let steps = tracker.status().progress.steps;
        Self::made_by(OBSERVERS, tracker, &ObserverSetup { config, url, steps, records, writer })
    }

    fn made_by(list: &[MakeObserver], tracker: StatusTracker, setup: &ObserverSetup<'_>) -> Self {
        Self { tracker, observers: list.iter().filter_map(|make| make(setup)).collect() }
    }

    /// Notifies all observers of the start.
    pub fn begin(&mut self, actions: &[Action], state: &CoordinatorState) {
        let begin = RunBegin { actions, state, status: self.tracker.status() };
        self.observers.iter_mut().for_each(|observer| observer.begin(&begin));
    }

    /// Notifies all observers of an event.
    pub fn observe(&mut self, at: Seconds, event: &Event, actions: &[Action], state: &CoordinatorState) {
        let urgency = self.tracker.observe(at, event, actions, state);
        let (status, throughput) = (self.tracker.status(), self.tracker.throughput());
        let observation = Observation { at, event, actions, state, status, urgency, throughput };
        self.observers.iter_mut().for_each(|observer| observer.observe(&observation));
    }

    /// Sets the costs of the steps, from which the remaining time follows. Without costs, all steps count the same.
    pub fn set_step_costs(&mut self, costs: StepCosts) {
        self.tracker.set_step_costs(costs);
    }

    /// Records the number of requests that the control server refused in the current attempt.
    pub fn set_refused(&mut self, times: u64) {
        self.tracker.set_refused(times);
    }

    /// Notifies all observers of the end.
    pub fn end(&mut self, verdict: &Verdict, state: &CoordinatorState) {
        self.tracker.end(verdict, state);
        let end = RunEnd { verdict, state, status: self.tracker.status() };
        self.observers.iter_mut().for_each(|observer| observer.end(&end));
    }
}
