//! Names of the tensors of a folder. Older transformers versions, and classes without heads, have other names than
//! checkpoints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lambert_config::run::Model;
use lambert_plan::architecture::{Architecture, ImportedModel, ModuleKind};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use super::ImportError;

/// A tensor of a folder.
#[derive(Clone)]
pub struct Source<'a> {
    /// File of the tensor.
    pub file: &'a Path,
    /// Name in the file.
    pub name: String,
    /// Type, shape and values.
    pub view: TensorView<'a>,
}

/// Tensors of a folder, by their names in a checkpoint.
pub struct Renamed<'a> {
    tensors: BTreeMap<String, Source<'a>>,
}

impl<'a> Renamed<'a> {
    /// Reads the headers of the files of a model.
    pub fn new(model: &ImportedModel, shards: &'a [(PathBuf, Vec<u8>)]) -> Result<Self, ImportError> {
        let mut found = Vec::new();
        for (path, bytes) in shards {
            let file = SafeTensors::deserialize(bytes)
                .map_err(|error| ImportError::Weights { path: path.clone(), why: error.to_string() })?;
            found.extend(file.tensors().into_iter().map(|(name, view)| Source { file: path, name, view }));
        }
        let has_prefix = found.iter().any(|source| source.name.starts_with(model.prefix));
        let mut tensors = BTreeMap::new();
        for source in found {
            let name = in_checkpoint(&source.name, model, has_prefix);
            let path = source.file.to_owned();
            if let Some(other) = tensors.insert(name.clone(), source) {
                let why =
                    format!("tensor {name} is in the folder twice, as {} in {}", other.name, other.file.display());
                return Err(ImportError::Weights { path, why });
            }
        }
        Ok(Self { tensors })
    }

    /// True if the folder has a tensor of this part of `model`.
    pub fn has(&self, model: &Model, module: ModuleKind) -> bool {
        let tensors = Architecture::new(model, model.layers, 1).tensors();
        tensors.iter().any(|tensor| tensor.id.module == module && self.tensors.contains_key(&tensor.name))
    }

    /// Returns a tensor.
    pub fn get(&self, name: &str) -> Option<&Source<'a>> {
        self.tensors.get(name)
    }

    /// Removes a tensor and returns it.
    pub fn take(&mut self, name: &str) -> Option<Source<'a>> {
        self.tensors.remove(name)
    }

    /// Adds a tensor.
    pub fn insert(&mut self, name: String, source: Source<'a>) {
        self.tensors.insert(name, source);
    }

    /// Returns the tensors that are left, with their names in a checkpoint.
    pub fn rest(self) -> impl Iterator<Item = (String, Source<'a>)> {
        self.tensors.into_iter()
    }
}

/// Name in a checkpoint of the tensor `name` of a folder.
fn in_checkpoint(name: &str, model: &ImportedModel, has_prefix: bool) -> String {
    let mut name = if has_prefix { name.to_owned() } else { format!("{}{name}", model.prefix) };
    // Names of the first version of BERT.
    for (old, new) in [("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias")] {
        if let Some(start) = name.strip_suffix(old) {
            name = format!("{start}{new}");
        }
    }
    let renamed = |(old, new): &(&str, &str)| name.strip_prefix(old).map(|rest| format!("{new}{rest}"));
    let renamed = model.old_names.iter().find_map(renamed);
    renamed.unwrap_or(name)
}
