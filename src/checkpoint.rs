//! The training state, to and from the checkpoints of a run.
//!
//! Rank 0 writes the weights, every rank its slice of the moments, rank 0 the manifest when all of them lie there. The
//! state is weights, moments, counters and the data cursors, and nothing else: order, masks and dropout are functions of
//! these.

mod files;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lambert_collective::Collective;
use lambert_config::control::{Evaluation, EventKind, StepRecord};
use lambert_config::{plan, run};
use lambert_data_prep::dataset::Dataset;
use lambert_store::Store;
use lambert_store::checkpoint::{self as stored, Manifest, ObjectEntry, Writer};
use serde::{Deserialize, Serialize};

use crate::error::{self, Error};
use crate::metrics::{Records, Stopwatch};
use crate::model::Parameters;
use crate::model::parameters;
use crate::optim::{self, Optimizer};
use crate::session::{self, Datasets, Session};
use crate::torch;

/// All that an update changes.
pub struct State {
    /// Steps finished since the run's first start.
    pub step: u64,
    /// Weights, and room for their gradients.
    pub parameters: Parameters,
    /// Moments.
    pub optimizer: Optimizer,
    /// Steps whose gradient was not finite; they changed nothing.
    pub skipped_updates: u64,
    /// Samples drawn from each dataset, by the sha256 of its manifest.
    pub cursors: BTreeMap<String, u64>,
}

/// The counters and facts of a manifest's `state`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Facts {
    /// Updates made.
    pub updates: u64,
    /// Steps whose gradient was not finite.
    pub skipped_updates: u64,
    /// Pieces of the vocabulary.
    pub vocabulary: usize,
    /// Whether text is lowercased before it is split into pieces.
    pub lowercase: bool,
}

impl State {
    fn new(config: &lambert_config::RunConfig, parameters: Parameters) -> Self {
        let elements = parameters.values.numel();
        Self {
            step: 0,
            parameters,
            optimizer: Optimizer::new(config.optimizer.clone(), elements),
            skipped_updates: 0,
            cursors: BTreeMap::new(),
        }
    }

    /// Samples drawn from `dataset` so far.
    pub fn cursor(&self, dataset: &Dataset) -> u64 {
        self.cursors.get(dataset.manifest_sha256()).copied().unwrap_or(0)
    }

    /// Counts a finished step that drew `samples` from `dataset`.
    pub fn advance(&mut self, dataset: &Dataset, samples: usize) {
        self.step += 1;
        *self.cursors.entry(dataset.manifest_sha256().to_owned()).or_default() += samples as u64;
    }

    /// Updates the weights with the reduced gradients. Returns the gradient's norm, or `None` where it is not finite: then
    /// nothing was changed. All ranks see the same gradients, and so decide alike.
    pub fn update(&mut self, learning_rate: f64) -> Option<f64> {
        let (specs, weights, gradients) = self.parameters.buffers_mut();
        let norm = optim::norm(gradients);
        if !norm.is_finite() {
            self.skipped_updates += 1;
            return None;
        }
        self.optimizer.step(specs, weights, gradients, norm, learning_rate);
        Some(norm)
    }
}

/// The state to go on from: the newest checkpoint's that verifies, or a fresh one.
///
/// Also returns the checkpoint's name.
pub fn resume(
    session: &Session,
    collective: &mut dyn Collective,
    datasets: &Datasets,
) -> Result<(State, Option<String>), Error> {
    let config = &session.config;
    let found = agree_on_newest(session, collective)?;
    let vocabulary = datasets.first().manifest().vocabulary.size;
    let state = match &found.checkpoint {
        None => {
            keep_vocabulary(session, datasets)?;
            let specs = parameters::specs(&config.model, config.stage[0].depth(&config.model), vocabulary);
            let range = config.model.initializer_range;
            let parameters = torch::guard(|| Parameters::initialize(specs, config.run.seed, range))?;
            State::new(config, parameters)
        }
        Some(name) => load(session, &stored::read_manifest(&session.store, name)?, vocabulary)?,
    };
    if session.is_first() {
        session.control.event(EventKind::Started {
            step: state.step,
            steps: plan::total_steps(config),
            checkpoint: found.checkpoint.clone(),
            passed_over: found.passed_over,
        });
    }
    Ok((state, found.checkpoint))
}

/// What rank 0 found, told to all ranks, so that none of them looks for itself and sees another state of the store.
#[derive(Default, Serialize, Deserialize)]
struct Found {
    checkpoint: Option<String>,
    passed_over: Vec<String>,
    error: Option<String>,
}

