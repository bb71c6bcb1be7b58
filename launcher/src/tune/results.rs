//! Results of a sweep. They are stored next to the runs, printed as a table and exported as CSV.

use std::collections::{BTreeMap, BTreeSet};

use lambert_control::{Evaluation, StepRecord};
use lambert_store::records::StepRecords;
use lambert_store::{Error, Store};
use serde::{Deserialize, Serialize};

use super::grid::Setting;

/// Outcome of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrialOutcome {
    /// All steps are done.
    Finished,
    /// The divergence guard gave up the run after repeated losses that were above the upper bound or were not finite.
    Diverged,
    /// The run failed for another reason, which the log shows. The next `lambert tune` retries the run.
    Failed,
}

/// Result of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Run name.
    pub name: String,
    /// Settings as KEY=VALUE.
    pub settings: Vec<String>,
    /// Outcome.
    pub end: TrialOutcome,
    /// Final held-out total loss, nats. Only for finished runs.
    pub held_out: Option<f64>,
    /// Final held-out loss of the main objective (masked tokens), nats.
    pub main: Option<f64>,
    /// Training loss of the last step.
    pub training: Option<f64>,
    /// Completed steps.
    pub steps: u64,
    /// Total duration of the steps, seconds.
    pub seconds: f64,
}

impl Trial {
    /// Sets the held-out losses from the last evaluation.
    pub fn measured(&mut self, evaluation: Option<&Evaluation>) {
        self.held_out = evaluation.map(Evaluation::total_loss);
        self.main = evaluation.map(|evaluation| evaluation.scores.main().loss);
    }

    /// Settings except the seed.
    pub fn recipe(&self) -> Vec<&str> {
        self.settings.iter().map(String::as_str).filter(|setting| !setting.starts_with(SEED)).collect()
    }

    /// Held-out loss by which runs are ranked. Lower is better. `None` unless the run finished with a finite loss.
    pub fn score(&self) -> Option<f64> {
        self.held_out.filter(|loss| self.end == TrialOutcome::Finished && loss.is_finite())
    }
}

/// Runs that differ only in this setting belong to one recipe.
pub const SEED: &str = "run.seed=";

/// Finished runs with equal settings except for the seed.
#[derive(Debug)]
pub struct Recipe<'a> {
    /// Runs, best first.
    pub trials: Vec<&'a Trial>,
    /// Mean loss, nats.
    pub mean: f64,
}

impl<'a> Recipe<'a> {
    fn of(trials: Vec<&'a Trial>) -> Self {
        let mean = trials.iter().filter_map(|trial| trial.score()).sum::<f64>() / trials.len() as f64;
        Self { trials, mean }
    }

    /// Standard deviation of the losses, nats. `None` for a single run.
    pub fn deviation(&self) -> Option<f64> {
        let more = self.trials.len().checked_sub(2)? + 1;
        let squares = self.trials.iter().filter_map(|trial| trial.score()).map(|loss| (loss - self.mean).powi(2));
        Some((squares.sum::<f64>() / more as f64).sqrt())
    }
}

/// Total duration of the steps of a run, seconds. If a step was trained in several attempts, only the last attempt
/// counts. Damaged records are skipped with a warning.
///
/// # Errors
/// The store fails.
pub fn seconds(run: &Store) -> Result<f64, Error> {
    let records = StepRecords::<StepRecord>::read(run)?;
    records.damaged.iter().for_each(|damaged| tracing::warn!("{damaged}"));
    Ok(records.latest().iter().map(|recorded| recorded.record.times.seconds).sum())
}

/// Name of the object with all results.
const OBJECT: &str = "tune.json";
/// Maximum size of the results, bytes.
const MAX_RESULTS_BYTES: u64 = 16 << 20;

/// Results of all runs so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Results in order of completion.
    pub trials: Vec<Trial>,
}

