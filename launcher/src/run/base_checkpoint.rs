//! Checks the base checkpoint of a new run before anything is written.

use std::collections::BTreeSet;
use std::path::Path;

use lambert_config::run::{FunctionKey, Model, Moments, OptimizerKind};
use lambert_config::{ConfigError, ConfigIssue, RunConfig};
use lambert_dataset::text_case;
use lambert_dataset::tokenizer::VocabularyExtension;
use lambert_plan::architecture::{Architecture, ModuleKind};
use lambert_store::{Store, StoredVocabulary, checkpoint, run as names};

use super::config_diff::VOCABULARY;
use super::open_datasets::OpenDatasets;
use crate::failure::Failure;
use crate::import::PREFIX;
use crate::stored_config;

/// Key of the base.
pub const KEY: &str = "run.from";

/// Description of the model that a new run starts from, which is a stored checkpoint or the import of a folder.
#[derive(Debug)]
pub struct BaseModelInfo {
    /// URL of the checkpoint, or folder, for messages.
    pub checkpoint: String,
    /// URL of its run, or folder, for messages.
    pub origin: String,
    /// Configuration of its run.
    pub config: RunConfig,
    /// Number of encoder layers.
    pub layers: usize,
    /// True if it has optimizer moments.
    pub has_moments: bool,
    /// Its vocabulary.
    pub vocabulary: Vec<u8>,
    /// True if its vocabulary lowercases text. `None` if that is not recorded.
    pub lowercase: Option<bool>,
    /// Datasets that it was trained on, as the SHA-256 of their manifests.
    pub datasets: BTreeSet<String>,
}

/// Rejects the checkpoint `run.from` if its weights do not fit the model and cannot grow to fit the model. `import` has
/// the description of the model that the start of the run imports.
pub fn check(config: &RunConfig, import: Option<BaseModelInfo>, opened: &OpenDatasets) -> Result<(), Failure> {
    let mut issues = Vec::new();
    check_segments(&config.model, &mut issues);
    match (import, config.run.from.as_deref()) {
        (Some(base), _) => compare(config, &base, opened, &mut issues)?,
        (None, None) => config.stage[0].check_growth(0, config.depth(0), &config.model, &mut issues),
        (None, Some(url)) => match read(url)? {
            Ok(base) => compare(config, &base, opened, &mut issues)?,
            Err(issue) => issues.push(issue),
        },
    }
    if issues.is_empty() {
        return Ok(());
    }
    Err(ConfigError::Invalid { origin: "the configuration".to_owned(), issues }.into())
}

/// Rejects a model without segments that no transformers class would load. Runs of earlier versions may have one.
fn check_segments(model: &Model, issues: &mut Vec<ConfigIssue>) {
    if model.family.has_segments() && model.segments == 0 {
        let message = format!("must be above 0, because a model of family {} has segment embeddings", model.family);
        issues.push(ConfigIssue::of_value("model.segments", 0, message));
    }
}

/// Reads the description of a stored checkpoint.
fn read(url: &str) -> Result<Result<BaseModelInfo, ConfigIssue>, Failure> {
    let (run, Some(name)) = names::split_checkpoint_url(url) else {
        return Ok(Err(ConfigIssue::new(KEY, not_a_checkpoint(url))));
    };
    let store = Store::open(run).map_err(Failure::usage)?;
    let manifest = match checkpoint::read_manifest(&store, name) {
        Ok(manifest) => manifest,
        Err(error) => return Ok(Err(ConfigIssue::new(KEY, Failure::usage(error).to_string()))),
    };
    let Some(text) = stored_config::text(&store)? else {
        let message = format!("{run} has no {}, so its model is unknown", names::CONFIG);
        return Ok(Err(ConfigIssue::new(KEY, message)));
    };
    let config = stored_config::parse(&text, &store)?;
    let vocabulary = StoredVocabulary::read(&store).map_err(Failure::failed)?.bytes;
    Ok(Ok(BaseModelInfo {
        checkpoint: url.to_owned(),
        origin: run.to_owned(),
        layers: config.depth(manifest.stage),
        config,
        has_moments: manifest.objects.iter().any(|object| names::is_moments(&object.path)),
        vocabulary: vocabulary.into(),
        lowercase: manifest.state["lowercase"].as_bool(),
        datasets: manifest.cursor.into_iter().filter(|(_, drawn)| *drawn > 0).map(|(dataset, _)| dataset).collect(),
    }))
}

