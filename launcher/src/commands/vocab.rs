//! `lambert vocab`: trains a vocabulary.

use std::io::Write;
use std::path::Path;

use lambert_config::prep::{FormatName, Source};
use lambert_config::{Layers, exit};
use lambert_data_prep::prep::{self as data_prep, PrepError};
use lambert_data_prep::vocab::{
    self, ExtendedVocabulary, Extension, TrainedVocabulary, VocabProgress, VocabSettings, WordTokens,
};
use lambert_dataset::tokenizer::{TokenizerFile, TokenizerModel};
use lambert_progress::{Progress, Unit};
use lambert_store::output_file::is_same_file;

use super::{files, prep};
use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::text::counted;

/// Trains or extends a vocabulary and writes it.
pub fn vocab(arguments: &cli::Vocab) -> Outcome {
    let model = match &arguments.extend {
        Some(file) => model_of(file)?,
        None => model(arguments.model),
    };
    let word_piece = model == TokenizerModel::WordPiece;
    if arguments.extend.is_some() && !word_piece && (arguments.cased || arguments.uncased) {
        return Err(Failure::usage("a tokenizer.json has its own case handling; remove --cased or --uncased"));
    }
    let mut lowercase = arguments.uncased || (word_piece && !arguments.cased);
    let sources = match arguments.config.as_slice() {
        [] => arguments.input.iter().map(|path| source(path)).collect(),
        _ if word_piece && (arguments.cased || arguments.uncased) => {
            return Err(Failure::usage("vocabulary.lowercase of --config applies; remove --cased or --uncased"));
        }
        paths => {
            let config = data_prep::load(&Layers::from_process(&[]), paths)?;
            if word_piece {
                lowercase = config.vocabulary.lowercase;
            }
            config.source
        }
    };
    refuse_input(&sources, &arguments.output)?;
    if let Some(file) = &arguments.extend {
        if word_piece && arguments.config.is_empty() && !arguments.cased && !arguments.uncased && has_capitals(file)? {
            let message = "has tokens with capital letters; add --cased, or --uncased if its text is lowercased";
            return Err(Failure::usage(format!("{} {message}", file.display())));
        }
        if std::fs::canonicalize(file)
            .ok()
            .is_some_and(|file| std::fs::canonicalize(&arguments.output).ok() == Some(file))
        {
            let message = "is the vocabulary to extend; existing datasets may refer to it, so choose another --output";
            return Err(Failure::usage(format!("{} {message}", arguments.output.display())));
        }
        let (size, min_frequency) = (arguments.size, arguments.min_frequency);
        let extension = Extension { file, lowercase, size, min_frequency };
        let extended = vocab::extend_with(&sources, &extension, show("merging tokens"));
        return write_extension(extended.map_err(|error| failure(error, arguments))?, &extension, &arguments.output);
    }
    let settings = VocabSettings {
        model,
        size: arguments.size,
        lowercase,
        min_frequency: arguments.min_frequency,
        ..VocabSettings::default()
    };
    let TrainedVocabulary { text, tokens } = train(&sources, &settings).map_err(|error| failure(error, arguments))?;
    files::write(&arguments.output, |output| output.write_all(text.as_bytes())).map_err(Failure::failed)?;
    if tokens < arguments.size {
        tracing::warn!("vocabulary has {tokens} tokens ({} requested): corpus too small", arguments.size);
    }
    console::result(&format!("wrote {} ({tokens} tokens)", arguments.output.display())).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

/// Refuses an output file that is an input, whose text it would replace.
fn refuse_input(sources: &[Source], output: &Path) -> Result<(), Failure> {
    match sources.iter().any(|source| is_same_file(Path::new(&source.path), output)) {
        true => Err(Failure::usage(format!("--output {} is an input file; choose another --output", output.display()))),
        false => Ok(()),
    }
}

/// Trains the vocabulary and shows the progress.
fn train(sources: &[Source], settings: &VocabSettings) -> Result<TrainedVocabulary, PrepError> {
    let training = match settings.model {
        TokenizerModel::WordPiece | TokenizerModel::Bpe => "merging tokens",
        TokenizerModel::Unigram => "choosing tokens",
    };
    vocab::train_with(sources, settings, show(training))
}

/// Returns the failure of a command. An error about an input names the option or the key that names the input.
fn failure(error: PrepError, arguments: &cli::Vocab) -> Failure {
    match arguments.config.is_empty() {
        true => prep::input_failure(error, "--input"),
        false => prep::failure(error),
    }
}

/// Writes an extended vocabulary.
fn write_extension(extended: ExtendedVocabulary, settings: &Extension<'_>, output: &Path) -> Outcome {
    let ExtendedVocabulary { text, tokens, added, before, after } = extended;
    files::write(output, |output| output.write_all(text.as_bytes())).map_err(Failure::failed)?;
    if tokens < settings.size {
        let frequency = settings.min_frequency;
        tracing::warn!(
            "vocabulary has {tokens} tokens ({} requested): no further candidate occurs at least {frequency} times",
            settings.size
        );
    }
    let words = |words: WordTokens| format!("{} tokens, {}", words.tokens, counted(words.unknown, "unknown word"));
    let lines = [
        format!("wrote {} ({tokens} tokens, {added} of them new)", output.display()),
        format!("text before: {}", words(before)),
        format!("text now: {}", words(after)),
    ];
    console::result(&lines.join("\n")).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

/// Display of the progress. `training` describes the choice of the tokens.
fn show(training: &'static str) -> impl FnMut(VocabProgress) {
    let progress = Progress::start("counting words");
    move |state| match state {
        VocabProgress::Counting { done, total } => {
            progress.set_total(total);
            progress.set_done(done);
        }
        VocabProgress::Training => progress.phase(training, Unit::Bytes),
    }
}

/// True if a token of a vocab.txt that is not in brackets has a capital letter.
fn has_capitals(file: &Path) -> Result<bool, Failure> {
    let bytes = read(file)?;
    let text = String::from_utf8_lossy(&bytes);
    let words = text.lines().filter(|token| !(token.starts_with('[') && token.ends_with(']')));
    Ok(words.flat_map(str::chars).any(char::is_uppercase))
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| Failure::usage(format!("cannot read {}: {error}", file.display())))
}

/// Model of the vocabulary in a file.
fn model_of(file: &Path) -> Result<TokenizerModel, Failure> {
    let name = file.display().to_string();
    let bytes = read(file)?;
    match TokenizerFile::is_json(&bytes) {
        true => Ok(TokenizerFile::read(&bytes, &name).map_err(Failure::usage)?.tokens.model()),
        false => Ok(TokenizerModel::WordPiece),
    }
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
