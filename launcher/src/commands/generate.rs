//! `lambert generate`: writes a synthetic corpus.

use lambert_config::exit;
use lambert_data_prep::grammar;
use lambert_progress::Progress;
use serde_json::json;

use super::files;
use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::text::size;

/// Writes the corpus and prints its statistics.
pub fn generate(arguments: &cli::Generate) -> Outcome {
    let progress = Progress::start("generating");
    let update = |documents: u64, bytes: u64| {
        progress.set_done(bytes);
        progress.set_total((bytes as f64 * arguments.documents as f64 / documents as f64) as u64);
    };
    let report = files::write(&arguments.output, |output| {
        grammar::generate_with(output, arguments.documents, arguments.seed, update)
    });
    let report = report.map_err(Failure::failed)?;
    drop(progress);
    let (output, entropy) = (arguments.output.display(), report.unigram_entropy);
    let text = match arguments.json {
        true => json!({
            "output": arguments.output,
            "documents": report.documents,
            "sentences": report.sentences,
            "words": report.words,
            "bytes": report.bytes,
            "vocabulary": report.vocabulary,
            "unigram_entropy": entropy,
        })
        .to_string(),
        false => format!(
            "wrote {output}: {} documents, {} sentences, {} words ({} distinct), {}; unigram entropy {entropy:.4} nats/word",
            report.documents,
            report.sentences,
            report.words,
            report.vocabulary,
            size(report.bytes)
        ),
    };
    console::result(&text).map_err(Failure::failed)?;
    Ok(exit::DONE)
}
