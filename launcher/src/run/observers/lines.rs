//! `lambert run --json`: steps and what else happens, a JSON object a line on standard output.

use lambert_config::control::EventKind;
use lambert_control::Saying;
use serde_json::{Value, json};

use super::Scene;
use crate::console;
use crate::run::decide::{Action, Event, FromWorkers, Note, Verdict};
use crate::status::Status;

/// How step records are given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Records {
    /// Progress on standard error only.
    Shown,
    /// A JSON line each on standard output, too.
    Printed,
}

/// Writes the lines. A step's has no `event`; every other has.
#[derive(Debug)]
pub struct Lines {
    records: Records,
}

impl Lines {
    /// For standard output.
    pub fn new(records: Records) -> Self {
        Self { records }
    }

    /// Something happened.
    pub fn see(&self, scene: &Scene<'_>) {
        if self.records == Records::Printed {
            of_event(scene).into_iter().chain(scene.actions.iter().filter_map(of_action)).for_each(|line| print(&line));
        }
    }

    /// The run is over under this coordinator.
    pub fn end(&self, verdict: &Verdict, status: &Status) {
        if self.records == Records::Printed {
            let (state, error) = words(verdict);
            print(&json!({ "event": "end", "state": state, "step": status.step, "steps": status.steps,
                                "checkpoint": status.checkpoint, "error": error }));
        }
    }
}

fn print(line: &Value) {
    console::record(&line.to_string());
}

fn words(verdict: &Verdict) -> (&'static str, Option<&str>) {
    match verdict {
        Verdict::Finished => ("finished", None),
        Verdict::Stopped(_) => ("stopped", None),
        Verdict::Replaced(why) => ("replaced", Some(why)),
        Verdict::Failed(_, why) => ("failed", Some(why)),
    }
}

fn of_event(scene: &Scene<'_>) -> Option<Value> {
    let Event::Worker(attempt, FromWorkers::Message(_, saying)) = scene.event else { return None };
    match saying {
        Saying::Record(record) => serde_json::to_value(record).ok(),
        Saying::Event(event) => of_kind(*attempt, event),
    }
}

fn of_kind(attempt: u32, event: &EventKind) -> Option<Value> {
    match event {
        EventKind::Started { step, steps, checkpoint, .. } => Some(json!({
            "event": "start", "attempt": attempt, "step": step, "steps": steps, "checkpoint": checkpoint })),
        EventKind::Checkpoint { name, step, seconds, written } => Some(json!({
            "event": "checkpoint", "name": name, "step": step, "paused_seconds": seconds, "seconds": written })),
        EventKind::RolledBack { message, .. } => {
            Some(json!({ "event": "rollback", "attempt": attempt, "cause": message }))
        }
        EventKind::Evaluation(_)
        | EventKind::Plateau { .. }
        | EventKind::Grown { .. }
        | EventKind::MicroBatch { .. } => serde_json::to_value(event).ok(),
        EventKind::Warning { .. } | EventKind::Finished { .. } | EventKind::Failed { .. } => None,
    }
}

fn of_action(action: &Action) -> Option<Value> {
    match action {
        Action::Note(Note::Restart { cause, pause, rollback: false }) => {
            Some(json!({ "event": "restart", "cause": cause, "pause_seconds": pause }))
        }
        Action::Note(Note::Waiting { cause, pause, .. }) => {
            Some(json!({ "event": "wait", "cause": cause, "pause_seconds": pause }))
        }
        _ => None,
    }
}
