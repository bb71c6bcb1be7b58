//! `lambert inspect`: shows or verifies a dataset.

use lambert_config::exit;
use lambert_data_prep::inspect::{self, DecodedSample, InspectError, Inspection};
use lambert_dataset::Dataset;
use lambert_progress::{Progress, Unit};

use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::text::size;

/// Inspects the dataset and prints the result.
pub fn inspect(arguments: &cli::Inspect) -> Outcome {
    let found = read(arguments)?;
    let text = if arguments.json { serde_json::to_string(&found).map_err(Failure::failed)? } else { described(&found) };
    console::result(&text).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

/// Reads the dataset and shows the progress.
fn read(arguments: &cli::Inspect) -> Result<Inspection, Failure> {
    let progress = Progress::start(if arguments.verify { "verifying" } else { "reading" });
    let url = &arguments.dataset;
    let dataset = Dataset::open_observed(url, progress.observer()).map_err(InspectError::from)?;
    let update = |rows: u64, total: u64| {
        if rows == 0 {
            progress.phase("reading rows", Unit::Count("samples"));
        }
        progress.set_total(total);
        progress.set_done(rows);
    };
    inspect::inspect_dataset(url, &dataset, arguments.samples, arguments.verify, update).map_err(Failure::from)
}

fn described(found: &Inspection) -> String {
    let (manifest, counts) = (&found.manifest, &found.manifest.counts);
    let bytes = manifest.shards.iter().fold(0_u64, |sum, shard| sum.saturating_add(shard.bytes));
    let case = if manifest.lowercase { "uncased" } else { "cased" };
    let (length, replaced) = (manifest.sequence_length, counts.positive_pairs);
    let mut lines = vec![
        format!("dataset      {} ({})", found.url, manifest.split),
        format!("samples      {} (up to {length} tokens), {} tokens in total", counts.samples, counts.tokens),
        format!("source       {} documents, {} sentences", counts.documents, counts.sentences),
        format!("pairs        {}, {replaced} replaced or swapped", manifest.samples.pair),
        format!("vocabulary   {} {} tokens, {case}", manifest.vocabulary.size, manifest.vocabulary.model),
        format!("entropy      {:.4} nats/token (unigram baseline)", manifest.unigram_entropy),
        format!("shards       {} ({})", manifest.shards.len(), size(bytes)),
        format!("sha256       {}", found.sha256),
    ];
    lines.extend(counts.rejected.iter().map(|(why, count)| format!("rejected     {count} {why}")));
    if found.verified {
        lines.push("verified     all checksums match the manifest, all rows are readable".to_owned());
    }
    lines.extend(found.samples.iter().map(sample));
    lines.join("\n")
}

fn sample(sample: &DecodedSample) -> String {
    let label = match sample.pair_label {
        None => "",
        Some(true) => ", second segment replaced or swapped",
        Some(false) => ", second segment follows the first",
    };
    let mut text = format!("\nsample {}: {} tokens{label}\n  {}", sample.row, sample.length, sample.first);
    if let Some(second) = &sample.second {
        text += &format!("\n  {second}");
    }
    text
}
