//! Writes `status.json` and `coordinator.json` to the store of the run.

use lambert_store::run::COORDINATOR;

use super::{Observation, Observer, ObserverSetup, RunEnd};
use crate::decide::{RestartHistory, Verdict};
use crate::host;
use crate::status::{OBJECT, Status};
use crate::store_writer::{ObjectWrite, StoreWriter, Urgency};

/// Observer that writes the status and the restart history to the store.
#[derive(Debug)]
pub struct StatusFile {
    writer: StoreWriter,
    /// Last history handed to the writer.
    history: RestartHistory,
}

/// Creates the observer.
pub fn make(setup: &ObserverSetup<'_>) -> Option<Box<dyn Observer>> {
    Some(Box::new(StatusFile { writer: setup.writer.clone(), history: RestartHistory::default() }))
}

impl Observer for StatusFile {
    fn observe(&mut self, observation: &Observation<'_>) {
        if let Some(urgency) = observation.urgency {
            self.write(observation.status, &observation.state.history, urgency);
        }
    }

    fn end(&mut self, end: &RunEnd<'_>) {
        match end.verdict {
            // The status belongs to the coordinator that took over the run.
            Verdict::Replaced(_) => self.writer.discard(),
            _ => self.write(end.status, &end.state.history, Urgency::Change),
        }
    }
}

impl StatusFile {
    /// Hands changed objects to the writer. The history comes first, because the next coordinator needs it.
    fn write(&mut self, status: &Status, history: &RestartHistory, urgency: Urgency) {
        let mut writes = Vec::new();
        if *history != self.history {
            self.history = history.clone();
            writes.push(ObjectWrite::json(COORDINATOR, history.clone()));
        }
        let status = status.clone();
        writes.push(ObjectWrite::json_made_by(OBJECT, move || Status { updated: host::now(), ..status }));
        self.writer.hand_over(writes, urgency);
    }
}
