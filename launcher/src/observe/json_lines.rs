//! `lambert run --json`: step records and events as JSON lines on stdout.

use lambert_control::EventKind;
use lambert_control::Message;
use serde_json::{Value, json};

use super::{Observation, Observer, ObserverSetup, RunEnd};
use crate::console;
use crate::decide::{Action, Event, Note, RestartKind, Verdict, WorkerEvent};

/// Destination of step records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordOutput {
    /// Step records appear only in the progress display on stderr.
    Shown,
    /// Step records are also printed to stdout, one JSON line per step.
    Printed,
}

/// Observer that writes JSON lines. All lines except step records have an `event` key.
#[derive(Debug)]
pub struct JsonLines;

/// Creates the observer if records are printed.
pub fn make(setup: &ObserverSetup<'_>) -> Option<Box<dyn Observer>> {
    (setup.records == RecordOutput::Printed).then(|| Box::new(JsonLines) as Box<dyn Observer>)
}

impl Observer for JsonLines {
    fn observe(&mut self, observation: &Observation<'_>) {
        record(observation.event).into_iter().chain(events(observation)).for_each(|line| print(&line));
    }

    fn end(&mut self, end: &RunEnd<'_>) {
        print(&end_line(end));
    }
}

/// Lines of events; all have an `event` key.
pub fn events(observation: &Observation<'_>) -> Vec<Value> {
    let of_actions = observation.actions.iter().filter_map(of_action);
    of_event(observation.event).into_iter().chain(of_actions).collect()
}

/// Line of the end of a run.
pub fn end_line(end: &RunEnd<'_>) -> Value {
    let ((state, error), status) = (words(end.verdict), end.status);
    let mut line = json!({ "event": "end", "state": state, "step": status.progress.step,
            "steps": status.progress.steps, "checkpoint": status.checkpoint, "error": error });
    if !end.state.excluded.is_empty() {
        line["excluded"] = json!(end.state.excluded);
    }
    line
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

fn record(event: &Event) -> Option<Value> {
    match event {
        Event::Worker(_, WorkerEvent::Message(_, Message::Record(record))) => serde_json::to_value(record).ok(),
        _ => None,
    }
}

fn of_event(event: &Event) -> Option<Value> {
    match event {
        Event::Worker(attempt, WorkerEvent::Message(rank, Message::Event(event))) => of_kind(*attempt, *rank, event),
        _ => None,
    }
}

fn of_kind(attempt: u32, rank: usize, event: &EventKind) -> Option<Value> {
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
        EventKind::Warning { message } | EventKind::SaveFailed { message, .. } => {
            Some(json!({ "event": "warning", "rank": rank, "message": message }))
        }
        EventKind::Finished { .. } | EventKind::Failed { .. } => None,
    }
}

fn of_action(action: &Action) -> Option<Value> {
    match action {
        Action::Note(Note::Restart { cause, pause, kind: RestartKind::Resume }) => {
            Some(json!({ "event": "restart", "cause": cause, "pause_seconds": pause }))
        }
        Action::Note(Note::Waiting { cause, pause, .. }) => {
            Some(json!({ "event": "wait", "cause": cause, "pause_seconds": pause }))
        }
        _ => None,
    }
}
