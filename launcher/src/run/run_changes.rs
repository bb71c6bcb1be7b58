//! Checks the changes of the configuration of a run that exists.

use std::collections::BTreeSet;

use lambert_config::RunConfig;
use lambert_plan::architecture::Architecture;
use lambert_plan::timeline;
use lambert_store::checkpoint::{AttemptStep, Manifest, Rollbacks};
use lambert_store::{Store, checkpoint};

use super::base_checkpoint;
use super::config_diff::{self, Difference, Differences};
use crate::failure::Failure;

/// A run cannot continue with a changed configuration.
#[derive(Debug, thiserror::Error)]
enum RunChangeError {
    /// The stored run has another configuration.
    #[error(
        "{url} is a run with another configuration; use another --run (`lambert tune`: another --runs), the configuration \
         that it was started with, or `lambert run --allow-change KEY`. Differences:{}",
        list(differences)
    )]
    OtherRun {
        /// URL of the run.
        url: String,
        /// Differing keys.
        differences: Vec<Difference>,
    },
    /// A key that no configuration has.
    #[error(
        "--allow-change {0}: no key or section of a run has this name; expected for example stage.0.steps or optimizer"
    )]
    UnknownKey(String),
    /// The checkpoints of the run have other tensor shapes.
    #[error(
        "{url} has checkpoints of a different model; use another --run for different tensor shapes. Differences:{}",
        list(differences)
    )]
    OtherShapes {
        /// URL of the run.
        url: String,
        /// Differing keys that affect shapes.
        differences: Vec<Difference>,
    },
    /// The checkpoints of the run have moments that do not fit the optimizer.
    #[error(
        "{url} has checkpoints of another optimizer, whose moments do not fit; use another --run, with --from and a checkpoint of this \
         run"
    )]
    OtherMoments {
        /// URL of the run.
        url: String,
    },
    /// A stage that has ended is longer now.
    #[error("{0}")]
    LongerStage(String),
    /// The configuration cannot be serialized.
    #[error("cannot write the configuration as TOML")]
    Toml(#[from] toml::ser::Error),
}

fn list(differences: &[Difference]) -> String {
    differences.iter().map(|difference| format!("\n  {difference}")).collect()
}

/// Rejects names that are neither a key nor a section of one of the `configs`.
pub fn check_keys(allowed: &[String], configs: &[&RunConfig]) -> Result<(), Failure> {
    for key in allowed {
        let is_known = |config: &&RunConfig| config_diff::has_key(config, key);
        if !configs.iter().any(is_known) {
            return Err(Failure::usage(RunChangeError::UnknownKey(key.clone())));
        }
    }
    Ok(())
}

/// Rejects changes that affect the trained model unless their keys are in `allowed`. Logs all other changes. `base` is the
/// difference between the folder that the run has imported and the folder in `now`.
pub fn check_changes(
    before: &RunConfig,
    now: &RunConfig,
    base: Option<&Difference>,
    allowed: &[String],
    store: &Store,
) -> Result<(), Failure> {
    let mut found = config_diff::compare(before, now).map_err(|error| Failure::failed(RunChangeError::Toml(error)))?;
    found.trained.extend(base.cloned());
    found.allow(allowed);
    let Differences { trained, untrained } = found;
    if !trained.is_empty() {
        return Err(Failure::usage(RunChangeError::OtherRun { url: store.url().to_owned(), differences: trained }));
    }
    let has_checkpoints = || Ok::<_, Failure>(!checkpoint::list(store).map_err(Failure::failed)?.is_empty());
    if base_checkpoint::is_muon(before) != base_checkpoint::is_muon(now) && has_checkpoints()? {
        return Err(Failure::usage(RunChangeError::OtherMoments { url: store.url().to_owned() }));
    }
    let mut shapes: Vec<_> = untrained.iter().filter(|change| change.is_of_shapes()).cloned().collect();
    if shapes.is_empty() && config_diff::have_other_parameters(before, now) && !start_fits(store, now)? {
        shapes =
            untrained.iter().filter(|change| config_diff::is_at_or_below(&change.key, "objective")).cloned().collect();
    }
    if !shapes.is_empty() && has_checkpoints()? {
        return Err(Failure::usage(RunChangeError::OtherShapes { url: store.url().to_owned(), differences: shapes }));
    }
    if untrained.iter().any(|change| config_diff::is_at_or_below(&change.key, "stage")) {
        check_stage_order(store, now)?;
    }
    for change in untrained.iter().filter(|change| base.is_none() || change.key != base_checkpoint::KEY) {
        tracing::info!("configuration changed: {change}");
    }
    if let Some(base) = base {
        tracing::warn!("the run keeps the model that it imported from {}", base.before);
    }
    Ok(())
}

