//! Plan of a sweep. Validates all runs before the first run starts, and compares the configuration with existing runs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use lambert_config::{ConfigError, Layers, RunConfig};
use lambert_plan::timeline::{self, EarlyStops};
use lambert_store::Store;
use lambert_store::run::CONFIG;

use super::grid::{self, Setting};
use super::results::Results;
use super::runs::PlannedRun;
use super::slots::ResourceNeed;
use crate::cli;
use crate::decide::HostPool;
use crate::failure::Failure;
use crate::run::config_diff::{self, Difference, Differences};
use crate::run::coordinator;
use crate::run::open_datasets::OpenDatasets;
use crate::run::run_plan;
use crate::run::spec::RunSpec;
use crate::run::unstarted;
use crate::slurm::record::is_in_job;

/// Configuration of the first run. The other runs differ from it only in the swept keys.
const COMMON: &str = "tune.toml";
/// Configuration of the best run.
pub const BEST: &str = "best.toml";
/// Maximum size of a configuration, bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// Sections that affect results although they do not change the trained model.
const RESULT_SECTIONS: [&str; 2] = ["evaluation", "guard"];

/// Sections that determine the meaning of the held-out loss.
const LOSS_SECTIONS: [&str; 2] = ["evaluation", "objective"];

/// The sweep cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A run is invalid.
    #[error("invalid run {name}: {message}")]
    Refused {
        /// Run name.
        name: String,
        /// Cause.
        message: String,
    },
    /// Two runs have the same name.
    #[error("two runs have the name {0}: their settings differ only in characters that run names leave out")]
    SameName(String),
    /// There is no held-out dataset by which to compare runs.
    #[error("evaluation.data is missing: runs are compared by their held-out loss")]
    NoEvaluation,
    /// Existing runs are not comparable.
    #[error(
        "{url} has runs of another configuration; use another --runs, or put the keys that differ into --grid. \
         Differences:{}",
        differences.iter().map(|difference| format!("\n  {difference}")).collect::<String>()
    )]
    OtherRuns {
        /// URL of the runs.
        url: String,
        /// Differing keys.
        differences: Vec<Difference>,
    },
    /// The sweep would overwrite its own configuration file.
    #[error("--config {}: `lambert tune` overwrites this file in --runs; use a copy outside", .0.display())]
    Own(PathBuf),
    /// The folder of the runs is a run itself.
    #[error("--runs {url} is itself a run ({object} exists), and runs cannot be nested; use another --runs")]
    Run {
        /// URL of the runs.
        url: String,
        /// An object of the run.
        object: String,
    },
    /// The held-out losses would not be comparable.
    #[error("{0} cannot be tuned: it changes what the held-out loss measures")]
    OtherQuestion(String),
    /// The configuration cannot be copied to a temporary file.
    #[error("cannot copy the configuration to a temporary file")]
    Copy(#[source] std::io::Error),
    /// The stored configuration cannot be read.
    #[error("{url}/{COMMON}")]
    Unreadable {
        /// URL of the runs.
        url: String,
        /// Cause.
        source: ConfigError,
    },
}

/// A validated sweep.
#[derive(Debug)]
pub struct SweepPlan {
    /// All runs.
    pub runs: Vec<PlannedRun>,
    /// Number of steps by run.
    pub steps: BTreeMap<String, u64>,
    /// Resources that suffice for every run.
    pub need: ResourceNeed,
    /// Copies of the configuration files. A user may edit the originals before the last run starts.
    _copies: Vec<File>,
    /// Names of runs that do not exist yet.
    new: Vec<String>,
    first: RunConfig,
}

