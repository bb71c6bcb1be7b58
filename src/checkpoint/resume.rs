//! Loads the training state that an attempt starts from.

use std::collections::{BTreeMap, BTreeSet};

use lambert_collective::Group;
use lambert_config::RunConfig;
use lambert_control::EventKind;
use lambert_plan::architecture::Architecture;
use lambert_plan::timeline;
use lambert_store::Store;
use lambert_store::checkpoint::{
    self as stored, Best, CheckpointSelection, Manifest, RollbackRecord, Rollbacks, SkippedCheckpoint,
    VerifiedCheckpoint,
};
use lambert_store::run as stored_run;
use serde::{Deserialize, Serialize};

use super::begin::begin;
use super::files::ReadMode;
use super::load::{empty, read_mode, read_state, vocabulary};
use super::{EngineState, changed_data, rollback};
use crate::error::{self, Error};
use crate::objective::Teacher;
use crate::state::{self, ParamSpec, TrainState};
use crate::worker::datasets::Datasets;
use crate::worker::session::Session;

/// Origin of a resumed state.
#[derive(Debug, Clone, Default)]
pub struct ResumeOrigin {
    /// Checkpoint of this run that was loaded; `None` at the beginning of a run.
    pub checkpoint: Option<String>,
    /// Best checkpoint by held-out loss so far.
    pub best: Option<Best>,
    /// Newer checkpoints that were found damaged.
    pub damaged: BTreeSet<String>,
}

/// Loads the newest checkpoint that passes verification and fits the configuration. A run without checkpoints starts
/// from the weights of `run.from`, from the layers of `teacher`, or from random weights.
pub fn resume(
    session: &Session,
    collective: &mut dyn Group,
    datasets: &Datasets,
    teacher: Option<&Teacher>,
) -> Result<(TrainState, ResumeOrigin), Error> {
    let config = &session.config;
    let found = agree_on_start(session, collective, datasets)?;
    let (mut state, best) = match &found.checkpoint {
        Some(verified) => {
            let mode = read_mode(session, collective, &session.store)?;
            let mut state = load(session, verified, datasets, mode)?;
            let changed = changed_data::forget_statistics(config, &datasets.stages, &verified.manifest, &mut state);
            changed.into_iter().filter(|_| session.is_first()).for_each(|warning| session.warn(warning));
            (state, verified.manifest.best.clone())
        }
        None => (begin(session, collective, datasets, teacher)?, None),
    };
    let checkpoint = found.checkpoint.map(|verified| verified.manifest.name());
    found.rollbacks.iter().for_each(|record| rollback::skip_samples(record, &mut state));
    if session.is_first() {
        session.control.report_event(EventKind::Started {
            step: state.step,
            steps: timeline::total_steps(config, &state.stages.early_stops),
            checkpoint: checkpoint.clone(),
            skipped_checkpoints: found.skipped,
        });
    }
    Ok((state, ResumeOrigin { checkpoint, best, damaged: found.damaged }))
}

/// Decision of rank 0. Rank 0 broadcasts it, so that all ranks act on the same state of the store.
#[derive(Default, Serialize, Deserialize)]
struct StartDecision {
    checkpoint: Option<VerifiedCheckpoint>,
    skipped: Vec<String>,
    /// Names of the skipped checkpoints that are damaged.
    damaged: BTreeSet<String>,
    rollbacks: Vec<RollbackRecord>,
    error: Option<String>,
    incompatibility: Option<String>,
    /// Steps of a checkpoint that the run had, if no checkpoint is left.
    gone: Option<u64>,
}

fn agree_on_start(session: &Session, collective: &mut dyn Group, datasets: &Datasets) -> Result<StartDecision, Error> {
    let mut bytes = Vec::new();
    if session.is_first() {
        let found = select_start(session, datasets)
            .unwrap_or_else(|error| StartDecision { error: Some(error::chain(&error)), ..StartDecision::default() });
        // If a coordinator is connected, it prints the skipped checkpoints, which it gets from the `Started` event.
        for skipped in found.skipped.iter().filter(|_| !session.control.is_connected()) {
            tracing::warn!("skipped checkpoint {skipped}");
        }
        bytes = serde_json::to_vec(&found).map_err(Error::Json)?;
    }
    collective.broadcast_bytes(&mut bytes, 0)?;
    let found: StartDecision = serde_json::from_slice(&bytes).map_err(Error::Json)?;
    let url = session.store.url().to_owned();
    if let Some(step) = found.gone {
        return Err(Error::CheckpointsGone { url, step });
    }
    match (found.error, found.incompatibility) {
        (Some(message), _) => Err(Error::Resume { url, message }),
        (None, Some(message)) => Err(Error::Usage(message)),
        (None, None) if found.checkpoint.is_none() && !found.skipped.is_empty() => {
            Err(Error::NoUsableCheckpoint { url, problems: found.skipped.join("; ") })
        }
        (None, None) => Ok(StartDecision { error: None, incompatibility: None, ..found }),
    }
}

