//! Checkpoint manifest: the list of objects, with a checksum of the manifest itself.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use super::AttemptStep;
use crate::error::{Error, Result};
use crate::run::MANIFEST;
use crate::{hash, names};

/// Manifest format of this version.
pub const FORMAT: u32 = 4;

/// Oldest format that this version reads. A manifest in that format has no `held_out_loss` and no `best`.
const OLDEST: u32 = 1;

/// Content of the `manifest.json` of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`] of the version that wrote the manifest.
    pub format: u32,
    /// Completed optimizer steps.
    pub step: u64,
    /// Attempt that wrote the checkpoint.
    pub attempt: u32,
    /// Name of the previous checkpoint of this run. For the first save of an attempt, this is the checkpoint from which
    /// the attempt resumed. `None` if there is no previous checkpoint.
    pub parent: Option<String>,
    /// Index of the current stage, from 0.
    pub stage: usize,
    /// Samples consumed from each dataset, keyed by the SHA-256 of the dataset manifest. The count continues across
    /// epochs. In a dataset of 100 samples, the second epoch begins at 100.
    pub cursor: BTreeMap<String, u64>,
    /// SHA-256 of the resolved configuration of the run.
    pub config_sha256: String,
    /// World size (number of ranks) of the attempt that wrote the checkpoint.
    pub world: usize,
    /// Held-out loss at this step, nats. `None` if it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_loss: Option<f64>,
    /// Checkpoint of this run with the lowest held-out loss so far. It can be this checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    /// Checkpoints of which the weights are the mean, newest first. Empty for a checkpoint of training.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub averaged: Vec<String>,
    /// Engine state, opaque to this crate.
    pub state: serde_json::Value,
    /// All objects of the checkpoint except the manifest.
    pub objects: Vec<ObjectEntry>,
}

/// The checkpoint with the lowest held-out loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Checkpoint name.
    pub checkpoint: String,
    /// Held-out loss, nats.
    pub loss: f64,
    /// Description of what the loss measures. Losses with other descriptions are not comparable. Manifests of older versions do not
    /// have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<String>,
}

/// One object of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectEntry {
    /// Name within the checkpoint, such as `model.safetensors`.
    pub path: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256, 64 lower-case hexadecimal digits.
    pub sha256: String,
    /// Parameter slices in an optimizer shard, in the order of their data. Empty for other objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<Slice>,
}

/// A contiguous range of elements of one parameter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// Parameter name.
    pub tensor: String,
    /// First element, as an index into the flattened parameter.
    pub first: u64,
    /// Number of elements.
    pub count: u64,
}

/// The one field that every format has. It is parsed before the other fields.
#[derive(Deserialize)]
struct Versioned {
    format: u32,
}

/// Text before the checksum, which is at the end of the manifest. The checksum is the SHA-256 of the whole text with
/// the digits of the checksum set to zero.
const CHECKSUM_KEY: &str = ",\n  \"manifest_sha256\": \"";
const END: &str = "\"\n}\n";
const DIGITS: usize = 64;

impl Manifest {
    /// Checkpoint name.
    pub fn name(&self) -> String {
        AttemptStep { attempt: self.attempt, step: self.step }.name()
    }

    /// Returns the entry of an object.
    pub fn object(&self, path: &str) -> Option<&ObjectEntry> {
        self.objects.iter().find(|entry| entry.path == path)
    }

    /// Total size of all objects, bytes.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().fold(0, |sum, entry| sum.saturating_add(entry.bytes))
    }

    /// Serializes the manifest with its checksum.
    pub(super) fn to_text(&self) -> Result<String, serde_json::Error> {
        let body = serde_json::to_string_pretty(self)?;
        let open = body.trim_end_matches("\n}");
        let text = |digits: &str| format!("{open}{CHECKSUM_KEY}{digits}{END}");
        Ok(text(&hash::sha256(text(&"0".repeat(DIGITS)).as_bytes())))
    }

    /// Parses and verifies a manifest read from `url` for the checkpoint `name`.
    pub(super) fn from_text(text: &[u8], url: &str, name: &str) -> Result<Self> {
        let damaged = |what, expected: &str, found: String| {
            Err(Error::Damaged { url: url.to_string(), what, expected: expected.to_string(), found })
        };
        match serde_json::from_slice::<Versioned>(text) {
            Ok(Versioned { format: OLDEST..=FORMAT }) => {}
            Ok(Versioned { format }) => {
                let expected = format!("{OLDEST} to {FORMAT} (supported by this version of lambert)");
                return damaged("format", &expected, format.to_string());
            }
            Err(error) => return damaged("text", "a checkpoint manifest", error.to_string()),
        }
        let Some(body) = verify_checksum(text) else {
            return damaged("checksum", "the checksum of the text", "another one".into());
        };
        let manifest: Self = match serde_json::from_slice(&body) {
            Ok(manifest) => manifest,
            Err(error) => return damaged("text", "a checkpoint manifest", error.to_string()),
        };
        if manifest.name() != name {
            return damaged("name", name, manifest.name());
        }
        match manifest.invalid_entry() {
            None => Ok(manifest),
            Some(reason) => damaged("content", "valid entries", reason),
        }
    }

    /// Returns the reason if an entry is invalid. Reasons are a name outside the checkpoint, a duplicate name, an
    /// invalid checksum, and a slice whose end overflows.
    pub(super) fn invalid_entry(&self) -> Option<String> {
        let mut seen = HashSet::new();
        self.objects.iter().find_map(|entry| {
            let ObjectEntry { path, sha256, .. } = entry;
            if let Err(error) = names::check(path) {
                return Some(error.to_string());
            }
            if path == MANIFEST || !seen.insert(path) {
                return Some(format!("{path:?} is listed twice"));
            }
            let digits = sha256.len() == DIGITS && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
            let ends = entry.slices.iter().all(|slice| slice.first.checked_add(slice.count).is_some());
            (!digits || !ends).then(|| format!("{path:?} has no valid sha256 or invalid slices"))
        })
    }
}

