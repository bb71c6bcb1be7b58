//! Loads the training state that an attempt starts from.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use lambert_collective::Group;
use lambert_config::RunConfig;
use lambert_config::run::Objective;
use lambert_control::EventKind;
use lambert_dataset::VocabularyInfo;
use lambert_dataset::tokenizer::VocabularyExtension;
use lambert_plan::architecture::Architecture;
use lambert_plan::distillation::copied_tensors;
use lambert_plan::{objectives, timeline};
use lambert_store::Store;
use lambert_store::StoredVocabulary;
use lambert_store::checkpoint::{
    self as stored, Best, CheckpointSelection, Manifest, RollbackRecord, Rollbacks, SkippedCheckpoint,
    VerifiedCheckpoint,
};
use lambert_store::run as stored_run;
use serde::{Deserialize, Serialize};

use super::files::{self, ReadMode};
use super::{EngineState, changed_data, rollback};
use crate::error::{self, Error};
use crate::kernels::Kernels;
use crate::objective::Teacher;
use crate::stages;
use crate::state::{self, InitialDeviation, ParamSpec, Parameters, TrainState};
use crate::torch;
use crate::worker::agreement;
use crate::worker::datasets::Datasets;
use crate::worker::session::{self, Session};

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
            let mode = read_mode(session, collective, &session.store);
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

fn vocabulary(datasets: &Datasets) -> usize {
    datasets.first().manifest().vocabulary.size
}

/// Creates the state of a run before its first step.
fn begin(
    session: &Session,
    collective: &mut dyn Group,
    datasets: &Datasets,
    teacher: Option<&Teacher>,
) -> Result<TrainState, Error> {
    let config = &session.config;
    // The store of the run keeps the vocabulary, for exports and for programs that need only the model.
    if session.is_first() {
        let dataset = datasets.first();
        session.store.put(dataset.manifest().vocabulary.model.file(), dataset.vocabulary()?.into())?;
    }
    match &config.run.from {
        Some(url) => begin_from(session, collective, url, datasets),
        None => {
            let state = initialized(session, config.stage[0].depth(&config.model), datasets)?;
            if let Some(teacher) = teacher {
                copy_layers(teacher, &state.parameters, config)?;
            }
            Ok(state)
        }
    }
}

/// Copies the layers of `objective.teacher.layers`, the embeddings and the MLM head of the teacher to a model; nothing if the key is
/// absent.
fn copy_layers(teacher: &Teacher, student: &Parameters, config: &RunConfig) -> Result<(), Error> {
    let layers = config.objective.teacher.as_ref().map_or(&[][..], |teacher| &teacher.layers);
    if layers.is_empty() {
        return Ok(());
    }
    let of_student = (&**student.architecture(), &config.model);
    let tensors = copied_tensors(of_student, (teacher.parameters.architecture(), &teacher.model), layers)
        .map_err(|why| Error::Usage(format!("objective.teacher.layers: {why}")))?;
    Ok(torch::guard(|| stages::teacher::copy(&teacher.parameters, student, &tensors))?)
}

/// Returns how the ranks read the objects of `store`. They share the reads, unless the store is a folder and all ranks
/// are on one host: the host then reads the folder only once, because it keeps the files in memory.
pub(super) fn read_mode<'a>(session: &Session, collective: &'a mut dyn Group, store: &Store) -> ReadMode<'a> {
    let on_one_host = session.host.ranks == session.world;
    match session.world == 1 || (on_one_host && store.is_local()) {
        true => ReadMode::Alone,
        false => ReadMode::Shared(collective),
    }
}

/// Verifies a checkpoint on rank 0 and returns the result on all ranks.
pub(super) fn verify_on_first(
    collective: &mut dyn Group,
    verify: impl FnOnce() -> lambert_store::Result<VerifiedCheckpoint>,
) -> Result<VerifiedCheckpoint, Error> {
    let own = (collective.rank() == 0).then(verify).transpose();
    let is_verified = own.as_ref().ok().cloned().flatten();
    let verified = agreement::broadcast(collective, &is_verified)?;
    own?;
    verified.ok_or(Error::Peer("rank 0 could not read a checkpoint that this run starts from"))
}

