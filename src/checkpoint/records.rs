//! Where the records of steps are kept: an object of JSON lines for each stretch between two checkpoints.

use bytes::Bytes;
use lambert_control::StepRecord;
use lambert_store::{Store, run};
use serde::Serialize;

use crate::error::Error;

/// Adds seconds in which the step was held up by something else; the rates are over all of them.
pub fn add_pause(record: &mut StepRecord, pause: f64) {
    let seconds = &mut record.times.seconds;
    let share = if pause > 0.0 { *seconds / (*seconds + pause) } else { 1.0 };
    *seconds += pause;
    record.throughput.scale(share);
}

/// The records since the last checkpoint.
pub struct Records {
    attempt: u32,
    from: u64,
    lines: String,
}

impl Records {
    /// None yet, after `step` steps.
    pub fn new(attempt: u32, step: u64) -> Self {
        Self { attempt, from: step, lines: String::new() }
    }

    /// Adds one record: of a step, or of an evaluation.
    pub fn push(&mut self, record: &impl Serialize) -> Result<(), Error> {
        self.lines += &serde_json::to_string(record).map_err(Error::Json)?;
        self.lines.push('\n');
        Ok(())
    }

    /// What was added, as the records of steps that a checkpoint after `step` holds, and begins the next. Where there was no step since
    /// the last, the next is to take its place: it holds what this one does, too.
    pub fn cut(&mut self, step: u64) -> RecordBatch {
        let from = std::mem::replace(&mut self.from, step);
        let lines = if from == step { self.lines.clone() } else { std::mem::take(&mut self.lines) };
        RecordBatch { attempt: self.attempt, from, lines }
    }

    /// Takes back what was cut last, for a checkpoint that did not come about: the next one holds those steps, too.
    pub fn restore(&mut self, records: RecordBatch) {
        if self.from != records.from {
            self.from = records.from;
            self.lines.insert_str(0, &records.lines);
        }
    }
}

/// The records of the steps between two checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordBatch {
    attempt: u32,
    from: u64,
    lines: String,
}

impl RecordBatch {
    /// Writes them as one object, in place of a shorter one that a failed save has left.
    pub fn write(&self, store: &Store) -> Result<(), lambert_store::Error> {
        if self.lines.is_empty() {
            return Ok(());
        }
        store.put(&run::records(self.attempt, self.from), Bytes::from(self.lines.clone()))
    }
}

#[cfg(test)]
mod tests {
    use lambert_control::{StepTimes, Throughput};

    use super::*;

    #[test]
    fn rates_are_over_all_seconds() {
        let throughput = Throughput { samples_per_second: 256.0, tokens_per_second: 1024.0, flops_utilization: 0.5 };
        let times = StepTimes { seconds: 1.0, ..StepTimes::default() };
        let mut record = StepRecord { times, throughput, ..StepRecord::default() };
        add_pause(&mut record, 0.0);
        assert_eq!(record.throughput, throughput);
        add_pause(&mut record, 3.0);
        assert_eq!(record.times.seconds, 4.0);
        let slower = Throughput { samples_per_second: 64.0, tokens_per_second: 256.0, flops_utilization: 0.125 };
        assert_eq!(record.throughput, slower);
    }

    #[test]
    fn records_of_a_failed_save_come_with_the_next() {
        let mut records = Records::new(2, 10);
        let push = |records: &mut Records, step: u64| records.push(&step).unwrap();
        push(&mut records, 11);
        let failed = records.cut(11);
        push(&mut records, 12);
        records.restore(failed);
        push(&mut records, 13);
        assert_eq!(records.cut(13), RecordBatch { attempt: 2, from: 10, lines: "11\n12\n13\n".into() });
        assert_eq!(records.cut(13), RecordBatch { attempt: 2, from: 13, lines: String::new() });

        // Of no step: an evaluation that was made up for.
        push(&mut records, 0);
        let failed = records.cut(13);
        assert_eq!(failed, RecordBatch { attempt: 2, from: 13, lines: "0\n".into() });
        records.restore(failed);
        push(&mut records, 14);
        assert_eq!(records.cut(14), RecordBatch { attempt: 2, from: 13, lines: "0\n14\n".into() });
    }
}
