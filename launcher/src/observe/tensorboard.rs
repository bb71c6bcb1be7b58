//! Event files for TensorBoard during a run, in the folder `metrics.tensorboard`.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use lambert_control::{EventKind, Message};
use lambert_store::Store;

use super::{Observation, Observer, ObserverSetup, RunEnd};
use crate::decide::{Event, WorkerEvent};
use crate::failure::chain;
use crate::tensorboard::export::{ExportError, RunExport};

/// Maximum time to wait for the thread at the end of the run.
const LAST: Duration = Duration::from_secs(5);

/// Observer that tells a thread when the run has saved new step records. The thread writes them.
#[derive(Debug)]
pub struct TensorboardObserver {
    /// Dropped at the end of the run.
    saved: Option<Sender<()>>,
    /// Disconnected when the thread has ended.
    thread: Receiver<()>,
}

/// Creates the observer if `metrics.tensorboard` is set.
pub fn make(setup: &ObserverSetup<'_>) -> Option<Box<dyn Observer>> {
    let folder = &setup.config.metrics.tensorboard;
    if folder.is_empty() {
        return None;
    }
    match TensorboardObserver::start(setup.url.to_owned(), folder.into()) {
        Ok(observer) => Some(Box::new(observer)),
        Err(error) => {
            tracing::warn!("no event files are written to metrics.tensorboard: cannot start a thread: {error}");
            None
        }
    }
}

impl TensorboardObserver {
    fn start(url: String, folder: PathBuf) -> std::io::Result<Self> {
        let ((saved, saves), (alive, thread)) = (channel(), channel::<()>());
        let run = move || {
            let _alive = alive;
            if let Err(error) = write(&url, &folder, &saves) {
                let error = chain(&error);
                tracing::warn!("no more event files are written to metrics.tensorboard: {error}; training continues");
            }
        };
        std::thread::Builder::new().name("tensorboard".into()).spawn(run)?;
        Ok(Self { saved: Some(saved), thread })
    }
}

/// Writes the event file, and continues it at each message until the channel is disconnected.
fn write(url: &str, folder: &std::path::Path, saves: &Receiver<()>) -> Result<(), ExportError> {
    let store = Store::open(url)?;
    let mut export: Option<RunExport> = None;
    let mut is_over = false;
    while !is_over {
        // Before the first checkpoint there is nothing to write.
        is_over = saves.recv().is_err();
        while saves.try_recv().is_ok() {}
        let written = match &mut export {
            Some(export) => export.refresh(&store),
            None => RunExport::begin(&store, folder, || {}).map(|begun| export = Some(begun)),
        };
        match written {
            Err(ExportError::Store(error)) => {
                tracing::warn!("event files of metrics.tensorboard are incomplete: {error}; trying again later");
            }
            other => other?,
        }
    }
    Ok(())
}

impl Observer for TensorboardObserver {
    fn observe(&mut self, observation: &Observation<'_>) {
        let is_saved = matches!(
            observation.event,
            Event::Worker(_, WorkerEvent::Message(_, Message::Event(EventKind::Checkpoint { .. })))
        );
        if let Some(saved) = self.saved.as_ref().filter(|_| is_saved) {
            // The thread has ended if an error was logged.
            let _ = saved.send(());
        }
    }

    fn end(&mut self, _end: &RunEnd<'_>) {
        self.saved = None;
        let _ = self.thread.recv_timeout(LAST);
    }
}
