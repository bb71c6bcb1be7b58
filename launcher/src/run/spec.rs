//! Validated run specification, from the command line, the configuration and the store of the run.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use lambert_config::run::Stage;
use lambert_config::{Checked, ConfigError, ConfigIssue, Layers, RunConfig, exit};
use lambert_dataset::{ModelVocabulary, check_compatibility};
use lambert_plan::durations;
use lambert_plan::memory::{self, DatasetShape};
use lambert_store::Store;
use lambert_store::StoredVocabulary;
use lambert_store::run::{CONFIG, PHRASES};

use super::base_checkpoint;
use super::config_diff::Difference;
use super::imported_base::{self, ImportedBase, ResolvedBase};
use super::open_datasets::OpenDatasets;
use super::run_changes::{self, check_changes};
use super::teacher::{self, NewTeacher};
use super::{phrase_list, run_plan, unstarted};
use crate::cli;
use crate::decide::HostPool;
use crate::failure::Failure;
use crate::stored_config;
use crate::worker;

/// A validated run, ready to start.
#[derive(Debug)]
pub struct RunSpec {
    /// Complete configuration, as stored.
    pub config: RunConfig,
    /// Store of the run.
    pub store: Store,
    /// Path of lambert-worker.
    pub worker: PathBuf,
    /// Hosts available to the ranks.
    pub host_pool: HostPool,
}

/// The run cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum RunSpecError {
    /// The run does not exist, and no configuration is given.
    #[error("{url} is not a run yet; start one with --config FILE")]
    NoConfig {
        /// URL of the run.
        url: String,
    },
    /// The run has checkpoints but no configuration.
    #[error(
        "{url} has checkpoints, but {CONFIG} is missing; restore it, or add --config FILE with the run's configuration"
    )]
    ConfigGone {
        /// URL of the run.
        url: String,
    },
    /// The configuration cannot be serialized.
    #[error("cannot write the configuration as TOML")]
    Toml(#[from] toml::ser::Error),
    /// A path cannot be made absolute.
    #[error("cannot resolve the relative path {path}")]
    Path {
        path: String,
        /// System error.
        source: std::io::Error,
    },
}

/// A run that has passed all checks. Nothing is written yet.
#[derive(Debug)]
pub struct ValidatedRun {
    config: RunConfig,
    store: Store,
    worker: PathBuf,
    host_pool: HostPool,
    /// Configuration in the store, if the run already exists.
    stored_config: Option<RunConfig>,
    /// Model to import, if the run starts from a folder of Transformers.
    base: Option<Box<ImportedBase>>,
    /// List of phrases to store, if the store does not have it.
    phrases: Option<Vec<u8>>,
    teacher: Option<NewTeacher>,
}

impl RunSpec {
    /// Loads the configuration. Checks the configuration and its datasets. If the store already contains the run,
    /// compares the configuration with the stored configuration. `host_pool` returns the hosts available to the ranks.
    /// Keeps the datasets of the run in `datasets`. Writes nothing.
    pub fn validate(
        arguments: &cli::Run,
        host_pool: impl Fn(&RunConfig) -> HostPool,
        datasets: &OpenDatasets,
    ) -> Result<ValidatedRun, Failure> {
        let store = Store::open(&arguments.run).map_err(Failure::usage)?;
        let worker = worker::find().map_err(Failure::failed)?;
        let stored_text = stored_config::text(&store)?;
        stored_text.as_deref().map_or(Ok(()), |text| unstarted::reject_configuration(&store, text))?;
        let (mut config, resolved) = configuration(arguments, &store, stored_text.as_deref(), &host_pool, datasets)?;
        let stored = stored_text.map(|text| stored_config::parse(&text, &store)).transpose()?;
        let configs: Vec<&RunConfig> = stored.iter().chain([&config]).collect();
        run_changes::check_keys(&arguments.allow_change, &configs)?;
        let teacher = NewTeacher::resolve(&mut config, stored.as_ref().map(|stored| (stored, &store)))?;
        match &stored {
            Some(stored) => check_changes(stored, &config, resolved.difference(), &arguments.allow_change, &store)?,
            None => base_checkpoint::check(&config, resolved.info(), datasets)?,
        }
        let base = resolved.into_new();
        let replaces = arguments.allow_change.iter().any(|key| key == "objective" || key == "objective.phrases");
        let phrases = phrase_list::to_store(config.objective.phrases.as_deref(), &store, stored.is_none(), replaces)?;
        let host_pool = host_pool(&config);
        let is_here = host_pool == HostPool::Here;
        teacher::check(&config, stored.as_ref(), teacher.as_ref(), (&store, is_here), datasets)?;
        Ok(ValidatedRun { config, store, worker, host_pool, stored_config: stored, base, phrases, teacher })
    }
}

