//! Who observes what happens and what is decided: the status in the store, the log and the display, the lines of
//! `--json`. None of them changes a decision.

mod lines;
mod people;
mod report;

use lambert_config::RunConfig;
use lambert_config::control::StepRecord;

use super::decide::{Action, Event, Seconds, State, Verdict};
use super::progress::Pace;
use crate::status::{Reporter, Status};

pub use lines::{Lines, Records};

/// What happened and what follows from it.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// When.
    pub at: Seconds,
    /// What happened.
    pub event: &'a Event,
    /// What follows.
    pub actions: &'a [Action],
    /// What is known afterwards.
    pub state: &'a State,
    /// Speed, with the steps up to here.
    pub pace: &'a Pace,
}

/// All of them.
pub struct Observers {
    pace: Pace,
    people: people::People,
    report: report::Report,
    lines: Lines,
}

impl Observers {
    /// For a run of this configuration.
    pub fn new(config: &RunConfig, records: Records, url: &str, before: Status, reporter: Reporter) -> Self {
        let report = report::Report::new(config, url, before, reporter);
        let people = people::People::new(report.steps(), url);
        Self { pace: Pace::default(), people, report, lines: Lines::new(records) }
    }

    /// Where the run was before this coordinator: its step and its newest checkpoint.
    pub fn before(&self) -> (u64, Option<String>) {
        let status = self.report.status();
        (status.step, status.checkpoint.clone())
    }

    /// A coordinator begins.
    pub fn begin(&mut self, actions: &[Action], state: &State) {
        actions.iter().for_each(|action| self.people.action(action, state));
    }

    /// Something happened.
    pub fn see(&mut self, at: Seconds, event: &Event, actions: &[Action], state: &State) {
        if let Some(record) = record(event) {
            self.pace.add(record);
        }
        let scene = Scene { at, event, actions, state, pace: &self.pace };
        self.report.see(&scene);
        self.people.see(&scene);
        self.lines.see(&scene);
    }

    /// So many requests were refused on the control channel.
    pub fn refused(&mut self, times: u64) {
        self.report.refused(times);
    }

    /// The request to stop has been followed.
    pub fn forget_stop(&self) {
        self.report.forget_stop();
    }

    /// The run is over under this coordinator.
    pub fn end(&mut self, verdict: &Verdict, state: &State) {
        self.people.end(verdict, self.report.status());
        self.lines.end(verdict, self.report.status());
        self.report.end(verdict, state);
    }
}

/// The step that an event tells of, if it is one.
fn record(event: &Event) -> Option<&StepRecord> {
    use super::decide::FromWorkers;
    use lambert_control::Saying;
    match event {
        Event::Worker(_, FromWorkers::Message(_, Saying::Record(record))) => Some(record),
        _ => None,
    }
}