impl Results {
    /// Reads the results of earlier `lambert tune` calls.
    ///
    /// # Errors
    /// The store fails, or the object is invalid.
    pub fn read(store: &Store) -> Result<Self, ResultsError> {
        match store.get_at_most(OBJECT, MAX_RESULTS_BYTES) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|source| ResultsError::Unreadable { url: store.url().to_owned(), source }),
            Err(error) if error.is_not_found() => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes the results as JSON and as a CSV table.
    ///
    /// # Errors
    /// The store fails.
    pub fn write(&self, store: &Store) -> Result<(), ResultsError> {
        let text = serde_json::to_vec_pretty(self)
            .map_err(|source| ResultsError::Unreadable { url: store.url().to_owned(), source })?;
        store.put(OBJECT, text.into())?;
        Ok(store.put("tune.csv", self.csv().into())?)
    }

    /// Adds the result of a run. Replaces an earlier result of the same run.
    pub fn add(&mut self, trial: Trial) {
        self.trials.retain(|other| other.name != trial.name);
        self.trials.push(trial);
    }

    /// Keys set in any of the runs.
    pub fn keys(&self) -> Vec<String> {
        let settings = self.trials.iter().flat_map(|trial| &trial.settings);
        let keys: BTreeSet<&str> = settings.filter_map(|setting| setting.split_once('=')).map(|(key, _)| key).collect();
        keys.into_iter().map(str::to_owned).collect()
    }

    /// True if the run has a result and did not fail.
    pub fn has(&self, name: &str, settings: &[Setting]) -> bool {
        let settings: Vec<String> = settings.iter().map(Setting::to_set).collect();
        let same = |trial: &&Trial| trial.name == name && trial.settings == settings;
        self.trials.iter().find(same).is_some_and(|trial| trial.end != TrialOutcome::Failed)
    }

    /// Results sorted by score. Results without a score come last.
    pub fn ranked(&self) -> Vec<&Trial> {
        let mut trials: Vec<&Trial> = self.trials.iter().collect();
        let score = |trial: &Trial| trial.score().unwrap_or(f64::INFINITY);
        trials.sort_by(|a, b| score(a).total_cmp(&score(b)));
        trials
    }

    /// Recipes sorted by mean loss. A sort by the minimum would favor recipes with many seeds.
    pub fn recipes(&self) -> Vec<Recipe<'_>> {
        let mut groups = BTreeMap::<Vec<&str>, Vec<&Trial>>::new();
        for trial in self.ranked().into_iter().filter(|trial| trial.score().is_some()) {
            groups.entry(trial.recipe()).or_default().push(trial);
        }
        let mut recipes: Vec<Recipe<'_>> = groups.into_values().map(Recipe::of).collect();
        recipes.sort_by(|a, b| a.mean.total_cmp(&b.mean));
        recipes
    }

    /// Best run of the best recipe. `None` if no run has finished.
    pub fn best(&self) -> Option<&Trial> {
        self.recipes().first().and_then(|recipe| recipe.trials.first().copied())
    }

    /// Formats a line per run, best first. If a recipe has several seeds, adds a line per recipe.
    pub fn table(&self) -> Vec<String> {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"));
        let width = self.trials.iter().map(|trial| trial.name.len()).max().unwrap_or(0).max(3);
        let mut lines = vec![format!("{:width$}  held-out    main  training   steps  seconds", "run")];
        lines.extend(self.ranked().into_iter().map(|trial| {
            let end = match trial.end {
                TrialOutcome::Finished => String::new(),
                TrialOutcome::Diverged => "  diverged".to_owned(),
                TrialOutcome::Failed => "  failed".to_owned(),
            };
            format!(
                "{:width$}  {:>8} {:>7} {:>9} {:>7} {:>8.1}{end}",
                trial.name,
                number(trial.held_out),
                number(trial.main),
                number(trial.training),
                trial.steps,
                trial.seconds
            )
        }));
        let recipes = self.recipes();
        if recipes.iter().any(|recipe| recipe.trials.len() > 1) {
            lines.push("mean    deviation  seeds  recipe".to_owned());
            lines.extend(recipes.iter().map(|recipe| {
                let deviation = number(recipe.deviation());
                let settings = recipe.trials.first().map(|trial| trial.recipe().join(" ")).unwrap_or_default();
                format!("{:.4}  {deviation:>9}  {:>5}  {settings}", recipe.mean, recipe.trials.len())
            }));
        }
        lines
    }

    fn csv(&self) -> String {
        let number = |value: Option<f64>| value.map_or_else(String::new, |value| value.to_string());
        let mut text = "run,settings,end,held_out_loss,main_loss,training_loss,steps,seconds\n".to_owned();
        for trial in self.ranked() {
            let settings = trial.settings.join(" ").replace('"', "\"\"");
            let end = format!("{:?}", trial.end).to_lowercase();
            let losses = [trial.held_out, trial.main, trial.training].map(number).join(",");
            text += &format!("\"{}\",\"{settings}\",{end},{losses},{},{:.1}\n", trial.name, trial.steps, trial.seconds);
        }
        text
    }
}

