//! `lambert checkpoint list|verify|prune`.

use lambert_config::exit;
use lambert_store::Store;
use lambert_store::checkpoint::{self, Listed};
use serde_json::json;

use super::status::require_run;
use crate::cli::CheckpointAction;
use crate::console;
use crate::failure::{Failure, Outcome};

#[derive(Debug, thiserror::Error)]
enum CheckpointError {
    #[error("{damaged} of {all} checkpoints of {url} cannot be used")]
    Damaged { url: String, damaged: usize, all: usize },
}

/// Does what is asked with a run's checkpoints.
pub fn checkpoint(action: &CheckpointAction) -> Outcome {
    match action {
        CheckpointAction::List { run, json } => list(&open(run)?, *json),
        CheckpointAction::Verify { run, json } => verify(&open(run)?, *json),
        CheckpointAction::Prune { run, keep, json } => prune(&open(run)?, *keep, *json),
    }
}

fn open(run: &str) -> Result<Store, Failure> {
    let store = Store::open(run).map_err(Failure::usage)?;
    require_run(&store)?;
    Ok(store)
}

fn list(store: &Store, json: bool) -> Outcome {
    let listed = checkpoint::list(store).map_err(Failure::failed)?;
    let line = |listed: &Listed| match json {
        true => json!({ "name": listed.name, "step": listed.place.step, "attempt": listed.place.attempt,
                        "bytes": listed.bytes })
        .to_string(),
        false => format!("{}  {:.1} MB", listed.name, listed.bytes as f64 / 1e6),
    };
    for checkpoint in &listed {
        print(&line(checkpoint))?;
    }
    if listed.is_empty() {
        tracing::info!("{} has no checkpoint", store.url());
    }
    Ok(exit::DONE)
}

fn verify(store: &Store, json: bool) -> Outcome {
    let listed = checkpoint::list(store).map_err(Failure::failed)?;
    let mut damaged = 0;
    for Listed { name, .. } in &listed {
        let fault = match checkpoint::verify(store, name) {
            Ok(_) => None,
            Err(error) if error.is_damaged() || error.is_not_found() => Some(error.to_string()),
            Err(error) => return Err(Failure::failed(error)),
        };
        damaged += usize::from(fault.is_some());
        print(&match (json, &fault) {
            (true, fault) => json!({ "name": name, "good": fault.is_none(), "fault": fault }).to_string(),
            (false, None) => format!("{name}  good"),
            (false, Some(fault)) => format!("{name}  {fault}"),
        })?;
    }
    match damaged {
        0 => Ok(exit::DONE),
        _ => {
            let (url, all) = (store.url().to_owned(), listed.len());
            Err(Failure::failed(CheckpointError::Damaged { url, damaged, all }))
        }
    }
}

fn prune(store: &Store, keep: usize, json: bool) -> Outcome {
    let pruned = checkpoint::prune(store, keep).map_err(Failure::failed)?;
    print(&match json {
        true => {
            json!({ "checkpoints": pruned.checkpoints, "objects": pruned.objects, "bytes": pruned.bytes }).to_string()
        }
        false => {
            let mut lines: Vec<String> = pruned.checkpoints.iter().map(|name| format!("{name}  removed")).collect();
            lines.push(format!("{} objects removed, {:.1} MB", pruned.objects, pruned.bytes as f64 / 1e6));
            lines.join("\n")
        }
    })?;
    Ok(exit::DONE)
}

fn print(text: &str) -> Result<(), Failure> {
    console::result(text).map_err(Failure::failed)
}
