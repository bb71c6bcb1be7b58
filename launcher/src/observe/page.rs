//! Web page of the run: the page of `lambert watch`, served by the coordinator.

use std::fs::Permissions;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use lambert_config::run::Watch;
use lambert_store::Store;

use super::busy_address::start_when_free;
use super::{Observation, Observer, ObserverSetup, RunEnd};
use crate::watch::poll;
use crate::watch::server::{Server, ServerError};
use crate::{failure, panics};

/// Maximum number of connections. The coordinator needs its file descriptors for the ranks and the store. A browser
/// opens at most six connections.
const CONNECTIONS: usize = 16;
/// Start of the warnings.
const PROBLEM: &str = "the page of the run is not served";
/// Maximum time to wait at the end of the run until the file is removed.
const LAST: Duration = Duration::from_secs(2);

/// The page cannot be served.
#[derive(Debug, thiserror::Error)]
enum PageError {
    #[error("cannot open the run")]
    Store(#[from] lambert_store::Error),
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    #[error("watch.port")]
    Server(#[from] ServerError),
    #[error("cannot write watch.url_file {file}")]
    File { file: String, source: io::Error },
}

impl PageError {
    fn is_port_in_use(&self) -> bool {
        matches!(self, Self::Server(ServerError::PortInUse { .. }))
    }
}

/// Observer that starts the server. The server reads the store of the run, as `lambert watch` does.
#[derive(Debug)]
pub struct PageObserver {
    /// Disconnected at the end of the run.
    stop: Sender<()>,
    /// Disconnected when the thread has ended.
    thread: Receiver<()>,
}

/// Creates the observer if `watch.url_file` is set.
pub fn make(setup: &ObserverSetup<'_>) -> Option<Box<dyn Observer>> {
    let (watch, url) = (setup.config.watch.clone(), setup.url.to_owned());
    if watch.url_file.is_empty() {
        return None;
    }
    let ((stop, stopped), (alive, thread)) = (channel(), channel::<()>());
    let run = move || {
        let _alive = alive;
        panics::mark_optional();
        if let Err(error) = serve(&watch, &url, &stopped) {
            tracing::warn!("{PROBLEM}: {}; training continues", failure::chain(&error));
        }
    };
    match std::thread::Builder::new().name("page".into()).spawn(run).map_err(PageError::Thread) {
        Ok(_) => Some(Box::new(PageObserver { stop, thread })),
        Err(error) => {
            tracing::warn!("{PROBLEM}: {}; training continues", failure::chain(&error));
            None
        }
    }
}

/// Serves the page until the coordinator ends. The log has no token, because others may read it.
fn serve(watch: &Watch, url: &str, stopped: &Receiver<()>) -> Result<(), PageError> {
    let board = poll::start(vec![Store::open(url)?]).map_err(PageError::Thread)?;
    let start = || Server::start(watch.port, Arc::clone(&board), CONNECTIONS).map_err(PageError::from);
    let Some(server) = start_when_free(PROBLEM, stopped, PageError::is_port_in_use, start)? else { return Ok(()) };
    let (file, text) = (Path::new(&watch.url_file), server.access() + "\n");
    write(file, &text).map_err(|source| PageError::File { file: watch.url_file.clone(), source })?;
    tracing::info!("serving the page of the run; its URL is in {}", file.display());
    // The channel is disconnected at the end.
    let _ = stopped.recv();
    // Another coordinator may have replaced the file.
    if std::fs::read_to_string(file).is_ok_and(|found| found == text) {
        let _ = std::fs::remove_file(file);
    }
    Ok(())
}

/// Writes a file that only this user can read, atomically.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::Builder::new().permissions(Permissions::from_mode(0o600)).tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

impl Observer for PageObserver {
    fn observe(&mut self, _observation: &Observation<'_>) {}

    fn end(&mut self, _end: &RunEnd<'_>) {
        let (disconnected, _) = channel();
        drop(std::mem::replace(&mut self.stop, disconnected));
        let _ = self.thread.recv_timeout(LAST);
    }
}
