//! Metrics for Prometheus: `/metrics` of the coordinator, in the OpenMetrics format.
//!
//! - `metrics`: the metrics of a status; `server`: HTTP server with a bearer token; `files`: the files of the token
//!   and of the discovery

mod files;
mod metrics;
mod server;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lambert_config::run::Prometheus;
use lambert_control::{EventKind, Message};

use super::busy_address::start_when_free;
use super::{Observation, Observer, ObserverSetup, RunBegin, RunEnd};
use crate::decide::{CoordinatorState, Event, Verdict, WorkerEvent};
use crate::status::Status;
use files::Discovery;
use server::{MetricsServer, ServerError};

/// Start of the warnings.
const PROBLEM: &str = "metrics are not served at prometheus.address";
/// Maximum time to wait for the server at the end of the run.
const LAST: Duration = Duration::from_secs(2);

/// The newest status and what else is measured.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    pub url: String,
    pub status: Status,
    /// Time of the last step record, seconds since the Unix epoch.
    pub last_step: Option<f64>,
    /// Time of the last checkpoint.
    pub last_checkpoint: Option<f64>,
}

/// The snapshot that requests read.
type Shared = Arc<Mutex<Arc<Snapshot>>>;

/// End of the coordinator, for the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Ended,
    /// The discovery file belongs to another coordinator now.
    Replaced,
}

/// Observer that updates the snapshot; a thread serves it.
#[derive(Debug)]
pub struct PrometheusObserver {
    snapshot: Snapshot,
    shared: Shared,
    stop: Sender<Stop>,
    /// Disconnected when the thread has ended.
    thread: Receiver<()>,
}

/// Creates the observer if `prometheus.address` is set. The server's files may be on a file system that hangs, so its
/// thread reads them.
pub fn make(setup: &ObserverSetup<'_>) -> Option<Box<dyn Observer>> {
    let prometheus = &setup.config.prometheus;
    if prometheus.address.is_empty() {
        return None;
    }
    match PrometheusObserver::start(prometheus, &setup.config.run.name, setup.url) {
        Ok(observer) => Some(Box::new(observer)),
        Err(error) => {
            tracing::warn!("{PROBLEM}: cannot start a thread: {error}");
            None
        }
    }
}

impl PrometheusObserver {
    fn start(prometheus: &Prometheus, name: &str, url: &str) -> std::io::Result<Self> {
        let ((stop, stopped), (alive, thread)) = (channel(), channel::<()>());
        let snapshot = Snapshot { url: url.to_owned(), ..Snapshot::default() };
        let shared = Shared::new(Mutex::new(Arc::new(snapshot.clone())));
        let (prometheus, name, read) = (prometheus.clone(), name.to_owned(), Arc::clone(&shared));
        let run = move || {
            let _alive = alive;
            if let Err(error) = serve(&prometheus, &name, read, &stopped) {
                let error = crate::failure::chain(&error);
                tracing::warn!("{PROBLEM}: {error}; training continues");
            }
        };
        std::thread::Builder::new().name("prometheus".into()).spawn(run)?;
        Ok(Self { snapshot, shared, stop, thread })
    }

    fn update(&mut self, status: &Status) {
        self.snapshot.status = status.clone();
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(self.snapshot.clone());
    }
}

/// Serves the metrics until the coordinator ends.
fn serve(prometheus: &Prometheus, name: &str, shared: Shared, stopped: &Receiver<Stop>) -> Result<(), ServerError> {
    let token = files::token(&prometheus.token_file)?;
    let start = || MetricsServer::start(&prometheus.address, token.clone(), Arc::clone(&shared));
    let Some(server) = start_when_free(PROBLEM, stopped, ServerError::is_address_in_use, start)? else {
        return Ok(());
    };
    tracing::info!("serving metrics for Prometheus at http://{}/metrics", server.target());
    let discovery = Discovery::new(&prometheus.discovery_file, name);
    discovery.write(server.target());
    // A disconnected channel: the coordinator ends by an error.
    if stopped.recv() != Ok(Stop::Replaced) {
        discovery.clear(server.target());
    }
    Ok(())
}

impl Observer for PrometheusObserver {
    fn begin(&mut self, begin: &RunBegin<'_>) {
        self.update(begin.status);
    }

    fn observe(&mut self, observation: &Observation<'_>) {
        if let Event::Worker(_, WorkerEvent::Message(_, message)) = observation.event {
            let now = Some(unix(observation.state, observation.at));
            match message {
                Message::Record(_) => self.snapshot.last_step = now,
                Message::Event(EventKind::Checkpoint { .. }) => self.snapshot.last_checkpoint = now,
                Message::Event(_) => {}
            }
        }
        if observation.urgency.is_some() {
            self.update(observation.status);
        }
    }

    fn end(&mut self, end: &RunEnd<'_>) {
        let stop = if matches!(end.verdict, Verdict::Replaced(_)) { Stop::Replaced } else { Stop::Ended };
        let _ = self.stop.send(stop);
        let _ = self.thread.recv_timeout(LAST);
    }
}

fn unix(state: &CoordinatorState, at: f64) -> f64 {
    state.settings.unix + at
}