impl SweepPlan {
    /// Plans the runs of `arguments`, each in a directory below `url`.
    ///
    /// # Errors
    /// A run is invalid.
    pub fn new(arguments: &cli::Tune, url: &str) -> Result<Self, Failure> {
        let (mut runs, mut need, mut new, mut first): (Vec<PlannedRun>, _, _, _) =
            (Vec::new(), ResourceNeed::default(), Vec::new(), None);
        let (mut steps, datasets) = (BTreeMap::new(), OpenDatasets::default());
        let kept: Result<Vec<(File, PathBuf)>, Failure> = arguments.config.iter().map(|path| keep(path)).collect();
        let (copies, paths): (Vec<File>, Vec<PathBuf>) = kept?.into_iter().unzip();
        for settings in grid::settings(&arguments.grid, &arguments.trial).map_err(Failure::usage)? {
            if let Some(setting) = settings.iter().find(|setting| LOSS_SECTIONS.contains(&setting.part())) {
                return Err(Failure::usage(PlanError::OtherQuestion(setting.key.clone())));
            }
            let name = grid::name(&settings);
            if runs.iter().any(|other| other.name == name) {
                return Err(Failure::usage(PlanError::SameName(name)));
            }
            let run_arguments = run_arguments(arguments, format!("{}/{name}", url.trim_end_matches('/')), &settings);
            let refused = |failure: Failure| {
                let message = failure.to_string();
                Failure::coded(failure.code, PlanError::Refused { name: name.clone(), message })
            };
            let validated = RunSpec::validate(&run_arguments, coordinator::host_pool, &datasets).map_err(refused)?;
            let config = validated.config();
            if config.evaluation.data.is_empty() {
                return Err(Failure::usage(PlanError::NoEvaluation));
            }
            let here = *validated.host_pool() == HostPool::Here && !is_in_job();
            need = need.max(ResourceNeed::of(config, here, run_plan::memory(config, &datasets).map_err(refused)?));
            new.extend(validated.is_new().then(|| name.clone()));
            first.get_or_insert_with(|| config.clone());
            steps.insert(name.clone(), timeline::total_steps(config, &EarlyStops::new()));
            let run_arguments = cli::Run { config: paths.clone(), ..run_arguments };
            runs.push(PlannedRun { name, settings, arguments: line(&run_arguments) });
        }
        Ok(Self { runs, steps, need, _copies: copies, new, first: first.unwrap_or_default() })
    }

    /// Returns the runs without results.
    pub fn missing(&self, results: &Results) -> Vec<PlannedRun> {
        let there = |run: &&PlannedRun| results.has(&run.name, &run.settings) && !self.new.contains(&run.name);
        self.runs.iter().filter(|run| !there(run)).cloned().collect()
    }

    /// Rejects the sweep if its runs are not comparable with the existing `results`. Stores the common configuration of
    /// a new sweep.
    ///
    /// # Errors
    /// The store fails, or existing runs have another configuration.
    pub fn check_or_store_config(&self, store: &Store, results: &Results) -> Result<(), Failure> {
        let before = if results.trials.is_empty() && !has_runs(store)? { None } else { common(store)? };
        if let Some(before) = before {
            let found = config_diff::compare(&before, &self.first).map_err(Failure::failed)?;
            let tuned = self.runs.iter().flat_map(|run| &run.settings).map(|setting| setting.key.clone());
            let differences = affecting_results(found, &tuned.chain(results.keys()).collect::<Vec<_>>());
            return match differences.is_empty() {
                true => Ok(()),
                false => Err(Failure::usage(PlanError::OtherRuns { url: store.url().to_owned(), differences })),
            };
        }
        let text = self.first.to_toml().map_err(Failure::failed)?;
        store.put(COMMON, text.into()).map_err(Failure::failed)
    }
}

/// Rejects configuration files that the sweep itself would overwrite.
///
/// # Errors
/// A file belongs to the sweep.
pub fn reject_own_config(store: &Store, files: &[PathBuf]) -> Result<(), Failure> {
    // A file that does not exist cannot be overwritten.
    let resolved = |path: &Path| std::fs::canonicalize(path).ok();
    let own = |name| store.local_path(name).ok().flatten().and_then(|path| resolved(&path));
    let owned: Vec<PathBuf> = [COMMON, BEST].into_iter().filter_map(own).collect();
    match files.iter().find(|file| resolved(file).is_some_and(|file| owned.contains(&file))) {
        Some(file) => Err(Failure::usage(PlanError::Own(file.clone()))),
        None => Ok(()),
    }
}

/// Rejects a store for the runs that is a run itself, or holds the configuration of one.
///
/// # Errors
/// Also if the store cannot be read.
pub fn reject_run(store: &Store) -> Result<(), Failure> {
    let config = store.head(CONFIG).map_err(Failure::failed)?.map(|_| CONFIG.to_owned());
    match config.map_or_else(|| unstarted::started_by(store), |config| Ok(Some(config)))? {
        Some(object) => Err(Failure::usage(PlanError::Run { url: store.url().to_owned(), object })),
        None => Ok(()),
    }
}