/// Selects the checkpoint to resume from. Prefers a checkpoint that no rollback has invalidated.
fn select_start(session: &Session, datasets: &Datasets) -> Result<StartDecision, Error> {
    let listed = stored::list(&session.store)?;
    let oldest = listed.last().map(|listed| listed.position.attempt);
    // Pruning never deletes the last checkpoint.
    let gone = if oldest.is_none() { furthest_checkpoint(&session.store)?.filter(|step| *step > 0) } else { None };
    let rollbacks = RollbackRecord::read_from(&session.store, oldest.unwrap_or(0))?;
    let fits = |manifest: &Manifest| incompatibility(&session.config, manifest, vocabulary(datasets));
    let points: Rollbacks = rollbacks.iter().map(RollbackRecord::point).collect();
    let (newest, skipped) =
        stored::newest_fitting(&session.store, |manifest| fits(manifest).or_else(|| points.invalid_reason(manifest)))?;
    // The checkpoints that are still valid may have been pruned. Then an invalidated checkpoint, saved shortly before
    // the divergence, is better than none.
    let selection = match newest {
        Some(_) => (newest, skipped),
        None => stored::newest_fitting(&session.store, fits)?,
    };
    let mut decision = start_decision(selection, &session.store);
    if let Some(VerifiedCheckpoint { manifest, .. }) = &mut decision.checkpoint {
        decision.incompatibility = earlier_stage(&session.config, manifest);
        // A best checkpoint that was pruned must not be better than each later one.
        manifest.best.take_if(|best| !listed.iter().any(|listed| listed.name == best.checkpoint));
    }
    Ok(StartDecision { rollbacks, gone, ..decision })
}

/// Returns an error message if the next step is in an earlier stage than the checkpoint.
fn earlier_stage(config: &RunConfig, manifest: &Manifest) -> Option<String> {
    let ended = EngineState::read(manifest).ok()?.early_stops(config, manifest);
    timeline::longer_stage(config, &ended, (&manifest.name(), manifest.step, manifest.stage))
}

/// Returns the steps of the furthest checkpoint that the coordinators of a run have recorded. `None` without a readable
/// record. The coordinator warns about an unreadable record.
fn furthest_checkpoint(store: &Store) -> Result<Option<u64>, Error> {
    match store.get(stored_run::COORDINATOR) {
        Ok(bytes) => {
            let history: Option<serde_json::Value> = serde_json::from_slice(&bytes).ok();
            Ok(history.and_then(|history| history.pointer(stored_run::FURTHEST_CHECKPOINT)?.as_u64()))
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn start_decision((newest, skipped): CheckpointSelection, store: &Store) -> StartDecision {
    let shown = |over: &SkippedCheckpoint| format!("{}: {}", over.name, over.why);
    // If checkpoints exist but none fits, the run must not start from scratch. A new start would discard the training
    // so far, and new checkpoints would displace the old checkpoints.
    let incompatibility = skipped.iter().find(|over| newest.is_none() && over.is_rejected).map(|over| {
        format!("no checkpoint of {} fits the run's configuration; the newest is {}", store.url(), shown(over))
    });
    StartDecision {
        checkpoint: newest.map(|(_, verified)| verified),
        skipped: skipped.iter().map(shown).collect(),
        damaged: skipped.iter().filter(|over| !over.is_rejected).map(|over| over.name.clone()).collect(),
        rollbacks: Vec::new(),
        error: None,
        incompatibility,
        gone: None,
    }
}

/// Returns the reason why a checkpoint does not fit the configuration; `None` if it fits. The slices in its manifest
/// must list exactly the parameters of the model.
fn incompatibility(config: &RunConfig, manifest: &Manifest, vocabulary: usize) -> Option<String> {
    let Some(stage) = config.stage.get(manifest.stage) else {
        let last = config.stage.len().saturating_sub(1);
        return Some(format!("it was saved in stage {}, but the last stage of this run is {last}", manifest.stage));
    };
    let teacher = EngineState::read(manifest).ok().and_then(|state| state.teacher);
    if let Some(other) = teacher.and_then(|teacher| teacher.incompatibility(config)) {
        return Some(other);
    }
    let mut counts = BTreeMap::<&str, u64>::new();
    for slice in manifest.objects.iter().flat_map(|object| &object.slices) {
        *counts.entry(&slice.tensor).or_default() += slice.count;
    }
    let specs = state::specs(&Architecture::of_run(config, stage.depth(&config.model), vocabulary));
    let wrong = |spec: &&ParamSpec| counts.get(spec.name.as_str()) != Some(&(spec.count() as u64));
    if let Some(spec) = specs.iter().find(wrong) {
        let there = counts.get(spec.name.as_str()).copied().unwrap_or(0);
        return Some(format!("it has {there} elements of {}, the run's model has {}", spec.name, spec.count()));
    }
    let (there, ours) = (counts.len(), specs.len());
    (there > ours).then(|| format!("it has {there} tensors, the run's model has {ours}"))
}

fn load(
    session: &Session,
    verified: &VerifiedCheckpoint,
    datasets: &Datasets,
    mode: ReadMode<'_>,
) -> Result<TrainState, Error> {
    let mut state = empty(session, session.config.depth(verified.manifest.stage), datasets)?;
    read_state(&session.store, verified, &mut state, mode)?;
    state.stages.early_stops = EngineState::read(&verified.manifest)?.early_stops(&session.config, &verified.manifest);
    Ok(state)
}
