//! `lambert checkpoint list|verify|prune|copy|average|save`.

use lambert_config::exit;
use lambert_progress::Progress;
use lambert_store::checkpoint::{self, ListedCheckpoint, Retention};
use lambert_store::{Lease, Store, StoredVocabulary, run as names};
use serde_json::json;

use super::stop;
use super::stored_run::{checkpoint_failure, require_run};
use crate::cli::CheckpointAction;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::run::config_diff::{self, Difference};
use crate::run::sources::SAVE_OBJECT;
use crate::run::teacher;
use crate::stored_config;
use crate::text::counted;

#[derive(Debug, thiserror::Error)]
enum CheckpointError {
    #[error("{url}: {damaged} of {all} checkpoints are damaged")]
    Damaged { url: String, damaged: usize, all: usize },
    #[error("{0} is not a checkpoint; expected {expected}", expected = names::CHECKPOINT_URL)]
    NoCheckpoint(String),
    #[error("{to} and {from} belong to different runs: {what}; copy to an empty folder or prefix")]
    OtherRun { from: String, to: String, what: String },
    #[error(
        "{to} is a trained run ({lease} exists), which could resume from the copy instead of its own checkpoints; copy to an \
         empty folder or prefix"
    )]
    Trained { to: String, lease: String },
}

/// Runs a `lambert checkpoint` action.
pub fn checkpoint(action: &CheckpointAction) -> Outcome {
    match action {
        CheckpointAction::List { run, json } => {
            let _progress = Progress::start("listing");
            list(&open(run)?, *json)
        }
        CheckpointAction::Verify { run, json } => {
            let progress = Progress::start("verifying");
            verify(&progress.observe(&open(run)?), *json, &progress)
        }
        CheckpointAction::Prune { run, keep, json } => {
            let progress = Progress::start("pruning");
            prune(&progress.observe(&open(run)?), *keep, *json)
        }
        CheckpointAction::Copy { checkpoint, to } => copy(checkpoint, to, &Progress::start("copying")),
        CheckpointAction::Average { last, run, to } => average(run, to, *last as usize, &Progress::start("averaging")),
        CheckpointAction::Save { run } => {
            let _progress = Progress::start("requesting a checkpoint");
            save(&open(run)?)
        }
    }
}

fn open(run: &str) -> Result<Store, Failure> {
    let store = Store::open(run).map_err(Failure::usage)?;
    require_run(&store)?;
    Ok(store)
}

fn list(store: &Store, json: bool) -> Outcome {
    let listed = checkpoint::list(store).map_err(Failure::failed)?;
    let line = |listed: &ListedCheckpoint| match json {
        true => json!({ "name": listed.name, "step": listed.position.step, "attempt": listed.position.attempt,
                        "bytes": listed.bytes })
        .to_string(),
        false => format!("{}  {:.1} MB", listed.name, listed.bytes as f64 / 1e6),
    };
    for checkpoint in &listed {
        print(&line(checkpoint))?;
    }
    if listed.is_empty() {
        tracing::info!("{} has no checkpoints", store.url());
    }
    Ok(exit::DONE)
}

fn verify(store: &Store, json: bool, progress: &Progress) -> Outcome {
    let listed = checkpoint::list(store).map_err(Failure::failed)?;
    progress.set_total(listed.iter().map(|listed| listed.bytes).sum());
    let (mut damaged, mut all) = (0, 0);
    for ListedCheckpoint { name, .. } in &listed {
        let fault = match checkpoint::verify(store, name) {
            Ok(_) => None,
            Err(error) if error.is_damaged() || error.is_not_found() => Some(error.to_string()),
            Err(error) => return Err(Failure::failed(error)),
        };
        if fault.is_some() && !checkpoint::is_committed(store, name).map_err(Failure::failed)? {
            tracing::info!("{name} was deleted during verification (by training or by a prune)");
            continue;
        }
        all += 1;
        damaged += usize::from(fault.is_some());
        print(&match (json, &fault) {
            (true, fault) => json!({ "name": name, "good": fault.is_none(), "fault": fault }).to_string(),
            (false, None) => format!("{name}  ok"),
            (false, Some(fault)) => format!("{name}  damaged: {fault}"),
        })?;
    }
    match damaged {
        0 => Ok(exit::DONE),
        _ => {
            let url = store.url().to_owned();
            Err(Failure::failed(CheckpointError::Damaged { url, damaged, all }))
        }
    }
}

