//! Next commands, from text to a run.

use std::path::Path;

use super::corpus::TextSource;
use super::layout::Layout;
use super::prep_file::{VOCABULARY, vocabulary_size};
use super::run_file::{RunFile, dataset};
use super::{PREP, RUN};
use crate::cli;

/// Returns one line per command, in order. Lines that start with `#` describe work for the user.
pub fn steps(arguments: &cli::Init, sources: &[TextSource], run: &RunFile, layout: &Layout) -> Vec<String> {
    let mut steps = Vec::new();
    if arguments.output != Path::new(".") {
        steps.push(format!("cd {}", quoted(&arguments.output.to_string_lossy())));
    }
    steps.extend(sources.iter().filter_map(|source| source.missing.as_ref()).map(|advice| format!("# {advice}")));
    let size = vocabulary_size(arguments.size);
    steps.push(format!("lambert vocab --config {PREP} --size {size} --output {VOCABULARY}"));
    let prep = match layout.is_slurm {
        true => format!("lambert submit --prep --config {PREP}"),
        false => format!("lambert prep --config {PREP}"),
    };
    steps.push(prep.clone());
    let longer = run.lengths.iter().skip(1);
    steps.extend(longer.map(|length| {
        format!("{prep} --set samples.sequence_length={length} --set output.url={}", dataset(*length))
    }));
    if layout.is_slurm {
        steps.push("# wait until the preparation jobs have ended".to_owned());
    }
    let machine = if layout.gpus_per_node > 0 { "h100" } else { "here" };
    let url = format!("runs/{}", run.name);
    steps.push(format!("lambert plan --config {RUN} --machine {machine}"));
    if layout.is_slurm {
        steps.push(format!("lambert submit --config {RUN} --run {url} --dry-run"));
        steps.push(format!("lambert submit --config {RUN} --run {url}"));
    } else {
        steps.push(format!("lambert run --check --config {RUN} --run {url}"));
        steps.push(format!("lambert run --config {RUN} --run {url}"));
    }
    steps.push(format!("lambert status {url}"));
    steps
}

/// Quotes a word for the shell if it needs quotes.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+".contains(c);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_if_needed() {
        assert_eq!(quoted("/data/bert-base"), "/data/bert-base");
        assert_eq!(quoted("it's mine"), "'it'\\''s mine'");
    }
}