impl ValidatedRun {
    /// Complete configuration.
    pub fn config(&self) -> &RunConfig {
        &self.config
    }

    /// Path of lambert-worker.
    pub fn worker(&self) -> &Path {
        &self.worker
    }

    /// Hosts available to the ranks.
    pub fn host_pool(&self) -> &HostPool {
        &self.host_pool
    }

    /// True if the store contains no run yet.
    pub fn is_new(&self) -> bool {
        self.stored_config.is_none()
    }

    /// Store of the run.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Writes the configuration to the store. The store of the returned run requires that the directory exists.
    pub fn commit(self) -> Result<RunSpec, Failure> {
        let Self { config, store, worker, host_pool, stored_config, base, phrases, teacher } = self;
        let other_base = base.map(|base| base.write(&store)).transpose()?.flatten();
        if let Some(phrases) = phrases {
            store.put(PHRASES, phrases.into()).map_err(Failure::failed)?;
        }
        teacher.map_or(Ok(()), |teacher| teacher.write(&store, stored_config.is_none()))?;
        match stored_config {
            None => create(&config, other_base.as_ref(), &store)?,
            Some(stored) if stored == config => {}
            Some(_) => store.put(CONFIG, text(&config)?.into()).map_err(Failure::failed)?,
        }
        Ok(RunSpec { config, store: store.require_folder(), worker, host_pool })
    }
}

/// Returns the SHA-256 of the vocabulary of the run. The first start of the run stores the vocabulary.
fn vocabulary(store: &Store) -> Result<Option<String>, Failure> {
    match StoredVocabulary::read(store) {
        Ok(vocabulary) => Ok(Some(lambert_store::hash::sha256(&vocabulary.bytes))),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(Failure::failed(error)),
    }
}

