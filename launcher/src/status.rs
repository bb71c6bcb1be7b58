//! `status.json`: where a run is, for people and programs on other machines.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lambert_config::control::{Evaluation, GradientNoise, StepRecord};
use lambert_store::Store;
pub use lambert_store::run::STATUS as OBJECT;
use lambert_store::run::{COORDINATOR, STOP};
use serde::{Deserialize, Serialize};

use crate::run::decide::Memory;

/// How often it is written while nothing changes but the step.
const PERIOD: Duration = Duration::from_secs(3);

/// What a run is doing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Workers are being started.
    #[default]
    Starting,
    /// Steps are being made.
    Training,
    /// Workers died; they are started again after a pause.
    Restarting,
    /// A checkpoint was asked for, after which the run stops.
    Stopping,
    /// It stopped on request and can go on.
    Stopped,
    /// All steps are done.
    Finished,
    /// It was given up.
    Failed,
}

impl State {
    /// Whether nobody works on the run in this state.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Stopped | Self::Finished | Self::Failed)
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Training => "training",
            Self::Restarting => "restarting",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Finished => "finished",
            Self::Failed => "failed",
        })
    }
}

/// Where a run is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// What it is doing.
    pub state: State,
    /// Its name.
    pub name: String,
    /// The attempt that holds it.
    pub attempt: u32,
    /// Steps finished.
    pub step: u64,
    /// Steps of all stages.
    pub steps: u64,
    /// Samples a second, averaged over the last steps.
    pub samples_per_second: f64,
    /// Seconds to the end at that speed, if known.
    pub seconds_left: Option<f64>,
    /// The newest committed checkpoint.
    pub checkpoint: Option<String>,
    /// How often workers were started again under this coordinator.
    pub restarts: u64,
    /// What those restarts cost.
    pub lost: Vec<Lost>,
    /// The last step's record.
    pub record: Option<StepRecord>,
    /// The last held-out measurement.
    pub evaluation: Option<Evaluation>,
    /// How noisy gradients are, averaged over the last steps that measured it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise: Option<NoiseScale>,
    /// The folder on each host that has what the attempt's ranks there printed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<String>,
    /// The workers.
    pub ranks: Vec<RankStatus>,
    /// Connections and requests that the current attempt's control channel has refused.
    pub refused: u64,
    /// Who watches them.
    pub coordinator: Coordinator,
    /// The last failure.
    pub error: Option<String>,
    /// When this was written, seconds since 1970.
    pub updated: f64,
}

/// The averages of the estimates of [`GradientNoise`], the latest with the most weight.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct NoiseScale {
    /// How many estimates there were.
    pub estimates: u64,
    /// Of |G|^2.
    pub gradient: f64,
    /// Of tr(S).
    pub variance: f64,
}

/// The weight of the newest estimate, once there are as many as its inverse; the mean of all before.
const NEWEST: f64 = 0.05;

impl NoiseScale {
    /// Takes in an estimate.
    pub fn add(&mut self, noise: GradientNoise) {
        self.estimates += 1;
        let weight = NEWEST.max(1.0 / self.estimates as f64);
        self.gradient += weight * (noise.gradient - self.gradient);
        self.variance += weight * (noise.variance - self.variance);
    }

    /// The noise scale, in samples; `None` while the averages still stray below zero.
    pub fn samples(self) -> Option<f64> {
        (self.gradient > 0.0 && self.variance > 0.0).then(|| self.variance / self.gradient)
    }
}

/// The coordinator.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Coordinator {
    /// Host name.
    pub host: String,
    /// Process id there.
    pub pid: u32,
    /// Since when that process is there (its start in the kernel's words), which tells it from a later one of the same number; empty
    /// if unknown.
    #[serde(default)]
    pub since: String,
}

/// A worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    /// Its rank.
    pub rank: usize,
    /// Host name.
    pub host: String,
    /// Process id there.
    pub pid: u32,
    /// Steps it has finished.
    pub step: u64,
    /// What its training thread is doing, in words.
    #[serde(default)]
    pub phase: String,
    /// Seconds since it last reported.
    pub silent: f64,
}

/// What a failure and the restart after it cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Lost {
    /// The attempt that failed.
    pub attempt: u32,
    /// Steps finished when it failed.
    pub step: u64,
    /// Seconds from the failure until as many steps were finished again; absent until then.
    pub seconds: Option<f64>,
    /// Which rank failed and how.
    pub cause: String,
}

/// No status is longer than this, bytes.
pub const LONGEST: u64 = 16 << 20;

/// What the run's last coordinator wrote, as far as it can be read: a coordinator begins without it, too.
pub fn before(store: &Store) -> Status {
    let bytes = store.get_at_most(OBJECT, LONGEST).ok();
    bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |passed| passed.as_secs_f64())
}

/// How soon a status is to be seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    /// With the next regular writing.
    Routine,
    /// At once.
    Change,
}

/// How long the last writes may take.
const LAST_WRITES: Duration = Duration::from_secs(20);

/// Writes the status on a thread of its own, so that a slow store never holds up the coordinator. When dropped it waits for what
/// was handed over, for a limited time: a write to a file server that is away never returns.
#[derive(Debug)]
pub struct Reporter {
    shared: Arc<(Mutex<Pending>, Condvar)>,
    url: String,
    /// Disconnected when the thread has ended.
    thread: Receiver<()>,
}

