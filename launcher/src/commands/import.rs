//! `lambert import`: writes a model of Hugging Face Transformers as a run with one checkpoint.

use lambert_config::exit;
use lambert_progress::Progress;
use lambert_store::Store;
use lambert_store::run::{CHECKPOINTS, CONFIG, TOKENIZER, VOCABULARY, checkpoint_url};

use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::import::Import;

/// The output folder is not empty.
#[derive(Debug, thiserror::Error)]
enum ExistsError {
    #[error("{url} has {CONFIG} already; name a new folder")]
    Run { url: String },
    #[error("{url} has {name} but no {CONFIG}, as after an interrupted import; name a new folder, or delete this one")]
    Incomplete { url: String, name: &'static str },
}

/// Imports a folder. Writes nothing if the folder cannot be imported.
pub fn import(arguments: &cli::Import) -> Outcome {
    let store = Store::open(&arguments.output).map_err(Failure::usage)?;
    // A vocabulary without a configuration belongs to a transformers folder, or to an import that was interrupted.
    for name in [CONFIG, VOCABULARY, TOKENIZER] {
        if store.head(name).map_err(Failure::failed)?.is_some() {
            return Err(exists(&store, name));
        }
    }
    let progress = Progress::start("reading");
    let import = Import::read(&arguments.folder, &arguments.init_missing).map_err(Failure::usage)?;
    let (notes, family) = (import.notes.clone(), import.config().model.family);
    let name = import.write(&progress.observe(&store)).map_err(|error| match error {
        lambert_store::Error::Exists { .. } => exists(&store, CHECKPOINTS),
        error => Failure::failed(error),
    })?;
    drop(progress);
    for note in notes {
        tracing::info!("{note}");
    }
    tracing::info!("imported {} as a model of family {family}", arguments.folder.display());
    console::result(&checkpoint_url(store.url(), &name)).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

fn exists(store: &Store, name: &'static str) -> Failure {
    let url = store.url().to_owned();
    Failure::usage(if name == CONFIG { ExistsError::Run { url } } else { ExistsError::Incomplete { url, name } })
}