fn configuration(
    arguments: &cli::Run,
    store: &Store,
    stored: Option<&str>,
    host_pool: &impl Fn(&RunConfig) -> HostPool,
    datasets: &OpenDatasets,
) -> Result<(RunConfig, ResolvedBase), Failure> {
    let mut sets = arguments.sets.clone();
    sets.extend(arguments.ranks.map(|ranks| format!("cluster.ranks={ranks}")));
    let layers = Layers::from_process(&sets).warn_with(warn_once);
    let vocabulary = vocabulary(store)?;
    let mut only_unreachable = false;
    let check = |config: &RunConfig, issues: &mut Vec<ConfigIssue>| {
        let is_single_host = host_pool(config) == HostPool::Here;
        only_unreachable = check_datasets_and_memory(config, vocabulary.as_deref(), is_single_host, datasets, issues);
    };
    let origin = match arguments.config.as_slice() {
        [] => format!("{}/{CONFIG}", store.url()),
        files => Layers::origin(files),
    };
    let loaded: Result<RunConfig, ConfigError> = match (arguments.config.as_slice(), stored) {
        ([], Some(text)) => layers.parse_with(text, &origin, check),
        ([], None) => {
            let url = store.url().to_owned();
            return Err(Failure::usage(match stored_config::has_checkpoints(store) {
                true => RunSpecError::ConfigGone { url },
                false => RunSpecError::NoConfig { url },
            }));
        }
        (files, _) => layers.load_with(files, check),
    };
    let mut config = match loaded {
        // A dataset store may be reachable on a later start, so this is not a usage error. Slurm requeues the job.
        Err(error) if only_unreachable => return Err(Failure::failed(error)),
        loaded => loaded?,
    };
    let given = |from: &str| if imported_base::is_folder(from) { Ok(from.to_owned()) } else { absolute(from) };
    config.run.from = config.run.from.as_deref().map(given).transpose()?;
    if let Some(teacher) = &mut config.objective.teacher {
        teacher.from = given(&teacher.from)?;
    }
    match (&arguments.from, stored) {
        (Some(from), _) => {
            (config.run.from, config.run.from_optimizer) = (Some(given(from)?), arguments.with_optimizer);
        }
        // The user needs to give `run.from` only on the first start.
        (None, Some(text)) if config.run.from.is_none() => {
            let before = stored_config::parse(text, store)?.run;
            (config.run.from, config.run.from_optimizer) = (before.from, before.from_optimizer);
        }
        (None, _) => {}
    }
    let base = ResolvedBase::resolve(&mut config, store, stored)?;
    for stage in &mut config.stage {
        stage.data = absolute(&stage.data)?;
        for part in &mut stage.mixture {
            part.data = absolute(&part.data)?;
        }
    }
    config.evaluation.data = absolute(&config.evaluation.data)?;
    for extra in &mut config.evaluation.extra {
        extra.data = absolute(&extra.data)?;
    }
    config.objective.phrases = config.objective.phrases.as_deref().map(absolute).transpose()?;
    if durations::has_tokens(&config) {
        let data =
            config.stage.iter().map(|stage| run_plan::samples(stage, datasets)).collect::<Result<Vec<_>, _>>()?;
        durations::replace_tokens(&mut config, &data);
        let mut issues = Vec::new();
        config.check(&mut issues);
        if !issues.is_empty() {
            return Err(ConfigError::Invalid { origin, issues }.into());
        }
    }
    Ok((config, base))
}

/// Logs a configuration warning only once, because a sweep loads the same file for each of its runs.
fn warn_once(message: &str) {
    static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if PRINTED.lock().unwrap_or_else(PoisonError::into_inner).insert(message.to_owned()) {
        tracing::warn!("{message}");
    }
}

/// Makes a path absolute. Returns URLs and empty strings unchanged.
fn absolute(path: &str) -> Result<String, Failure> {
    if path.is_empty() || path.contains("://") {
        return Ok(path.to_owned());
    }
    match std::path::absolute(path) {
        // Symbolic links are resolved, so that a directory always has the same name.
        Ok(_) => Ok(crate::import::source(Path::new(path))),
        Err(source) => Err(Failure::usage(RunSpecError::Path { path: path.to_owned(), source })),
    }
}

/// Checks the datasets and the memory before anything is written, so that a mistyped path leaves no half-created run.
/// `vocabulary` is the SHA-256 of the vocabulary of the stored run, if any. `is_single_host` is true if all ranks run
/// on this host. Returns true if unreachable dataset stores are the only errors.
fn check_datasets_and_memory(
    config: &RunConfig,
    vocabulary: Option<&str>,
    is_single_host: bool,
    datasets: &OpenDatasets,
    issues: &mut Vec<ConfigIssue>,
) -> bool {
    let stages = config.stage.iter().enumerate().flat_map(|(index, stage)| stage.datasets(index));
    let (mut opened, before, mut away) = (Vec::new(), issues.len(), 0);
    for (key, url) in stages.chain(config.evaluation.datasets()).filter(|(_, url)| !url.is_empty()) {
        match datasets.open(url) {
            Ok(dataset) => opened.push((key, dataset)),
            Err(error) => {
                let failure = Failure::from(error);
                away += usize::from(failure.code == exit::FAILED);
                issues.push(ConfigIssue::new(key, failure.to_string()));
            }
        }
    }
    let all = issues.len() == before;
    let used: Vec<_> = opened.iter().map(|(key, dataset)| (key.clone(), &**dataset)).collect();
    let vocabulary = vocabulary.map(|sha256| ModelVocabulary { sha256, lowercase: None });
    check_compatibility(config, &used, vocabulary, issues);
    if is_single_host && all && !opened.is_empty() {
        let mut shapes = opened.iter().map(|(_, dataset)| dataset.sizes());
        let of_stage = |stage: &Stage| DatasetShape::of_mixture(shapes.by_ref().take(stage.datasets(0).len()));
        let data: Vec<DatasetShape> = config.stage.iter().map(of_stage).collect();
        memory::check(config, &data, config.cluster.ranks, issues);
    }
    away > 0 && issues.len() == away
}

