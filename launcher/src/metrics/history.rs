//! Records and evaluations of all attempts, in the order of execution. The lines of step records are not in memory: a
//! caller that needs them reads them again.

use lambert_store::Store;
use lambert_store::checkpoint::Rollbacks;
use lambert_store::records::{RecordedEvent, RecordedStep, RefreshReason, StepRecords};
use lambert_store::run::AttemptStep;

use super::line::{RecordLine, RecordSeconds};

/// Step records and evaluations of a run.
#[derive(Debug, Default)]
pub struct History {
    records: StepRecords<RecordSeconds>,
    /// Number of damaged lines for which a warning was logged.
    reported: usize,
    /// Number of times that everything was read again.
    rereads: usize,
}

/// A step record or an event.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    pub position: AttemptStep,
    /// Estimated time at which the step or the event ended, seconds since the Unix epoch.
    pub time: f64,
    /// Index of an event; 0 for a step record.
    event: u32,
    pub is_event: bool,
    /// True if a later attempt repeated the step or a rollback invalidated it.
    pub is_undone: bool,
}

/// End of a history at some time.
#[derive(Debug, Clone, Default)]
pub struct HistoryEnd {
    steps: usize,
    events: usize,
    rereads: usize,
    rollbacks: Rollbacks,
}

impl History {
    /// Reads the records that the run has written since the last call. Returns false if there are none. Logs a warning
    /// for each damaged line.
    ///
    /// # Errors
    /// The store fails, or a rollback record is unreadable.
    pub fn refresh(&mut self, run: &Store) -> Result<bool, lambert_store::Error> {
        let rereads = &mut self.rereads;
        let count = |_: &mut StepRecords<_>, reason| *rereads += usize::from(reason == RefreshReason::Reread);
        let has_changed = self.records.refresh_in_parts(run, count)?;
        let damaged = &self.records.damaged;
        damaged.iter().skip(self.reported).for_each(|damaged| tracing::warn!("{damaged}; omitted"));
        self.reported = damaged.len();
        Ok(has_changed)
    }

    /// Returns the current end.
    pub fn end(&self) -> HistoryEnd {
        let (steps, events) = (self.records.all.len(), self.records.events.len());
        HistoryEnd { steps, events, rereads: self.rereads, rollbacks: self.records.rollbacks().clone() }
    }

    /// True if since `end` there were only new records: no rollback, and no object was replaced.
    pub fn continues(&self, end: &HistoryEnd) -> bool {
        end.rereads == self.rereads && end.rollbacks == *self.records.rollbacks()
    }

    /// Returns the entries of all attempts, one attempt after the other, in the order of execution.
    pub fn entries(&self) -> Vec<Entry> {
        self.entries_after(&HistoryEnd::default())
    }

    /// Returns the entries after `end`, which the history continues. They do not say whether they undo earlier entries.
    pub fn entries_after(&self, end: &HistoryEnd) -> Vec<Entry> {
        let (all, all_events) = (&self.records.all, &self.records.events);
        let (steps, events) = (all.get(end.steps..).unwrap_or_default(), end.events..all_events.len());
        let is_step_undone = self.undone(steps, |recorded| recorded.position);
        let is_event_undone = self.undone(all_events.get(events.clone()).unwrap_or_default(), |event| event.position);
        // A new event may follow the last step before `end`.
        let first = end.steps.saturating_sub(1);
        let times = times(all.get(first..).unwrap_or_default());
        let event = |index: usize| {
            let recorded = &all_events[index];
            let time = self.followed_step(recorded).map_or(seconds(recorded.saved), |step| times[step - first]);
            let is_undone = is_event_undone[index - end.events];
            Entry { position: recorded.position, time, event: index as u32, is_event: true, is_undone }
        };
        let mut entries = Vec::with_capacity(steps.len() + events.len());
        let mut waiting = events.peekable();
        for (index, recorded) in steps.iter().enumerate() {
            let step = end.steps + index;
            while let Some(index) = waiting.next_if(|index| all_events[*index].records_before <= step) {
                entries.push(event(index));
            }
            let (time, is_undone) = (times[step - first], is_step_undone[index]);
            entries.push(Entry { position: recorded.position, time, event: 0, is_event: false, is_undone });
        }
        entries.extend(waiting.map(event));
        entries
    }

