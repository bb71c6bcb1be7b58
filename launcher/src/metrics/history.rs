//! Records and evaluations of all attempts, in the order of execution.

use std::collections::BTreeSet;

use lambert_store::Store;
use lambert_store::records::{RecordedEvent, RecordedStep, StepRecords};
use lambert_store::run::AttemptStep;

use super::line::RecordLine;

/// Step records and evaluations of a run.
#[derive(Debug, Default)]
pub struct History {
    records: StepRecords<RecordLine>,
    /// Damaged lines that were reported.
    reported: usize,
}

/// A step record or an event.
#[derive(Debug, Clone, Copy)]
pub struct Entry<'a> {
    pub position: AttemptStep,
    /// True if a later attempt repeated the step or a rollback invalidated it.
    pub is_undone: bool,
    pub is_event: bool,
    /// The line, a JSON object.
    pub text: &'a str,
    /// Estimated time of its end, seconds since the Unix epoch.
    pub time: f64,
}

impl History {
    /// Reads what the run has written since the last call; false if there is nothing. Logs a warning for each damaged line.
    ///
    /// # Errors
    /// A store error, or an unreadable rollback record.
    pub fn refresh(&mut self, run: &Store) -> Result<bool, lambert_store::Error> {
        let has_changed = self.records.refresh(run)?;
        let damaged = &self.records.damaged;
        damaged.iter().skip(self.reported).for_each(|damaged| tracing::warn!("{damaged}; omitted"));
        self.reported = damaged.len();
        Ok(has_changed)
    }

    /// Returns all entries, by attempt, in the order of execution.
    pub fn entries(&self) -> Vec<Entry<'_>> {
        let effective: BTreeSet<AttemptStep> =
            self.records.effective().iter().map(|recorded| recorded.position).collect();
        let events: BTreeSet<AttemptStep> =
            self.records.effective_events().iter().map(|event| event.position).collect();
        let times = times(&self.records.all);
        let mut entries = Vec::with_capacity(self.records.all.len() + self.records.events.len());
        let mut waiting = self.records.events.iter().peekable();
        for (index, recorded) in self.records.all.iter().enumerate() {
            while let Some(event) = waiting.next_if(|event| event.records_before <= index) {
                entries.push(self.event(event, &events, &times));
            }
            let position = recorded.position;
            let is_undone = !effective.contains(&position);
            let text = recorded.record.text.get();
            entries.push(Entry { position, is_undone, is_event: false, text, time: times[index] });
        }
        entries.extend(waiting.map(|event| self.event(event, &events, &times)));
        entries
    }

    fn event<'a>(&self, event: &'a RecordedEvent, effective: &BTreeSet<AttemptStep>, times: &[f64]) -> Entry<'a> {
        let position = event.position;
        // An evaluation follows the step that it evaluates.
        let before = event.records_before.checked_sub(1);
        let step = before.filter(|index| self.records.all[*index].position == position);
        let time = step.map_or(seconds(event.saved), |index| times[index]);
        Entry { position, is_undone: !effective.contains(&position), is_event: true, text: &event.text, time }
    }
}

fn seconds(milliseconds: i64) -> f64 {
    milliseconds as f64 / 1000.0
}

/// Estimated end of each step: the object's modification time less the seconds of the later steps in the object.
fn times(records: &[RecordedStep<RecordLine>]) -> Vec<f64> {
    let (mut times, mut later): (Vec<f64>, Option<&RecordedStep<RecordLine>>) = (Vec::new(), None);
    for recorded in records.iter().rev() {
        let of_object = |other: &RecordedStep<RecordLine>| {
            (other.position.attempt, other.saved) == (recorded.position.attempt, recorded.saved)
        };
        let next = later.filter(|later| of_object(later)).zip(times.last());
        times.push(next.map_or(seconds(recorded.saved), |(later, time)| time - later.record.seconds));
        later = Some(recorded);
    }
    times.reverse();
    times
}

#[cfg(test)]
pub(crate) mod tests {
    use lambert_control::{StepRecord, StepTimes};
    use lambert_store::run;

    use super::*;

    pub(crate) fn store(name: &str) -> Store {
        Store::open(&format!("memory://history/{name}")).unwrap()
    }

    /// Line of a step that took 2 seconds.
    pub(crate) fn line(step: u64, loss: f64) -> String {
        let times = StepTimes { seconds: 2.0, ..StepTimes::default() };
        serde_json::to_string(&StepRecord { step, loss, times, ..StepRecord::default() }).unwrap() + "\n"
    }

    pub(crate) fn evaluation(step: u64, loss: f64) -> String {
        format!("{{\"event\":\"evaluation\",\"step\":{step},\"x_loss\":{loss},\"samples\":32}}\n")
    }

    pub(crate) fn put(store: &Store, attempt: u32, from: u64, text: String) {
        store.put(&run::records(attempt, from), text.into()).unwrap();
    }

    pub(crate) fn read(store: &Store) -> History {
        let mut history = History::default();
        history.refresh(store).unwrap();
        history
    }

    #[test]
    fn entries_are_in_order_and_undone_ones_are_marked() {
        let store = store("order");
        let first = [evaluation(0, 9.0), line(1, 5.0), line(2, 4.0), evaluation(2, 8.0), line(3, 900.0)].concat();
        put(&store, 1, 0, first + &evaluation(3, 901.0));
        store.put(&run::rollback(1), "{\"attempt\":1,\"steps\":2}".into()).unwrap();
        put(&store, 2, 2, [line(3, 3.0), evaluation(3, 7.0), "{\"step\":".into()].concat());
        let history = read(&store);
        let listed: Vec<_> = history
            .entries()
            .iter()
            .map(|entry| (entry.position.attempt, entry.position.step, entry.is_event, entry.is_undone))
            .collect();
        let expected = [
            (1, 0, true, false),
            (1, 1, false, false),
            (1, 2, false, false),
            (1, 2, true, false),
            (1, 3, false, true),
            (1, 3, true, true),
            (2, 3, false, false),
            (2, 3, true, false),
        ];
        assert_eq!((listed, history.reported), (expected.to_vec(), 1));
    }

    #[test]
    fn times_count_back_from_the_save() {
        let store = store("times");
        put(&store, 1, 0, [line(1, 5.0), line(2, 4.0), evaluation(2, 8.0), line(3, 3.0)].concat());
        let history = read(&store);
        let times: Vec<f64> = history.entries().iter().map(|entry| entry.time).collect();
        let end = history.records.all[0].saved as f64 / 1000.0;
        assert_eq!(times, [end - 4.0, end - 2.0, end - 2.0, end]);
        assert!((crate::host::now() - end).abs() < 60.0, "{end}");
    }
}