/// Rejects a configuration in which the next step is in an earlier stage than the checkpoint that the run starts from. The workers
/// check this again.
fn check_stage_order(store: &Store, config: &RunConfig) -> Result<(), Failure> {
    let Some(start) = start_checkpoint(store)? else { return Ok(()) };
    let Some(manifest) = read_if_intact(store, &start)? else { return Ok(()) };
    let ended = timeline::stored_early_stops(&manifest.state);
    let ended = timeline::without_removed_plateau(config, ended, manifest.stage);
    match timeline::longer_stage(config, &ended, (&start, manifest.step, manifest.stage)) {
        Some(message) => Err(Failure::usage(RunChangeError::LongerStage(message))),
        None => Ok(()),
    }
}

/// Returns the name of the checkpoint that the run starts from if it is intact; `None` without checkpoints.
fn start_checkpoint(store: &Store) -> Result<Option<String>, Failure> {
    let listed = checkpoint::positions(store).map_err(Failure::failed)?;
    let rollbacks = Rollbacks::of(store, &listed).map_err(Failure::failed)?;
    Ok(rollbacks.start(&listed).map(AttemptStep::name))
}

/// Reads the manifest of a checkpoint; `None` if it is damaged or gone.
fn read_if_intact(store: &Store, name: &str) -> Result<Option<Manifest>, Failure> {
    match checkpoint::read_manifest(store, name) {
        Err(error) if error.is_damaged() || error.is_not_found() => Ok(None),
        manifest => manifest.map(Some).map_err(Failure::failed),
    }
}

/// True if the checkpoint that the run starts from has exactly the parameters of the networks of `config`, by name. A configuration that an
/// earlier version stored although it does not fit can be corrected.
fn start_fits(store: &Store, config: &RunConfig) -> Result<bool, Failure> {
    let Some(start) = start_checkpoint(store)? else { return Ok(true) };
    let Some(manifest) = read_if_intact(store, &start)? else { return Ok(false) };
    let Some(stage) = config.stage.get(manifest.stage) else { return Ok(false) };
    let slices = manifest.objects.iter().flat_map(|object| &object.slices);
    let there: BTreeSet<&str> = slices.map(|slice| &*slice.tensor).collect();
    let architecture = Architecture::of_run(config, stage.depth(&config.model), config_diff::VOCABULARY);
    let tensors = architecture.tensors();
    Ok(tensors.iter().map(|tensor| &*tensor.name).collect::<BTreeSet<_>>() == there)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use lambert_config::run::{Plateau, Stage};
    use lambert_store::checkpoint::RollbackRecord;
    use serde_json::{Value, json};

    use super::*;

    /// Writes a checkpoint of attempt `attempt` after `step` steps, in stage `stage`.
    fn save(store: &Store, attempt: u32, step: u64, stage: usize, state: Value) {
        let manifest = Manifest {
            format: checkpoint::FORMAT,
            step,
            attempt,
            parent: None,
            stage,
            cursor: BTreeMap::new(),
            config_sha256: String::new(),
            world: 1,
            held_out_loss: None,
            best: None,
            averaged: Vec::new(),
            state,
            objects: Vec::new(),
        };
        checkpoint::write_single(store, manifest, Vec::new()).unwrap();
    }

    /// Configuration with two stages of 10 steps.
    fn two_stages() -> RunConfig {
        let stage = Stage { steps: 10, ..Stage::default() };
        RunConfig { stage: vec![stage.clone(), stage], ..RunConfig::default() }
    }

    /// Checkpoints of older formats have the early stops under another key.
    #[test]
    fn a_stage_that_ended_at_a_plateau_is_not_longer() {
        for key in ["early_stops", "ended"] {
            let store = Store::open(&format!("memory://run-changes/{key}")).unwrap();
            save(&store, 1, 8, 1, json!({ key: { "0": 6 } }));
            let mut config = two_stages();
            config.stage[0].plateau = Some(Plateau::default());
            assert!(check_stage_order(&store, &config).is_ok(), "{key}");
        }
        let store = Store::open("memory://run-changes/none").unwrap();
        save(&store, 1, 8, 1, json!({}));
        let refused = check_stage_order(&store, &two_stages()).unwrap_err().to_string();
        assert!(refused.contains("a stage cannot become longer"), "{refused}");
    }

    /// The run starts from the checkpoint before a rollback, not from the newest one.
    #[test]
    fn a_checkpoint_that_was_rolled_back_does_not_end_its_stage() {
        let store = Store::open("memory://run-changes/rollback").unwrap();
        save(&store, 1, 8, 0, json!({}));
        save(&store, 1, 12, 1, json!({}));
        let mut longer = two_stages();
        longer.stage[0].steps = 15;
        assert!(check_stage_order(&store, &longer).is_err());
        let (mixture_id, reason) = (String::new(), String::new());
        RollbackRecord { attempt: 1, last_kept: 9, mixture_id, samples: 3..5, reason }.write(&store).unwrap();
        assert!(check_stage_order(&store, &longer).is_ok());
    }
}
