//! `lambert import`: writes a model of Hugging Face Transformers as a run with one checkpoint.

use lambert_config::exit;
use lambert_progress::Progress;
use lambert_store::Store;
use lambert_store::run::{CONFIG, TOKENIZER, VOCABULARY, checkpoint_url};

use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::import::Import;

#[derive(Debug, thiserror::Error)]
#[error("{url} has {name} already; name a new directory")]
struct Exists {
    url: String,
    name: &'static str,
}

/// Imports a folder. Writes nothing if the folder cannot be imported.
pub fn import(arguments: &cli::Import) -> Outcome {
    let store = Store::open(&arguments.output).map_err(Failure::usage)?;
    // A vocabulary without a configuration belongs to a folder of transformers, or to an import that was interrupted.
    for name in [CONFIG, VOCABULARY, TOKENIZER] {
        if store.head(name).map_err(Failure::failed)?.is_some() {
            return Err(Failure::usage(Exists { url: store.url().to_owned(), name }));
        }
    }
    let progress = Progress::start("reading");
    let import = Import::read(&arguments.folder, &arguments.init_missing).map_err(Failure::usage)?;
    let name = import.write(&progress.observe(&store)).map_err(Failure::failed)?;
    drop(progress);
    for note in &import.notes {
        tracing::info!("{note}");
    }
    tracing::info!("imported {} as a model of family {}", arguments.folder.display(), import.family());
    console::result(&checkpoint_url(store.url(), &name)).map_err(Failure::failed)?;
    Ok(exit::DONE)
}
