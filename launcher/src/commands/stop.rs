//! `lambert stop`: asks the coordinator of a run, wherever it is, to save a checkpoint and stop.

use lambert_config::exit;
use lambert_store::Store;

use super::status::{self, Life};
use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::run::sources::STOP_OBJECT;

#[derive(Debug, thiserror::Error)]
enum StopError {
    #[error("{url} is not being trained: it {state}")]
    NotRunning { url: String, state: String },
}

/// Asks for a checkpoint and an end.
pub fn stop(arguments: &cli::Stop) -> Outcome {
    let store = Store::open(&arguments.run).map_err(Failure::usage)?;
    request(&store, STOP_OBJECT)?;
    // Whoever asked knows by the command's own exit code, should nobody read this.
    let _ = console::result("asked to stop: a checkpoint is saved after the next step, then the workers leave");
    Ok(exit::DONE)
}

/// Leaves a request in the store of a run that somebody works on.
pub fn request(store: &Store, object: &str) -> Result<(), Failure> {
    status::require_run(store)?;
    let idle =
        |state: &str| Failure::failed(StopError::NotRunning { url: store.url().to_owned(), state: state.to_owned() });
    match status::read(store)? {
        None => return Err(idle("was never started")),
        Some(status) if status.state.is_over() => return Err(idle(&format!("has {}", status.state))),
        Some(status) if status::life(&status) == Life::Gone => {
            return Err(idle("was, but its coordinator is gone; `lambert run` goes on with it"));
        }
        Some(_) => {}
    }
    store.put(object, "asked\n".into()).map_err(Failure::failed)
}
