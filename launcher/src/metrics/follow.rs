//! JSON lines of a run that is followed. They are those of [`json_lines`], and lines that say which steps
//! are undone.

use std::io::Write;

use lambert_store::Store;

use super::WriteError;
use super::history::{Entry, History, HistoryEnd};
use super::json_lines;

/// Place of a line in the order of execution. The event of a step follows its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct LinePosition {
    attempt: u32,
    step: u64,
    is_event: bool,
}

/// Writes the lines of a run as the run writes its records.
#[derive(Debug, Default)]
pub struct LineFollower {
    history: History,
    /// End of the history at the last write. `None` if the write has failed.
    written: Option<HistoryEnd>,
    /// Last line that was written.
    last: Option<LinePosition>,
    /// Largest step of the lines that were written and are not undone.
    largest_step: u64,
}

impl LineFollower {
    /// Reads the records that the run has written since the last call. Returns true if there are lines to write.
    ///
    /// # Errors
    /// The store fails.
    pub fn refresh(&mut self, run: &Store) -> Result<bool, lambert_store::Error> {
        Ok(self.history.refresh(run)? || self.written.is_none())
    }

    /// Writes the new lines. Before the first line of an attempt that repeats steps, writes a line `undo` with the last step
    /// that stays valid.
    ///
    /// # Errors
    /// `output` cannot be written, or the records cannot be read. The next call continues after the last line that was written.
    pub fn write(&mut self, run: &Store, output: &mut dyn Write) -> Result<(), WriteError> {
        let new: Vec<Entry> = match self.written.take().filter(|written| self.history.continues(written)) {
            Some(written) => self.history.entries_after(&written),
            // Objects were replaced by longer ones, there was a rollback, or this is the first call.
            None => self.history.entries().into_iter().filter(|entry| self.last < Some(line_position(entry))).collect(),
        };
        let (last, largest_step) = (&mut self.last, &mut self.largest_step);
        self.history.read(run, new.iter(), |entry, text| {
            let position = line_position(entry);
            // An evaluation belongs to the weights after its step.
            let kept = if entry.is_event { position.step } else { position.step.saturating_sub(1) };
            if last.is_some_and(|last| last.attempt < position.attempt) && kept < *largest_step && !entry.is_undone {
                let attempt = position.attempt;
                writeln!(output, "{{\"attempt\":{attempt},\"undone\":false,\"event\":\"undo\",\"step\":{kept}}}")?;
                *largest_step = kept;
            }
            json_lines::write_line(entry, text, output)?;
            *last = Some(position);
            if !entry.is_undone {
                *largest_step = position.step.max(*largest_step);
            }
            Ok::<(), WriteError>(())
        })?;
        self.written = Some(self.history.end());
        Ok(())
    }
}

fn line_position(entry: &Entry) -> LinePosition {
    LinePosition { attempt: entry.position.attempt, step: entry.position.step, is_event: entry.is_event }
}

#[cfg(test)]
mod tests {
    use lambert_store::run;
    use serde_json::Value;

    use super::super::history::tests::{Numbers, evaluation, line, put, read, store};
    use super::*;

    fn new_lines(follower: &mut LineFollower, store: &Store) -> String {
        let mut text = Vec::new();
        if follower.refresh(store).unwrap() {
            follower.write(store, &mut text).unwrap();
        }
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn an_attempt_that_repeats_steps_undoes_lines() {
        let (store, mut follower) = (store("undo"), LineFollower::default());
        put(&store, 1, 0, line(1, 5.0) + &line(2, 4.0) + &evaluation(2, 8.0) + &line(3, 3.0));
        assert_eq!(new_lines(&mut follower, &store).lines().count(), 4);
        assert_eq!(new_lines(&mut follower, &store), "");
        put(&store, 2, 2, line(3, 2.5));
        let text = new_lines(&mut follower, &store);
        let (undo, repeated) = text.split_once('\n').unwrap();
        assert_eq!(undo, "{\"attempt\":2,\"undone\":false,\"event\":\"undo\",\"step\":2}");
        assert!(
            repeated.starts_with("{\"attempt\":2,\"undone\":false,") && repeated.lines().count() == 1,
            "{repeated}"
        );
    }

    /// The valid lines of a follower are those of the whole history, with rollbacks, repeated steps and objects that longer
    /// ones replace.
    #[test]
    fn lines_without_undone_ones_are_the_history() {
        for seed in 1..=40 {
            let (store, mut numbers) = (store(&format!("lines-{seed}")), Numbers(seed));
            let (mut follower, mut text) = (LineFollower::default(), String::new());
            let mut reached = 0;
            for attempt in 1..=12 {
                let from = numbers.below(reached + 1);
                let steps = 1 + numbers.below(10);
                let lines = |to: u64| (from + 1..=to).map(|step| line(step, 1.0) + &evaluation(step, 2.0)).collect();
                put(&store, attempt, from, lines(from + steps));
                text += &new_lines(&mut follower, &store);
                if numbers.below(3) == 0 {
                    put(&store, attempt, from, lines(from + steps + 2));
                    text += &new_lines(&mut follower, &store);
                }
                reached = from + steps;
                if numbers.below(4) == 0 {
                    reached = numbers.below(reached);
                    let rollback = format!("{{\"attempt\":{attempt},\"steps\":{reached}}}");
                    store.put(&run::rollback(attempt), rollback.into()).unwrap();
                }
            }
            let mut valid = Vec::new();
            for line in text.lines() {
                let value: Value = serde_json::from_str(line).unwrap();
                let (attempt, step) = (value["attempt"].as_u64().unwrap(), value["step"].as_u64().unwrap());
                match value["event"].as_str() {
                    Some("undo") => valid.retain(|(_, kept, _): &(u64, u64, bool)| *kept <= step),
                    event if value["undone"] == false => valid.push((attempt, step, event.is_some())),
                    _ => {}
                }
            }
            let entries = read(&store).entries().into_iter().filter(|entry| !entry.is_undone);
            let entries: Vec<_> =
                entries.map(|entry| (u64::from(entry.position.attempt), entry.position.step, entry.is_event)).collect();
            // The history keeps steps until they are repeated, a follower until an attempt starts before them. A rollback that
            // no attempt has followed is not yet written.
            let last = entries.last().map_or(0, |(_, step, _)| *step);
            valid.retain(|(_, step, _)| *step <= last);
            let is_left = |index: usize| {
                let (attempt, step, _) = entries[index];
                let kept = |is_event: bool, step: u64| if is_event { step } else { step - 1 };
                !entries[index..].iter().any(|(later, at, is_event)| *later > attempt && kept(*is_event, *at) < step)
            };
            let left: Vec<_> = (0..entries.len()).filter(|index| is_left(*index)).map(|index| entries[index]).collect();
            assert_eq!(valid, left, "seed {seed}");
        }
    }
}
