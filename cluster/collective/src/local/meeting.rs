//! Where threads exchange values: a round is complete when every rank has handed something in. Rounds are counted, so that
//! several can be under way.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::{Error, Result, events};

/// What a rank hands in, with the operation that it does.
type Contribution = (&'static str, Arc<dyn Any + Send + Sync>);

/// The place where ranks meet.
pub struct Meeting {
    world: usize,
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Default)]
struct Table {
    /// Rounds that not all ranks are done with, by their numbers.
    rounds: BTreeMap<u64, Contributions>,
    /// Ranks that have left.
    gone: BTreeSet<usize>,
}

/// Those of one round.
struct Contributions {
    /// By rank.
    of: Vec<Option<Contribution>>,
    /// Ranks that need this round no more.
    done: usize,
}

impl Meeting {
    /// For `world` ranks.
    pub fn new(world: usize) -> Self {
        Self { world, table: Mutex::default(), changed: Condvar::new() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // The table is changed only by whole assignments, so it is in order even after a panic elsewhere.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change, until `deadline` at most.
    fn wait<'a>(&self, table: MutexGuard<'a, Table>, deadline: Option<Instant>) -> MutexGuard<'a, Table> {
        match deadline {
            None => self.changed.wait(table).unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                self.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

impl Table {
    /// Ranks that have handed nothing in yet for a round.
    fn missing(&self, round: u64) -> Vec<usize> {
        let of = self.rounds.get(&round).map_or(&[][..], |round| &round.of);
        of.iter().enumerate().filter(|(_, there)| there.is_none()).map(|(rank, _)| rank).collect()
    }
}

/// One rank at a meeting; it has left when this is dropped.
pub struct Seat {
    rank: usize,
    /// The number of the next round.
    next: u64,
    meeting: Arc<Meeting>,
}

impl Seat {
    /// That of `rank`.
    pub fn new(rank: usize, meeting: &Arc<Meeting>) -> Self {
        Self { rank, next: 0, meeting: meeting.clone() }
    }

    /// The rank that sits here.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Seats.
    pub fn world(&self) -> usize {
        self.meeting.world
    }

    /// Hands `value` in; what the others do in the same round is there to be collected.
    pub fn hand_in<T: Send + Sync + 'static>(&mut self, operation: &'static str, value: T) -> Round {
        let number = self.next;
        self.next += 1;
        let world = self.meeting.world;
        let mut table = self.meeting.table();
        let round = table.rounds.entry(number).or_insert_with(|| Contributions { of: vec![None; world], done: 0 });
        round.of[self.rank] = Some((operation, Arc::new(value)));
        self.meeting.changed.notify_all();
        Round { operation, number, meeting: self.meeting.clone() }
    }

    /// Hands `value` in and waits for those of all ranks, in rank order.
    pub fn exchange<T: Send + Sync + 'static>(&mut self, operation: &'static str, value: T) -> Result<Vec<Arc<T>>> {
        self.hand_in(operation, value).collect(None)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.meeting.table().gone.insert(self.rank);
        self.meeting.changed.notify_all();
    }
}

/// A round that this rank has handed something in for.
pub struct Round {
    operation: &'static str,
    number: u64,
    meeting: Arc<Meeting>,
}

impl Round {
    /// What this rank does in it.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// Waits for what all ranks have handed in, in rank order.
    pub fn collect<T: Send + Sync + 'static>(self, deadline: Option<Instant>) -> Result<Vec<Arc<T>>> {
        let all = self.wait(deadline).inspect_err(|error| events::aborted("local", error))?;
        all.into_iter().map(|contribution| self.received(contribution)).collect()
    }

    fn wait(&self, deadline: Option<Instant>) -> Result<Vec<Contribution>> {
        let operation = self.operation;
        let mut table = self.meeting.table();
        loop {
            let missing = table.missing(self.number);
            if missing.is_empty() {
                return Ok(table.rounds[&self.number].of.iter().flatten().cloned().collect());
            }
            if let Some(&rank) = missing.iter().find(|rank| table.gone.contains(rank)) {
                return Err(Error::RankGone { operation, rank });
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                events::unanswered(operation, &missing);
                return Err(Error::Deadline { operation, missing });
            }
            table = self.meeting.wait(table, deadline);
        }
    }

    fn received<T: Send + Sync + 'static>(&self, (other, value): Contribution) -> Result<Arc<T>> {
        let differs = || Error::Mismatch { operation: self.operation, what: format!("another rank does {other}") };
        if self.operation != other {
            return Err(differs());
        }
        value.downcast().map_err(|_| differs())
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        let mut table = self.meeting.table();
        let Some(round) = table.rounds.get_mut(&self.number) else { return };
        round.done += 1;
        if round.done == self.meeting.world {
            table.rounds.remove(&self.number);
        }
    }
}