#[derive(Debug, Default)]
struct Pending {
    status: Option<Status>,
    memory: Option<Memory>,
    forget_stop: bool,
    /// The object that is being written or removed.
    current: Option<&'static str>,
    urgent: bool,
    closing: bool,
}

impl Reporter {
    /// Writes to `store`.
    pub fn start(store: Store) -> std::io::Result<Self> {
        let shared = Arc::new((Mutex::new(Pending::default()), Condvar::new()));
        let (queue, url) = (Arc::clone(&shared), store.url().to_owned());
        let (alive, thread) = channel::<()>();
        let write = move || {
            let _alive = alive;
            write_all(&store, &queue);
        };
        std::thread::Builder::new().name("status".into()).spawn(write)?;
        Ok(Self { shared, url, thread })
    }

    /// Hands over the newest status; one that was not written yet is forgotten.
    pub fn publish(&self, status: Status, urgency: Urgency) {
        let mut pending = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        pending.status = Some(status);
        pending.urgent |= urgency == Urgency::Change;
        self.shared.1.notify_one();
    }

    /// Hands over what a later start needs to know; it is written before the status.
    pub fn remember(&self, memory: Memory) {
        let mut pending = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        pending.memory = Some(memory);
    }

    /// The request to stop was followed: it is removed.
    pub fn forget_stop(&self) {
        let mut pending = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        (pending.forget_stop, pending.urgent) = (true, true);
        self.shared.1.notify_one();
    }

    /// Forgets what was not written yet.
    pub fn discard(&self) {
        let mut pending = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
        (pending.status, pending.memory) = (None, None);
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).closing = true;
        self.shared.1.notify_one();
        if self.thread.recv_timeout(LAST_WRITES) == Err(RecvTimeoutError::Timeout) {
            let pending = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner);
            let (url, object, seconds) = (&self.url, pending.current.unwrap_or(OBJECT), LAST_WRITES.as_secs());
            tracing::warn!(
                "{url}/{object} could not be written within {seconds} s; `lambert status` may show an earlier state"
            );
        }
    }
}

fn write_all(store: &Store, (queue, changed): &(Mutex<Pending>, Condvar)) {
    let mut written: Option<Instant> = None;
    let mut away = false;
    loop {
        let mut pending = queue.lock().unwrap_or_else(PoisonError::into_inner);
        let due = |pending: &Pending| {
            pending.closing
                || pending.urgent
                || (pending.status.is_some() && written.is_none_or(|at| at.elapsed() >= PERIOD))
        };
        while !due(&pending) {
            pending = changed.wait_timeout(pending, PERIOD / 3).unwrap_or_else(PoisonError::into_inner).0;
        }
        let (status, memory, closing) = (pending.status.take(), pending.memory.take(), pending.closing);
        let forget_stop = std::mem::take(&mut pending.forget_stop);
        pending.urgent = false;
        drop(pending);
        let begin = |object| queue.lock().unwrap_or_else(PoisonError::into_inner).current = Some(object);
        if forget_stop {
            begin(STOP);
            // The run has ended as it was asked to, whether the request can be removed or not.
            if let Err(error) = store.delete(STOP) {
                tracing::warn!("the request to stop stays in the store: {error}");
            }
        }
        if let Some(memory) = memory {
            begin(COORDINATOR);
            away = write(store, COORDINATOR, &memory, away);
        }
        if let Some(mut status) = status {
            begin(OBJECT);
            status.updated = now();
            away = write(store, OBJECT, &status, away);
            written = Some(Instant::now());
        }
        if closing {
            return;
        }
    }
}

/// Writes an object; returns whether the store is away, which is said once.
fn write(store: &Store, object: &str, value: &impl Serialize, away: bool) -> bool {
    let text = match serde_json::to_vec_pretty(value) {
        Ok(text) => text,
        Err(error) => {
            tracing::warn!("{object} cannot be written as JSON: {error}");
            return away;
        }
    };
    match store.put(object, text.into()) {
        Ok(()) => false,
        Err(error) => {
            if !away {
                tracing::warn!("{object} cannot be written; the run goes on without: {error}");
            }
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(store: &Store) -> Status {
        serde_json::from_slice(&store.get(OBJECT).unwrap()).unwrap()
    }

    #[test]
    fn the_noise_scale_is_the_ratio_of_averages() {
        let mut noise = NoiseScale::default();
        assert_eq!(noise.samples(), None);
        for (gradient, variance) in [(-1.0, 30.0), (3.0, 50.0)] {
            noise.add(GradientNoise { gradient, variance });
        }
        assert_eq!((noise.estimates, noise.samples()), (2, Some(40.0)));
        (0..500).for_each(|_| noise.add(GradientNoise { gradient: 1.0, variance: 7.0 }));
        assert!((noise.samples().unwrap() - 7.0).abs() < 1e-6, "what was long ago is forgotten");
    }

    #[test]
    fn the_newest_status_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().to_str().unwrap()).unwrap();
        let reporter = Reporter::start(store.clone()).unwrap();
        for step in 0..100 {
            reporter.publish(Status { step, ..Status::default() }, Urgency::Routine);
        }
        let state = State::Finished;
        reporter.publish(Status { step: 100, state, ..Status::default() }, Urgency::Change);
        drop(reporter);
        let status = read(&store);
        assert_eq!((status.step, status.state), (100, State::Finished));
        assert!((now() - status.updated).abs() < 60.0);
    }
}
