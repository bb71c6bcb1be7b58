//! `lambert eval`: held-out loss of a model on a dataset or on text.

use std::path::Path;

use lambert_config::prep::{FormatName, Source};
use lambert_config::{Layers, PrepConfig, RunConfig};
use lambert_data_prep::prep::{self as data_prep, DEFAULT_MEMORY, PrepOptions, PrepStatus};
use lambert_data_prep::source::SkipNotice;
use lambert_dataset::VocabularyInfo;
use lambert_progress::{Progress, Unit};
use lambert_store::run::{CONFIG, split_checkpoint_url};
use lambert_store::{Store, StoredVocabulary, checkpoint};

use super::prep;
use super::scratch::Scratch;
use super::stored_run::require_run;
use crate::cli;
use crate::failure::{Failure, Outcome};
use crate::worker;

#[derive(Debug, thiserror::Error)]
enum EvalError {
    #[error("{url} has no usable checkpoint")]
    NoCheckpoint { url: String },
    #[error("checkpoint {name} does not record its vocabulary")]
    NoVocabulary { name: String, source: serde_json::Error },
    #[error("cannot write to {folder}")]
    Scratch { folder: String, source: std::io::Error },
}

/// Evaluates a model.
pub fn eval(arguments: &cli::Eval) -> Outcome {
    match &arguments.data {
        Some(data) => worker::become_worker(&arguments.to_worker(data)),
        None => {
            let scratch = Scratch::new().map_err(|source| {
                let folder = std::env::temp_dir().display().to_string();
                Failure::failed(EvalError::Scratch { folder, source })
            })?;
            let data = prepare(arguments, scratch.path())?;
            worker::run_worker(&arguments.to_worker(&data), |worker| scratch.run(worker))
        }
    }
}

/// Prepares the text as a dataset with the vocabulary of the model. Samples are as long as the model permits.
fn prepare(arguments: &cli::Eval, folder: &Path) -> Result<String, Failure> {
    let (run, name) = split_checkpoint_url(&arguments.model);
    let store = Store::open(run).map_err(Failure::usage)?;
    require_run(&store)?;
    let text = store.get(CONFIG).map_err(Failure::failed)?;
    let model: RunConfig =
        Layers::from_sets(&[]).parse(&String::from_utf8_lossy(&text), &format!("{}/{CONFIG}", store.url()))?;
    let vocabulary = StoredVocabulary::read(&store).map_err(Failure::failed)?;
    let path = folder.join(vocabulary.name);
    std::fs::write(&path, &vocabulary.bytes).map_err(|source| {
        let folder = folder.display().to_string();
        Failure::failed(EvalError::Scratch { folder, source })
    })?;
    let mut config =
        PrepConfig { source: arguments.text.iter().map(|path| source(path)).collect(), ..Default::default() };
    config.vocabulary.file = path.display().to_string();
    let progress = Progress::start("reading the model");
    config.vocabulary.lowercase = is_lowercase(&progress.observe(&store), name)?;
    drop(progress);
    config.samples.pair = model.objective.pair;
    config.samples.sequence_length = model.model.positions;
    config.samples.short_sequence_probability = 0.0;
    config.samples.held_out = 0.0;
    config.documents.remove_duplicates = false;
    config.output.url = folder.join("data").display().to_string();
    let progress = PreparingText(Progress::start("tokenizing"));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = PrepOptions { threads, memory: DEFAULT_MEMORY, part: None, progress: &progress };
    data_prep::run(&config, &options).map_err(|error| prep::input_failure(error, "--text"))?;
    Ok(format!("{}/train", config.output.url))
}

/// True if the vocabulary of a model lowercases text. The model is the checkpoint `name`, or the newest one that verifies,
/// which the worker evaluates.
fn is_lowercase(store: &Store, name: Option<&str>) -> Result<bool, Failure> {
    let manifest = match name {
        Some(name) => checkpoint::read_manifest(store, name).map_err(Failure::failed)?,
        None => {
            // The worker logs the skipped checkpoints.
            let (newest, _) = checkpoint::newest_verified(store).map_err(Failure::failed)?;
            let none = || Failure::usage(EvalError::NoCheckpoint { url: store.url().to_owned() });
            newest.ok_or_else(none)?.1.manifest
        }
    };
    let name = manifest.name();
    let info: VocabularyInfo = serde_json::from_value(manifest.state)
        .map_err(|source| Failure::failed(EvalError::NoVocabulary { name, source }))?;
    Ok(info.lowercase)
}

fn source(path: &str) -> Source {
    Source { path: path.to_owned(), format: FormatName::AUTO.into(), ..Source::default() }
}

/// Progress of the preparation.
struct PreparingText(Progress);

impl data_prep::PrepProgress for PreparingText {
    fn update(&self, status: &PrepStatus) {
        self.0.phase(status.phase, Unit::Bytes);
        self.0.set_total(status.total);
        self.0.set_done(status.done);
    }

    fn skipped(&self, file: &str, notice: &SkipNotice) {
        tracing::warn!("{file}: {}", notice.reason);
    }
}
