//! The ranks of an attempt, as last heard of, and the hosts that they are on.

use std::collections::{BTreeMap, btree_map};

use lambert_control::WorkerPhase;

use crate::decide::Seconds;

/// A rank, as last heard of.
#[derive(Debug, Clone, PartialEq)]
pub struct Rank {
    /// Process id on `host`.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// Steps it has finished.
    pub step: u64,
    /// What its training thread is doing.
    pub phase: WorkerPhase,
    /// Since when.
    pub since: Seconds,
    /// When it last reported.
    pub heard: Seconds,
}

/// The ranks of an attempt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Ranks {
    /// The host of each rank, by the name that the configuration gives it, where it does.
    places: Vec<String>,
    /// The ranks that have reported, by number.
    reported: BTreeMap<usize, Rank>,
}

impl Ranks {
    /// Ranks that are put on the hosts of these names.
    pub fn new(places: Vec<String>) -> Self {
        Self { places, reported: BTreeMap::new() }
    }

    pub(super) fn insert(&mut self, number: usize, rank: Rank) {
        self.reported.insert(number, rank);
    }

    /// Whether none has reported.
    pub fn is_empty(&self) -> bool {
        self.reported.is_empty()
    }

    /// Whether this one has reported.
    pub fn has(&self, rank: usize) -> bool {
        self.reported.contains_key(&rank)
    }

    /// The ranks that have reported, by number.
    pub fn iter(&self) -> btree_map::Iter<'_, usize, Rank> {
        self.reported.iter()
    }

    /// Whether `condition` holds for all that have reported, and one has.
    pub fn are_all(&self, condition: impl Fn(&Rank) -> bool) -> bool {
        !self.is_empty() && self.reported.values().all(condition)
    }

    /// The host of a rank, by the name under which it is avoided.
    pub fn host(&self, rank: usize) -> Option<String> {
        self.places.get(rank).or_else(|| Some(&self.reported.get(&rank)?.host)).cloned()
    }

    /// A rank in words.
    pub fn who(&self, rank: usize) -> String {
        match self.reported.get(&rank) {
            Some(known) => format!("rank {rank} (pid {} on host {})", known.pid, known.host),
            None => format!("rank {rank} (which had not reported yet)"),
        }
    }

    /// The host that `texts` name, if it is one.
    pub fn host_named_in(&self, texts: &[String]) -> Option<String> {
        let is_of_name = |c: char| c.is_ascii_alphanumeric() || ['.', '-', '_', ':'].contains(&c);
        let is_named = |place: &&String| {
            let words = texts.iter().flat_map(|text| text.split(|c| !is_of_name(c)));
            // A port, or the end of a sentence, may stand behind it.
            words
                .filter_map(|word| word.strip_prefix(place.as_str()))
                .any(|rest| rest.is_empty() || rest.starts_with(':') || rest == ".")
        };
        let mut named: Vec<&String> = self.places.iter().filter(is_named).collect();
        named.dedup();
        if let [name] = named[..] { Some(name.clone()) } else { None }
    }
}