/// Creates the state of step 0 from the weights of another run. If `run.from_optimizer` is set, also copies the moments
/// and update counts of that run. The state has as many layers as the checkpoint, and the first stage grows the model.
fn begin_from(
    session: &Session,
    collective: &mut dyn Group,
    url: &str,
    datasets: &Datasets,
) -> Result<TrainState, Error> {
    let config = &session.config;
    let (run, name) = stored_run::split_checkpoint_url(url);
    let name = name.ok_or_else(|| {
        Error::Usage(format!("run.from: {url} is not a checkpoint; expected {}", stored_run::CHECKPOINT_URL))
    })?;
    let store = Store::open(run)?;
    let extension = vocabulary_extension(&StoredVocabulary::read(&store)?.bytes, datasets, run)?;
    let verified = verify_on_first(collective, || match config.run.from_optimizer {
        true => stored::verify(&store, name),
        false => stored::verify_weights(&store, name),
    })?;
    let mode = read_mode(session, collective, &store);
    let info: Option<VocabularyInfo> = serde_json::from_value(verified.manifest.state.clone()).ok();
    // With another case handling, the files would not describe the data.
    let is_same_case = info.is_some_and(|info| info.lowercase == datasets.first().manifest().lowercase);
    if session.is_first() {
        let has_same_tokenizer = is_same_case && extension.is_none();
        let tokenizer = stored_run::TOKENIZER_FILES.into_iter().filter(|_| has_same_tokenizer);
        copy_imported_files(&store, &session.store, tokenizer.chain([stored_run::TRANSFORMERS_CONFIG]))?;
    }
    let (theirs, _) = session::read_config(&store)?;
    let layers = theirs.depth(verified.manifest.stage);
    let source = with_heads_of(config, &theirs);
    let has_other_heads = objectives::heads(&source.objective) != objectives::heads(&config.objective);
    if extension.is_some() || has_other_heads {
        if config.run.from_optimizer {
            let message = "run.from_optimizer: the model has new tokens or other heads, which have no moments";
            return Err(Error::Usage(message.to_owned()));
        }
        let state = initialized(session, layers, datasets)?;
        let is_unchanged = || VocabularyExtension { before: vocabulary(datasets), parts: Vec::new() };
        let extension = extension.unwrap_or_else(is_unchanged);
        let architecture = Architecture::of_run(&source, layers, extension.before);
        let before = read_model(session.kernels.clone(), &store, &verified, architecture, mode)?;
        torch::guard(|| stages::vocabulary::extend(&before, &state.parameters, &extension))?;
        if session.is_first() && has_other_heads {
            let change = if config.objective.span_boundary_weight > 0.0 { "initialized" } else { "left out" };
            tracing::info!("run.from: {change} the span boundary head, which only one of the two models has");
        }
        return Ok(state);
    }
    let mut state = empty(session, layers, datasets)?;
    match config.run.from_optimizer {
        true => {
            files::read(&store, &verified, &mut state, mode)?;
            state.updates = EngineState::read(&verified.manifest)?.updates(state.parameters.specs());
        }
        false => files::read_weights(&store, &verified, &state.parameters, mode)?,
    }
    Ok(state)
}

/// Returns `config` with the objective whose heads the checkpoints of `theirs` have.
fn with_heads_of(config: &RunConfig, theirs: &RunConfig) -> RunConfig {
    let span_boundary_weight = theirs.objective.span_boundary_weight;
    let objective = Objective { span_boundary_weight, ..config.objective.clone() };
    RunConfig { objective, ..config.clone() }
}

/// Returns the tokens that the datasets have in addition to the vocabulary of `run`; none if both are equal.
fn vocabulary_extension(
    vocabulary: &[u8],
    datasets: &Datasets,
    run: &str,
) -> Result<Option<VocabularyExtension>, Error> {
    let dataset = datasets.first();
    if lambert_store::hash::sha256(vocabulary) == dataset.manifest().vocabulary.sha256 {
        return Ok(None);
    }
    let differs = |why| format!("run.from: the vocabulary of {} does not extend that of {run}: {why}", dataset.url());
    let extension = VocabularyExtension::new(vocabulary, &dataset.vocabulary()?);
    extension.map(Some).map_err(|why| Error::Usage(differs(why)))
}

/// Copies files of an imported model for exports.
fn copy_imported_files(from: &Store, to: &Store, names: impl Iterator<Item = &'static str>) -> Result<(), Error> {
    for name in names.map(stored_run::in_transformers) {
        match from.get(&name) {
            Ok(content) => to.put(&name, content)?,
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Creates a state with random weights for the model of the run with `layers` encoder layers.
fn initialized(session: &Session, layers: usize, datasets: &Datasets) -> Result<TrainState, Error> {
    let config = &session.config;
    let architecture = Architecture::of_run(config, layers, vocabulary(datasets));
    let range = InitialDeviation::of_model(&config.model);
    let (kernels, seed) = (session.kernels.clone(), config.run.seed);
    Ok(torch::guard(|| TrainState::new(Parameters::initialize(kernels, architecture, seed, range)))?)
}

/// Allocates a zeroed state for the model of the run with `layers` encoder layers.
fn empty(session: &Session, layers: usize, datasets: &Datasets) -> Result<TrainState, Error> {
    let architecture = Architecture::of_run(&session.config, layers, vocabulary(datasets));
    Ok(torch::guard(|| TrainState::new(Parameters::zeros(session.kernels.clone(), architecture)))?)
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

/// Restores `state` from a checkpoint. `state` must have the parameters of the checkpoint.
pub fn read_state(
    store: &Store,
    verified: &VerifiedCheckpoint,
    state: &mut TrainState,
    mode: ReadMode<'_>,
) -> Result<(), Error> {
    let engine_state = EngineState::read(&verified.manifest)?;
    files::read(store, verified, state, mode)?;
    engine_state.apply(&verified.manifest, state);
    Ok(())
}

/// Loads the weights of a checkpoint. Names, shapes and types must match those of the model.
pub fn read_model(
    kernels: Arc<dyn Kernels>,
    store: &Store,
    verified: &VerifiedCheckpoint,
    architecture: Architecture,
    mode: ReadMode<'_>,
) -> Result<Parameters, Error> {
    let parameters = torch::guard(|| Parameters::zeros(kernels, architecture))?;
    files::read_weights(store, verified, &parameters, mode)?;
    Ok(parameters)
}
