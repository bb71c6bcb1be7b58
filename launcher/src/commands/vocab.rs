//! `lambert vocab`: trains a WordPiece vocabulary.

use std::io::Write;

use lambert_config::prep::{FormatName, Source};
use lambert_config::{Layers, exit};
use lambert_data_prep::prep as data_prep;
use lambert_data_prep::vocab::{self, VocabProgress, VocabSettings};
use lambert_progress::{Progress, Unit};

use super::{files, prep};
use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};

/// Trains and writes the vocabulary.
pub fn vocab(arguments: &cli::Vocab) -> Outcome {
    let (sources, lowercase) = match &arguments.config {
        Some(path) => {
            let config = data_prep::load(&Layers::from_process(&[]), path)?;
            (config.source, config.vocabulary.lowercase)
        }
        None => (arguments.input.iter().map(|path| source(path)).collect(), !arguments.cased),
    };
    let settings = VocabSettings {
        size: arguments.size,
        lowercase,
        min_frequency: arguments.min_frequency,
        ..VocabSettings::default()
    };
    let text = train(&sources, &settings)?;
    files::write(&arguments.output, |output| output.write_all(text.as_bytes())).map_err(Failure::failed)?;
    let (pieces, output) = (text.lines().count(), arguments.output.display());
    if pieces < arguments.size {
        tracing::warn!("vocabulary has {pieces} tokens ({} requested): corpus too small", arguments.size);
    }
    console::result(&format!("wrote {output} ({pieces} tokens)")).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

/// Trains the vocabulary and shows the progress.
fn train(sources: &[Source], settings: &VocabSettings) -> Result<String, Failure> {
    let progress = Progress::start("counting words");
    let update = |state| match state {
        VocabProgress::Counting { done, total } => {
            progress.set_total(total);
            progress.set_done(done);
        }
        VocabProgress::Merging => progress.phase("merging tokens", Unit::Bytes),
    };
    vocab::train_with(sources, settings, update).map_err(prep::failure)
}

/// Source at `path`. Its format is detected automatically, as in `lambert prep`.
fn source(path: &str) -> Source {
    Source { path: path.to_owned(), format: FormatName::AUTO.into(), ..Source::default() }
}
