//! The state to go on from.

use std::collections::BTreeMap;
use std::sync::Arc;

use lambert_collective::Group;
use lambert_config::RunConfig;
use lambert_control::EventKind;
use lambert_plan::architecture::Architecture;
use lambert_plan::timeline;
use lambert_store::Store;
use lambert_store::checkpoint::{self as stored, Best, Manifest, PassedOver, RollbackRecord, Selection, Verified};
use lambert_store::run::{self as stored_run, VOCABULARY};
use serde::{Deserialize, Serialize};

use super::{Facts, files, rollback};
use crate::error::{self, Error};
use crate::kernels::Kernels;
use crate::state::{self, ParamSpec, Parameters, TrainState};
use crate::torch;
use crate::worker::session::{self, Datasets, Session};

/// Where a state comes from.
#[derive(Debug, Clone, Default)]
pub struct Origin {
    /// The run's checkpoint that holds it; `None` at the beginning of a run.
    pub checkpoint: Option<String>,
    /// The best checkpoint by held-out loss up to then.
    pub best: Option<Best>,
}

/// The state of the newest checkpoint that verifies and fits the configuration; in a run without one the weights of
/// `run.from`, or random ones.
pub fn resume(
    session: &Session,
    collective: &mut dyn Group,
    datasets: &Datasets,
) -> Result<(TrainState, Origin), Error> {
    let config = &session.config;
    let found = agree_on_start(session, collective, datasets)?;
    let (mut state, best) = match &found.checkpoint {
        Some(verified) => (load(session, verified, datasets)?, verified.manifest.best.clone()),
        None => (begin(session, datasets)?, None),
    };
    let checkpoint = found.checkpoint.map(|verified| verified.manifest.name());
    found.rollbacks.iter().for_each(|record| rollback::skip_samples(record, &mut state));
    if session.is_first() {
        session.control.event(EventKind::Started {
            step: state.step,
            steps: timeline::total_steps(config, &state.stages.ended),
            checkpoint: checkpoint.clone(),
            skipped_checkpoints: found.passed_over,
        });
    }
    Ok((state, Origin { checkpoint, best }))
}

/// What rank 0 found, told to all ranks, so that none of them looks for itself and sees another state of the store.
#[derive(Default, Serialize, Deserialize)]
struct Found {
    checkpoint: Option<Verified>,
    passed_over: Vec<String>,
    rollbacks: Vec<RollbackRecord>,
    error: Option<String>,
    misfit: Option<String>,
}

fn agree_on_start(session: &Session, collective: &mut dyn Group, datasets: &Datasets) -> Result<Found, Error> {
    let mut bytes = Vec::new();
    if session.is_first() {
        let found = look(session, datasets)
            .unwrap_or_else(|error| Found { error: Some(error::chain(&error)), ..Found::default() });
        // A coordinator prints these from the event that tells of the start.
        for passed_over in found.passed_over.iter().filter(|_| !session.control.is_connected()) {
            tracing::warn!("skipped checkpoint {passed_over}");
        }
        bytes = serde_json::to_vec(&found).map_err(Error::Json)?;
    }
    collective.broadcast_bytes(&mut bytes, 0)?;
    let found: Found = serde_json::from_slice(&bytes).map_err(Error::Json)?;
    let url = session.store.url().to_owned();
    match (found.error, found.misfit) {
        (Some(message), _) => Err(Error::Resume { url, message }),
        (None, Some(message)) => Err(Error::Usage(message)),
        (None, None) if found.checkpoint.is_none() && !found.passed_over.is_empty() => {
            Err(Error::NoUsableCheckpoint { url, problems: found.passed_over.join("; ") })
        }
        (None, None) => Ok(Found { error: None, misfit: None, ..found }),
    }
}

/// Looks for the checkpoint to go on from: one that the run did not go back behind, if there is any.
fn look(session: &Session, datasets: &Datasets) -> Result<Found, Error> {
    let oldest = stored::list(&session.store)?.last().map_or(0, |listed| listed.place.attempt);
    let rollbacks = RollbackRecord::read_from(&session.store, oldest)?;
    let fits = |manifest: &Manifest| misfit(&session.config, manifest, vocabulary(datasets));
    let undone = |manifest: &Manifest| rollbacks.iter().find_map(|record| record.point().objection(manifest));
    let (newest, passed_over) =
        stored::newest_fitting(&session.store, |manifest| fits(manifest).or_else(|| undone(manifest)))?;
    // Older checkpoints may have been pruned: then one from just before the fault is better than none.
    let selection = match newest {
        Some(_) => (newest, passed_over),
        None => stored::newest_fitting(&session.store, fits)?,
    };
    Ok(Found { rollbacks, ..found(selection, &session.store) })
}

fn found((newest, passed_over): Selection, store: &Store) -> Found {
    let shown = |over: &PassedOver| format!("{}: {}", over.name, over.why);
    // Starting anew would leave everything that the run has learnt behind, and its checkpoints would take the place of the old.
    let misfit = passed_over.iter().find(|over| newest.is_none() && over.sound).map(|over| {
        format!("no checkpoint of {} fits the run's configuration; the newest is {}", store.url(), shown(over))
    });
    Found {
        checkpoint: newest.map(|(_, verified)| verified),
        passed_over: passed_over.iter().map(shown).collect(),
        rollbacks: Vec::new(),
        error: None,
        misfit,
    }
}

