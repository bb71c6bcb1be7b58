//! How much disk space a preparation takes: estimated before it starts, computed once the tokens are counted.

use std::path::Path;

use super::PrepError;
use super::job::{Job, Run};
use super::sample_file::SAMPLE_HEAD;
use crate::record::ids;
use crate::source::SourceFile;

/// Disk space for the work folder; the dataset is made in it and moved out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    /// The work folder.
    pub folder: std::path::PathBuf,
    /// Bytes that all files of the preparation have together at their most.
    pub bytes: u64,
    /// Bytes that are free there.
    pub free: u64,
}

/// Tokens a byte of text at the most, about: English has 0.22, other languages under an English vocabulary up to 0.35.
const TOKENS_PER_BYTE: f64 = 0.3;
/// A row of a shard is smaller than the same row of a sample file, but not by much.
const SHARDS_PER_SAMPLES: f64 = 0.9;

/// Estimates the needs from the sizes of the input; an error if there is not as much.
pub fn check_input(job: &Job<'_>) -> Result<Needs, PrepError> {
    let sizes = job.files.iter().map(|file| (text_bytes(file) * TOKENS_PER_BYTE, uses(job, file.source)));
    let mut needs = needs(job, sizes);
    // What an earlier attempt left is part of the sum.
    needs.bytes = needs.bytes.saturating_sub(size(job.folder()));
    check(job, needs)
}

/// The same from the tokens that were counted.
pub fn check_samples(job: &Job<'_>, runs: &[Run]) -> Result<Needs, PrepError> {
    let parts = runs.iter().flat_map(|run| &run.contents.sources);
    let sizes = parts.map(|(source, part)| (part.kept.tokens as f64, uses(job, *source as usize)));
    let mut needs = needs(job, sizes);
    needs.bytes = needs.bytes.saturating_sub(size(job.folder()));
    check(job, needs)
}

fn check(job: &Job<'_>, needs: Needs) -> Result<Needs, PrepError> {
    if job.config.output.check_space && needs.bytes > needs.free {
        let Needs { folder, bytes, free } = needs;
        return Err(PrepError::Space { folder, needed: bytes, free });
    }
    Ok(needs)
}

/// From the tokens of parts of the corpus and how often each part is used.
fn needs(job: &Job<'_>, sizes: impl Iterator<Item = (f64, f64)>) -> Needs {
    let width = ids::width(job.tokenizer.size()) as f64;
    // A sample is at worst half full; [CLS] and two [SEP] come on top.
    let head = 2.0 * (SAMPLE_HEAD as f64 + 3.0 * width) / job.config.samples.sequence_length as f64;
    let bytes: f64 =
        sizes.map(|(tokens, uses)| tokens * width + tokens * uses * (width + head) * (1.0 + SHARDS_PER_SAMPLES)).sum();
    Needs { folder: job.folder().to_owned(), bytes: bytes as u64, free: free(job.folder()) }
}

/// How often a document of a source becomes samples.
fn uses(job: &Job<'_>, source: usize) -> f64 {
    let excluded = source >= job.config.source.len();
    if excluded { 0.0 } else { (job.config.samples.passes * job.sources[source].weight) as f64 }
}

/// Bytes of text in a file, by its name's ending and its format.
fn text_bytes(file: &SourceFile) -> f64 {
    let packed = match Path::new(&file.name).extension().and_then(|extension| extension.to_str()) {
        Some("gz") => 3.0,
        Some("bz2" | "zst") => 4.0,
        Some("xz") => 4.5,
        _ => 1.0,
    };
    file.bytes as f64 * packed * file.format.text_per_byte()
}

/// Bytes free for us in `folder`, or in the nearest folder above it that is there; endless where that cannot be told.
fn free(folder: &Path) -> u64 {
    let above = folder.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let found = above.into_iter().find_map(|path| rustix::fs::statvfs(path).ok());
    found.map_or(u64::MAX, |system| system.f_bavail.saturating_mul(system.f_frsize))
}

/// Bytes of the files below `folder`.
fn size(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(bytes).sum()
}
