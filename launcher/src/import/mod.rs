//! Import of a Hugging Face Transformers folder as a run with one checkpoint.
//!
//! - `folder`: the files of the folder
//! - `tokenizer`: vocabulary and case handling
//! - `names`: names of tensors in the folder and in a checkpoint
//! - `weights`: the weights file of a checkpoint
//! - `missing`: random values of tensors that the folder does not have

mod folder;
mod missing;
mod names;
mod tokenizer;
mod weights;

use std::path::{Path, PathBuf};

use lambert_config::RunConfig;
use lambert_config::run::{Pair, Stage};
use lambert_dataset::tokenizer::{TokenizerError, TokenizerModel};
use lambert_plan::architecture::{Architecture, ConfigKeys, ImportedModel, ModuleKind, UnsupportedValue};
use lambert_store::checkpoint::{self, FORMAT, Manifest};
use lambert_store::run::{
    CONFIG, IMPORTED_FILES, MANIFEST, TRANSFORMERS_CONFIG, WEIGHTS, imported_checkpoint, in_transformers,
};
use lambert_store::{Store, hash};
use serde_json::json;

pub use missing::InitializedModule;
pub use weights::EXPORT_TYPE;

use folder::Folder;
use missing::Initialization;
use names::Renamed;
use tokenizer::ImportedTokenizer;