/// Results cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// Store error.
    #[error(transparent)]
    Store(#[from] Error),
    /// Invalid content.
    #[error("{url}/{OBJECT} is not a result list of `lambert tune`")]
    Unreadable {
        /// URL of the runs.
        url: String,
        /// Cause.
        source: serde_json::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(name: &str, end: TrialOutcome, held_out: Option<f64>) -> Trial {
        let settings = vec![format!("a=\"{name}\"")];
        Trial { name: name.into(), settings, end, held_out, main: held_out, training: None, steps: 7, seconds: 1.25 }
    }

    fn three() -> Results {
        let trials = vec![
            trial("wild", TrialOutcome::Diverged, Some(1.0)),
            trial("good", TrialOutcome::Finished, Some(5.5)),
            trial("better", TrialOutcome::Finished, Some(5.25)),
            trial("lost", TrialOutcome::Failed, None),
        ];
        Results { trials }
    }

    #[test]
    fn only_a_finished_run_is_the_best() {
        assert_eq!(three().best().map(|trial| &*trial.name), Some("better"));
        assert_eq!(Results::default().best(), None);
        let table = three().table();
        assert!(table[1].starts_with("better    5.2500"), "{table:?}");
        assert!(table.iter().any(|line| line.starts_with("wild") && line.ends_with("diverged")), "{table:?}");
    }

    #[test]
    fn settings_are_ranked_by_the_mean_over_seeds() {
        let trial = |rate: &str, seed: &str, loss: f64| {
            let settings = vec![format!("rate={rate}"), format!("run.seed={seed}")];
            Trial { settings, ..trial(&format!("{rate},{seed}"), TrialOutcome::Finished, Some(loss)) }
        };
        let single = Trial { settings: vec!["rate=1".into()], ..trial("1", "", 3.0) };
        let trials = vec![
            trial("2", "1", 2.75),
            trial("2", "2", 3.25),
            trial("2", "3", 3.75),
            single,
            three().trials[0].clone(),
        ];
        let results = Results { trials };
        assert_eq!(results.best().map(|trial| &*trial.name), Some("1,"));
        let table = results.table();
        assert!(table[1].starts_with("2,1"), "{table:?}");
        let recipes = [
            "mean    deviation  seeds  recipe",
            "3.0000          -      1  rate=1",
            "3.2500     0.5000      3  rate=2",
        ];
        assert_eq!(table[table.len() - 3..], recipes);
    }

    #[test]
    fn failed_runs_are_repeated_and_diverged_runs_are_not() {
        let set = |name: &str| vec![Setting { key: "a".into(), value: format!("\"{name}\"") }];
        let has = |name| three().has(name, &set(name));
        assert_eq!([has("good"), has("wild"), has("lost"), has("new")], [true, true, false, false]);
        assert!(!three().has("good", &set("other")), "another value under the same name");
    }

    #[test]
    fn results_round_trip_through_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().to_str().unwrap()).unwrap();
        assert_eq!(Results::read(&store).unwrap(), Results::default());
        three().write(&store).unwrap();
        assert_eq!(Results::read(&store).unwrap(), three());
        let csv = std::fs::read_to_string(folder.path().join("tune.csv")).unwrap();
        assert_eq!(csv.lines().nth(1), Some("\"better\",\"a=\"\"better\"\"\",finished,5.25,5.25,,7,1.2"));
        std::fs::write(folder.path().join(OBJECT), "[]").unwrap();
        assert!(Results::read(&store).unwrap_err().to_string().contains("is not a result list"));
    }
}