fn agree_on_newest(session: &Session, collective: &mut dyn Collective) -> Result<Found, Error> {
    let mut bytes = Vec::new();
    if session.is_first() {
        let found = match stored::newest_verified(&session.store) {
            Ok(found) => found_of(found),
            Err(error) => Found { error: Some(error::chain(&error)), ..Found::default() },
        };
        // A coordinator prints these from the event that tells of the start.
        for passed_over in found.passed_over.iter().filter(|_| !session.control.is_connected()) {
            tracing::warn!("passed over checkpoint {passed_over}");
        }
        bytes = serde_json::to_vec(&found).map_err(Error::Json)?;
    }
    collective.broadcast_bytes(&mut bytes, 0)?;
    let found: Found = serde_json::from_slice(&bytes).map_err(Error::Json)?;
    match found.error {
        Some(message) => Err(Error::Resume { url: session.store.url().to_owned(), message }),
        None => Ok(found),
    }
}

fn found_of((newest, passed_over): (Option<(String, Manifest)>, Vec<stored::PassedOver>)) -> Found {
    Found {
        checkpoint: newest.map(|(name, _)| name),
        passed_over: passed_over.into_iter().map(|over| format!("{}: {}", over.name, over.why)).collect(),
        error: None,
    }
}

/// The run keeps its vocabulary beside its configuration, for export and for those who only read the model.
fn keep_vocabulary(session: &Session, datasets: &Datasets) -> Result<(), Error> {
    if session.is_first() {
        session.store.put(session::VOCABULARY, datasets.first().vocabulary()?.into())?;
    }
    Ok(())
}

fn load(session: &Session, manifest: &Manifest, vocabulary: usize) -> Result<State, Error> {
    let config = &session.config;
    let facts = files::facts(manifest)?;
    let layers = config.stage.get(manifest.stage).map_or(config.model.layers, |stage| stage.depth(&config.model));
    let parameters = read_model(&session.store, manifest, &config.model, layers, vocabulary)?;
    let mut state = State::new(config, parameters);
    files::read_moments(&session.store, manifest, &mut state.optimizer)?;
    state.optimizer.updates = facts.updates;
    state.skipped_updates = facts.skipped_updates;
    state.step = manifest.step;
    state.cursors = manifest.cursor.clone();
    Ok(state)
}

/// The checkpoint `name` of a run, or its newest one that verifies.
pub fn choose(store: &Store, name: Option<&str>) -> Result<(Manifest, Facts), Error> {
    let manifest = match name {
        Some(name) => stored::verify(store, name)?,
        None => {
            let (newest, passed_over) = stored::newest_verified(store)?;
            for over in passed_over {
                tracing::warn!("passed over checkpoint {}: {}", over.name, over.why);
            }
            let none = || Error::Usage(format!("{} has no checkpoint that verifies", store.url()));
            newest.ok_or_else(none)?.1
        }
    };
    let facts = files::facts(&manifest)?;
    Ok((manifest, facts))
}

/// The weights of a checkpoint; names, shapes and types are checked against the model's.
pub fn read_model(
    store: &Store,
    manifest: &Manifest,
    model: &run::Model,
    layers: usize,
    vocabulary: usize,
) -> Result<Parameters, Error> {
    let specs = parameters::specs(model, layers, vocabulary);
    let mut parameters = torch::guard(|| Parameters::zeros(specs))?;
    files::read_weights(store, manifest, &mut parameters)?;
    Ok(parameters)
}

/// Decides when to save, saves, and keeps the records that belong to each checkpoint.
pub struct Saver<'a> {
    session: &'a Session,
    records: Records,
    parent: Option<String>,
    last_save: Instant,
    /// Seconds that training stood still for checkpoints since the last record.
    stall: f64,
}

impl<'a> Saver<'a> {
    /// For an attempt that starts after `step` steps, from `parent` if any.
    pub fn new(session: &'a Session, step: u64, parent: Option<String>) -> Self {
        let records = Records::new(session.lease.attempt(), step);
        Self { session, records, parent, last_save: Instant::now(), stall: 0.0 }
    }

    /// Takes a step's record in, and tells it what saving cost before it.
    pub fn push(&mut self, record: &mut StepRecord) -> Result<(), Error> {
        record.checkpoint = std::mem::take(&mut self.stall);
        record.seconds += record.checkpoint;
        self.records.push(record)
    }

