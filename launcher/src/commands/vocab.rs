//! `lambert vocab`: trains a vocabulary.

use std::io::Write;

use lambert_config::prep::{FormatName, Source};
use lambert_config::{Layers, exit};
use lambert_data_prep::prep as data_prep;
use lambert_data_prep::vocab::{self, TrainedVocabulary, VocabProgress, VocabSettings};
use lambert_dataset::tokenizer::TokenizerModel;
use lambert_progress::{Progress, Unit};

use super::{files, prep};
use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};

/// Trains and writes the vocabulary.
pub fn vocab(arguments: &cli::Vocab) -> Outcome {
    let model = model(arguments.model);
    let word_piece = model == TokenizerModel::WordPiece;
    let mut lowercase = arguments.uncased || (word_piece && !arguments.cased);
    let sources = match &arguments.config {
        Some(_) if word_piece && (arguments.cased || arguments.uncased) => {
            return Err(Failure::usage("vocabulary.lowercase of --config applies; remove --cased or --uncased"));
        }
        Some(path) => {
            let config = data_prep::load(&Layers::from_process(&[]), path)?;
            if word_piece {
                lowercase = config.vocabulary.lowercase;
            }
            config.source
        }
        None => arguments.input.iter().map(|path| source(path)).collect(),
    };
    let settings = VocabSettings {
        model,
        size: arguments.size,
        lowercase,
        min_frequency: arguments.min_frequency,
        ..VocabSettings::default()
    };
    let TrainedVocabulary { text, tokens } = train(&sources, &settings)?;
    files::write(&arguments.output, |output| output.write_all(text.as_bytes())).map_err(Failure::failed)?;
    if tokens < arguments.size {
        tracing::warn!("vocabulary has {tokens} tokens ({} requested): corpus too small", arguments.size);
    }
    console::result(&format!("wrote {} ({tokens} tokens)", arguments.output.display())).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

/// Trains the vocabulary and shows the progress.
fn train(sources: &[Source], settings: &VocabSettings) -> Result<TrainedVocabulary, Failure> {
    let progress = Progress::start("counting words");
    let training = match settings.model {
        TokenizerModel::WordPiece | TokenizerModel::Bpe => "merging tokens",
        TokenizerModel::Unigram => "choosing tokens",
    };
    let update = |state| match state {
        VocabProgress::Counting { done, total } => {
            progress.set_total(total);
            progress.set_done(done);
        }
        VocabProgress::Training => progress.phase(training, Unit::Bytes),
    };
    vocab::train_with(sources, settings, update).map_err(prep::failure)
}

fn model(model: cli::VocabModel) -> TokenizerModel {
    match model {
        cli::VocabModel::Wordpiece => TokenizerModel::WordPiece,
        cli::VocabModel::Bpe => TokenizerModel::Bpe,
        cli::VocabModel::Unigram => TokenizerModel::Unigram,
    }
}

/// Source at `path`. Its format is detected automatically, as in `lambert prep`.
fn source(path: &str) -> Source {
    Source { path: path.to_owned(), format: FormatName::AUTO.into(), ..Source::default() }
}
