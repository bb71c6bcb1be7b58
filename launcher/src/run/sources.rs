//! Event sources other than the processes of an attempt: signals, the store of the run and the lease. Each source runs
//! on its own thread, so that no source blocks another.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use lambert_progress::signals::{ignores, leave_to_command};
pub use lambert_store::run::{SAVE as SAVE_OBJECT, STOP as STOP_OBJECT};
use lambert_store::{Lease, RetryPolicy, Store};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use super::job_view;
use super::own_lease::{OwnLease, TAKER};
use crate::decide::{Event, JobState, JobView, LeaseRequest, Signal};
use crate::slurm::job;

/// Polling interval of the store.
const PERIOD: Duration = Duration::from_secs(2);

/// Forwards signals as events while this value lives.
#[derive(Debug)]
pub struct Signals(signal_hook::iterator::Handle);

impl Signals {
    /// Handles SIGTERM, SIGINT, SIGUSR1 and SIGHUP from now on. If SIGHUP was ignored when this process started
    /// (nohup), it stays ignored.
    pub fn listen(events: Sender<Event>) -> std::io::Result<Self> {
        let handled = [SIGINT, SIGTERM, SIGUSR1].into_iter().chain((!ignores(SIGHUP)).then_some(SIGHUP));
        let mut signals = signal_hook::iterator::Signals::new(handled)?;
        leave_to_command();
        let handle = signals.handle();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            for number in signals.forever() {
                let signal = match number {
                    SIGINT => Signal::Interrupt,
                    SIGHUP => Signal::Hangup,
                    _ => Signal::Other,
                };
                let _ = events.send(Event::Signal(signal));
            }
        })?;
        Ok(Self(handle))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Polls the store for requests and the newest lease while this value lives.
#[derive(Debug)]
pub struct RequestPoller {
    _alive: Sender<()>,
}

impl RequestPoller {
    /// Polls `store`, and checks `own`, the lease of this coordinator.
    pub fn listen(store: Store, own: OwnLease, events: Sender<Event>) -> std::io::Result<Self> {
        let (alive, ended) = channel::<()>();
        std::thread::Builder::new().name("requests".into()).spawn(move || {
            while ended.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                for event in poll_store(&store, &own) {
                    let _ = events.send(event);
                }
            }
        })?;
        Ok(Self { _alive: alive })
    }
}

/// Returns the events that the store reveals. After a store error there is no event, and the next poll tries again.
fn poll_store(store: &Store, own: &OwnLease) -> Vec<Event> {
    let answers = [
        store.head(STOP_OBJECT).map(|found| found.map(|_| Event::StopRequested)),
        take(store, SAVE_OBJECT).map(|found| found.then_some(Event::SaveRequested)),
        match own.get() {
            Some(lease) => check_own_lease(own, &lease),
            None => Lease::newest(store).map(|newest| newest.map(Event::LeaseSeen)),
        },
    ];
    let text = |answer: Result<Option<Event>, lambert_store::Error>| {
        answer.inspect_err(|error| tracing::debug!("cannot look for requests and leases: {error}")).ok().flatten()
    };
    answers.into_iter().filter_map(text).collect()
}

/// Checks the lease of this coordinator.
fn check_own_lease(own: &OwnLease, lease: &Lease) -> Result<Option<Event>, lambert_store::Error> {
    use lambert_store::Error as E;
    match own.check(lease) {
        Ok(()) => Ok(Some(Event::LeaseSeen(lease.attempt()))),
        Err(E::LeaseLost { newest, .. }) => Ok(Some(Event::LeaseSeen(newest))),
        Err(gone @ E::LeaseGone { .. }) => Ok(Some(Event::LeaseGone(lease.attempt(), gone.to_string()))),
        Err(error) => Err(error),
    }
}

/// Deletes an object. Returns true if the object existed.
fn take(store: &Store, object: &str) -> Result<bool, lambert_store::Error> {
    if store.head(object)?.is_none() {
        return Ok(false);
    }
    store.delete(object)?;
    Ok(true)
}

/// Queries Slurm for a job on a separate thread, so that an unresponsive Slurm controller does not block the
/// coordinator. `start` is the number of the current start of the job, from 0.
pub fn ask_slurm(job: String, start: u32, events: Sender<Event>) -> std::io::Result<()> {
    let ask = move || {
        let seen = job::look(&job).inspect_err(|error| tracing::debug!("cannot query job {job}: {error}"));
        let unknown = JobView { job_state: JobState::Unknown, seconds_left: None };
        let _ = events.send(Event::Job(seen.ok().flatten().map_or(unknown, |job| job_view::view(&job, start))));
    };
    std::thread::Builder::new().name("slurm".into()).spawn(ask).map(drop)
}

/// Time to wait for a lease before logging a warning.
const SILENCE: Duration = Duration::from_secs(30);

/// Takes a lease and puts it into `own`. The work is done on a separate thread, so that an unavailable store does not
/// block the coordinator. If the store does not respond within `store_timeout` plus a margin, sends `Event::LeaseFailed`.
pub fn take_lease(
    store: Store,
    store_timeout: Duration,
    wanted: LeaseRequest,
    own: OwnLease,
    events: Sender<Event>,
) -> std::io::Result<()> {
    let url = store.url().to_owned();
    let take = move || {
        let lease = match wanted {
            LeaseRequest::Next => Lease::take(&store).map(Ok),
            LeaseRequest::Exactly(number) => {
                Lease::take_exactly(&store, number, &TAKER).map(|lease| lease.ok_or(number))
            }
        };
        match lease {
            Ok(Ok(lease)) => {
                let attempt = lease.attempt();
                // The request poller uses this lease. Unlike a worker, the poller must not block for a long time.
                own.set(lease.with_retry_policy(RetryPolicy::default()));
                Event::LeaseTaken(attempt)
            }
            Ok(Err(number)) => Event::LeaseHeld(number),
            Err(error) => Event::LeaseFailed(crate::failure::chain(&error)),
        }
    };
    let taken = on_thread("lease", take)?;
    let wait = move || {
        let event = taken.recv_timeout(SILENCE).or_else(|_| {
            tracing::warn!("waiting for the lease: no reply from {url} for {} s", SILENCE.as_secs());
            taken.recv_timeout(store_timeout + SILENCE)
        });
        let minutes = store_timeout.as_secs() / 60;
        let silent = || Event::LeaseFailed(format!("no reply from {url} for {minutes} minutes"));
        let _ = events.send(event.unwrap_or_else(|_| silent()));
    };
    std::thread::Builder::new().name("lease".into()).spawn(wait).map(drop)
}

/// Runs `work` on a thread with name `name` and waits at most `limit`. Returns `None` on timeout or panic.
pub fn within<T: Send + 'static>(
    name: &str,
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<Option<T>> {
    Ok(on_thread(name, work)?.recv_timeout(limit).ok())
}

fn on_thread<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> std::io::Result<Receiver<T>> {
    let (sender, receiver) = channel();
    std::thread::Builder::new().name(name.into()).spawn(move || drop(sender.send(work())))?;
    Ok(receiver)
}
