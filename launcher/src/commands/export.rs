//! `lambert export`: writes a model as a folder for Hugging Face Transformers.

mod folder;

use std::io;
use std::path::PathBuf;

use lambert_config::run::Model;
use lambert_config::{Layers, RunConfig, exit};
use lambert_dataset::VocabularyInfo;
use lambert_dataset::tokenizer::{Tokenizer, TokenizerError, transformers};
use lambert_plan::architecture::{Architecture, Head, Tensor, TransformersModel};
use lambert_plan::objectives::{self, TrainedNetwork, is_head_unused};
use lambert_progress::Progress;
use lambert_store::checkpoint::{self, Manifest, SkippedCheckpoint};
// The weights and the vocabulary already have the file names that Transformers expects.
use lambert_store::run::{
    CONFIG, TOKENIZER_FILES, TRANSFORMERS_CONFIG, WEIGHTS, in_transformers, split_checkpoint_url,
};
use lambert_store::{Store, StoredVocabulary};
use safetensors::SafeTensors;
use safetensors::tensor::SafeTensorError;
use serde_json::Value;

use super::stored_run::{checkpoint_failure, history, require_run};
use super::trim;
use crate::cli::{self, ExportedNetwork};
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::report::card::{CardLabels, ModelCard};
use crate::report::collect::{RunReport, collect_until};
use crate::report::datasets;

#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error("{} is not empty; the output folder must be empty or absent", folder.display())]
    NotEmpty { folder: PathBuf },
    #[error("{url} has no usable checkpoint{}", why(skipped))]
    NoCheckpoint { url: String, skipped: Vec<SkippedCheckpoint> },
    #[error("{url} has {setting}, which no transformers class supports")]
    Unsupported { url: String, setting: &'static str },
    #[error("--network: {url} trains only one network (objective.replaced_tokens is not set)")]
    OneNetwork { url: String },
    #[error("checkpoint {name} does not record its vocabulary")]
    NoVocabulary { name: String, source: serde_json::Error },
    #[error("{file} has {found} tokens, but checkpoint {name} was trained with {expected}")]
    Vocabulary { file: String, name: String, expected: usize, found: usize },
    #[error("invalid vocabulary of {url}")]
    Tokenizer { url: String, source: TokenizerError },
    #[error("{url}/{object} is not JSON")]
    ImportedConfig { url: String, object: String, source: serde_json::Error },
    #[error("cannot write {}", path.display())]
    Write { path: PathBuf, source: io::Error },
}

fn why(skipped: &[SkippedCheckpoint]) -> String {
    skipped.iter().map(|SkippedCheckpoint { name, why, .. }| format!("; {name}: {why}")).collect()
}

