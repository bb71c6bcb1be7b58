//! `run.from = "hf:FOLDER"`: a run starts from a folder of Hugging Face Transformers. The start imports the model to
//! `imported` in the store of the run, and the stored configuration names its checkpoint.

use std::path::Path;

use lambert_config::RunConfig;
use lambert_store::Store;
use lambert_store::checkpoint::AttemptStep;
use lambert_store::run::checkpoint_url;

use crate::failure::Failure;
use crate::import::Import;
use crate::stored_config;

/// Start of a value of `run.from` that names a folder.
const PREFIX: &str = "hf:";

/// Prefix of the imported model in the store of a run.
const IMPORTED: &str = "imported";

/// True if a value of `run.from` names a folder.
pub fn is_folder(from: &str) -> bool {
    from.starts_with(PREFIX)
}

/// A checked folder. Nothing is written yet.
pub struct ImportedBase {
    /// Folder, for messages.
    pub folder: String,
    import: Import,
}

impl ImportedBase {
    /// Replaces `run.from = "hf:FOLDER"` by the checkpoint of the import. Returns the import, unless the run exists and
    /// has it. `stored` is the stored configuration of the run.
    ///
    /// # Errors
    /// The folder cannot be imported.
    pub fn resolve(config: &mut RunConfig, store: &Store, stored: Option<&str>) -> Result<Option<Self>, Failure> {
        let Some(folder) = config.run.from.as_deref().and_then(|from| from.strip_prefix(PREFIX)) else {
            return Ok(None);
        };
        let folder = folder.to_owned();
        let name = AttemptStep { attempt: 1, step: 0 }.name();
        if let Some(stored) = stored {
            let before = stored_config::parse(stored, store)?.run.from;
            // The URL of the run can be written in several ways.
            let is_import = |from: &String| from.ends_with(&checkpoint_url(IMPORTED, &name));
            config.run.from = before.filter(is_import).or(config.run.from.take());
            return Ok(None);
        }
        config.run.from = Some(checkpoint_url(&url(store), &name));
        let import = Import::read(Path::new(&folder), &[]).map_err(Failure::usage)?;
        Ok(Some(Self { folder, import }))
    }

    /// Writes the model to a store in memory, for checks.
    pub fn in_memory(&self, run: &Store) -> Result<Store, Failure> {
        let name = run.url().replace(|character: char| !character.is_ascii_alphanumeric(), "-");
        let store = Store::open(&format!("memory://{IMPORTED}/{name}")).map_err(Failure::failed)?;
        self.import.write(&store).map_err(Failure::failed)?;
        Ok(store)
    }

    /// Writes the model to the store of the run.
    pub fn write(&self, run: &Store) -> Result<(), Failure> {
        for note in &self.import.notes {
            tracing::info!("{}: {note}", self.folder);
        }
        let store = Store::open(&url(run)).map_err(Failure::failed)?;
        self.import.write(&store).map(drop).map_err(Failure::failed)
    }
}

impl std::fmt::Debug for ImportedBase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImportedBase").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// URL of the imported model.
fn url(run: &Store) -> String {
    format!("{}/{IMPORTED}", run.url())
}
