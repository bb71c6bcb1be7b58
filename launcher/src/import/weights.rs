//! Weights file of a checkpoint, from the tensors of a folder.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use half::{bf16, f16};
use lambert_config::RunConfig;
use lambert_config::run::Pair;
use lambert_plan::architecture::{Architecture, ImportedModel, ModuleKind, ParamKind, Tensor, TensorId};
use safetensors::serialize;
use safetensors::tensor::{Dtype, TensorView};

use super::ImportError;
use super::missing::{Initialization, InitializedModule, initial};
use super::names::{Renamed, Source};

/// Key of the metadata of a weights file: the type in which an export writes the tensors.
pub const EXPORT_TYPE: &str = "export_dtype";

/// Endings of tensors that are not parameters.
const BUFFERS: [&str; 3] = ["position_ids", "token_type_ids", "inv_freq"];

/// Parts of encoders that masked language models of some families do not have: the pooler, and the positions of the enhanced mask
/// decoder of DeBERTa.
const IGNORED: [&str; 2] = ["pooler", "position_embeddings"];

/// Returns the weights file of a checkpoint of `architecture`, in f32, and notes on tensors that are not copied one to one.
pub fn checkpoint_file(
    folder: &Path,
    model: &ImportedModel,
    config: &RunConfig,
    architecture: &Architecture,
    mut renamed: Renamed<'_>,
    initialization: &Initialization<'_>,
) -> Result<(Vec<u8>, Vec<String>), ImportError> {
    let mut notes = Vec::new();
    match config.model.tied_decoder {
        true => remove_tied(architecture, &mut renamed, &mut notes)?,
        false => copy_decoder_bias(architecture, &mut renamed, &mut notes),
    }
    // A sentence-pair head that the imported model does not use gets random values, unless the folder has a part of it.
    let has = |module| renamed.has(&config.model, module);
    let is_unused = config.objective.pair == Pair::None;
    let unused_modules: Vec<ModuleKind> =
        [ModuleKind::Pooler, ModuleKind::PairHead].into_iter().filter(|module| is_unused && !has(*module)).collect();
    let (mut files, mut missing, mut random, mut types) = (Vec::new(), Vec::new(), Vec::new(), BTreeSet::new());
    let tensors = architecture.tensors();
    let is_found = |tensor: &Tensor| renamed.get(&tensor.name).is_some();
    let is_replaced = |tensor: &Tensor| initialization.replaces(tensor, &tensors, is_found);
    let replaced: Vec<bool> = tensors.iter().map(is_replaced).collect();
    for (tensor, is_replaced) in tensors.iter().zip(replaced) {
        let source = if is_replaced { None } else { renamed.take(&tensor.name) };
        let values = match source {
            Some(source) => {
                types.insert(source.view.dtype().to_string());
                values(tensor, model, &source)?
            }
            None if unused_modules.contains(&tensor.id.module)
                || InitializedModule::of(tensor).is_some_and(|part| initialization.modules.contains(&part)) =>
            {
                random.push(tensor.name.as_str());
                initial(tensor, config.model.initializer_range).iter().flat_map(|value| value.to_le_bytes()).collect()
            }
            None => {
                missing.push(tensor);
                continue;
            }
        };
        files.push((tensor.name.clone(), tensor.shape.clone(), values));
    }
    if !missing.is_empty() {
        return Err(error_for_missing(folder, &missing));
    }
    let rest: Vec<(String, Source<'_>)> = renamed.rest().filter(|(name, _)| !is_buffer(name)).collect();
    let is_alien = |name: &str| name.starts_with(model.prefix) && !IGNORED.iter().any(|part| name.contains(part));
    if let Some((name, source)) = rest.iter().find(|(name, _)| is_alien(name)) {
        let why = format!("config.json describes a model without the tensor {name}");
        return Err(ImportError::Weights { path: source.file.to_owned(), why });
    }
    let unused: Vec<&str> = rest.iter().map(|(_, source)| source.name.as_str()).collect();
    notes.extend((!random.is_empty()).then(|| format!("initialized: {}", random.join(", "))));
    notes.extend((!unused.is_empty()).then(|| format!("not used: {}", unused.join(", "))));
    let mut metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    if types.len() == 1 {
        metadata.extend(types.pop_first().filter(|one| one != "F32").map(|one| (EXPORT_TYPE.to_owned(), one)));
    }
    let invalid =
        |error: safetensors::SafeTensorError| ImportError::Weights { path: folder.to_owned(), why: error.to_string() };
    let views: Result<BTreeMap<&str, TensorView<'_>>, _> = files
        .iter()
        .map(|(name, shape, bytes)| Ok((name.as_str(), TensorView::new(Dtype::F32, shape.clone(), bytes)?)))
        .collect();
    Ok((serialize(views.map_err(invalid)?, Some(metadata)).map_err(invalid)?, notes))
}

fn is_buffer(name: &str) -> bool {
    BUFFERS.iter().any(|ending| name.ends_with(ending))
}

/// Removes the decoder of a model whose decoder is tied to the token embeddings.
fn remove_tied(
    architecture: &Architecture,
    renamed: &mut Renamed<'_>,
    notes: &mut Vec<String>,
) -> Result<(), ImportError> {
    let name = |module, param| (architecture.networks()[0].name)(TensorId::new(module, param));
    for (param, module) in
        [(ParamKind::Weight, ModuleKind::WordEmbeddings), (ParamKind::Bias, ModuleKind::PredictionBias)]
    {
        let (tied, kept) = (name(ModuleKind::Decoder, param), name(module, param));
        let Some(source) = (tied != kept).then(|| renamed.take(&tied)).flatten() else { continue };
        match renamed.get(&kept) {
            Some(other) if other.view == source.view => notes.push(format!("tied: {} is {kept}", source.name)),
            Some(_) => {
                let why = format!("tie_word_embeddings is true, but {} and {kept} differ", source.name);
                return Err(ImportError::Weights { path: source.file.to_owned(), why });
            }
            None => {
                notes.push(format!("renamed: {} to {kept}", source.name));
                renamed.insert(kept, source);
            }
        }
    }
    Ok(())
}

/// Copies the bias of the MLM head to the decoder of a model with an untied decoder. Versions of transformers before 5 store the
/// bias, which both share, only once.
fn copy_decoder_bias(architecture: &Architecture, renamed: &mut Renamed<'_>, notes: &mut Vec<String>) {
    let name = |module| (architecture.networks()[0].name)(TensorId::new(module, ParamKind::Bias));
    let (decoder, shared) = (name(ModuleKind::Decoder), name(ModuleKind::PredictionBias));
    if renamed.get(&decoder).is_none()
        && let Some(source) = renamed.get(&shared).cloned()
    {
        notes.push(format!("copied: {shared} to {decoder}"));
        renamed.insert(decoder, source);
    }
}

fn error_for_missing(folder: &Path, missing: &[&Tensor]) -> ImportError {
    const SHOWN: usize = 5;
    let mut names: Vec<String> = missing.iter().take(SHOWN).map(|tensor| tensor.name.clone()).collect();
    names.extend((missing.len() > SHOWN).then(|| format!("{} more", missing.len() - SHOWN)));
    let parts: Option<Vec<String>> =
        missing.iter().map(|tensor| InitializedModule::of(tensor).map(|part| part.to_string())).collect();
    let advice = match parts {
        Some(mut parts) => {
            parts.dedup();
            format!("`lambert import` initializes them with --init-missing {}", parts.join(","))
        }
        None => "the weights do not fit config.json".to_owned(),
    };
    ImportError::Missing { folder: folder.to_owned(), tensors: names.join(", "), many: missing.len() > 1, advice }
}

/// Returns the values of a tensor as f32, without rows that have no token or position.
fn values(tensor: &Tensor, model: &ImportedModel, source: &Source<'_>) -> Result<Vec<u8>, ImportError> {
    let wrong = |why: String| ImportError::Weights { path: source.file.to_owned(), why };
    let (mut shape, mut skipped) = (tensor.shape.clone(), 0);
    if tensor.padding.is_some() {
        shape[0] = model.vocabulary;
    } else if tensor.id.module == ModuleKind::PositionEmbeddings {
        skipped = model.first_position;
        shape[0] += skipped;
    }
    let view = &source.view;
    if view.shape() != shape {
        let (name, found) = (&source.name, view.shape());
        return Err(wrong(format!("{name} has the shape {found:?}; config.json gives {shape:?}")));
    }
    let all: Vec<f32> = match view.dtype() {
        Dtype::F32 => view.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        Dtype::BF16 => pairs(view).map(|bytes| bf16::from_le_bytes(bytes).to_f32()).collect(),
        Dtype::F16 => pairs(view).map(|bytes| f16::from_le_bytes(bytes).to_f32()).collect(),
        other => return Err(wrong(format!("{} has dtype {other}; expected F32, BF16 or F16", source.name))),
    };
    if let Some(place) = all.iter().position(|value| !value.is_finite()) {
        return Err(wrong(format!("element {place} of {} is {}", source.name, all[place])));
    }
    let row: usize = shape.iter().skip(1).product();
    let kept: usize = tensor.shape.iter().product();
    Ok(all[skipped * row..][..kept].iter().flat_map(|value| value.to_le_bytes()).collect())
}

fn pairs(view: &TensorView<'_>) -> impl Iterator<Item = [u8; 2]> {
    view.data().as_chunks::<2>().0.iter().copied()
}