    /// Takes an evaluation in, as a line among the records of the steps.
    pub fn push_evaluation(&mut self, evaluation: &Evaluation) -> Result<(), Error> {
        self.records.push(&EventKind::Evaluation(evaluation.clone()))
    }

    /// Whether a checkpoint is due by the number of steps.
    pub fn is_due(&self, step: u64) -> bool {
        let every = self.session.config.checkpoint.every_steps;
        every > 0 && step.is_multiple_of(every)
    }

    /// Whether one is due by the clock. Ranks' clocks differ: only rank 0's word counts.
    pub fn is_overdue(&self) -> bool {
        let minutes = self.session.config.checkpoint.every_minutes;
        minutes > 0.0 && self.last_save.elapsed() >= Duration::from_secs_f64(60.0 * minutes)
    }

    /// Writes the state as a checkpoint: every rank its objects, rank 0 the manifest. Returns when it is committed.
    pub fn save(
        &mut self,
        collective: &mut dyn Collective,
        datasets: &Datasets,
        state: &State,
        stage: usize,
    ) -> Result<(), Error> {
        let mut watch = Stopwatch::start();
        let writer = Writer::new(&self.session.store, state.step, self.session.lease.attempt());
        // A rank that fails says so to all, so that none of them waits for it.
        let part = self.put_objects(&writer, state).map_err(|error| error::chain(&error));
        let part = serde_json::to_vec(&part).map_err(Error::Json)?;
        let mut answer = Vec::new();
        if let Some(parts) = collective.gather_bytes(&part, 0)? {
            let committed = self.commit(&writer, &parts, datasets, state, stage);
            let told = committed.map_err(|error| (error::chain(&error), error.may_pass()));
            answer = serde_json::to_vec(&told).map_err(Error::Json)?;
        }
        collective.broadcast_bytes(&mut answer, 0)?;
        let told: Result<(), (String, bool)> = serde_json::from_slice(&answer).map_err(Error::Json)?;
        let name = writer.name().to_owned();
        told.map_err(|(message, retry)| Error::Save { name: name.clone(), message, retry })?;
        self.parent = Some(name.clone());
        self.last_save = Instant::now();
        self.stall = watch.lap();
        if self.session.is_first() {
            self.session.control.event(EventKind::Checkpoint { name, step: state.step, seconds: self.stall });
        }
        Ok(())
    }

    /// This rank's objects.
    fn put_objects(&self, writer: &Writer, state: &State) -> Result<Vec<ObjectEntry>, Error> {
        let (rank, world) = (self.session.rank, self.session.world);
        let range = files::part_range(state.optimizer.first_moment.len(), rank, world);
        let moments = files::moments_bytes(&state.optimizer, range.clone())?;
        let mut entry = writer.put_object(&files::part_name(rank, world), moments)?;
        entry.slices = files::slices(state.parameters.specs(), &range);
        let mut entries = vec![entry];
        if self.session.is_first() {
            entries.push(writer.put_object(files::MODEL, files::model_bytes(&state.parameters)?)?);
        }
        Ok(entries)
    }

    /// Rank 0's part: the records, the manifest, and old checkpoints out of the way.
    fn commit(
        &mut self,
        writer: &Writer,
        parts: &[Vec<u8>],
        datasets: &Datasets,
        state: &State,
        stage: usize,
    ) -> Result<(), Error> {
        let session = self.session;
        let mut objects = Vec::new();
        for part in parts {
            let part: Result<Vec<ObjectEntry>, String> = serde_json::from_slice(part).map_err(Error::Json)?;
            let failed = |message| Error::Save { name: writer.name().to_owned(), message, retry: true };
            objects.extend(part.map_err(failed)?);
        }
        let dataset = datasets.first().manifest();
        let facts = Facts {
            updates: state.optimizer.updates,
            skipped_updates: state.skipped_updates,
            vocabulary: dataset.vocabulary.size,
            lowercase: dataset.lowercase,
        };
        let manifest = Manifest {
            format: stored::FORMAT,
            step: state.step,
            attempt: session.lease.attempt(),
            parent: self.parent.clone(),
            stage,
            cursor: state.cursors.clone(),
            config_sha256: session.config_sha256.clone(),
            world: session.world,
            state: serde_json::to_value(facts).map_err(Error::Json)?,
            objects,
        };
        self.records.flush(&session.store, state.step)?;
        writer.commit(&manifest, &session.lease)?;
        if let Err(error) = stored::prune(&session.store, session.config.checkpoint.keep) {
            tracing::warn!("old checkpoints could not be removed: {}", error::chain(&error));
        }
        Ok(())
    }
}
