//! Ranks as threads of one process: a world of one for small runs, worlds of several for tests.

use std::any::Any;
use std::ops::AddAssign;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::collective::{Collective, Error, Result, check_root};

/// One rank of a group of threads. Dropping it leaves the group: whoever still waits for it gets
/// [`Error::RankGone`].
#[derive(Debug)]
pub struct Local {
    rank: usize,
    meeting: Arc<Meeting>,
}

/// The `world` ends of a new group, in rank order, one for each thread.
pub fn group(world: usize) -> Vec<Local> {
    let meeting = Arc::new(Meeting::new(world));
    (0..world).map(|rank| Local { rank, meeting: meeting.clone() }).collect()
}

/// A world of one rank.
pub fn alone() -> Local {
    Local { rank: 0, meeting: Arc::new(Meeting::new(1)) }
}

/// What a rank lays down for the others to read.
type Gift = Arc<dyn Any + Send + Sync>;

/// The place where ranks exchange gifts: an exchange is complete when all have laid one down.
#[derive(Debug)]
struct Meeting {
    world: usize,
    table: Mutex<Table>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Table {
    /// Exchanges completed.
    round: u64,
    /// Gifts of the exchange under way, with the operation that laid them down.
    gifts: Vec<Option<(&'static str, Gift)>>,
    /// All gifts of the last completed exchange.
    complete: Vec<(&'static str, Gift)>,
    gone: Option<usize>,
}

impl Meeting {
    fn new(world: usize) -> Self {
        let table = Table { gifts: vec![None; world], ..Table::default() };
        Self { world, table: Mutex::new(table), changed: Condvar::new() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // The table is changed only by whole assignments, so it is in order even after a panic elsewhere.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lays down `gift` and returns those of all ranks, in rank order.
    fn exchange<T: Send + Sync + 'static>(&self, rank: usize, operation: &'static str, gift: T) -> Result<Vec<Arc<T>>> {
        let mut table = self.table();
        let round = table.round;
        table.gifts[rank] = Some((operation, Arc::new(gift)));
        if table.gifts.iter().all(Option::is_some) {
            table.complete = table.gifts.iter_mut().filter_map(Option::take).collect();
            table.round += 1;
            self.changed.notify_all();
        }
        while table.round == round {
            if let Some(rank) = table.gone {
                return Err(Error::RankGone { operation, rank });
            }
            table = self.changed.wait(table).unwrap_or_else(PoisonError::into_inner);
        }
        // A complete exchange stays readable: the next one cannot be complete before this rank takes part.
        table.complete.iter().map(|(other, gift)| received(operation, other, gift)).collect()
    }
}

fn received<T: Send + Sync + 'static>(operation: &'static str, other: &str, gift: &Gift) -> Result<Arc<T>> {
    let differs = || Error::Mismatch { operation, what: format!("another rank does {other}") };
    if operation != other {
        return Err(differs());
    }
    gift.clone().downcast().map_err(|_| differs())
}

impl Local {
    fn all_reduce<T>(&mut self, operation: &'static str, values: &mut [T]) -> Result<()>
    where
        T: Copy + AddAssign + Send + Sync + 'static,
    {
        let all = self.meeting.exchange(self.rank, operation, values.to_vec())?;
        if let Some(other) = all.iter().find(|other| other.len() != values.len()) {
            let what = format!("{} elements here, {} on another rank", values.len(), other.len());
            return Err(Error::Mismatch { operation, what });
        }
        // In rank order on every rank, so all get the same bits.
        values.copy_from_slice(&all[0]);
        for other in &all[1..] {
            values.iter_mut().zip(other.iter()).for_each(|(sum, &value)| *sum += value);
        }
        Ok(())
    }
}

impl Collective for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.meeting.world
    }

    fn name(&self) -> &'static str {
        "local"
    }

    fn all_reduce_sum_f32(&mut self, values: &mut [f32]) -> Result<()> {
        self.all_reduce("all-reduce of f32", values)
    }

    fn all_reduce_sum_f64(&mut self, values: &mut [f64]) -> Result<()> {
        self.all_reduce("all-reduce of f64", values)
    }

    fn broadcast_bytes(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<()> {
        check_root("broadcast", root, self.world())?;
        let gift = if self.rank == root { std::mem::take(bytes) } else { Vec::new() };
        let all = self.meeting.exchange(self.rank, "broadcast", gift)?;
        bytes.clone_from(&all[root]);
        Ok(())
    }

    fn gather_bytes(&mut self, bytes: &[u8], root: usize) -> Result<Option<Vec<Vec<u8>>>> {
        check_root("gather", root, self.world())?;
        let all = self.meeting.exchange(self.rank, "gather", bytes.to_vec())?;
        Ok((self.rank == root).then(|| all.iter().map(|bytes| bytes.to_vec()).collect()))
    }

    fn barrier(&mut self) -> Result<()> {
        self.meeting.exchange(self.rank, "barrier", ()).map(drop)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.meeting.table().gone = Some(self.rank);
        self.meeting.changed.notify_all();
    }
}
