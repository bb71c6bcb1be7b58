//! How the runs of a tuning ended: kept beside them, as a table, and as CSV.

use std::collections::{BTreeMap, BTreeSet};

use lambert_control::{Evaluation, StepRecord};
use lambert_store::records::StepRecords;
use lambert_store::{Error, Store};
use serde::{Deserialize, Serialize};

use super::grid::Setting;

/// What a run of a tuning came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// All steps are done.
    Finished,
    /// Its guard gave it up: losses that are not finite, or above their band, again and again.
    Diverged,
    /// Something else ended it; the log says what. It is tried again by the next `lambert tune`.
    Failed,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Its name.
    pub name: String,
    /// What it was given, as KEY=VALUE.
    pub settings: Vec<String>,
    /// What it came to.
    pub end: End,
    /// Its held-out loss after its last step, nats, all objectives together; none where it did not finish.
    pub held_out: Option<f64>,
    /// The same of the main objective alone, the hidden tokens.
    pub main: Option<f64>,
    /// The loss of its last step.
    pub training: Option<f64>,
    /// Steps that it made.
    pub steps: u64,
    /// Of all its steps together, seconds.
    pub seconds: f64,
}

impl Trial {
    /// Takes in what was measured last.
    pub fn measured(&mut self, evaluation: Option<&Evaluation>) {
        self.held_out = evaluation.map(|evaluation| evaluation.scores.loss());
        self.main = evaluation.map(|evaluation| evaluation.scores.main().loss);
    }

    /// What it was given beside a seed.
    pub fn recipe(&self) -> Vec<&str> {
        self.settings.iter().map(String::as_str).filter(|setting| !setting.starts_with(SEED)).collect()
    }

    /// What it is judged by: lower is better. A run that did not finish is judged by nothing.
    pub fn score(&self) -> Option<f64> {
        self.held_out.filter(|loss| self.end == End::Finished && loss.is_finite())
    }
}

/// Runs that differ in nothing else are draws of one recipe.
pub const SEED: &str = "run.seed=";

/// Finished runs of one recipe, with as many seeds.
#[derive(Debug)]
pub struct Recipe<'a> {
    /// The best first.
    pub trials: Vec<&'a Trial>,
    /// Of their losses, nats.
    pub mean: f64,
}

impl<'a> Recipe<'a> {
    fn of(trials: Vec<&'a Trial>) -> Self {
        let mean = trials.iter().filter_map(|trial| trial.score()).sum::<f64>() / trials.len() as f64;
        Self { trials, mean }
    }

    /// The standard deviation of the losses, nats; `None` for a single run.
    pub fn deviation(&self) -> Option<f64> {
        let more = self.trials.len().checked_sub(2)? + 1;
        let squares = self.trials.iter().filter_map(|trial| trial.score()).map(|loss| (loss - self.mean).powi(2));
        Some((squares.sum::<f64>() / more as f64).sqrt())
    }
}

/// Seconds of a run's steps, each as its last attempt made it. Damaged records are warned about and left out.
///
/// # Errors
/// The store.
pub fn seconds(run: &Store) -> Result<f64, Error> {
    let records = StepRecords::<StepRecord>::read(run)?;
    records.damaged.iter().for_each(|damaged| tracing::warn!("{damaged}"));
    Ok(records.latest().iter().map(|recorded| recorded.record.times.seconds).sum())
}

/// Their object beside the runs.
const OBJECT: &str = "tune.json";
/// No list of runs is longer than this, bytes.
const LONGEST: u64 = 16 << 20;

/// All runs so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// In the order in which they ended.
    pub trials: Vec<Trial>,
}

