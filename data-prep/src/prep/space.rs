//! Disk space of a preparation job, estimated from the input sizes and again from the token counts.

use std::path::Path;

use super::PrepError;
use super::job::{JobContext, SpillFile};
use super::sample_file::SAMPLE_HEADER_BYTES;
use crate::record::ids;
use crate::source::SourceFile;

/// Disk space in the work folder. Datasets are written to this folder and then moved to the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpaceEstimate {
    /// Work folder.
    pub folder: std::path::PathBuf,
    /// Peak size of the files still to be written, bytes.
    pub needed: u64,
    /// Free space in the folder, bytes.
    pub free: u64,
}

/// Assumed number of tokens per byte of text. English has 0.22. Other languages with an English vocabulary have up to
/// 0.35.
const TOKENS_PER_BYTE: f64 = 0.3;
/// Size of a row in a shard, divided by the size of the same row in a sample file.
const SHARD_TO_SAMPLE_BYTES: f64 = 0.9;

/// Estimates the required space from the input sizes.
///
/// # Errors
/// The disk has too little free space, and `output.check_space` is true.
pub fn check_input(job: &JobContext<'_>) -> Result<SpaceEstimate, PrepError> {
    let sizes = job.files.iter().map(|file| (text_bytes(file) * TOKENS_PER_BYTE, uses_per_document(job, file.source)));
    let mut space = estimate(job, sizes);
    // The estimate includes files that an earlier run has already written, so their size is subtracted.
    space.needed = space.needed.saturating_sub(folder_bytes(job.folder()));
    check(job, space)
}

/// Estimates the required space from the counted tokens.
///
/// # Errors
/// The same error as [`check_input`].
pub fn check_samples(job: &JobContext<'_>, spill_files: &[SpillFile]) -> Result<SpaceEstimate, PrepError> {
    let parts = spill_files.iter().flat_map(|spill_file| &spill_file.contents.sources);
    let sizes = parts.map(|(source, part)| (part.kept.tokens as f64, uses_per_document(job, *source as usize)));
    let mut space = estimate(job, sizes);
    space.needed = space.needed.saturating_sub(folder_bytes(job.folder()));
    check(job, space)
}

fn check(job: &JobContext<'_>, space: SpaceEstimate) -> Result<SpaceEstimate, PrepError> {
    if job.config.output.check_space && space.needed > space.free {
        let SpaceEstimate { folder, needed, free } = space;
        return Err(PrepError::DiskSpace { folder, needed, free });
    }
    Ok(space)
}

/// Estimates the space. `sizes` has a pair (tokens, uses per document) for each part of the corpus.
fn estimate(job: &JobContext<'_>, sizes: impl Iterator<Item = (f64, f64)>) -> SpaceEstimate {
    let width = ids::width(job.tokenizer.size()) as f64;
    // Bytes per token for the sample header, [CLS] and two [SEP], if a sample is half full (the worst case).
    let head = 2.0 * (SAMPLE_HEADER_BYTES as f64 + 3.0 * width) / job.config.samples.sequence_length as f64;
    let bytes: f64 = sizes
        .map(|(tokens, uses)| tokens * width + tokens * uses * (width + head) * (1.0 + SHARD_TO_SAMPLE_BYTES))
        .sum();
    SpaceEstimate { folder: job.folder().to_owned(), needed: bytes as u64, free: free_bytes(job.folder()) }
}

/// Number of times that each document of a source is used for samples.
fn uses_per_document(job: &JobContext<'_>, source: usize) -> f64 {
    let excluded = source >= job.config.source.len();
    if excluded { 0.0 } else { (job.config.samples.passes * job.sources[source].weight) as f64 }
}

/// Estimates the bytes of text in a file from its extension and its format.
fn text_bytes(file: &SourceFile) -> f64 {
    let ratio = match Path::new(&file.name).extension().and_then(|extension| extension.to_str()) {
        Some("gz") => 3.0,
        Some("bz2" | "zst") => 4.0,
        Some("xz") => 4.5,
        _ => 1.0,
    };
    file.bytes as f64 * ratio * file.format.text_per_byte()
}

/// Free bytes in `folder` or its nearest existing ancestor, or `u64::MAX` if unknown.
fn free_bytes(folder: &Path) -> u64 {
    let above = folder.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let found = above.into_iter().find_map(|path| rustix::fs::statvfs(path).ok());
    found.map_or(u64::MAX, |system| system.f_bavail.saturating_mul(system.f_frsize))
}

/// Total size of the files below `folder`, bytes.
fn folder_bytes(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let bytes = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => folder_bytes(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(bytes).sum()
}
