//! Background writer for the small objects of a run, so that a slow store never blocks the coordinator.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lambert_store::Store;
use lambert_store::error::chain;
use lambert_store::run::STATUS;
use serde::Serialize;

/// Interval of routine writes.
const PERIOD: Duration = Duration::from_secs(3);
/// Time limit for writes at exit.
const LAST_WRITES: Duration = Duration::from_secs(20);

/// Maximum number of attempts to write an object if the store panics. `PAUSE` is the time between two attempts.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// Urgency of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// Written with the next routine write.
    Routine,
    /// Written immediately.
    Change,
}

/// A write or removal of one object.
pub struct ObjectWrite {
    object: &'static str,
    content: WriteContent,
}

type MakeJson = dyn FnOnce() -> serde_json::Result<Vec<u8>> + Send;

enum WriteContent {
    Json(Box<MakeJson>),
    /// Removal, with the warning to log if the removal fails.
    Nothing(&'static str),
}

impl ObjectWrite {
    /// Writes `value` as JSON.
    pub fn json(object: &'static str, value: impl Serialize + Send + 'static) -> Self {
        Self::json_made_by(object, move || value)
    }

    /// Writes the result of `make` as JSON. The writer thread calls `make` at the time of writing.
    pub fn json_made_by<T: Serialize>(object: &'static str, make: impl FnOnce() -> T + Send + 'static) -> Self {
        Self { object, content: WriteContent::Json(Box::new(move || serde_json::to_vec_pretty(&make()))) }
    }

    /// Removes an object. If the removal fails, logs `warning` with the error.
    pub fn remove(object: &'static str, warning: &'static str) -> Self {
        Self { object, content: WriteContent::Nothing(warning) }
    }

    fn is_removal(&self) -> bool {
        matches!(self.content, WriteContent::Nothing(_))
    }
}

impl fmt::Debug for ObjectWrite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ObjectWrite").field(&self.object).finish()
    }
}

/// Handle of the writer thread. Dropping the last clone waits for pending writes. The wait is limited, because a write
/// to an unavailable file server may never return.
#[derive(Debug, Clone)]
pub struct StoreWriter(Arc<Writer>);

#[derive(Debug)]
struct Writer {
    shared: Arc<WriterShared>,
    url: String,
    /// Channel that is disconnected once the thread has ended. Used only when the last clone is dropped.
    thread: Mutex<Receiver<()>>,
}

#[derive(Debug, Default)]
struct WriterShared {
    pending: Mutex<PendingWrites>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct PendingWrites {
    /// Pending writes in order, at most one per object.
    writes: Vec<ObjectWrite>,
    /// Writes of the current round, which are no longer replaced.
    due: VecDeque<ObjectWrite>,
    /// Object being written or removed.
    current: Option<&'static str>,
    urgent: bool,
    closing: bool,
}

impl StoreWriter {
    /// Starts the writer thread. Before each write it calls `may_write`, which checks the lease of the run. If the lease
    /// is lost, nothing is written, because the objects belong to another coordinator. Removals need no lease.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(
        store: Store,
        may_write: impl Fn() -> lambert_store::Result<()> + Send + 'static,
    ) -> std::io::Result<Self> {
        let shared = Arc::new(WriterShared::default());
        let (queue, url) = (Arc::clone(&shared), store.url().to_owned());
        let (alive, thread) = channel::<()>();
        let write = move || {
            let _alive = alive;
            write_all(&store, &queue, &may_write);
        };
        std::thread::Builder::new().name("store-writer".into()).spawn(write)?;
        Ok(Self(Arc::new(Writer { shared, url, thread: Mutex::new(thread) })))
    }

    /// Queues `writes` in order. A write replaces a pending write of the same object.
    pub fn hand_over(&self, writes: Vec<ObjectWrite>, urgency: Urgency) {
        let mut pending = self.0.shared.lock();
        for write in writes {
            pending.writes.retain(|other| other.object != write.object);
            pending.writes.push(write);
        }
        pending.urgent |= urgency == Urgency::Change;
        self.0.shared.changed.notify_one();
    }

