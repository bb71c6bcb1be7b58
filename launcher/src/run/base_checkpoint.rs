//! Checks the base checkpoint of a new run before anything is written.

use lambert_config::run::{Model, Moments, OptimizerKind};
use lambert_config::{ConfigError, ConfigIssue, RunConfig};
use lambert_dataset::Dataset;
use lambert_plan::architecture::SHAPING;
use lambert_store::{Store, StoredVocabulary, checkpoint, run as names};

use super::imported_base::ImportedBase;
use crate::failure::Failure;
use crate::stored_config;

const KEY: &str = "run.from";

/// Rejects the checkpoint `run.from` if its weights do not fit the model and cannot grow to fit the model.
/// `base` is the model that the start of the run imports to `store`.
pub fn check(config: &RunConfig, base: Option<&ImportedBase>, store: &Store) -> Result<(), Failure> {
    let mut faults = Vec::new();
    match config.run.from.as_deref().map(|url| (url, names::split_checkpoint_url(url))) {
        None => config.stage[0].check_growth(0, config.depth(0), &config.model, &mut faults),
        Some((_, (run, Some(name)))) => match base {
            Some(base) => look(config, (&base.in_memory(store)?, &base.folder), name, &mut faults)?,
            None => look(config, (&Store::open(run).map_err(Failure::usage)?, run), name, &mut faults)?,
        },
        Some((url, (_, None))) => {
            let expected = names::CHECKPOINT_URL;
            faults.push(ConfigIssue::new(KEY, format!("{url} is not a checkpoint; expected {expected}")));
        }
    }
    if faults.is_empty() {
        return Ok(());
    }
    Err(ConfigError::Invalid { origin: "the configuration".to_owned(), issues: faults }.into())
}

/// Compares a checkpoint with the configuration. `run` is the name of its run in messages.
fn look(
    config: &RunConfig,
    (store, run): (&Store, &str),
    name: &str,
    faults: &mut Vec<ConfigIssue>,
) -> Result<(), Failure> {
    let manifest = match checkpoint::read_manifest(store, name) {
        Ok(manifest) => manifest,
        Err(error) => {
            faults.push(ConfigIssue::new(KEY, Failure::usage(error).to_string()));
            return Ok(());
        }
    };
    let Some(text) = stored_config::text(store)? else {
        faults.push(ConfigIssue::new(KEY, format!("{run} has no {}, so its model is unknown", names::CONFIG)));
        return Ok(());
    };
    let from = stored_config::parse(&text, store)?;
    let (theirs, ours) = (shape(&from.model)?, shape(&config.model)?);
    let pairs = theirs.into_iter().zip(ours).map(|((key, theirs), (_, ours))| (key, theirs, ours));
    for (key, theirs, ours) in pairs.filter(|(_, theirs, ours)| theirs != ours) {
        faults.push(ConfigIssue::new(KEY, format!("its model has {key} = {theirs}, the configuration has {ours}")));
    }
    let layers = from.depth(manifest.stage);
    let stage = &config.stage[0];
    stage.check_growth(0, layers, &config.model, faults);
    if stage.growth.moments.is_some_and(|moments| moments != Moments::Zero) && !config.run.from_optimizer {
        let message = "needs the optimizer moments of run.from: set run.from_optimizer (--with-optimizer)";
        faults.push(ConfigIssue::new("stage.0.growth.moments", message));
    }
    if config.run.from_optimizer && is_muon(&from) != is_muon(config) {
        let message = "Muon has other moments than the other optimizers; start without them";
        faults.push(ConfigIssue::new("run.from_optimizer", message));
    }
    if config.run.from_optimizer && !manifest.objects.iter().any(|object| names::is_moments(&object.path)) {
        faults.push(ConfigIssue::new(
            "run.from_optimizer",
            format!("{} has no optimizer moments", names::checkpoint_url(run, name)),
        ));
    }
    let vocabulary = StoredVocabulary::read(store).map_err(Failure::failed)?.bytes;
    let datasets = config.stage[0].datasets(0);
    let (_, data) = &datasets[0];
    if Dataset::open(data)?.manifest().vocabulary.sha256 != lambert_store::hash::sha256(&vocabulary) {
        faults.push(ConfigIssue::new(KEY, format!("the vocabulary of {run} differs from that of {data}")));
    }
    Ok(())
}

/// True if Muon trains the run. Its moments do not fit another optimizer.
pub fn is_muon(config: &RunConfig) -> bool {
    config.optimizer.kind == OptimizerKind::Muon
}

/// Returns the model keys that determine the weights and their shapes, with their values as TOML.
fn shape(model: &Model) -> Result<Vec<(&'static str, String)>, Failure> {
    let table = toml::Table::try_from(model).map_err(Failure::failed)?;
    let value = |key| (key, table.get(key).map_or(String::new(), ToString::to_string));
    // `layers` may differ, because the model can grow. `heads` must be equal. A different number of heads changes the
    // meaning of the weights, although the shapes stay the same.
    let shaping = SHAPING.into_iter().filter(|key| *key != "layers");
    Ok(shaping.chain(["heads"]).map(value).collect())
}