/// Deletes checkpoints that the retention settings of the run do not keep. `keep` overrides the number of newest
/// checkpoints to keep.
fn prune(store: &Store, keep: Option<usize>, json: bool) -> Outcome {
    let retention = retention(store, keep)?;
    let pruned = checkpoint::retain(store, &retention).map_err(Failure::failed)?;
    print(&match json {
        true => {
            json!({ "checkpoints": pruned.checkpoints, "objects": pruned.objects, "bytes": pruned.bytes }).to_string()
        }
        false => {
            let mut lines: Vec<String> = pruned.checkpoints.iter().map(|name| format!("{name}  deleted")).collect();
            lines.push(format!(
                "deleted {} and {} ({:.1} MB)",
                counted(pruned.checkpoints.len() as u64, "checkpoint"),
                counted(pruned.objects as u64, "object"),
                pruned.bytes as f64 / 1e6
            ));
            lines.join("\n")
        }
    })?;
    Ok(exit::DONE)
}

fn retention(store: &Store, keep: Option<usize>) -> Result<Retention, Failure> {
    let text = stored_config::text(store)?.unwrap_or_default();
    let settings = stored_config::parse(&text, store)?.checkpoint;
    let best = if settings.keep_best { checkpoint::recorded_best(store).map_err(Failure::failed)? } else { None };
    let (last, every_steps) = (keep.unwrap_or(settings.keep), settings.keep_every_steps);
    Ok(Retention { last, every_steps, named: best.into_iter().collect(), ..Retention::default() })
}

/// Copies a checkpoint together with its configuration and vocabulary, so that the destination becomes a run.
fn copy(url: &str, to: &str, progress: &Progress) -> Outcome {
    let no_checkpoint = || Failure::usage(CheckpointError::NoCheckpoint(url.to_owned()));
    let (run, name) = names::split_checkpoint_url(url);
    let name = name.ok_or_else(no_checkpoint)?;
    let (from, to) = open_pair(run, to, progress)?;
    // A damaged checkpoint must leave nothing at the destination, which would otherwise count as a run.
    checkpoint::verify(&from, name).map_err(checkpoint_failure)?;
    copy_model_files(&from, &to)?;
    checkpoint::copy(&from, name, &to).map_err(Failure::failed)?;
    print(&names::checkpoint_url(to.url(), name))?;
    Ok(exit::DONE)
}

/// Writes the average of the newest `last` checkpoints with the configuration and the vocabulary of their run, so that the
/// destination becomes a run.
fn average(run: &str, to: &str, last: usize, progress: &Progress) -> Outcome {
    let chosen = checkpoint::newest(&open(run)?, last).map_err(Failure::usage)?;
    let (from, to) = open_pair(run, to, progress)?;
    for (index, name) in chosen.iter().enumerate() {
        // The average has the moments of the first checkpoint.
        let verify = if index == 0 { checkpoint::verify } else { checkpoint::verify_weights };
        verify(&from, name).map_err(checkpoint_failure)?;
    }
    copy_model_files(&from, &to)?;
    let manifest = checkpoint::average(&from, &chosen, &to).map_err(Failure::failed)?;
    tracing::info!("averaged {}", chosen.join(", "));
    print(&names::checkpoint_url(to.url(), &manifest.name()))?;
    Ok(exit::DONE)
}

