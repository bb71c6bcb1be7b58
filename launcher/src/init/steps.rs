//! Next commands, from text to a run.

use std::path::Path;

use super::corpus::TextSource;
use super::layout::Layout;
use super::prep_file::{VOCABULARY, vocabulary_size};
use super::run_file::{RunFile, dataset};
use super::{PREP, RUN};
use crate::cli;
use crate::text::shell_word;

/// Returns one line per command, in order. Lines that start with `#` describe work for the user.
pub fn steps(arguments: &cli::Init, sources: &[TextSource], run: &RunFile, layout: &Layout) -> Vec<String> {
    let mut steps = Vec::new();
    if arguments.output != Path::new(".") {
        steps.push(format!("cd {}", shell_word(&arguments.output.to_string_lossy())));
    }
    steps.extend(sources.iter().filter_map(|source| source.advice).map(|advice| format!("# {advice}")));
    let size = vocabulary_size(arguments.size);
    steps.push(format!("lambert vocab --config {PREP} --size {size} --output {VOCABULARY}"));
    let prep = match layout.is_slurm {
        true => format!("lambert submit --prep --config {PREP} --parts 8 --threads 4 --memory 8G"),
        false => format!("lambert prep --config {PREP}"),
    };
    steps.push(prep.clone());
    let longer = run.lengths.iter().skip(1);
    steps.extend(
        longer.map(|length| {
            format!("{prep} --set samples.sequence_length={length} --set output.url={}", dataset(*length))
        }),
    );
    if layout.is_slurm {
        steps.push("# wait until the preparation jobs have ended".to_owned());
    }
    // A cluster's login node says nothing about the CPUs of the nodes.
    let machine = match layout.is_slurm {
        _ if layout.gpus_per_node > 0 => " --machine h100    # or a100, h200, b200",
        true => "",
        false => " --machine here",
    };
    let options = format!("--config {RUN} --run runs/{}", run.name);
    steps.push(format!("lambert plan --config {RUN}{machine}"));
    // `lambert run --check` on a login node would check the memory of that node.
    let (check, start) = if layout.is_slurm { ("submit --dry-run", "submit") } else { ("run --check", "run") };
    steps.push(format!("lambert {check} {options}"));
    steps.push(format!("lambert {start} {options}"));
    steps.push(format!("lambert status runs/{}", run.name));
    steps
}