    /// Drops pending writes but keeps pending removals. Only a write that the store is already executing goes on.
    pub fn discard(&self) {
        let mut pending = self.0.shared.lock();
        pending.writes.retain(ObjectWrite::is_removal);
        pending.due.retain(ObjectWrite::is_removal);
    }
}

impl WriterShared {
    fn lock(&self) -> std::sync::MutexGuard<'_, PendingWrites> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next round. Returns true if it is the last one. The previous round ended at `written`.
    fn wait_until_due(&self, written: Option<Instant>) -> bool {
        let is_due = |pending: &PendingWrites| {
            pending.closing
                || pending.urgent
                || (!pending.writes.is_empty() && written.is_none_or(|at| at.elapsed() >= PERIOD))
        };
        let mut pending = self.lock();
        while !is_due(&pending) {
            pending = self.changed.wait_timeout(pending, PERIOD / 3).unwrap_or_else(PoisonError::into_inner).0;
        }
        pending.due = std::mem::take(&mut pending.writes).into();
        pending.urgent = false;
        pending.closing
    }

    /// Takes the next write of the round. Calls `may_write` while the write is still in the queue, so that `discard`
    /// drops it if the lease was lost in the meantime.
    fn take_due(&self, may_write: MayWrite<'_>) -> Option<(ObjectWrite, lambert_store::Result<()>)> {
        loop {
            let mut pending = self.lock();
            let next = pending.due.front()?;
            let (object, needs_lease) = (next.object, !next.is_removal());
            pending.current = Some(object);
            drop(pending);
            let permission = if needs_lease { may_write() } else { Ok(()) };
            let mut pending = self.lock();
            // Another object is next if this one was discarded.
            if pending.due.front().is_some_and(|next| next.object == object) {
                return pending.due.pop_front().map(|write| (write, permission));
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_one();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
        if thread.recv_timeout(LAST_WRITES) == Err(RecvTimeoutError::Timeout) {
            let object = self.shared.lock().current.unwrap_or(STATUS);
            let (url, seconds) = (&self.url, LAST_WRITES.as_secs());
            tracing::warn!(
                "cannot write {url}/{object} within {seconds} s; `lambert status` may show an earlier state"
            );
        }
    }
}

/// Check before each write.
type MayWrite<'a> = &'a dyn Fn() -> lambert_store::Result<()>;

fn write_all(store: &Store, shared: &WriterShared, may_write: MayWrite<'_>) {
    let mut written: Option<Instant> = None;
    let mut away = false;
    loop {
        let closing = shared.wait_until_due(written);
        while let Some((ObjectWrite { object, content }, permission)) = shared.take_due(may_write) {
            match (content, permission) {
                (WriteContent::Json(make), Ok(())) => away = put(store, object, make, away),
                (WriteContent::Json(_), Err(error)) if error.is_lease_lost() => {
                    tracing::debug!("{object} is not written: {}", chain(&error));
                }
                (WriteContent::Json(_), Err(error)) => away = is_away(object, away, &error),
                (WriteContent::Nothing(warning), _) => {
                    if let Err(error) = store.delete(object) {
                        tracing::warn!("{warning}: {}", chain(&error));
                    }
                    continue;
                }
            }
            written = Some(Instant::now());
        }
        if closing {
            return;
        }
    }
}

/// Writes an object. Returns true if the store is unavailable. Logs only the first of consecutive errors.
fn put(store: &Store, object: &str, make: Box<MakeJson>, away: bool) -> bool {
    let text = match make() {
        Ok(text) => text,
        Err(error) => {
            tracing::warn!("cannot serialize {object}: {error}");
            return away;
        }
    };
    match put_in_spite_of_panics(store, object, &text) {
        Ok(()) => false,
        Err(error) => is_away(object, away, &error),
    }
}

/// Logs the first of consecutive errors. Returns true.
fn is_away(object: &str, away: bool, error: &lambert_store::Error) -> bool {
    if !away {
        tracing::warn!("cannot write {object}; training continues without it: {}", chain(error));
    }
    true
}

/// Writes an object. Retries if the store panics, e.g. because no thread can be started. A run that ends with a panic
/// can thus still write its status.
fn put_in_spite_of_panics(store: &Store, object: &str, text: &[u8]) -> lambert_store::Result<()> {
    let write = || store.put(object, text.to_vec().into());
    for _ in 1..TRIES {
        if let Ok(done) = catch_unwind(AssertUnwindSafe(write)) {
            return done;
        }
        std::thread::sleep(PAUSE);
    }
    write()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(store: &Store, object: &str) -> Option<u64> {
        store.get(object).ok().map(|bytes| serde_json::from_slice(&bytes).unwrap())
    }

    #[test]
    fn the_newest_object_is_written() {
        let store = Store::open("memory://writer/newest").unwrap();
        let writer = StoreWriter::start(store.clone(), || Ok(())).unwrap();
        for step in 0..100_u64 {
            writer.clone().hand_over(vec![ObjectWrite::json("step", step)], Urgency::Routine);
        }
        writer.hand_over(
            vec![ObjectWrite::json("other", 1_u64), ObjectWrite::json_made_by("step", || 100_u64)],
            Urgency::Change,
        );
        drop(writer);
        assert_eq!((read(&store, "step"), read(&store, "other")), (Some(100), Some(1)));
    }

    #[test]
    fn discarded_objects_are_not_written_and_removed_ones_are_deleted() {
        let store = Store::open("memory://writer/discarded").unwrap();
        let writer = StoreWriter::start(store.clone(), || Ok(())).unwrap();
        // After a write, the thread waits for `PERIOD` before it writes routine objects again.
        writer.hand_over(vec![ObjectWrite::json("first", 1_u64), ObjectWrite::json("request", 1_u64)], Urgency::Change);
        while read(&store, "request").is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        writer.hand_over(
            vec![ObjectWrite::json("second", 2_u64), ObjectWrite::remove("request", "it stays")],
            Urgency::Routine,
        );
        writer.discard();
        drop(writer);
        assert_eq!(["first", "second", "request"].map(|object| read(&store, object)), [Some(1), None, None]);
    }

    fn lost() -> lambert_store::Error {
        lambert_store::Error::LeaseLost { url: "memory://writer".into(), attempt: 1, newest: 2 }
    }

    #[test]
    fn without_the_lease_objects_are_removed_but_not_written() {
        let store = Store::open("memory://writer/lost").unwrap();
        store.put("request", "1".into()).unwrap();
        let writer = StoreWriter::start(store.clone(), || Err(lost())).unwrap();
        let writes = vec![ObjectWrite::json("status", 1_u64), ObjectWrite::remove("request", "it stays")];
        writer.hand_over(writes, Urgency::Change);
        drop(writer);
        assert_eq!(["status", "request"].map(|object| read(&store, object)), [None, None]);
    }

    #[test]
    fn objects_discarded_during_the_check_of_the_lease_are_not_written() {
        let store = Store::open("memory://writer/check").unwrap();
        let ((ask, asked), (answer, answered)) = (channel(), channel());
        let may_write = move || {
            let _ = ask.send(());
            answered.recv().unwrap_or_else(|_| Err(lost()))
        };
        let writer = StoreWriter::start(store.clone(), may_write).unwrap();
        let writes = ["one", "other"].map(|object| ObjectWrite::json(object, 1_u64));
        writer.hand_over(writes.into(), Urgency::Change);
        asked.recv_timeout(Duration::from_secs(20)).unwrap();
        writer.discard();
        answer.send(Ok(())).unwrap();
        drop(writer);
        assert_eq!(["one", "other"].map(|object| read(&store, object)), [None, None]);
    }
}
