//! Creates the state of a run before its first step: with random weights, with layers of the teacher, or with the weights of
//! `run.from`.

use lambert_collective::Group;
use lambert_config::RunConfig;
use lambert_config::run::Objective;
use lambert_dataset::VocabularyInfo;
use lambert_dataset::tokenizer::VocabularyExtension;
use lambert_plan::architecture::Architecture;
use lambert_plan::distillation::copied_tensors;
use lambert_plan::objectives;
use lambert_store::checkpoint as stored;
use lambert_store::run as stored_run;
use lambert_store::{Store, StoredVocabulary};

use super::load::{empty, read_mode, read_model, verify_on_first, vocabulary};
use super::{EngineState, files};
use crate::error::Error;
use crate::objective::Teacher;
use crate::stages;
use crate::state::{InitialDeviation, Parameters, TrainState};
use crate::torch;
use crate::worker::datasets::Datasets;
use crate::worker::session::{self, Session};

/// Creates the state of a run before its first step.
pub fn begin(
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
    let verified = verify_on_first(collective, &store, || match config.run.from_optimizer {
        true => stored::verify(&store, name),
        false => stored::verify_weights(&store, name),
    })?;
    let mode = read_mode(session, collective, &store)?;
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