/// Opens run `from` and the destination `to`. The destination must be empty, or have checkpoints of the same run and no
/// trained steps.
fn open_pair(from: &str, to: &str, progress: &Progress) -> Result<(Store, Store), Failure> {
    let (from, to) = (open(from)?, Store::open(to).map_err(Failure::usage)?);
    let (from, to) = (progress.observe(&from), progress.observe(&to));
    if let Some(what) = run_mismatch(&from, &to)? {
        let (from, to) = (from.url().to_owned(), to.url().to_owned());
        return Err(Failure::usage(CheckpointError::OtherRun { from, to, what }));
    }
    // The attempt number of a copied checkpoint could be higher than all attempt numbers of the destination run. This
    // run would then prefer the copy to its own checkpoints.
    if let Some(attempt) = Lease::newest(&to).map_err(Failure::failed)? {
        let (to, lease) = (to.url().to_owned(), names::lease(attempt));
        return Err(Failure::usage(CheckpointError::Trained { to, lease }));
    }
    Ok((from, to))
}

/// Copies the teacher, the configuration, the tokenizer and the vocabulary of run `from`. The configuration is written
/// after the teacher and the tokenizer.
fn copy_model_files(from: &Store, to: &Store) -> Result<(), Failure> {
    teacher::copy(from, to)?;
    let imported = names::IMPORTED_FILES.map(names::in_transformers);
    let optional = std::iter::once(names::PHRASES).chain(imported.iter().map(String::as_str));
    let required = [names::CONFIG, StoredVocabulary::read(from).map_err(Failure::failed)?.name];
    for (object, is_required) in optional.map(|name| (name, false)).chain(required.map(|name| (name, true))) {
        let bytes = match from.get(object) {
            // Most runs have no list of phrases, and were not imported.
            Err(error) if !is_required && error.is_not_found() => continue,
            found => found.map_err(Failure::failed)?,
        };
        to.put_new(object, bytes).map_err(Failure::failed)?;
    }
    Ok(())
}

/// Describes why the checkpoints at `to` and `from` belong to different runs. Returns `None` if the runs match or `to`
/// is empty. A checkpoint is read with the configuration and the vocabulary in its store, so these must match.
fn run_mismatch(from: &Store, to: &Store) -> Result<Option<String>, Failure> {
    let Some(there) = stored_config::text(to)? else { return Ok(None) };
    let config = |store, text: &str| stored_config::parse(text, store);
    let here = stored_config::text(from)?.unwrap_or_default();
    let compared = config_diff::compare(&config(to, &there)?, &config(from, &here)?).map_err(Failure::failed)?;
    // A user may change the stages and the optimizer of a run during training.
    let is_of_model =
        |key: &str| ["run", "model", "objective"].iter().any(|part| config_diff::is_at_or_below(key, part));
    let is_other = |difference: &&Difference| is_of_model(&difference.key) || difference.is_of_shapes();
    if let Some(difference) = compared.trained.iter().find(is_other) {
        return Ok(Some(format!("{} is {} and {}, respectively", difference.key, difference.before, difference.now)));
    }
    if teacher::differs(from, to)? {
        return Ok(Some("the teacher differs".to_owned()));
    }
    for object in [names::VOCABULARY, names::TOKENIZER, names::PHRASES] {
        let differs = match to.get(object) {
            Ok(there) => match from.get(object) {
                Ok(here) => here != there,
                Err(error) if error.is_not_found() => true,
                Err(error) => return Err(Failure::failed(error)),
            },
            // An interrupted copy may have written only the configuration.
            Err(error) if error.is_not_found() => false,
            Err(error) => return Err(Failure::failed(error)),
        };
        if differs {
            return Ok(Some(format!("{object} differs")));
        }
    }
    Ok(None)
}

fn save(store: &Store) -> Outcome {
    stop::request(store, SAVE_OBJECT)?;
    print("checkpoint requested: it is saved after one of the next steps; training continues")?;
    Ok(exit::DONE)
}

fn print(text: &str) -> Result<(), Failure> {
    console::result(text).map_err(Failure::failed)
}
