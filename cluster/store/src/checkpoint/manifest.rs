//! The manifest: what a checkpoint holds, in a text that notices any change to itself.

use std::collections::{BTreeMap, HashSet};

use serde::{Deserialize, Serialize};

use super::Place;
use crate::error::{Error, Result};
use crate::run::MANIFEST;
use crate::{hash, names};

/// The format that this version writes.
pub const FORMAT: u32 = 3;

/// The oldest format that it reads: without `held_out_loss` and `best`.
const OLDEST: u32 = 1;

/// A checkpoint's description, `manifest.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`] at the time of writing; the older ones are read, too.
    pub format: u32,
    /// Optimizer steps done.
    pub step: u64,
    /// The attempt that wrote it.
    pub attempt: u32,
    /// The name of the checkpoint that this attempt went on from; `None` if it started from nothing.
    pub parent: Option<String>,
    /// Number of the stage under way, from 0.
    pub stage: usize,
    /// Samples taken so far from each dataset, by the sha256 of the dataset's manifest. Epochs count on: the
    /// second epoch of 100 samples begins at 100.
    pub cursor: BTreeMap<String, u64>,
    /// SHA-256 of the run's resolved configuration.
    pub config_sha256: String,
    /// Number of ranks that wrote it.
    pub world: usize,
    /// Loss on held-out samples after exactly these steps, nats; `None` if it was not measured then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_out_loss: Option<f64>,
    /// The best checkpoint of the run by held-out loss so far; it may be this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    /// Counters and whatever else the engine must carry over; this crate does not look into it.
    pub state: serde_json::Value,
    /// Every object of the checkpoint but the manifest.
    pub objects: Vec<ObjectEntry>,
}

/// The checkpoint with the lowest held-out loss.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Its name.
    pub checkpoint: String,
    /// Its loss, nats.
    pub loss: f64,
}

/// One object of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectEntry {
    /// Its name within the checkpoint, such as `model.safetensors`.
    pub path: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its SHA-256, 64 lower-case hexadecimal digits.
    pub sha256: String,
    /// For a part of the optimizer's state: which elements of which parameters it holds, in the order of the
    /// flat range. Empty for other objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<Slice>,
}

/// A run of elements of one parameter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// The parameter's name.
    pub tensor: String,
    /// Its first element here, counted in the flattened parameter from 0.
    pub first: u64,
    /// The number of elements.
    pub count: u64,
}

/// What every format has, and all that is looked at before the format is known.
#[derive(Deserialize)]
struct Versioned {
    format: u32,
}

/// The manifest ends with its own checksum: SHA-256 of the whole text with zeros in place of these digits.
const SEAL: &str = ",\n  \"manifest_sha256\": \"";
const END: &str = "\"\n}\n";
const DIGITS: usize = 64;

impl Manifest {
    /// The checkpoint's name.
    pub fn name(&self) -> String {
        Place { attempt: self.attempt, step: self.step }.name()
    }

    /// The entry of an object.
    pub fn object(&self, path: &str) -> Option<&ObjectEntry> {
        self.objects.iter().find(|entry| entry.path == path)
    }

    /// Bytes of all objects together.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().fold(0, |sum, entry| sum.saturating_add(entry.bytes))
    }

    /// The text to store.
    pub(super) fn to_text(&self) -> Result<String, serde_json::Error> {
        let body = serde_json::to_string_pretty(self)?;
        let open = body.trim_end_matches("\n}");
        let text = |digits: &str| format!("{open}{SEAL}{digits}{END}");
        Ok(text(&hash::sha256(text(&"0".repeat(DIGITS)).as_bytes())))
    }

    /// The manifest that `text`, found at `url` under the checkpoint name `name`, holds.
    pub(super) fn from_text(text: &[u8], url: &str, name: &str) -> Result<Self> {
        let damaged = |what, expected: &str, found: String| {
            Err(Error::Damaged { url: url.to_string(), what, expected: expected.to_string(), found })
        };
        match serde_json::from_slice::<Versioned>(text) {
            Ok(Versioned { format: OLDEST..=FORMAT }) => {}
            Ok(Versioned { format }) => {
                let expected = format!("{OLDEST} to {FORMAT} (what this version of lambert reads)");
                return damaged("format", &expected, format.to_string());
            }
            Err(fault) => return damaged("text", "a checkpoint manifest", fault.to_string()),
        }
        let Some(body) = unsealed(text) else {
            return damaged("checksum", "the text that was written", "a changed one".into());
        };
        let manifest: Self = match serde_json::from_slice(&body) {
            Ok(manifest) => manifest,
            Err(fault) => return damaged("text", "a checkpoint manifest", fault.to_string()),
        };
        if manifest.name() != name {
            return damaged("name", name, manifest.name());
        }
        match manifest.fault() {
            None => Ok(manifest),
            Some(fault) => damaged("content", "sound entries", fault),
        }
    }

    /// What makes the entries unusable, if anything does: names that leave the checkpoint, doubles, no checksum.
    pub(super) fn fault(&self) -> Option<String> {
        let mut seen = HashSet::new();
        self.objects.iter().find_map(|entry| {
            let ObjectEntry { path, sha256, .. } = entry;
            if let Err(error) = names::check(path) {
                return Some(error.to_string());
            }
            if path == MANIFEST || !seen.insert(path) {
                return Some(format!("{path:?} is named twice"));
            }
            let digits = sha256.len() == DIGITS && sha256.bytes().all(|byte| byte.is_ascii_hexdigit());
            let ends = entry.slices.iter().all(|slice| slice.first.checked_add(slice.count).is_some());
            (!digits || !ends).then(|| format!("{path:?} has no sha256 or impossible slices"))
        })
    }
}

/// The text without its checksum, as a complete JSON object again, if the checksum is right.
fn unsealed(text: &[u8]) -> Option<Vec<u8>> {
    let before_end = text.strip_suffix(END.as_bytes())?;
    let (sealed, digits) = before_end.split_at_checked(before_end.len().checked_sub(DIGITS)?)?;
    let body = sealed.strip_suffix(SEAL.as_bytes())?;
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
            best: Some(Best { checkpoint: "step-000000040-a0001".into(), loss: 2.25 }),
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
    fn reads_back_what_it_wrote() {
        let text = manifest().to_text().unwrap();
        assert_eq!(read(text.as_bytes()).unwrap(), manifest());
        serde_json::from_str::<serde_json::Value>(&text).unwrap();
    }

    #[test]
    fn any_changed_byte_is_noticed() {
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
    fn a_newer_format_is_refused_by_its_number() {
        for format in [0, FORMAT + 1] {
            let other = Manifest { format, ..manifest() };
            let message = read(other.to_text().unwrap().as_bytes()).unwrap_err().to_string();
            assert!(message.ends_with(&format!("reads), found {format}")), "{message}");
        }
    }

    /// Written by the version of lambert before format 2.
    #[test]
    fn format_1_is_read() {
        let text = include_bytes!("../../tests/golden/manifest-format-1.json");
        let read = Manifest::from_text(text, "run/manifest.json", "step-000000007-a0001").unwrap();
        assert_eq!((read.format, read.step, read.world, read.objects.len()), (1, 7, 2, 3));
        assert_eq!((read.held_out_loss, read.best), (None, None));
    }

    #[test]
    fn entries_that_leave_the_checkpoint_or_come_twice_are_refused() {
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
