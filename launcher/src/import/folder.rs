//! Files of a folder that transformers wrote.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lambert_store::run::{TRANSFORMERS_CONFIG as CONFIG, WEIGHTS};
use serde_json::Value as Json;

use super::{ImportError, PREFIX};
use crate::text::shell_word;

/// Weights as a pickle.
const PICKLES: [&str; 2] = ["pytorch_model.bin", "pytorch_model.bin.index.json"];

/// A folder with a configuration.
pub struct Folder {
    path: PathBuf,
    /// Content of `config.json`.
    pub config: Json,
}

impl Folder {
    /// Opens a folder and reads its configuration.
    pub fn open(path: &Path) -> Result<Self, ImportError> {
        let folder = Self { path: path.to_owned(), config: Json::Null };
        let Some(config) = folder.json(CONFIG)? else {
            let prefixed = path.to_str().and_then(|path| path.strip_prefix(PREFIX)).filter(|_| !path.exists());
            let folder = path.to_owned();
            return Err(match prefixed {
                Some(folder) => ImportError::Prefix { folder: folder.to_owned() },
                None if !path.exists() => ImportError::NoFolder { folder },
                None => ImportError::NoFile { folder, name: CONFIG },
            });
        };
        Ok(Self { config, ..folder })
    }

    /// Path of a file.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Reads a file. `None` if the folder does not have it.
    pub fn bytes(&self, name: &str) -> Result<Option<Vec<u8>>, ImportError> {
        let path = self.file(name);
        match std::fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(ImportError::Read { path, source }),
        }
    }

    /// Reads a JSON file. `None` if the folder does not have it.
    pub fn json(&self, name: &str) -> Result<Option<Json>, ImportError> {
        let Some(bytes) = self.bytes(name)? else { return Ok(None) };
        let value = serde_json::from_slice(&bytes)
            .map_err(|error| ImportError::Json { path: self.file(name), why: error.to_string() })?;
        Ok(Some(value))
    }

    /// The command that writes the folder again, with safetensors. It loads the class that the configuration names, so no head is
    /// lost or added.
    fn conversion(&self) -> String {
        let class = self.config["architectures"][0].as_str().unwrap_or_default();
        let is_name = !class.is_empty() && class.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let class = if is_name { class } else { "AutoModelForMaskedLM" };
        let script = format!(
            "import sys, transformers as t; a, b = sys.argv[1:]; t.{class}.from_pretrained(a).save_pretrained(b); \
             t.AutoTokenizer.from_pretrained(a).save_pretrained(b)"
        );
        let folder = self.path.to_string_lossy();
        let [from, to] = [folder.clone().into_owned(), format!("{}-safetensors", folder.trim_end_matches('/'))];
        format!("python -c '{script}' {} {}", shell_word(&from), shell_word(&to))
    }

    /// Reads the files of the weights.
    pub fn shards(&self) -> Result<Vec<(PathBuf, Vec<u8>)>, ImportError> {
        if let Some(bytes) = self.bytes(WEIGHTS)? {
            return Ok(vec![(self.file(WEIGHTS), bytes)]);
        }
        let index_name = format!("{WEIGHTS}.index.json");
        let Some(index) = self.json(&index_name)? else {
            let pickle = PICKLES.into_iter().map(|name| self.file(name)).find(|path| path.exists());
            return Err(match pickle {
                Some(path) => ImportError::Pickle { path, command: self.conversion() },
                None => ImportError::NoFile { folder: self.path.clone(), name: WEIGHTS },
            });
        };
        let wrong = |why: String| ImportError::Json { path: self.file(&index_name), why };
        let map = index["weight_map"].as_object().ok_or_else(|| wrong("weight_map is missing".to_owned()))?;
        let names: BTreeSet<&str> = map.values().filter_map(Json::as_str).collect();
        let mut shards = Vec::new();
        for name in names {
            if name.contains(['/', '\\']) || !name.ends_with(".safetensors") {
                return Err(wrong(format!(
                    "weight_map names the file {name:?}; expected a .safetensors file beside it"
                )));
            }
            let bytes =
                self.bytes(name)?.ok_or_else(|| wrong(format!("weight_map names {name}, which does not exist")))?;
            shards.push((self.file(name), bytes));
        }
        Ok(shards)
    }
}