/// A folder cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    #[error("cannot read {}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error(
        "folder {} does not exist; lambert downloads nothing: to get a model of the Hugging Face Hub, \
         run `hf download NAME --local-dir FOLDER`, or use save_pretrained of transformers",
        folder.display()
    )]
    NoFolder { folder: PathBuf },
    #[error("{PREFIX}{folder}: only run.from and objective.teacher take {PREFIX}; name the folder, {folder}")]
    Prefix { folder: String },
    #[error("{} has no {name}; expected a folder that save_pretrained of transformers wrote", folder.display())]
    NoFile { folder: PathBuf, name: &'static str },
    #[error("{} is a pickle, which can execute arbitrary code; if you trust it, convert it: {command}", path.display())]
    Pickle { path: PathBuf, command: String },
    #[error("{}: {why}", path.display())]
    Json { path: PathBuf, why: String },
    #[error("{}", path.display())]
    Config { path: PathBuf, source: UnsupportedValue },
    #[error("{}: {why}", path.display())]
    Weights { path: PathBuf, why: String },
    #[error("{}: {why}", path.display())]
    Tokenizer { path: PathBuf, why: String },
    #[error("{}", path.display())]
    Vocabulary { path: PathBuf, source: TokenizerError },
    #[error("{}: {tensors}{} missing; {advice}", folder.display(), if *many { " are" } else { " is" })]
    Missing { folder: PathBuf, tensors: String, many: bool, advice: String },
    #[error("{} describes a model that lambert does not support: {why}", path.display())]
    Model { path: PathBuf, why: String },
    #[error("cannot write the configuration")]
    Toml(#[from] toml::ser::Error),
}

/// Start of a value of `run.from` that names a folder.
pub const PREFIX: &str = "hf:";

/// Name of the stage of an imported run, which was never trained.
pub const STAGE: &str = "import";

/// Maximum number of layers of an imported model.
const MAX_LAYERS: usize = 1024;

/// Key of the state in a manifest: the folder of an import.
const SOURCE: &str = "source";

/// A folder that has passed all checks. Nothing is written yet.
pub struct Import {
    /// Folder, as [`source`] returns it.
    source: String,
    config: RunConfig,
    /// Text of `config`.
    text: String,
    vocabulary: ImportedTokenizer,
    /// Content of its `config.json`.
    transformers_config: String,
    weights: Vec<u8>,
    /// Sentences on tensors that were left out, renamed or initialized.
    pub notes: Vec<String>,
}

impl Import {
    /// Reads and checks a folder. The tensors of `initialized` get random values if the folder does not have them.
    ///
    /// # Errors
    /// The folder has no model that lambert supports, or its files contradict each other.
    pub fn read(path: &Path, initialized: &[InitializedModule]) -> Result<Self, ImportError> {
        let folder = Folder::open(path)?;
        let model = ImportedModel::new(&folder.config)
            .map_err(|source| ImportError::Config { path: folder.file(TRANSFORMERS_CONFIG), source })?;
        if model.model.layers > MAX_LAYERS {
            let why = format!("it has {} layers; expected at most {MAX_LAYERS}", model.model.layers);
            return Err(ImportError::Model { path: folder.file(TRANSFORMERS_CONFIG), why });
        }
        let vocabulary = ImportedTokenizer::read(&folder)?;
        let tokens = vocabulary.info.size;
        if tokens > model.vocabulary {
            let why = format!("vocab_size is {}, but the vocabulary has {tokens} tokens", model.vocabulary);
            return Err(ImportError::Json { path: folder.file(TRANSFORMERS_CONFIG), why });
        }
        // transformers counts the positions of tokens from the row after `pad_token_id`, and leaves out this token.
        if let Some(pad) = model.first_position.checked_sub(1).filter(|pad| *pad != vocabulary.pad as usize) {
            let why = format!(
                "pad_token_id is {pad}, but the padding token of the tokenizer has the id {}; expected the same id",
                vocabulary.pad
            );
            return Err(ImportError::Json { path: folder.file(TRANSFORMERS_CONFIG), why });
        }
        let shards = folder.shards()?;
        let renamed = Renamed::new(&model, &shards)?;
        let config = configuration(&model, &renamed)
            .map_err(|why| ImportError::Model { path: folder.file(TRANSFORMERS_CONFIG), why })?;
        let architecture = Architecture::of_run(&config, config.model.layers, tokens);
        let has_other_head = ConfigKeys(&folder.config).has_other_head();
        let initialization = Initialization { modules: initialized, has_other_head };
        let (weights, mut notes) =
            weights::checkpoint_file(path, &model, &config, &architecture, renamed, &initialization)?;
        if tokens < model.vocabulary {
            notes.push(format!(
                "left out: rows {tokens} to {} of the vocabulary, which have no token",
                model.vocabulary - 1
            ));
        }
        if let Some(last) = model.first_position.checked_sub(1) {
            notes.push(format!(
                "left out: rows 0 to {last} of the position embeddings, which no token uses; an export has zeros there"
            ));
        }
        let transformers_config = folder.config.to_string();
        Ok(Self {
            source: source(path),
            text: config.to_toml()?,
            config,
            vocabulary,
            transformers_config,
            weights,
            notes,
        })
    }

    /// Folder, as [`source`] returns it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Configuration of the imported run.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// SHA-256 of the weights file.
    pub fn weights_sha256(&self) -> String {
        hash::sha256(&self.weights)
    }

    /// SHA-256 of the configuration of the imported run.
    pub fn config_sha256(&self) -> String {
        hash::sha256(self.text.as_bytes())
    }

    /// Bytes of the vocabulary.
    pub fn vocabulary(&self) -> &[u8] {
        &self.vocabulary.vocabulary
    }

    /// True if the vocabulary lowercases text.
    pub fn lowercase(&self) -> bool {
        self.vocabulary.info.lowercase
    }

    /// Empties `store` of what an interrupted import left there ([`clear`]), then writes like [`Import::write`].
    ///
    /// # Errors
    /// The store cannot be written.
    pub fn replace(self, store: &Store) -> Result<String, lambert_store::Error> {
        clear(store)?;
        self.write(store)
    }

    /// Writes a run with one checkpoint to `store`, the configuration last. Returns the name of the checkpoint.
    ///
    /// # Errors
    /// The store has another checkpoint of this name, or cannot be written.
    pub fn write(self, store: &Store) -> Result<String, lambert_store::Error> {
        let text = self.text;
        store.put(self.vocabulary.model.file(), self.vocabulary.vocabulary.into())?;
        for (name, content) in self.vocabulary.files {
            store.put(&in_transformers(name), content.into())?;
        }
        store.put(&in_transformers(TRANSFORMERS_CONFIG), self.transformers_config.into())?;
        let info = self.vocabulary.info;
        let manifest = Manifest {
            format: FORMAT,
            step: 0,
            attempt: 1,
            parent: None,
            stage: 0,
            cursor: Default::default(),
            config_sha256: hash::sha256(text.as_bytes()),
            world: 1,
            held_out_loss: None,
            best: None,
            averaged: Vec::new(),
            state: json!({
                "updates": {}, "skipped_updates": 0, "vocabulary": info.size, "lowercase": info.lowercase,
                SOURCE: self.source,
            }),
            objects: Vec::new(),
        };
        checkpoint::write_single(store, manifest, vec![(WEIGHTS.to_owned(), self.weights.into())])?;
        store.put(CONFIG, text.into())?;
        Ok(checkpoint_name())
    }
}

/// Deletes all objects in `store`, which is a run with one checkpoint. Without its configuration and its manifest, which are deleted
/// first, the run is not complete.
///
/// # Errors
/// The store cannot be written.
pub fn clear(store: &Store) -> Result<(), lambert_store::Error> {
    let left: Vec<String> = store.list("")?.into_iter().map(|object| object.path).collect();
    let (first, rest): (Vec<String>, Vec<String>) =
        left.into_iter().partition(|path| path == CONFIG || path.ends_with(MANIFEST));
    store.delete_all(&first)?;
    store.delete_all(&rest)
}

/// An object in `store` that no import writes.
///
/// # Errors
/// The store cannot be listed.
pub fn other_object(store: &Store) -> Result<Option<String>, lambert_store::Error> {
    Ok(store.list("")?.into_iter().map(|object| object.path).find(|path| !is_of_import(path)))
}

/// True if an import writes this object.
pub fn is_of_import(path: &str) -> bool {
    let in_checkpoint = format!("checkpoints/{}/", checkpoint_name());
    let names = IMPORTED_FILES.map(in_transformers);
    path == CONFIG
        || path.starts_with(&in_checkpoint)
        || names.iter().any(|name| name == path)
        || [TokenizerModel::WordPiece, TokenizerModel::Bpe].iter().any(|model| model.file() == path)
}

/// Name of the checkpoint of an import.
pub fn checkpoint_name() -> String {
    imported_checkpoint()
}

/// Absolute path of a folder, which need not exist any more. Symbolic links are resolved.
pub fn source(folder: &Path) -> String {
    let path = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
    let resolved = path.ancestors().find_map(|existing| {
        let rest = path.strip_prefix(existing).ok()?;
        Some(existing.canonicalize().ok()?.components().chain(rest.components()).collect::<PathBuf>())
    });
    resolved.unwrap_or(path).to_string_lossy().into_owned()
}

/// Folder of an imported checkpoint. `None` if the manifest does not record it.
pub fn recorded_source(manifest: &Manifest) -> Option<&str> {
    manifest.state[SOURCE].as_str()
}

/// Configuration of the imported run, or why it is not valid. The stage was never trained.
fn configuration(model: &ImportedModel, renamed: &Renamed<'_>) -> Result<RunConfig, String> {
    let mut config = RunConfig { model: model.model.clone(), ..RunConfig::default() };
    config.stage = vec![Stage { name: STAGE.into(), data: "none".into(), steps: 1, ..Stage::default() }];
    config.objective.pair = Pair::None;
    let mut issues = Vec::new();
    lambert_config::Checked::check(&config, &mut issues);
    if !issues.is_empty() {
        return Err(issues.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
    }
    if renamed.has(&model.model, ModuleKind::PairHead) {
        config.objective.pair = model.model.family.pair();
    }
    Ok(config)
}
