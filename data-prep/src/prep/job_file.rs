//! `job.json`, which identifies the job that owns a work folder.

use lambert_config::PrepConfig;
use lambert_config::prep::{Damaged, Invalid};
use lambert_dataset::sha256_hex;
use serde::{Deserialize, Serialize};

use crate::source::SourceFile;

/// Version of the dataset, which is part of its identity. It stays if a new version of this program reads a few documents
/// differently: most datasets are then still the same.
const DATASET_VERSION: u32 = 3;
/// Version of the work folder and of the algorithms that determine the bytes of a dataset. A job with files of another version
/// starts over.
const WORK_VERSION: u32 = 6;

/// Contents of `job.json`.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobFile {
    /// [`WORK_VERSION`] of the job. 0: up to version 5.
    version: u32,
    /// SHA-256 of the settings and of the vocabulary, without [`Self::handling`].
    settings: String,
    /// SHA-256 of the sizes of the input files.
    files: String,
    /// Handling of damaged parts and of invalid bytes in each source.
    handling: Vec<(Damaged, Invalid)>,
}

impl JobFile {
    /// Describes a job.
    pub fn new(config: &PrepConfig, vocabulary: &[u8], files: &[SourceFile]) -> Self {
        let sources = config.source.iter().chain(&config.exclude);
        let handling = sources.map(|source| (source.damaged, source.invalid)).collect();
        let mut others = without_paths(config);
        for source in others.source.iter_mut().chain(&mut others.exclude) {
            (source.damaged, source.invalid) = <_>::default();
        }
        let settings = serde_json::json!([others, sha256_hex(vocabulary)]);
        let hash = |value: serde_json::Value| sha256_hex(value.to_string().as_bytes());
        Self { version: WORK_VERSION, settings: hash(settings), files: hash(sizes(files)), handling }
    }

    /// Says what makes the files of the earlier job `found` unusable for this job. `None`: they are usable.
    pub fn difference(&self, found: &Self) -> Option<&'static str> {
        // Finished files of a job that refuses damage have none, so they are the same if damage is allowed.
        let is_stricter = |(found, own): (&(Damaged, Invalid), &(Damaged, Invalid))| {
            (found.0 == own.0 || found.0 == Damaged::Refuse) && (found.1 == own.1 || found.1 == Invalid::Refuse)
        };
        match () {
            () if found.version != self.version => Some("version of lambert"),
            () if found.settings != self.settings => Some("configuration or vocabulary"),
            () if found.files != self.files => Some("corpus: its files have other sizes"),
            () if !found.handling.iter().zip(&self.handling).all(is_stricter) => {
                Some("configuration: it allowed damage or invalid bytes")
            }
            () => None,
        }
    }
}

/// True for the contents of a `job.json` of this or an earlier version. The earliest versions had a `fingerprint`.
pub fn is_job_file(bytes: &[u8]) -> bool {
    let value: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
    ["settings", "fingerprint"].iter().any(|field| value[field].is_string())
}

/// Hashes all inputs that determine the bytes of the datasets, except for the file contents. Paths and Slurm settings
/// are left out because they do not affect the datasets.
pub fn fingerprint(config: &PrepConfig, vocabulary: &[u8], files: &[SourceFile]) -> String {
    let inputs = serde_json::json!([DATASET_VERSION, without_paths(config), sha256_hex(vocabulary), sizes(files)]);
    sha256_hex(inputs.to_string().as_bytes())
}

fn without_paths(config: &PrepConfig) -> PrepConfig {
    let mut config = config.clone();
    config.output.url.clear();
    config.output.work = None;
    config.output.check_space = true;
    config.slurm = lambert_config::run::Slurm::default();
    config.vocabulary.file.clear();
    config.source.iter_mut().chain(&mut config.exclude).for_each(|source| source.path.clear());
    config
}

fn sizes(files: &[SourceFile]) -> serde_json::Value {
    files.iter().map(|file| serde_json::json!([file.source, file.bytes])).collect()
}
