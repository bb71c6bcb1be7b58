//! What reaches a coordinator from outside its workers: signals, a stop request in the store, a newer attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use lambert_store::Lease;
use lambert_store::Store;
pub use lambert_store::run::{SAVE as SAVE_OBJECT, STOP as STOP_OBJECT};
use signal_hook::consts::{SIGINT, SIGTERM};

/// How often the store is asked.
const PERIOD: Duration = Duration::from_secs(2);

/// What is asked of the coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wish {
    /// Go on.
    None,
    /// Save a checkpoint, then stop.
    Stop,
    /// End the workers at once.
    Kill,
}

#[derive(Debug, Default)]
struct Shared {
    signals: AtomicUsize,
    stop_object: AtomicBool,
    save_object: AtomicBool,
    attempt: AtomicU32,
    lost: AtomicBool,
}

/// Looks out for requests on two threads, for as long as it lives.
#[derive(Debug)]
pub struct Requests {
    shared: Arc<Shared>,
    signals: signal_hook::iterator::Handle,
    _store: Sender<()>,
}

impl Requests {
    /// From now on SIGTERM and SIGINT do not end this process, but are requests; `store` is asked now and then.
    pub fn listen(store: Store) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])?;
        let (handle, counted) = (signals.handle(), Arc::clone(&shared));
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for _ in signals.forever() {
                counted.signals.fetch_add(1, Ordering::SeqCst);
            }
        })?;
        let (alive, ended) = channel::<()>();
        let asked = Arc::clone(&shared);
        std::thread::Builder::new().name("requests".into()).spawn(move || {
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                ask(&store, &asked);
            }
        })?;
        Ok(Self { shared, signals: handle, _store: alive })
    }

    /// What is wished now: one signal or a stop object asks to stop, a second signal to end at once.
    pub fn wish(&self) -> Wish {
        match (self.shared.signals.load(Ordering::SeqCst), self.shared.stop_object.load(Ordering::SeqCst)) {
            (0, false) => Wish::None,
            (0 | 1, _) => Wish::Stop,
            (_, _) => Wish::Kill,
        }
    }

    /// Whether a checkpoint was asked for since the last call.
    pub fn take_save(&self) -> bool {
        self.shared.save_object.swap(false, Ordering::SeqCst)
    }

    /// Whose lease to look after; 0 for none.
    pub fn hold(&self, attempt: u32) {
        self.shared.attempt.store(attempt, Ordering::SeqCst);
    }

    /// Whether a newer attempt, of another coordinator, has taken the run.
    pub fn lease_lost(&self) -> bool {
        self.shared.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.signals.close();
    }
}

/// A store that is away asks for nothing; it is asked again.
fn ask(store: &Store, shared: &Shared) {
    match store.head(STOP_OBJECT) {
        Ok(found) => {
            if found.is_some() {
                shared.stop_object.store(true, Ordering::SeqCst);
            }
        }
        Err(error) => tracing::debug!("cannot look for {STOP_OBJECT}: {error}"),
    }
    match take(store, SAVE_OBJECT) {
        Ok(found) => drop(shared.save_object.fetch_or(found, Ordering::SeqCst)),
        Err(error) => tracing::debug!("cannot look for {SAVE_OBJECT}: {error}"),
    }
    let attempt = shared.attempt.load(Ordering::SeqCst);
    if attempt > 0 {
        match Lease::attach(store, attempt).and_then(|lease| lease.still_held()) {
            Ok(true) => {}
            // Between the question and the answer this coordinator may have taken a newer lease itself.
            Ok(false) => {
                let lost = shared.attempt.load(Ordering::SeqCst) == attempt;
                shared.lost.fetch_or(lost, Ordering::SeqCst);
            }
            Err(error) => tracing::debug!("cannot look at the lease: {error}"),
        }
    }
}

/// Whether an object was there; it is there no more.
fn take(store: &Store, object: &str) -> Result<bool, lambert_store::Error> {
    if store.head(object)?.is_none() {
        return Ok(false);
    }
    store.delete(object)?;
    Ok(true)
}