/// Verifies the checksum and returns the JSON text without the checksum. Returns `None` if the checksum does not match.
fn verify_checksum(text: &[u8]) -> Option<Vec<u8>> {
    let before_end = text.strip_suffix(END.as_bytes())?;
    let (sealed, digits) = before_end.split_at_checked(before_end.len().checked_sub(DIGITS)?)?;
    let body = sealed.strip_suffix(CHECKSUM_KEY.as_bytes())?;
    let mut hasher = hash::Hasher::new();
    for part in [sealed, &[b'0'; DIGITS], END.as_bytes()] {
        hasher.update(part);
    }
    (hasher.finish().as_bytes() == digits).then(|| [body, b"\n}"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let slices = vec![Slice { tensor: "bert.embeddings.weight".into(), first: 0, count: 7 }];
        let entry =
            |path: &str| ObjectEntry { path: path.into(), bytes: 7, sha256: hash::sha256(b"x"), slices: vec![] };
        Manifest {
            format: FORMAT,
            step: 50,
            attempt: 2,
            parent: Some("step-000000040-a0001".into()),
            stage: 1,
            cursor: [(hash::sha256(b"data"), 3200)].into(),
            config_sha256: hash::sha256(b"config"),
            world: 2,
            held_out_loss: Some(2.5),
            best: Some(Best { checkpoint: "step-000000040-a0001".into(), loss: 2.25, measured: None }),
            averaged: Vec::new(),
            state: serde_json::json!({"skipped": [3, 4], "loss": 10.3}),
            objects: vec![
                entry("model.safetensors"),
                ObjectEntry { slices, ..entry("optimizer-00000-of-00001.safetensors") },
            ],
        }
    }

    fn read(text: &[u8]) -> Result<Manifest> {
        Manifest::from_text(text, "run/manifest.json", "step-000000050-a0002")
    }

    #[test]
    fn a_manifest_round_trips() {
        let text = manifest().to_text().unwrap();
        assert_eq!(read(text.as_bytes()).unwrap(), manifest());
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }

    #[test]
    fn any_changed_byte_is_detected() {
        let text = manifest().to_text().unwrap().into_bytes();
        for i in 0..text.len() {
            for bit in [0x01, 0x20, 0x80] {
                let mut changed = text.clone();
                changed[i] ^= bit;
                assert!(read(&changed).unwrap_err().is_damaged(), "byte {i} ^ {bit}");
            }
            assert!(read(&text[..i]).is_err(), "cut at {i}");
        }
    }

    #[test]
    fn unknown_formats_are_rejected_by_number() {
        for format in [0, FORMAT + 1] {
            let other = Manifest { format, ..manifest() };
            let message = read(other.to_text().unwrap().as_bytes()).unwrap_err().to_string();
            assert!(message.ends_with(&format!("lambert), found {format}")), "{message}");
        }
    }

    /// The golden file was written by a version before format 2.
    #[test]
    fn format_1_is_read() {
        let text = include_bytes!("../../tests/golden/manifest-format-1.json");
        let read = Manifest::from_text(text, "run/manifest.json", "step-000000007-a0001").unwrap();
        assert_eq!((read.format, read.step, read.world, read.objects.len()), (1, 7, 2, 3));
        assert_eq!((read.held_out_loss, read.best), (None, None));
    }

    #[test]
    fn entries_outside_the_checkpoint_and_duplicates_are_rejected() {
        for path in ["../x", "/etc/passwd", "s3://other/x", "manifest.json", "model.safetensors"] {
            let mut bad = manifest();
            bad.objects[1].path = path.into();
            assert!(read(bad.to_text().unwrap().as_bytes()).unwrap_err().is_damaged(), "{path}");
        }
        let mut bad = manifest();
        bad.objects[1].slices[0].first = u64::MAX;
        assert!(read(bad.to_text().unwrap().as_bytes()).is_err());
    }
}
