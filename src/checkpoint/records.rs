//! Step records: one JSON-lines object per interval between two checkpoints.

use bytes::Bytes;
use lambert_control::StepRecord;
use lambert_store::{Store, run};
use serde::Serialize;

use crate::error::Error;

/// Adds a pause, in seconds, to the time of a step, and lowers the throughput of the step accordingly.
pub fn add_pause(record: &mut StepRecord, pause: f64) {
    let seconds = &mut record.times.seconds;
    let share = if pause > 0.0 { *seconds / (*seconds + pause) } else { 1.0 };
    *seconds += pause;
    record.throughput.scale(share);
}

/// Step records since the last checkpoint.
pub struct Records {
    attempt: u32,
    from: u64,
    lines: String,
}

impl Records {
    /// Starts an empty interval after `step` steps.
    pub fn new(attempt: u32, step: u64) -> Self {
        Self { attempt, from: step, lines: String::new() }
    }

    /// Appends the record of a step or an evaluation.
    pub fn push(&mut self, record: &impl Serialize) -> Result<(), Error> {
        self.lines += &serde_json::to_string(record).map_err(Error::Json)?;
        self.lines.push('\n');
        Ok(())
    }

    /// Returns the records for a checkpoint after `step` and starts the next interval. An interval
    /// without steps stays open. The records object of the next checkpoint then replaces the object
    /// of this checkpoint and includes its lines.
    pub fn cut(&mut self, step: u64) -> RecordBatch {
        let from = std::mem::replace(&mut self.from, step);
        let lines = if from == step { self.lines.clone() } else { std::mem::take(&mut self.lines) };
        RecordBatch { attempt: self.attempt, from, lines }
    }

    /// Restores the records of a failed save, so that the next save includes them.
    pub fn restore(&mut self, records: RecordBatch) {
        if self.from != records.from {
            self.from = records.from;
            self.lines.insert_str(0, &records.lines);
        }
    }
}

/// Step records between two checkpoints.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordBatch {
    attempt: u32,
    from: u64,
    lines: String,
}

impl RecordBatch {
    /// Writes the records as one object. Replaces the shorter object of a failed save, if there is one.
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
    fn pauses_reduce_the_rates() {
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
    fn records_of_a_failed_save_are_in_the_next() {
        let mut records = Records::new(2, 10);
        let push = |records: &mut Records, step: u64| records.push(&step).unwrap();
        push(&mut records, 11);
        let failed = records.cut(11);
        push(&mut records, 12);
        records.restore(failed);
        push(&mut records, 13);
        assert_eq!(records.cut(13), RecordBatch { attempt: 2, from: 10, lines: "11\n12\n13\n".into() });
        assert_eq!(records.cut(13), RecordBatch { attempt: 2, from: 13, lines: String::new() });

        // An interval without steps can have the record of a repeated evaluation.
        push(&mut records, 0);
        let failed = records.cut(13);
        assert_eq!(failed, RecordBatch { attempt: 2, from: 13, lines: "0\n".into() });
        records.restore(failed);
        push(&mut records, 14);
        assert_eq!(records.cut(14), RecordBatch { attempt: 2, from: 13, lines: "0\n14\n".into() });
    }
}