/// Message about a URL that names no checkpoint. A transformers folder has another prefix.
fn not_a_checkpoint(url: &str) -> String {
    let expected = match Path::new(url).join(names::TRANSFORMERS_CONFIG).is_file() {
        true => format!("{PREFIX}{url} for a transformers folder"),
        false => names::CHECKPOINT_URL.to_owned(),
    };
    format!("{} is not a checkpoint; expected {expected}", lambert_store::shown(url))
}

/// Compares the base with the configuration.
fn compare(
    config: &RunConfig,
    base: &BaseModelInfo,
    opened: &OpenDatasets,
    issues: &mut Vec<ConfigIssue>,
) -> Result<(), Failure> {
    compare_models(config, &base.config.model, issues)?;
    compare_generators(config, base, issues);
    let stage = &config.stage[0];
    stage.check_growth(0, base.layers, &config.model, issues);
    let fixed_by = [
        ("a teacher", config.objective.teacher.is_some()),
        ("objective.replaced_tokens", config.objective.replaced_tokens.is_some()),
    ];
    let (theirs, ours) = (base.layers, config.depth(0));
    for (what, _) in fixed_by.into_iter().filter(|(_, is_set)| *is_set && theirs != ours) {
        let message =
            format!("its model has {theirs} layers, the configuration has {ours}: a model with {what} cannot grow");
        issues.push(ConfigIssue::new(KEY, message));
    }
    if stage.growth.moments.is_some_and(|moments| moments != Moments::Zero) && !config.run.from_optimizer {
        let message = "needs the optimizer moments of run.from: set run.from_optimizer (--with-optimizer)";
        issues.push(ConfigIssue::new("stage.0.growth.moments", message));
    }
    if config.run.from_optimizer && is_muon(&base.config) != is_muon(config) {
        let message = "the optimizer state of Muon differs from that of the other optimizers; start without it";
        issues.push(ConfigIssue::new("run.from_optimizer", message));
    }
    let has_span_boundary_head = |config: &RunConfig| config.objective.span_boundary_weight > 0.0;
    if config.run.from_optimizer && has_span_boundary_head(&base.config) != has_span_boundary_head(config) {
        let message = "only one of the two models has a span boundary head (objective.span_boundary_weight), so the moments do not \
                       fit; start without them";
        issues.push(ConfigIssue::new("run.from_optimizer", message));
    }
    if config.run.from_optimizer && !base.has_moments {
        let message = format!("{} has no optimizer moments", base.checkpoint);
        issues.push(ConfigIssue::new("run.from_optimizer", message));
    }
    let origin = &base.origin;
    let datasets = stage.datasets(0);
    let (_, data) = &datasets[0];
    let dataset = opened.open(data)?;
    warn_of_repeated_samples(config, base, opened)?;
    let manifest = dataset.manifest();
    let mut is_known = manifest.vocabulary.sha256 == lambert_store::hash::sha256(&base.vocabulary);
    if !is_known {
        match VocabularyExtension::new(&base.vocabulary, &dataset.vocabulary()?) {
            Ok(_) => is_known = true,
            Err(why) => {
                let message = format!("the vocabulary of {data} does not extend that of {origin}: {why}");
                issues.push(ConfigIssue::new(KEY, message));
            }
        }
        if is_known && config.run.from_optimizer {
            let message = "the vocabulary is extended, and new tokens have no moments; start without them";
            issues.push(ConfigIssue::new("run.from_optimizer", message));
        }
    }
    if let Some(theirs) = base.lowercase.filter(|theirs| is_known && *theirs != manifest.lowercase) {
        let message = format!(
            "the tokenizer of {origin} {}, that of {data} {}; prepare the dataset with vocabulary.lowercase = {theirs}",
            text_case(theirs),
            text_case(manifest.lowercase)
        );
        issues.push(ConfigIssue::new(KEY, message));
    }
    Ok(())
}