    /// Calls `take` with entries of this history and their lines, in the order of `entries`. Reads the step records from
    /// the store again, a part at a time.
    ///
    /// # Errors
    /// The store fails or no longer has a record, or an error of `take`.
    pub fn read<'a, E: From<lambert_store::Error>>(
        &self,
        run: &Store,
        entries: impl Iterator<Item = &'a Entry> + Clone,
        mut take: impl FnMut(&Entry, &str) -> Result<(), E>,
    ) -> Result<(), E> {
        let steps = entries.clone().filter(|entry| !entry.is_event).map(|entry| entry.position);
        let mut waiting = entries;
        self.records.reread(run, steps, |line: RecordLine| {
            for entry in waiting.by_ref() {
                if !entry.is_event {
                    return take(entry, line.text.get());
                }
                take(entry, self.event(entry))?;
            }
            Ok(())
        })?;
        waiting.try_for_each(|entry| take(entry, self.event(entry)))
    }

    /// Line of an event of this history.
    pub fn event(&self, entry: &Entry) -> &str {
        self.records.events.get(entry.event as usize).map_or("", |event| &event.text)
    }

    /// Says of each record whether a rollback or a later record undid it. `records` are sorted by attempt.
    fn undone<R>(&self, records: &[R], position: impl Fn(&R) -> AttemptStep) -> Vec<bool> {
        let mut last_valid: Option<(u32, u64)> = None;
        let mut is_valid = |AttemptStep { attempt, step }| {
            let (_, last) = match last_valid.filter(|(of, _)| *of == attempt) {
                Some(known) => known,
                None => *last_valid.insert((attempt, self.last_step_without_rollback(attempt))),
            };
            step <= last
        };
        let position = |index: usize| position(&records[index]);
        let mut valid: Vec<usize> = (0..records.len()).filter(|index| is_valid(position(*index))).collect();
        valid.sort_by_key(|index| position(*index).step);
        let mut undone = vec![true; records.len()];
        for of_step in valid.chunk_by(|a, b| position(*a).step == position(*b).step) {
            let attempt = of_step.last().map(|last| position(*last).attempt);
            let kept = of_step.iter().filter(|index| Some(position(**index).attempt) == attempt);
            kept.for_each(|index| undone[*index] = false);
        }
        undone
    }

    /// Last step of an attempt that no rollback has invalidated.
    fn last_step_without_rollback(&self, attempt: u32) -> u64 {
        let rollbacks = self.records.rollbacks().points().iter().filter(|rollback| rollback.attempt >= attempt);
        rollbacks.map(|rollback| rollback.last_kept).min().unwrap_or(u64::MAX)
    }

    /// Index of the step record that an event follows. An evaluation follows the step that it evaluates.
    fn followed_step(&self, event: &RecordedEvent) -> Option<usize> {
        let before = event.records_before.checked_sub(1)?;
        (self.records.all[before].position == event.position).then_some(before)
    }
}

fn seconds(milliseconds: i64) -> f64 {
    milliseconds as f64 / 1000.0
}

/// Estimates the end of each step: the modification time of the object that contains the record of the step, minus the
/// durations of the later steps in this object.
fn times(records: &[RecordedStep<RecordSeconds>]) -> Vec<f64> {
    let (mut times, mut later) = (Vec::with_capacity(records.len()), None::<&RecordedStep<RecordSeconds>>);
    for recorded in records.iter().rev() {
        let of_object = |other: &RecordedStep<RecordSeconds>| {
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

    /// Returns the line of a step that took 2 seconds.
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

    /// Pseudo-random numbers (SplitMix64).
    pub(crate) struct Numbers(pub u64);

    impl Numbers {
        pub(crate) fn below(&mut self, end: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)) % end
        }
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

    #[test]
    fn effective_entries_are_those_of_the_store() {
        for seed in 1..=20 {
            let (store, mut numbers) = (store(&format!("effective-{seed}")), Numbers(seed));
            for attempt in 1..=12 {
                let from = numbers.below(20);
                let steps = from + 1..=from + 1 + numbers.below(10);
                put(&store, attempt, from, steps.map(|step| line(step, 1.0) + &evaluation(step, 2.0)).collect());
                if numbers.below(4) == 0 {
                    let steps = numbers.below(25);
                    let text = format!("{{\"attempt\":{attempt},\"steps\":{steps}}}");
                    store.put(&run::rollback(attempt), text.into()).unwrap();
                }
            }
            let history = read(&store);
            let found = |is_event: bool| {
                let entries = history.entries().into_iter();
                let found = entries.filter(|entry| entry.is_event == is_event && !entry.is_undone);
                let mut positions: Vec<AttemptStep> = found.map(|entry| entry.position).collect();
                positions.sort_by_key(|position| position.step);
                positions
            };
            let steps: Vec<AttemptStep> = history.records.effective().iter().map(|step| step.position).collect();
            let events: Vec<AttemptStep> =
                history.records.effective_events().iter().map(|event| event.position).collect();
            assert!(found(false) == steps && found(true) == events, "seed {seed}");
        }
    }

    #[test]
    fn lines_and_new_entries_are_read() {
        let store = store("again");
        put(&store, 1, 0, evaluation(0, 9.0) + &line(1, 5.0) + &line(2, f64::NAN));
        let mut history = read(&store);
        let end = history.end();
        put(&store, 1, 2, evaluation(2, 8.0) + &line(3, 3.0) + &evaluation(3, 7.0));
        assert!(history.refresh(&store).unwrap() && history.continues(&end));
        let lines = |entries: &[Entry]| {
            let mut lines = String::new();
            let take = |_: &Entry, text: &str| {
                lines += &(text.trim_end().to_owned() + "\n");
                Ok::<(), lambert_store::Error>(())
            };
            history.read(&store, entries.iter(), take).unwrap();
            lines
        };
        let new = evaluation(2, 8.0) + &line(3, 3.0) + &evaluation(3, 7.0);
        assert_eq!(lines(&history.entries_after(&end)), new);
        let all = history.entries();
        assert_eq!(lines(&all), evaluation(0, 9.0) + &line(1, 5.0) + &line(2, f64::NAN) + &new);
        let times = |entries: &[Entry]| entries.iter().map(|entry| entry.time).collect::<Vec<_>>();
        assert_eq!(times(&history.entries_after(&end)), times(&all[3..]));
        // A longer object replaces one that was read, and then there is a rollback.
        put(&store, 1, 2, new + &line(4, 2.0));
        history.refresh(&store).unwrap();
        assert!(!history.continues(&end));
        let end = history.end();
        store.put(&run::rollback(1), "{\"attempt\":1,\"steps\":2}".into()).unwrap();
        history.refresh(&store).unwrap();
        assert!(!history.continues(&end));
    }
}