fn text(config: &RunConfig) -> Result<String, Failure> {
    config.to_toml().map_err(|error| Failure::failed(RunSpecError::Toml(error)))
}

/// Creates the run in the store. `base` is the difference from the folder that another coordinator has imported.
fn create(config: &RunConfig, base: Option<&Difference>, store: &Store) -> Result<(), Failure> {
    if store.put_new(CONFIG, text(config)?.into()).map_err(Failure::failed)? {
        return Ok(());
    }
    // Another coordinator has created the run in the meantime. The configurations must not differ.
    let found = stored_config::text(store)?.unwrap_or_default();
    check_changes(&stored_config::parse(&found, store)?, config, base, &[], store)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::config_diff::{self, Differences};

    #[test]
    fn a_written_spec_round_trips() {
        let text =
            "[[stage]]\nname = 'a'\ndata = '/d'\nsteps = 3\nlearning_rate = 1e-3\n[model]\nlayer_norm_eps = 1e-12";
        let config: RunConfig = Layers::from_sets(&[]).parse(text, "test").unwrap();
        let written = config.to_toml().unwrap();
        let store = Store::open("memory://order/run").unwrap();
        assert_eq!(stored_config::parse(&written, &store).unwrap(), config);
        let mut issues = Vec::new();
        config.check(&mut issues);
        assert_eq!(issues, []);
    }

    /// Stored configuration of a run that was started before keys were renamed.
    const OLD_RUN: &str = include_str!("../../../tests/golden/format-2/run.toml");

    #[test]
    fn an_older_run_resumes_with_the_current_key_names() {
        let store = Store::open("memory://order/old").unwrap();
        let before = stored_config::parse(OLD_RUN, &store).unwrap();
        assert_eq!(before.cluster.restart.limit, 5);
        assert!(OLD_RUN.contains("\nrestarts = 5\n") && OLD_RUN.contains("\ndevice = \"cpu\"\n"));
        let renamed = OLD_RUN
            .replace("\nbackend = ", "\nall_reduce.backend = ")
            .replace("\nrestarts = ", "\nrestart.limit = ")
            .replace("\ndevice = \"cpu\"\nthreads = 1\n", "\n")
            + "[device]\nkind = \"cpu\"\nthreads = 1\n";
        let now = stored_config::parse(&renamed, &store).unwrap();
        assert_eq!(config_diff::compare(&before, &now).unwrap(), Differences::default());
        let written = text(&before).unwrap();
        assert!(written.contains("[cluster.restart]\nlimit = 5\n"), "{written}");
        assert_eq!(stored_config::parse(&written, &store).unwrap(), before);
    }

    #[test]
    fn urls_are_kept_and_paths_become_absolute() {
        assert_eq!(absolute("s3://a/b").unwrap(), "s3://a/b");
        assert_eq!(absolute("").unwrap(), "");
        let here = std::env::current_dir().unwrap().canonicalize().unwrap();
        assert_eq!(absolute(".").unwrap(), here.to_str().unwrap());
        assert_eq!(absolute("no/such").unwrap(), here.join("no/such").to_str().unwrap());
    }
}