/// Compares the generators of replaced-token detection.
fn compare_generators(config: &RunConfig, base: &BaseModelInfo, issues: &mut Vec<ConfigIssue>) {
    let sizes = |config: &RunConfig| {
        let generator = config.objective.replaced_tokens.as_ref()?.generator(&config.model);
        let Model { layers, hidden, heads, intermediate, .. } = generator;
        Some(format!("{layers} layers, hidden size {hidden}, {heads} heads and feed-forward size {intermediate}"))
    };
    let (theirs, ours) = (sizes(&base.config), sizes(config));
    let message = match (&theirs, &ours) {
        (Some(theirs), Some(ours)) if theirs != ours => {
            format!("its generator (objective.replaced_tokens) has {theirs}, that of the configuration has {ours}")
        }
        (None, Some(_)) => format!("{} has no generator, which objective.replaced_tokens trains", base.checkpoint),
        (Some(_), None) => format!(
            "{} has a generator and a discriminator (objective.replaced_tokens); to train one of them alone, start from its \
             export (lambert export --network, then run.from = \"hf:FOLDER\")",
            base.checkpoint
        ),
        _ => return,
    };
    issues.push(ConfigIssue::new(KEY, message));
}

/// True if Muon trains the run. Its moments do not fit another optimizer.
pub fn is_muon(config: &RunConfig) -> bool {
    config.optimizer.kind == OptimizerKind::Muon
}

/// Compares what the two models compute from the same weights. The number of layers may differ, because the model can grow. The
/// maximum length of a model without position embeddings may differ as well.
fn compare_models(config: &RunConfig, base: &Model, issues: &mut Vec<ConfigIssue>) -> Result<(), Failure> {
    let has_position_embeddings = |model: &Model| {
        let tensors = Architecture::new(model, model.layers, VOCABULARY).tensors();
        tensors.iter().any(|tensor| tensor.id.module == ModuleKind::PositionEmbeddings)
    };
    let has_free_length = !has_position_embeddings(base) && !has_position_embeddings(&config.model);
    let table = |model: &Model| model.computed().to_table().map_err(Failure::failed);
    let (theirs, ours) = (table(base)?, table(&config.model)?);
    let keys: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
    for key in keys.into_iter().filter(|key| *key != "layers" && !(*key == "positions" && has_free_length)) {
        let (theirs, ours) = (theirs.get(key), ours.get(key));
        let function_key = FunctionKey::ALL.into_iter().find(|function_key| function_key.name() == key);
        if theirs == ours || function_key.is_some_and(|key| config.run.from_changes.contains(&key)) {
            continue;
        }
        let shown = |value: Option<&toml::Value>| value.map_or("no value".to_owned(), ToString::to_string);
        let message = format!("its model has {key} = {}, the configuration has {}", shown(theirs), shown(ours));
        let remedy = function_key.map(|_| format!("; to change it, add \"{key}\" to run.from_changes"));
        issues.push(ConfigIssue::new(KEY, message + remedy.as_deref().unwrap_or_default()));
    }
    Ok(())
}

/// Warns if the run draws the samples again that its base was trained on, in the same order and with the same masks.
fn warn_of_repeated_samples(config: &RunConfig, base: &BaseModelInfo, opened: &OpenDatasets) -> Result<(), Failure> {
    if base.config.run.seed != config.run.seed {
        return Ok(());
    }
    for (key, data) in config.stage[0].datasets(0) {
        if base.datasets.contains(opened.open(data)?.manifest_sha256()) {
            tracing::warn!(
                "{key}: {} was trained on this dataset with the same run.seed, and this run starts with the same samples and masks \
                 again; set another run.seed, or branch from the checkpoint with `lambert checkpoint copy` to continue with \
                 later samples",
                base.checkpoint
            );
        }
    }
    Ok(())
}
