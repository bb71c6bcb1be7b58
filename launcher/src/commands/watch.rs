//! `lambert watch`: a web page that shows runs.

use lambert_config::exit;
use lambert_progress::signals::ignores;
use lambert_store::Store;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::stored_run::require_run;
use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::watch::poll;
use crate::watch::server::{Server, ServerError};

/// Maximum number of connections to the page.
const CONNECTIONS: usize = 256;

/// Serves the page until a signal.
pub fn watch(arguments: &cli::Watch) -> Outcome {
    let mut stores = Vec::with_capacity(arguments.runs.len());
    for run in &arguments.runs {
        let store = Store::open(run).map_err(Failure::usage)?;
        require_run(&store)?;
        stores.push(store);
    }
    // If SIGHUP was ignored when this process started (nohup), it stays ignored.
    let handled = [SIGINT, SIGTERM].into_iter().chain((!ignores(SIGHUP)).then_some(SIGHUP));
    let mut signals = Signals::new(handled).map_err(Failure::failed)?;
    let board = poll::start(stores).map_err(Failure::failed)?;
    let server = Server::start(arguments.port, board, CONNECTIONS).map_err(|error| match error {
        ServerError::PortInUse { .. } => Failure::usage(error),
        error => Failure::failed(error),
    })?;
    console::result(&format!("{}; press Ctrl-C to stop", server.access())).map_err(Failure::failed)?;
    let _ = signals.forever().next();
    Ok(exit::DONE)
}
