//! Writes `status.json` and `coordinator.json` to the run's store.

use lambert_store::run::COORDINATOR;

use super::{Observation, Observer, RunEnd, Setup};
use crate::decide::{Memory, Verdict};
use crate::host;
use crate::status::{OBJECT, Status};
use crate::store_writer::{StoreWriter, Urgency, Write};

/// Observer that writes the status and the coordinator's history to the store.
#[derive(Debug)]
pub struct StatusFile {
    writer: StoreWriter,
    /// Last version handed to the writer.
    memory: Memory,
}

/// Creates the observer.
pub fn make(setup: &Setup<'_>) -> Option<Box<dyn Observer>> {
    Some(Box::new(StatusFile { writer: setup.writer.clone(), memory: Memory::default() }))
}

impl Observer for StatusFile {
    fn observe(&mut self, observation: &Observation<'_>) {
        if let Some(urgency) = observation.urgency {
            self.write(observation.status, &observation.state.memory, urgency);
        }
    }

    fn end(&mut self, end: &RunEnd<'_>) {
        match end.verdict {
            // The status belongs to the coordinator that took over the run.
            Verdict::Replaced(_) => self.writer.discard(),
            _ => self.write(end.status, &end.state.memory, Urgency::Change),
        }
    }
}

impl StatusFile {
    /// Hands changed objects to the writer. The coordinator's history comes first: the next start needs it.
    fn write(&mut self, status: &Status, memory: &Memory, urgency: Urgency) {
        let mut writes = Vec::new();
        if *memory != self.memory {
            self.memory = memory.clone();
            writes.push(Write::json(COORDINATOR, memory.clone()));
        }
        let status = status.clone();
        writes.push(Write::json_made_by(OBJECT, move || Status { updated: host::now(), ..status }));
        self.writer.hand_over(writes, urgency);
    }
}
