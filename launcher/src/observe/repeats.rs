//! Lines that many ranks print, such as the error of every rank after one rank has failed.

use std::collections::BTreeSet;

/// Number of ranks whose identical lines are shown.
const SHOWN: usize = 3;
/// Maximum number of texts to remember. The oldest text without hidden lines is forgotten first.
const TEXTS: usize = 256;

/// Deduplicates the output of the ranks. The first `SHOWN` ranks that print a text are shown, the others are counted.
/// Times of log lines are ignored.
#[derive(Debug, Default)]
pub struct RepeatedLines(Vec<RepeatedLine>);

#[derive(Debug)]
struct RepeatedLine {
    text: String,
    shown: Vec<usize>,
    hidden: BTreeSet<usize>,
}

impl RepeatedLines {
    /// Records a line of `rank`. Returns true if the line should be shown.
    pub fn is_shown(&mut self, rank: usize, line: &str) -> bool {
        let text = without_time(line);
        let Some(known) = self.0.iter_mut().find(|known| known.text == text) else {
            self.remember(RepeatedLine { text: text.to_owned(), shown: vec![rank], hidden: BTreeSet::new() });
            return true;
        };
        if known.shown.contains(&rank) {
            return true;
        }
        if known.shown.len() < SHOWN {
            known.shown.push(rank);
            return true;
        }
        known.hidden.insert(rank);
        false
    }

    fn remember(&mut self, line: RepeatedLine) {
        if self.0.len() >= TEXTS {
            let Some(oldest) = self.0.iter().position(|known| known.hidden.is_empty()) else { return };
            self.0.remove(oldest);
        }
        self.0.push(line);
    }

    /// Ends the attempt. Returns a line for each text with hidden lines.
    pub fn end(&mut self) -> Vec<String> {
        let texts = std::mem::take(&mut self.0).into_iter();
        texts.filter_map(|line| count(&line)).collect()
    }
}

fn count(RepeatedLine { text, hidden, .. }: &RepeatedLine) -> Option<String> {
    let ranks = if hidden.len() == 1 { "rank" } else { "ranks" };
    (!hidden.is_empty() && !text.is_empty()).then(|| format!("{} more {ranks} printed the same: {text}", hidden.len()))
}

/// Removes the time at the start of a log line: `2026-11-30T07:07:09.123456Z ERROR ...`.
fn without_time(line: &str) -> &str {
    let is_time =
        |word: &str| word.ends_with('Z') && word.contains('T') && word.starts_with(|c: char| c.is_ascii_digit());
    match line.split_once(' ') {
        Some((time, text)) if is_time(time) => text.trim_start(),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_identical_lines_the_first_three_ranks_are_shown() {
        let mut lines = RepeatedLines::default();
        let error = |rank: usize| format!("2026-11-30T07:07:09.{rank:06}Z ERROR barrier: rank 9 has left the group");
        let shown = (0..1024).filter(|rank| lines.is_shown(*rank, &error(*rank)));
        assert_eq!(shown.collect::<Vec<_>>(), [0, 1, 2]);
        assert!(lines.is_shown(9, "another"), "each text counts alone");
        assert!(lines.is_shown(1, &error(1)), "a rank may repeat its own line");
        assert!(!lines.is_shown(7, &error(7)), "a rank counts once");
        assert_eq!(lines.end(), ["1021 more ranks printed the same: ERROR barrier: rank 9 has left the group"]);
        assert_eq!(lines.end(), [""; 0]);
        assert!(lines.is_shown(7, &error(7)), "each attempt counts alone");
    }

    #[test]
    fn the_number_of_texts_is_limited() {
        let mut lines = RepeatedLines::default();
        (0..4).for_each(|rank| assert!(lines.is_shown(rank, "kept") || rank >= 3));
        (0..1000).for_each(|number| assert!(lines.is_shown(0, &number.to_string())));
        assert_eq!(lines.0.len(), TEXTS);
        assert_eq!(lines.end(), ["1 more rank printed the same: kept"]);
    }
}
