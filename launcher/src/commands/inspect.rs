//! `lambert inspect`: what a dataset holds, and whether it is whole.

use lambert_config::exit;
use lambert_data_prep::dataset::Dataset;
use lambert_data_prep::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};

/// Shows the dataset.
pub fn inspect(arguments: &cli::Inspect) -> Outcome {
    let dataset = Dataset::open(&arguments.dataset).map_err(Failure::failed)?;
    if arguments.verify {
        dataset.verify().map_err(Failure::failed)?;
    }
    let samples = samples(&dataset, arguments.samples)?;
    let text = if arguments.json {
        let verified = arguments.verify;
        json!({ "url": dataset.url(), "sha256": dataset.manifest_sha256(), "verified": verified,
                "manifest": dataset.manifest(), "samples": samples })
        .to_string()
    } else {
        described(&dataset, &samples, arguments.verify)
    };
    console::result(&text).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

/// The first `count` samples, decoded.
fn samples(dataset: &Dataset, count: usize) -> Result<Vec<Value>, Failure> {
    let mut shown = Vec::new();
    if count == 0 {
        return Ok(shown);
    }
    let vocabulary = dataset.vocabulary().map_err(Failure::failed)?;
    let tokenizer = Tokenizer::from_vocab(&vocabulary, dataset.manifest().lowercase).map_err(Failure::failed)?;
    for (index, group) in dataset.row_groups().iter().enumerate() {
        let samples = dataset.read(index).map_err(Failure::failed)?;
        for row in 0..samples.rows().min(count - shown.len()) {
            let (ids, split) = (samples.ids(row), usize::from(samples.segment_b_start[row]));
            let (first, second) = ids.split_at(if split == 0 { ids.len() } else { split.min(ids.len()) });
            shown.push(json!({
                "row": group.first_row + row as u64,
                "tokens": ids.len(),
                "first": tokenizer.decode(first),
                "second": (split > 0).then(|| tokenizer.decode(second)),
                "second_is_replaced": label(samples.pair_label[row]),
            }));
        }
        if shown.len() == count {
            break;
        }
    }
    Ok(shown)
}

/// A pair label as its meaning; a dataset without pairs has none.
fn label(label: u8) -> Option<bool> {
    match label {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

fn described(dataset: &Dataset, samples: &[Value], verified: bool) -> String {
    let (manifest, counts) = (dataset.manifest(), &dataset.manifest().counts);
    let mut lines = vec![
        format!("{} ({})", dataset.url(), manifest.split),
        format!(
            "samples     {} of up to {} tokens, {} tokens in all",
            counts.samples, manifest.sequence_length, counts.tokens
        ),
        format!("from        {} documents, {} sentences", counts.documents, counts.sentences),
        format!("pairs       {:?}, {} of them replaced or swapped", manifest.samples.pair, counts.positive_pairs),
        format!(
            "vocabulary  {} pieces, {}",
            manifest.vocabulary.size,
            if manifest.lowercase { "uncased" } else { "cased" }
        ),
        format!("entropy     {:.4} nats a piece (a guesser without context)", manifest.unigram_entropy),
        format!(
            "shards      {}, {} bytes",
            manifest.shards.len(),
            manifest.shards.iter().map(|shard| shard.bytes).sum::<u64>()
        ),
        format!("sha256      {}", dataset.manifest_sha256()),
    ];
    lines.extend(counts.rejected.iter().map(|(why, count)| format!("left out    {count}: {why}")));
    if verified {
        lines.push("verified    every file has the bytes that the manifest says, every row can be read".to_owned());
    }
    for sample in samples {
        let label =
            sample["second_is_replaced"].as_bool().map_or("", |yes| if yes { ", replaced" } else { ", follows" });
        lines.push(format!("\nsample {}: {} tokens{label}", sample["row"], sample["tokens"]));
        lines.extend(["first", "second"].iter().filter_map(|part| Some(format!("  {}", sample[*part].as_str()?))));
    }
    lines.join("\n")
}