/// What keeps a checkpoint from being gone on from under this configuration, if anything does: its parameters, as the
/// slices of its moments tell them, are not the model's.
fn misfit(config: &RunConfig, manifest: &Manifest, vocabulary: usize) -> Option<String> {
    let Some(stage) = config.stage.get(manifest.stage) else {
        return Some(format!("it was saved in stage {}, of which this run has {}", manifest.stage, config.stage.len()));
    };
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
    let more = counts.len() - specs.len();
    (more > 0).then(|| format!("it has {more} tensors more than the run's model"))
}

fn vocabulary(datasets: &Datasets) -> usize {
    datasets.first().manifest().vocabulary.size
}

/// The state of a run before its first step.
fn begin(session: &Session, datasets: &Datasets) -> Result<TrainState, Error> {
    let config = &session.config;
    // The run keeps its vocabulary beside its configuration, for export and for those who only read the model.
    if session.is_first() {
        session.store.put(VOCABULARY, datasets.first().vocabulary()?.into())?;
    }
    match &config.run.from {
        Some(url) => begin_from(session, url, datasets),
        None => {
            let layers = config.stage[0].depth(&config.model);
            let architecture = Architecture::of_run(config, layers, vocabulary(datasets));
            let range = config.model.initializer_range;
            let (kernels, seed) = (session.kernels.clone(), config.run.seed);
            Ok(torch::guard(|| TrainState::new(Parameters::initialize(kernels, architecture, seed, range)))?)
        }
    }
}

/// Step 0 with another run's weights, and with its moments and count of updates if the configuration says so. The model is as
/// deep as it is there: the first stage lets it grow.
fn begin_from(session: &Session, url: &str, datasets: &Datasets) -> Result<TrainState, Error> {
    let config = &session.config;
    let (run, name) = stored_run::split(url);
    let name = name.ok_or_else(|| {
        Error::Usage(format!("run.from: {url} is not a checkpoint; expected {}", stored_run::CHECKPOINT_URL))
    })?;
    let store = Store::open(run)?;
    if lambert_store::hash::sha256(&store.get(VOCABULARY)?) != datasets.first().manifest().vocabulary.sha256 {
        return Err(Error::Usage(format!(
            "run.from: {run} does not have the vocabulary of {}",
            datasets.first().url()
        )));
    }
    let verified = stored::verify(&store, name)?;
    let (theirs, _) = session::read_config(&store)?;
    let mut state = empty(session, theirs.depth(verified.manifest.stage), datasets)?;
    match config.run.from_optimizer {
        true => {
            files::read(&store, &verified, &mut state)?;
            state.updates = Facts::read(&verified.manifest)?.updates(state.parameters.specs());
        }
        false => files::read_weights(&store, &verified, &state.parameters)?,
    }
    Ok(state)
}

/// A state of the run's model with so many layers, to be filled.
fn empty(session: &Session, layers: usize, datasets: &Datasets) -> Result<TrainState, Error> {
    let architecture = Architecture::of_run(&session.config, layers, vocabulary(datasets));
    Ok(torch::guard(|| TrainState::new(Parameters::zeros(session.kernels.clone(), architecture)))?)
}

fn load(session: &Session, verified: &Verified, datasets: &Datasets) -> Result<TrainState, Error> {
    let mut state = empty(session, session.config.depth(verified.manifest.stage), datasets)?;
    read_state(&session.store, verified, &mut state)?;
    Ok(state)
}

/// Fills `state`, which has a model's parameters, from a checkpoint.
pub fn read_state(store: &Store, verified: &Verified, state: &mut TrainState) -> Result<(), Error> {
    let facts = Facts::read(&verified.manifest)?;
    files::read(store, verified, state)?;
    facts.apply(&verified.manifest, state);
    Ok(())
}

/// The checkpoint `name` of a run, or its newest one that verifies, and what `read` makes of it. The newest checkpoint of a run that
/// is being trained may be pruned while it is read: then there is a newer one.
pub fn read_chosen<T>(
    store: &Store,
    name: Option<&str>,
    read: impl Fn(&Verified, &Facts) -> Result<T, Error>,
) -> Result<(Verified, Facts, T), Error> {
    let mut left = RETRIES;
    loop {
        let (verified, facts) = choose(store, name)?;
        left -= 1;
        match read(&verified, &facts) {
            Err(_) if name.is_none() && left > 0 && !stored::is_committed(store, &verified.manifest.name())? => {}
            read => return Ok((verified, facts, read?)),
        }
    }
}

/// How often another checkpoint is taken in place of one that is gone.
const RETRIES: usize = 10;

fn choose(store: &Store, name: Option<&str>) -> Result<(Verified, Facts), Error> {
    let verified = match name {
        Some(name) => stored::verify(store, name)?,
        None => {
            let (newest, passed_over) = stored::newest_verified(store)?;
            for over in passed_over {
                tracing::warn!("skipped checkpoint {}: {}", over.name, over.why);
            }
            let none = || Error::Usage(format!("{} has no checkpoint that verifies", store.url()));
            newest.ok_or_else(none)?.1
        }
    };
    let facts = Facts::read(&verified.manifest)?;
    Ok((verified, facts))
}

/// The weights of a checkpoint; names, shapes and types are checked against the model's.
pub fn read_model(
    kernels: Arc<dyn Kernels>,
    store: &Store,
    verified: &Verified,
    architecture: Architecture,
) -> Result<Parameters, Error> {
    let parameters = torch::guard(|| Parameters::zeros(kernels, architecture))?;
    files::read_weights(store, verified, &parameters)?;
    Ok(parameters)
}