impl Results {
    /// What an earlier `lambert tune` has left.
    ///
    /// # Errors
    /// The store, or a file that is not one of ours.
    pub fn read(store: &Store) -> Result<Self, ResultsError> {
        match store.get_at_most(OBJECT, LONGEST) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .map_err(|source| ResultsError::Unreadable { url: store.url().to_owned(), source }),
            Err(error) if error.is_not_found() => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// Keeps them, with a table for other programs.
    ///
    /// # Errors
    /// The store.
    pub fn write(&self, store: &Store) -> Result<(), ResultsError> {
        let text = serde_json::to_vec_pretty(self)
            .map_err(|source| ResultsError::Unreadable { url: store.url().to_owned(), source })?;
        store.put(OBJECT, text.into())?;
        Ok(store.put("tune.csv", self.csv().into())?)
    }

    /// Takes in a run, in place of what was known of it.
    pub fn add(&mut self, trial: Trial) {
        self.trials.retain(|other| other.name != trial.name);
        self.trials.push(trial);
    }

    /// The keys in which they differ.
    pub fn keys(&self) -> Vec<String> {
        let settings = self.trials.iter().flat_map(|trial| &trial.settings);
        let keys: BTreeSet<&str> = settings.filter_map(|setting| setting.split_once('=')).map(|(key, _)| key).collect();
        keys.into_iter().map(str::to_owned).collect()
    }

    /// Whether this run need not be made again.
    pub fn has(&self, name: &str, settings: &[Setting]) -> bool {
        let settings: Vec<String> = settings.iter().map(Setting::to_set).collect();
        let same = |trial: &&Trial| trial.name == name && trial.settings == settings;
        self.trials.iter().find(same).is_some_and(|trial| trial.end != End::Failed)
    }

    /// The best first; those without a score behind.
    pub fn ranked(&self) -> Vec<&Trial> {
        let mut trials: Vec<&Trial> = self.trials.iter().collect();
        let score = |trial: &Trial| trial.score().unwrap_or(f64::INFINITY);
        trials.sort_by(|a, b| score(a).total_cmp(&score(b)));
        trials
    }

    /// The recipes, that of the lowest mean first: the luckiest of many seeds says less than a mean.
    pub fn recipes(&self) -> Vec<Recipe<'_>> {
        let mut groups = BTreeMap::<Vec<&str>, Vec<&Trial>>::new();
        for trial in self.ranked().into_iter().filter(|trial| trial.score().is_some()) {
            groups.entry(trial.recipe()).or_default().push(trial);
        }
        let mut recipes: Vec<Recipe<'_>> = groups.into_values().map(Recipe::of).collect();
        recipes.sort_by(|a, b| a.mean.total_cmp(&b.mean));
        recipes
    }

    /// The best run of the best recipe, if one has finished.
    pub fn best(&self) -> Option<&Trial> {
        self.recipes().first().and_then(|recipe| recipe.trials.first().copied())
    }

    /// A line a run, the best first; then a line a recipe, where one has several seeds.
    pub fn table(&self) -> Vec<String> {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.4}"));
        let width = self.trials.iter().map(|trial| trial.name.len()).max().unwrap_or(0).max(3);
        let mut lines = vec![format!("{:width$}  held-out    main  training   steps  seconds", "run")];
        lines.extend(self.ranked().into_iter().map(|trial| {
            let end = match trial.end {
                End::Finished => String::new(),
                End::Diverged => "  diverged".to_owned(),
                End::Failed => "  failed".to_owned(),
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

/// Why results cannot be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The store.
    #[error(transparent)]
    Store(#[from] Error),
    /// It is no list of runs.
    #[error("{url}/{OBJECT} is no list of runs of `lambert tune`")]
    Unreadable {
        /// Where.
        url: String,
        /// Why not.
        source: serde_json::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(name: &str, end: End, held_out: Option<f64>) -> Trial {
        let settings = vec![format!("a=\"{name}\"")];
        Trial { name: name.into(), settings, end, held_out, main: held_out, training: None, steps: 7, seconds: 1.25 }
    }

    fn three() -> Results {
        let trials = vec![
            trial("wild", End::Diverged, Some(1.0)),
            trial("good", End::Finished, Some(5.5)),
            trial("better", End::Finished, Some(5.25)),
            trial("lost", End::Failed, None),
        ];
        Results { trials }
    }

    #[test]
    fn the_best_is_a_run_that_finished() {
        assert_eq!(three().best().map(|trial| &*trial.name), Some("better"));
        assert_eq!(Results::default().best(), None);
        let table = three().table();
        assert!(table[1].starts_with("better    5.2500"), "{table:?}");
        assert!(table.iter().any(|line| line.starts_with("wild") && line.ends_with("diverged")), "{table:?}");
    }

    #[test]
    fn a_recipe_is_judged_by_the_mean_of_its_seeds() {
        let trial = |rate: &str, seed: &str, loss: f64| {
            let settings = vec![format!("rate={rate}"), format!("run.seed={seed}")];
            Trial { settings, ..trial(&format!("{rate},{seed}"), End::Finished, Some(loss)) }
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
    fn what_failed_is_made_again_and_what_diverged_is_not() {
        let set = |name: &str| vec![Setting { key: "a".into(), value: format!("\"{name}\"") }];
        let has = |name| three().has(name, &set(name));
        assert_eq!([has("good"), has("wild"), has("lost"), has("new")], [true, true, false, false]);
        assert!(!three().has("good", &set("other")), "another value under the same name");
    }

    #[test]
    fn they_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().to_str().unwrap()).unwrap();
        assert_eq!(Results::read(&store).unwrap(), Results::default());
        three().write(&store).unwrap();
        assert_eq!(Results::read(&store).unwrap(), three());
        let csv = std::fs::read_to_string(folder.path().join("tune.csv")).unwrap();
        assert_eq!(csv.lines().nth(1), Some("\"better\",\"a=\"\"better\"\"\",finished,5.25,5.25,,7,1.2"));
        std::fs::write(folder.path().join(OBJECT), "[]").unwrap();
        assert!(Results::read(&store).unwrap_err().to_string().contains("is no list of runs"));
    }
}
