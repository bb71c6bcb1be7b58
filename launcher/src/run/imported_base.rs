//! `run.from = "hf:FOLDER"`: a run starts from a Hugging Face Transformers folder. The start imports the model to
//! `imported` in the store of the run, and the stored configuration names its checkpoint.

use std::path::Path;

use lambert_config::RunConfig;
use lambert_store::run::{CONFIG, checkpoint_url};
use lambert_store::{Error, Store, checkpoint};

use super::base_checkpoint::BaseModelInfo;
use super::config_diff::Difference;
use crate::failure::Failure;
use crate::import::{self, Import, PREFIX};
use crate::stored_config;

/// Prefix of the imported model in the store of a run.
const IMPORTED: &str = "imported";

#[derive(Debug, thiserror::Error)]
enum ImportedBaseError {
    #[error(
        "run.from: {url} was started without {PREFIX}{folder}, and only the first start of a run imports a model; use another \
         --run, or leave run.from out"
    )]
    Late { url: String, folder: String },
    #[error("{url} was written concurrently by another start of this run; start the run again")]
    Concurrent { url: String },
    #[error(
        "the model of run.from would replace {url}, which is not from an import; use another --run, or move it away"
    )]
    OtherObject { url: String },
}

/// True if a value of `run.from` names a folder.
pub fn is_folder(from: &str) -> bool {
    from.starts_with(PREFIX)
}

/// Resolved value of `run.from`.
#[derive(Debug)]
pub enum ResolvedBase {
    /// It names no folder.
    NoFolder,
    /// The start of the run imports this model.
    New(Box<ImportedBase>),
    /// The run has imported its model. The difference tells if it was another folder.
    Stored(Option<Difference>),
}

impl ResolvedBase {
    /// Replaces `run.from = "hf:FOLDER"` by the checkpoint of the import. Reads the folder, unless the run exists and has
    /// the import. `stored` is the stored configuration of the run.
    ///
    /// # Errors
    /// The folder cannot be imported, or the run exists and has no import.
    pub fn resolve(config: &mut RunConfig, store: &Store, stored: Option<&str>) -> Result<Self, Failure> {
        let Some(folder) = config.run.from.as_deref().and_then(|from| from.strip_prefix(PREFIX)) else {
            return Ok(Self::NoFolder);
        };
        let folder = folder.to_owned();
        let imported = store.join(IMPORTED).map_err(Failure::failed)?;
        let url = checkpoint_url(imported.url(), &import::checkpoint_name());
        let Some(stored) = stored else {
            config.run.from = Some(url);
            let import = Import::read(Path::new(&folder), &[]).map_err(Failure::usage)?;
            return Ok(Self::New(Box::new(ImportedBase { folder, import })));
        };
        let recorded = recorded(&imported)?;
        // The run may have moved since its start, and its URL can be written in several ways.
        let end = checkpoint_url(&format!("/{IMPORTED}"), &import::checkpoint_name());
        let is_import = |from: &String| *from == url || (recorded.is_some() && from.ends_with(&end));
        match stored_config::parse(stored, store)?.run.from.filter(is_import) {
            Some(before) => config.run.from = Some(before),
            None => return Err(Failure::usage(ImportedBaseError::Late { url: store.url().to_owned(), folder })),
        }
        Ok(Self::Stored(difference(recorded.flatten().as_deref(), &import::source(Path::new(&folder)))))
    }

    /// Difference from the import of the run, if the run has imported another folder.
    pub fn difference(&self) -> Option<&Difference> {
        match self {
            Self::Stored(difference) => difference.as_ref(),
            Self::NoFolder | Self::New(_) => None,
        }
    }

    /// Description of the model that the start of the run imports.
    pub fn info(&self) -> Option<BaseModelInfo> {
        match self {
            Self::New(base) => Some(base.info()),
            Self::NoFolder | Self::Stored(_) => None,
        }
    }

    /// Model that the start of the run imports.
    pub fn into_new(self) -> Option<Box<ImportedBase>> {
        match self {
            Self::New(base) => Some(base),
            Self::NoFolder | Self::Stored(_) => None,
        }
    }
}

/// Folder that was imported to this store. The inner value is `None` if that is not recorded, the outer one if the store
/// has no import.
fn recorded(imported: &Store) -> Result<Option<Option<String>>, Failure> {
    match checkpoint::read_manifest(imported, &import::checkpoint_name()) {
        Ok(manifest) => Ok(Some(import::recorded_source(&manifest).map(str::to_owned))),
        // A run with checkpoints of its own does not need the import.
        Err(error) if error.is_damaged() => Ok(Some(None)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(Failure::failed(error)),
    }
}

/// Compares the recorded folder with another one.
fn difference(recorded: Option<&str>, now: &str) -> Option<Difference> {
    let shown = |folder: &str| toml::Value::from(format!("{PREFIX}{folder}")).to_string();
    let before = recorded.filter(|before| *before != now)?;
    Some(Difference { key: "run.from".to_owned(), before: shown(before), now: shown(now) })
}

/// A checked folder. Nothing is written yet.
pub struct ImportedBase {
    folder: String,
    import: Import,
}

impl ImportedBase {
    /// Description for the checks of the start.
    fn info(&self) -> BaseModelInfo {
        let config = self.import.config().clone();
        BaseModelInfo {
            checkpoint: self.folder.clone(),
            origin: self.folder.clone(),
            layers: config.depth(0),
            config,
            has_moments: false,
            vocabulary: self.import.vocabulary().to_vec(),
            lowercase: Some(self.import.lowercase()),
            datasets: Default::default(),
        }
    }

    /// Writes the model to the store of the run, in place of what an interrupted start left there. Returns the difference
    /// from the import of another coordinator, if that has created the run in the meantime.
    pub fn write(self, run: &Store) -> Result<Option<Difference>, Failure> {
        let imported = run.join(IMPORTED).map_err(Failure::failed)?;
        if run.head(CONFIG).map_err(Failure::failed)?.is_some() {
            return Ok(difference(recorded(&imported)?.flatten().as_deref(), self.import.source()));
        }
        if let Some(name) = import::other_object(&imported).map_err(Failure::failed)? {
            let url = format!("{}/{name}", imported.url());
            return Err(Failure::usage(ImportedBaseError::OtherObject { url }));
        }
        for note in &self.import.notes {
            tracing::info!("{}: {note}", self.folder);
        }
        match self.import.replace(&imported) {
            Ok(_) => Ok(None),
            Err(Error::Exists { url }) => Err(Failure::failed(ImportedBaseError::Concurrent { url })),
            Err(error) => Err(Failure::failed(error)),
        }
    }
}

impl std::fmt::Debug for ImportedBase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImportedBase").field("folder", &self.folder).finish_non_exhaustive()
    }
}