/// Exports a checkpoint to a folder. Its files appear when all of them are complete.
pub fn export(arguments: &cli::Export) -> Outcome {
    let folder = &arguments.output;
    folder::refuse_full(folder)?;
    let labels = CardLabels {
        license: arguments.license.clone(),
        languages: arguments.language.clone(),
        base_model: arguments.base_model.clone(),
    };
    let progress = Progress::start("reading");
    let (source, files) = read(arguments, &labels, &progress)?;
    folder::write(folder, &files, &progress)?;
    drop(progress);
    let name = source.manifest.name();
    let TransformersModel { class, difference, .. } = source.description(0, 0);
    difference.into_iter().for_each(|difference| tracing::warn!("{difference}"));
    let tokenizer = transformers::class(source.tokenizer()?.1.tokens().model());
    tracing::info!("exported {name} to {} ({class}, {tokenizer})", folder.display());
    console::result(&folder.display().to_string()).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

/// Name and content of each file.
type Files = Vec<(&'static str, Vec<u8>)>;

/// Reads the checkpoint and renders the files. While a run is training, its newest checkpoint may be pruned during the
/// read. A newer checkpoint then exists, and this function tries that checkpoint.
fn read(arguments: &cli::Export, labels: &CardLabels, progress: &Progress) -> Result<(Source, Files), Failure> {
    let is_named = split_checkpoint_url(&arguments.model).1.is_some();
    let open = || Source::open(arguments, progress);
    let is_pruned = |source: &Source| Ok(!is_named && !source.is_there()?);
    checkpoint::read_unless_pruned(open, |source| source.files(labels), is_pruned)
}

/// A verified checkpoint, with the configuration and the vocabulary of its run.
struct Source {
    store: Store,
    config: RunConfig,
    manifest: Manifest,
    vocabulary: VocabularyInfo,
    /// Index of the network to export.
    number: usize,
    /// The network, with the number of layers of the checkpoint.
    network: TrainedNetwork,
}

impl Source {
    /// Opens the checkpoint at `RUN/checkpoints/step-...`, or the newest valid checkpoint of the run at `RUN`.
    fn open(arguments: &cli::Export, progress: &Progress) -> Result<Self, Failure> {
        let (run, name) = split_checkpoint_url(&arguments.model);
        let store = progress.observe(&Store::open(run).map_err(Failure::usage)?);
        require_run(&store)?;
        let text = store.get(CONFIG).map_err(Failure::failed)?;
        let origin = format!("{}/{CONFIG}", store.url());
        let config: RunConfig = Layers::from_sets(&[]).parse(&String::from_utf8_lossy(&text), &origin)?;
        if let Some(setting) = TransformersModel::unsupported(&config.model) {
            return Err(Failure::usage(ExportError::Unsupported { url: store.url().to_owned(), setting }));
        }
        let manifest = match name {
            Some(name) => checkpoint::verify(&store, name).map_err(checkpoint_failure)?.manifest,
            None => newest(&store)?,
        };
        let vocabulary = serde_json::from_value(manifest.state.clone())
            .map_err(|source| Failure::failed(ExportError::NoVocabulary { name: manifest.name(), source }))?;
        let model = Model { layers: config.depth(manifest.stage), ..config.model.clone() };
        let mut networks = objectives::networks(&model, &config.objective);
        let number = match arguments.network {
            Some(_) if networks.len() == 1 => {
                return Err(Failure::usage(ExportError::OneNetwork { url: store.url().to_owned() }));
            }
            Some(ExportedNetwork::Generator) => 0,
            Some(ExportedNetwork::Discriminator) | None => networks.len() - 1,
        };
        let network = networks.swap_remove(number);
        Ok(Self { store, config, manifest, vocabulary, number, network })
    }

    fn description(&self, vocabulary: usize, pad: u32) -> TransformersModel {
        let TrainedNetwork { model, losses } = &self.network;
        let heads: Vec<Head> = losses.iter().map(|loss| loss.head).collect();
        TransformersModel::new(model, &heads, model.layers, vocabulary, pad)
    }

    /// True if the checkpoint still exists.
    fn is_there(&self) -> Result<bool, Failure> {
        checkpoint::is_committed(&self.store, &self.manifest.name()).map_err(Failure::failed)
    }

    /// Renders the model card. Its facts come from the records of the run, which a copied checkpoint may lack.
    fn card(&self, labels: &CardLabels, model: &TransformersModel, tokenizer: &Tokenizer, parameters: u64) -> String {
        let records = self
            .records()
            .inspect_err(|error| tracing::warn!("the model card lacks the results of the run: {error}"))
            .ok();
        let data = datasets::of_checkpoint(&self.config, &self.manifest);
        ModelCard {
            labels,
            config: &self.config,
            network: &self.network,
            checkpoint: &self.manifest,
            model,
            parameters,
            tokenizer,
            data: &data,
            records: records.as_ref(),
        }
        .render()
    }

    /// Reads the vocabulary of the run.
    fn tokenizer(&self) -> Result<(StoredVocabulary, Tokenizer), Failure> {
        let vocabulary = StoredVocabulary::read(&self.store).map_err(Failure::failed)?;
        let url = self.store.url().to_owned();
        let tokenizer = match self.vocabulary.tokenizer(&vocabulary.bytes) {
            Ok(tokenizer) => tokenizer,
            Err(source) => return Err(Failure::failed(ExportError::Tokenizer { url, source })),
        };
        if tokenizer.size() != self.vocabulary.size {
            let (name, expected, found) = (self.manifest.name(), self.vocabulary.size, tokenizer.size());
            let file = format!("{url}/{}", vocabulary.name);
            return Err(Failure::failed(ExportError::Vocabulary { file, name, expected, found }));
        }
        Ok((vocabulary, tokenizer))
    }

    /// Reads the `config.json` of the model that was imported. `None` if the run does not start from an imported model.
    fn imported_config(&self) -> Result<Option<Value>, Failure> {
        let Some(content) = self.imported_file(TRANSFORMERS_CONFIG)? else { return Ok(None) };
        let (url, object) = (self.store.url().to_owned(), in_transformers(TRANSFORMERS_CONFIG));
        let unreadable = |source| Failure::failed(ExportError::ImportedConfig { url, object, source });
        serde_json::from_slice(&content).map(Some).map_err(unreadable)
    }

    /// Reads a file of the model that was imported, if the run has it.
    fn imported_file(&self, name: &str) -> Result<Option<Vec<u8>>, Failure> {
        match self.store.get(&in_transformers(name)) {
            Ok(content) => Ok(Some(content.to_vec())),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(Failure::failed(error)),
        }
    }

    /// Reads the records of the run up to the checkpoint.
    fn records(&self) -> Result<RunReport, Failure> {
        collect_until(&self.store, &history(&self.store)?, self.manifest.step)
    }

    /// Renders all files of the export.
    fn files(&self, labels: &CardLabels) -> Result<Files, Failure> {
        let url = self.store.url();
        let weights = checkpoint::read_object(&self.store, &self.manifest, WEIGHTS).map_err(Failure::failed)?;
        let layers = self.config.depth(self.manifest.stage);
        let architecture = Architecture::of_run(&self.config, layers, self.vocabulary.size);
        let (tensors, own) = (architecture.tensors(), architecture.tensors_of(self.number));
        let is_read = |tensor: &Tensor| own.iter().any(|own| own.id == tensor.id);
        let is_exported = |tensor: &Tensor| tensor.head.is_none_or(Head::is_exported) && is_read(tensor);
        let left_out = |tensor: &Tensor| is_head_unused(tensor.head, &self.config.objective) || !is_exported(tensor);
        let (vocabulary, tokenizer) = self.tokenizer()?;
        let unusable = |source| Failure::failed(ExportError::Tokenizer { url: url.to_owned(), source });
        let mut description = self.description(tokenizer.size(), tokenizer.special().pad);
        if let Some(imported) = self.imported_config()? {
            description.take_unused_keys(&imported);
        }
        let weights =
            trim::weights(&weights, &tensors, description.first_position, left_out).map_err(Failure::failed)?;
        let imported = trim::imported_type(&weights).map_err(Failure::failed)?;
        let weights = match imported {
            Some((weights, dtype)) => {
                description.config["torch_dtype"] = dtype.into();
                weights
            }
            None => weights,
        };
        let model = &self.config.model;
        let card = self.card(labels, &description, &tokenizer, parameters(&weights).map_err(Failure::failed)?);
        let mut files = vec![
            (MODEL_CARD, card.into_bytes()),
            (TRANSFORMERS_CONFIG, pretty(&description.config)),
            (WEIGHTS, weights),
        ];
        files.extend(
            transformers::files(&tokenizer, &vocabulary.bytes, model.positions, model.segments).map_err(unusable)?,
        );
        // An imported model keeps the tokenizer files that it came with.
        for (name, content) in files.iter_mut().filter(|(name, _)| TOKENIZER_FILES.contains(name)) {
            if let Some(imported) = self.imported_file(name)? {
                *content = imported;
            }
        }
        Ok(files)
    }
}

/// File name of the model card.
const MODEL_CARD: &str = "README.md";

/// Number of parameters in a safetensors file.
fn parameters(weights: &[u8]) -> Result<u64, SafeTensorError> {
    let (_, header) = SafeTensors::read_metadata(weights)?;
    Ok(header.tensors().values().map(|tensor| tensor.shape.iter().product::<usize>() as u64).sum())
}

fn newest(store: &Store) -> Result<Manifest, Failure> {
    let (found, skipped) = checkpoint::newest_verified(store).map_err(Failure::failed)?;
    match found {
        Some((_, verified)) => {
            skipped.iter().for_each(|over| tracing::warn!("skipped checkpoint {}: {}", over.name, over.why));
            Ok(verified.manifest)
        }
        None => Err(Failure::failed(ExportError::NoCheckpoint { url: store.url().to_owned(), skipped })),
    }
}

fn pretty(value: &Value) -> Vec<u8> {
    format!("{value:#}\n").into_bytes()
}
