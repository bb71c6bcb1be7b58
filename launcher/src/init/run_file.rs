//! The run file: a configuration of the folder configs, adapted to the data and the place.

use super::document::Document;
use super::layout::Layout;
use crate::cli::{self, Recipe, Size};

/// Tokens per micro-batch of BERT-base and BERT-large on CPUs. The default of 4096 needs more memory than many hosts have.
const CPU_TOKENS: i64 = 2048;
/// Time limit of a Slurm job. A job saves a checkpoint and requeues itself, so a short limit is sufficient.
const TIME_LIMIT: &str = "4:00:00";

/// Returns the run name and the text of the shipped configuration.
fn template(size: Size, recipe: Recipe) -> (&'static str, &'static str) {
    match (size, recipe) {
        (Size::Small, _) => ("bert-mini", include_str!("../../../configs/bert-mini-books.toml")),
        (Size::Base, Recipe::Adam) => ("bert-base-adam", include_str!("../../../configs/bert-base-adam.toml")),
        (Size::Base, Recipe::Lamb) => ("bert-base-lamb", include_str!("../../../configs/bert-base-lamb.toml")),
        (Size::Base, Recipe::Stacked) => ("bert-base-stacked", include_str!("../../../configs/bert-base-stacked.toml")),
        (Size::Large, Recipe::Adam) => ("bert-large-adam", include_str!("../../../configs/bert-large-adam.toml")),
        (Size::Large, Recipe::Lamb) => ("bert-large-lamb", include_str!("../../../configs/bert-large-lamb.toml")),
        (Size::Large, Recipe::Stacked) => {
            ("bert-large-stacked", include_str!("../../../configs/bert-large-stacked.toml"))
        }
    }
}

/// Run file and the facts that the preparation and the next commands need.
pub struct RunFile {
    /// Configuration of the run.
    pub document: Document,
    /// Name of the run.
    pub name: &'static str,
    /// Sequence lengths of the datasets, tokens, ascending.
    pub lengths: Vec<u32>,
}

/// Folder of the dataset with this sequence length.
pub fn dataset(length: u32) -> String {
    format!("data/{length}")
}

/// Builds the run file.
pub fn build(arguments: &cli::Init, layout: &Layout) -> RunFile {
    // Large batches suit many GPUs.
    let usual = if layout.is_slurm { Recipe::Lamb } else { Recipe::Adam };
    let (name, text) = template(arguments.size, arguments.recipe.unwrap_or(usual));
    let mut document = Document::parse(text);
    document.section("[run]").set("name", name);
    let mut lengths = Vec::new();
    for stage in document.all("[[stage]]") {
        // The shipped files name their datasets by sequence length, except for the one length of the small model.
        let length = if stage.get("data").is_some_and(|data| data.contains("-512/")) { 512 } else { 128 };
        stage.set("data", format!("{}/train", dataset(length)));
        if stage.get("name") == Some("\"books\"") {
            stage.set("name", "phase-1");
        }
        if layout.gpus_per_node == 0 && arguments.size != Size::Small {
            stage.set("micro_batch_tokens", CPU_TOKENS);
        }
        if !lengths.contains(&length) {
            lengths.push(length);
        }
    }
    let shortest = lengths.first().copied().unwrap_or(128);
    document.section("[evaluation]").set("data", format!("{}/held-out", dataset(shortest)));
    place(&mut document, layout);
    RunFile { document, name, lengths }
}

/// Sets devices, ranks and Slurm options.
fn place(document: &mut Document, layout: &Layout) {
    let is_gpu = layout.gpus_per_node > 0;
    let model = document.section("[model]");
    match is_gpu {
        true => model.set("precision", "bf16"),
        false => model.remove("precision"),
    };
    let device = document.section("[device]").set("kind", if is_gpu { "cuda" } else { "cpu" });
    device.set("threads", count(layout.threads));
    let cluster = document.section("[cluster]").set("ranks", count(layout.ranks));
    cluster.set("all_reduce.backend", if is_gpu { "nccl" } else { "mpi" });
    if layout.is_slurm {
        let slurm = document.section("[slurm]").set("nodes", count(layout.nodes));
        slurm.set("gpus_per_node", count(layout.gpus_per_node)).set("time", TIME_LIMIT);
        slurm.suggest("partition", "NAME").suggest("account", "NAME");
    }
}

/// Number as a TOML integer.
fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
