//! In-process all-gather. In each round, every rank (a thread) contributes one value and reads the values of all ranks.
//! Rounds are numbered, so several rounds can be in flight.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::{Error, Result, events};

/// Contribution of one rank: the name of its operation, and its value.
type Contribution = (&'static str, Arc<dyn Any + Send + Sync>);

/// State shared by the participants.
pub struct Rendezvous {
    world_size: usize,
    table: Mutex<RoundTable>,
    changed: Condvar,
}

#[derive(Default)]
struct RoundTable {
    /// Rounds that some rank still needs, by number.
    rounds: BTreeMap<u64, Contributions>,
    /// Ranks that have left.
    gone: BTreeSet<usize>,
}

/// Contributions to one round.
struct Contributions {
    by_rank: Vec<Option<Contribution>>,
    /// Number of ranks that no longer need this round.
    done: usize,
}

impl Rendezvous {
    pub fn new(world_size: usize) -> Self {
        Self { world_size, table: Mutex::default(), changed: Condvar::new() }
    }

    fn table(&self) -> MutexGuard<'_, RoundTable> {
        // The table is changed only by whole assignments, so it is consistent even after a panic of another thread.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change of the table, at most until `deadline`.
    fn wait<'a>(&self, table: MutexGuard<'a, RoundTable>, deadline: Option<Instant>) -> MutexGuard<'a, RoundTable> {
        match deadline {
            None => self.changed.wait(table).unwrap_or_else(PoisonError::into_inner),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                self.changed.wait_timeout(table, left).unwrap_or_else(PoisonError::into_inner).0
            }
        }
    }
}

impl RoundTable {
    /// Returns the ranks that have not contributed to `round`.
    fn missing(&self, round: u64) -> Vec<usize> {
        let by_rank = self.rounds.get(&round).map_or(&[][..], |round| &round.by_rank);
        by_rank.iter().enumerate().filter(|(_, value)| value.is_none()).map(|(rank, _)| rank).collect()
    }
}

/// Handle of one rank. When it is dropped, the rank leaves the group.
pub struct Participant {
    rank: usize,
    /// Number of the next round.
    next: u64,
    rendezvous: Arc<Rendezvous>,
}

impl Participant {
    pub fn new(rank: usize, rendezvous: &Arc<Rendezvous>) -> Self {
        Self { rank, next: 0, rendezvous: rendezvous.clone() }
    }

    pub fn rank(&self) -> usize {
        self.rank
    }

    pub fn world_size(&self) -> usize {
        self.rendezvous.world_size
    }

    /// Contributes `value` to the next round without waiting for the other ranks.
    pub fn contribute<T: Send + Sync + 'static>(&mut self, operation: &'static str, value: T) -> Round {
        let number = self.next;
        self.next += 1;
        let world_size = self.rendezvous.world_size;
        let mut table = self.rendezvous.table();
        let round =
            table.rounds.entry(number).or_insert_with(|| Contributions { by_rank: vec![None; world_size], done: 0 });
        round.by_rank[self.rank] = Some((operation, Arc::new(value)));
        self.rendezvous.changed.notify_all();
        Round { operation, number, rendezvous: self.rendezvous.clone() }
    }

    /// Contributes `value`, waits for the values of all ranks, and returns them in rank order.
    pub fn all_gather<T: Send + Sync + 'static>(&mut self, operation: &'static str, value: T) -> Result<Vec<Arc<T>>> {
        self.contribute(operation, value).collect(None)
    }
}

impl Drop for Participant {
    fn drop(&mut self) {
        self.rendezvous.table().gone.insert(self.rank);
        self.rendezvous.changed.notify_all();
    }
}

/// Round that this rank has contributed to.
pub struct Round {
    operation: &'static str,
    number: u64,
    rendezvous: Arc<Rendezvous>,
}

impl Round {
    /// Name of the operation of this rank.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// Waits for the values of all ranks and returns them in rank order.
    pub fn collect<T: Send + Sync + 'static>(self, deadline: Option<Instant>) -> Result<Vec<Arc<T>>> {
        let all = self.wait(deadline).inspect_err(|error| events::aborted("local", error))?;
        all.into_iter().map(|contribution| self.received(contribution)).collect()
    }

    fn wait(&self, deadline: Option<Instant>) -> Result<Vec<Contribution>> {
        let operation = self.operation;
        let mut table = self.rendezvous.table();
        loop {
            let missing = table.missing(self.number);
            if missing.is_empty() {
                return Ok(table.rounds[&self.number].by_rank.iter().flatten().cloned().collect());
            }
            if let Some(&rank) = missing.iter().find(|rank| table.gone.contains(rank)) {
                return Err(Error::RankGone { operation, rank });
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                events::unanswered(operation, &missing);
                return Err(Error::Deadline { operation, missing, detail: String::new() });
            }
            table = self.rendezvous.wait(table, deadline);
        }
    }

    /// Checks that a contribution belongs to the operation of this rank, and returns its value.
    fn received<T: Send + Sync + 'static>(&self, (other, value): Contribution) -> Result<Arc<T>> {
        let mismatch = || Error::Mismatch { operation: self.operation, detail: format!("another rank called {other}") };
        if self.operation != other {
            return Err(mismatch());
        }
        value.downcast().map_err(|_| mismatch())
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        let mut table = self.rendezvous.table();
        let Some(round) = table.rounds.get_mut(&self.number) else { return };
        round.done += 1;
        if round.done == self.rendezvous.world_size {
            table.rounds.remove(&self.number);
        }
    }
}
