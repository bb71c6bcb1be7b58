//! Background writer for the small objects of a run, so that a slow store never blocks the coordinator.

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
    /// Object being written or removed.
    current: Option<&'static str>,
    urgent: bool,
    closing: bool,
}

impl StoreWriter {
    /// Starts the writer thread.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(store: Store) -> std::io::Result<Self> {
        let shared = Arc::new(WriterShared::default());
        let (queue, url) = (Arc::clone(&shared), store.url().to_owned());
        let (alive, thread) = channel::<()>();
        let write = move || {
            let _alive = alive;
            write_all(&store, &queue);
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

    /// Drops pending writes but keeps pending removals.
    pub fn discard(&self) {
        self.0.shared.lock().writes.retain(|write| matches!(write.content, WriteContent::Nothing(_)));
    }
}

impl WriterShared {
    fn lock(&self) -> std::sync::MutexGuard<'_, PendingWrites> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
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

fn write_all(store: &Store, shared: &WriterShared) {
    let mut written: Option<Instant> = None;
    let mut away = false;
    loop {
        let mut pending = shared.lock();
        let due = |pending: &PendingWrites| {
            pending.closing
                || pending.urgent
                || (!pending.writes.is_empty() && written.is_none_or(|at| at.elapsed() >= PERIOD))
        };
        while !due(&pending) {
            pending = shared.changed.wait_timeout(pending, PERIOD / 3).unwrap_or_else(PoisonError::into_inner).0;
        }
        let (writes, closing) = (std::mem::take(&mut pending.writes), pending.closing);
        pending.urgent = false;
        drop(pending);
        for ObjectWrite { object, content } in writes {
            shared.lock().current = Some(object);
            match content {
                WriteContent::Json(make) => {
                    away = put(store, object, make, away);
                    written = Some(Instant::now());
                }
                WriteContent::Nothing(warning) => {
                    if let Err(error) = store.delete(object) {
                        tracing::warn!("{warning}: {}", chain(&error));
                    }
                }
            }
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
        Err(error) => {
            if !away {
                tracing::warn!("cannot write {object}; training continues without it: {}", chain(&error));
            }
            true
        }
    }
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
        let writer = StoreWriter::start(store.clone()).unwrap();
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
        let writer = StoreWriter::start(store.clone()).unwrap();
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
}