/// Copies the configuration to an unnamed temporary file. Returns the open file and a path to it. The path is valid
/// while the file is open.
fn keep(path: &Path) -> Result<(File, PathBuf), Failure> {
    let text = std::fs::read(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
    let written = tempfile::tempfile().and_then(|mut file| file.write_all(&text).map(|()| file));
    let file = written.map_err(|source| Failure::failed(PlanError::Copy(source)))?;
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
    Ok((file, path))
}

/// True if the store contains runs.
fn has_runs(store: &Store) -> Result<bool, Failure> {
    // A directory without a run configuration is not a run.
    let is_run = |name: &String| store.head(&format!("{name}/{CONFIG}")).is_ok_and(|bytes| bytes.is_some());
    Ok(store.list_folders("").map_err(Failure::failed)?.iter().any(is_run))
}

/// Reads the common configuration of existing runs, if any.
fn common(store: &Store) -> Result<Option<RunConfig>, Failure> {
    match store.get_at_most(COMMON, MAX_CONFIG_BYTES) {
        Ok(bytes) => {
            let unreadable = |source| Failure::failed(PlanError::Unreadable { url: store.url().to_owned(), source });
            Layers::from_sets(&[]).parse(&String::from_utf8_lossy(&bytes), COMMON).map(Some).map_err(unreadable)
        }
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(Failure::failed(error)),
    }
}

/// Returns the differences that affect results, without those in the `tuned` keys.
fn affecting_results(mut found: Differences, tuned: &[String]) -> Vec<Difference> {
    found.allow(tuned);
    let by = |difference: &Difference| {
        RESULT_SECTIONS.iter().any(|part| config_diff::is_at_or_below(&difference.key, part))
            && !tuned.iter().any(|key| config_diff::is_at_or_below(&difference.key, key))
    };
    found.trained.into_iter().chain(found.untrained.into_iter().filter(by)).collect()
}

fn run_arguments(arguments: &cli::Tune, run: String, settings: &[Setting]) -> cli::Run {
    cli::Run {
        config: arguments.config.clone(),
        run,
        ranks: None,
        sets: arguments.sets.iter().cloned().chain(settings.iter().map(Setting::to_set)).collect(),
        from: None,
        with_optimizer: false,
        allow_change: Vec::new(),
        json: false,
        check: false,
    }
}

/// Formats the arguments of `lambert run`.
fn line(run_arguments: &cli::Run) -> Vec<String> {
    let config =
        run_arguments.config.iter().flat_map(|path| ["--config".to_owned(), path.to_string_lossy().into_owned()]);
    let sets = run_arguments.sets.iter().flat_map(|set| ["--set".to_owned(), set.clone()]);
    ["run".to_owned()]
        .into_iter()
        .chain(config)
        .chain(["--run".to_owned(), run_arguments.run.clone()])
        .chain(sets)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_inside_of_a_run_are_rejected() {
        for object in [CONFIG, "lease-000003"] {
            let store = Store::open(&format!("memory://tune-{object}/run")).unwrap();
            reject_run(&store).unwrap();
            store.put(&format!("seed=1/{CONFIG}"), "".into()).unwrap();
            reject_run(&store).unwrap();
            store.put(object, "".into()).unwrap();
            let failure = reject_run(&store).unwrap_err();
            assert_eq!(failure.code, lambert_config::exit::USAGE);
            assert!(failure.to_string().contains(&format!("is itself a run ({object} exists)")), "{failure}");
        }
    }

    #[test]
    fn only_tuned_keys_may_differ_between_runs() {
        let before = RunConfig::default();
        let mut now = before.clone();
        now.optimizer.beta2 = 0.9;
        now.model.hidden = 128;
        now.evaluation.samples += 1;
        now.guard.rollbacks += 1;
        now.cluster.ranks = 8;
        now.run.name = "other".into();
        let differing = |tuned: &[&str]| {
            let tuned: Vec<String> = tuned.iter().map(|key| (*key).to_owned()).collect();
            let found = affecting_results(config_diff::compare(&before, &now).unwrap(), &tuned);
            found.into_iter().map(|difference| difference.key).collect::<Vec<_>>()
        };
        let all = ["model.hidden", "optimizer.beta2", "evaluation.samples", "guard.rollbacks"];
        let mut found = differing(&[]);
        found.sort_by_key(|key| all.iter().position(|other| key == other));
        assert_eq!(found, all);
        assert_eq!(differing(&["optimizer.beta2", "evaluation", "guard.rollbacks"]), ["model.hidden"]);
    }
}
