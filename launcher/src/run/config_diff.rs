//! Compares a configuration with the stored configuration of a run.

use std::collections::BTreeSet;

use lambert_config::{ConfigError, ConfigIssue, Layers, RunConfig};
use lambert_plan::architecture::{Architecture, SHAPING};
use toml::Value;

/// Sections and keys that determine the trained model. They cannot change during a run unless the user allows a change.
const TRAINED: [&str; 7] = ["run.seed", "run.from", "run.from_optimizer", "model", "objective", "optimizer", "stage"];

/// Stage keys that change only numerical rounding and the dropout of fused attention. Samples, masks and other dropout
/// stay the same, but sums are computed in another order.
const ROUNDED: [&str; 2] = [".micro_batch_tokens", ".recompute"];

/// A key whose values differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Key, e.g. `stage.0.steps`.
    pub key: String,
    /// Value in the run, as TOML.
    pub before: String,
    /// New value, as TOML.
    pub now: String,
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(changes) = self.host_changes() {
            return write!(f, "{}: {changes}", self.key);
        }
        write!(f, "{}: {} in the run, {} now", self.key, self.before, self.now)?;
        if is_rounding(&self.key) { f.write_str(" (changes rounding)") } else { Ok(()) }
    }
}

/// Differences between two configurations.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Differences {
    /// Keys that change the trained model.
    pub trained: Vec<Difference>,
    /// Keys that may change between starts, such as hosts, checkpoints, evaluation and name.
    pub untrained: Vec<Difference>,
}

/// Compares the configuration of the run with the new configuration.
pub fn compare(run: &RunConfig, now: &RunConfig) -> Result<Differences, toml::ser::Error> {
    let mut found = Vec::new();
    walk("", Some(&Value::Table(run.to_table()?)), Some(&Value::Table(now.to_table()?)), &mut found);
    // Evaluations that can end a stage affect training.
    let evaluated = [run, now].iter().any(|config| config.stage.iter().any(|stage| stage.plateau.is_some()));
    let is_recorded_only =
        |key: &str| ["evaluation.extra", "evaluation.at_start"].iter().any(|name| is_at_or_below(key, name));
    let is_of_evaluation = |key: &str| is_at_or_below(key, "evaluation") && !is_recorded_only(key);
    let decides = |key: &str| is_trained(key) || (evaluated && is_of_evaluation(key));
    let (trained, untrained) = found.into_iter().partition(|difference| decides(&difference.key));
    Ok(Differences { trained, untrained })
}

/// True if `key` is a key or a section of `config`, which may have its default.
pub fn has_key(config: &RunConfig, key: &str) -> bool {
    let Ok(text) = config.to_toml() else { return true };
    // The loader knows all keys. It rejects only the value of this key, or the name.
    let loaded: Result<RunConfig, ConfigError> = Layers::from_sets(&[format!("{key}=")]).parse(&text, "");
    let Err(ConfigError::Invalid { issues, .. }) = loaded else { return true };
    let rejects_name = |issue: &ConfigIssue| {
        let causes = ["unknown field", "no element", "no key", "--set"];
        is_at_or_below(&dotted(key), &issue.key) && causes.iter().any(|cause| issue.message.starts_with(cause))
            || issue.key.is_empty()
    };
    !issues.iter().any(rejects_name)
}

/// Normalizes `stage[0].steps` to `stage.0.steps`.
fn dotted(key: &str) -> String {
    key.replace('[', ".").replace(']', "")
}

/// True if the parameters of the two configurations differ in name or shape at the depth of their first stage.
pub fn have_other_parameters(run: &RunConfig, now: &RunConfig) -> bool {
    parameters(run) != parameters(now)
}

/// Names and shapes of the parameters of a run with a small vocabulary.
fn parameters(config: &RunConfig) -> BTreeSet<(String, Vec<usize>)> {
    let architecture = Architecture::of_run(config, config.depth(0), VOCABULARY);
    architecture.tensors().into_iter().map(|tensor| (tensor.name, tensor.shape)).collect()
}

/// Vocabulary size for comparisons, in tokens.
pub const VOCABULARY: usize = 64;

impl Difference {
    /// True if the key changes the set of weights or their shapes.
    pub fn is_of_shapes(&self) -> bool {
        SHAPING.iter().any(|name| {
            self.key
                .rsplit_once('.')
                .is_some_and(|(section, key)| key == *name && (section == "model" || section.starts_with("stage")))
        })
    }
}

/// Key of the list of hosts, which can be long.
const HOSTS: &str = "cluster.hosts";

impl Difference {
    /// Describes which hosts were added and removed. `None` for other keys, and if the run or the configuration has no list.
    fn host_changes(&self) -> Option<String> {
        let list = |text: &str| Some(text.parse::<Value>().ok()?.as_array()?.clone());
        let (before, now) = (list(&self.before)?, list(&self.now)?);
        if self.key != HOSTS {
            return None;
        }
        let without = |hosts: &[Value], others: &[Value]| -> Vec<String> {
            hosts.iter().filter(|host| !others.contains(host)).map(ToString::to_string).collect()
        };
        let changes = [("added", without(&now, &before)), ("removed", without(&before, &now))];
        let changes = changes.iter().filter(|(_, hosts)| !hosts.is_empty());
        let changes: Vec<String> = changes.map(|(change, hosts)| format!("{change} {}", hosts.join(", "))).collect();
        Some(if changes.is_empty() { "another order".to_owned() } else { changes.join("; ") })
    }
}

impl Differences {
    /// Moves `keys` and the keys below them from `trained` to `untrained`, so that they may differ.
    pub fn allow(&mut self, keys: &[String]) {
        let allowed =
            |difference: &mut Difference| keys.iter().any(|key| is_at_or_below(&difference.key, &dotted(key)));
        let allowed: Vec<_> = self.trained.extract_if(.., allowed).collect();
        self.untrained.extend(allowed);
    }
}

fn is_trained(key: &str) -> bool {
    !is_rounding(key) && TRAINED.iter().any(|part| is_at_or_below(key, part))
}

fn is_rounding(key: &str) -> bool {
    ROUNDED.iter().any(|end| key.ends_with(end))
}

/// True if `key` is `part` or a key below `part`.
pub fn is_at_or_below(key: &str, part: &str) -> bool {
    key.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn walk(key: &str, before: Option<&Value>, now: Option<&Value>, found: &mut Vec<Difference>) {
    let below = |name: &str| if key.is_empty() { name.to_owned() } else { format!("{key}.{name}") };
    match (before, now) {
        (before, now) if before == now => {}
        (Some(Value::Table(before)), Some(Value::Table(now))) => {
            let added = now.keys().filter(|name| !before.contains_key(*name));
            for name in before.keys().chain(added) {
                walk(&below(name), before.get(name), now.get(name), found);
            }
        }
        (Some(Value::Array(before)), Some(Value::Array(now))) if is_of_tables(before) || is_of_tables(now) => {
            for index in 0..before.len().max(now.len()) {
                walk(&below(&index.to_string()), before.get(index), now.get(index), found);
            }
        }
        (before, now) => found.push(Difference { key: key.to_owned(), before: shown(before), now: shown(now) }),
    }
}

fn is_of_tables(values: &[Value]) -> bool {
    values.iter().any(Value::is_table)
}

fn shown(value: Option<&Value>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(Value::Table(table)) => match table.get("name").and_then(Value::as_str) {
            Some(name) => format!("{name:?}"),
            None => "a section".to_owned(),
        },
        Some(value) => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_config::run::{Family, Pair, Plateau, ReplacedTokens, Stage};

    fn config() -> RunConfig {
        let stage = |name: &str| Stage { name: name.into(), data: "/data".into(), steps: 10, ..Stage::default() };
        RunConfig { stage: vec![stage("one"), stage("two")], ..RunConfig::default() }
    }

    fn keys(differences: &[Difference]) -> Vec<&str> {
        differences.iter().map(|difference| difference.key.as_str()).collect()
    }

    #[test]
    fn equal_configurations_have_no_difference() {
        assert_eq!(compare(&config(), &config()).unwrap(), Differences::default());
    }

    #[test]
    fn training_keys_are_distinguished_from_others() {
        let mut now = config();
        now.run.seed = 2;
        now.run.name = "other".into();
        now.model.hidden = 256;
        now.stage[1].steps = 11;
        now.stage[1].layers = Some(12);
        now.cluster.ranks = 4;
        now.slurm.time = Some("1:00".into());
        now.checkpoint.keep = 9;
        let found = compare(&config(), &now).unwrap();
        assert_eq!(keys(&found.trained), ["model.hidden", "run.seed", "stage.1.steps", "stage.1.layers"]);
        let mut untrained = keys(&found.untrained);
        untrained.sort();
        assert_eq!(untrained, ["checkpoint.keep", "cluster.ranks", "run.name", "slurm.time"]);
        assert_eq!(found.trained[0].to_string(), "model.hidden: 768 in the run, 256 now");
        assert_eq!(found.trained[3].before, "nothing");
    }

    #[test]
    fn evaluation_keys_affect_training_if_they_end_a_stage() {
        let mut before = config();
        let mut now = before.clone();
        now.evaluation.every_steps = 7;
        assert_eq!(compare(&before, &now).unwrap().trained, []);
        before.stage[0].plateau = Some(Plateau::default());
        now.stage[0].plateau = before.stage[0].plateau;
        assert_eq!(keys(&compare(&before, &now).unwrap().trained), ["evaluation.every_steps"]);
    }

    #[test]
    fn only_permitted_keys_may_change() {
        let mut now = config();
        (now.model.dropout, now.model.hidden, now.stage[1].steps) = (0.2, 256, 11);
        let mut found = compare(&config(), &now).unwrap();
        found.allow(&["model.drop".into(), "model.dropout".into(), "stage".into()]);
        assert_eq!(keys(&found.trained), ["model.hidden"]);
        assert_eq!(keys(&found.untrained), ["model.dropout", "stage.1.steps"]);
    }

    #[test]
    fn keys_and_sections_are_known_even_with_their_defaults() {
        let known = ["stage", "stage.1", "stage.1.steps", "stage[0].steps", "stage.0.layers", "model", "model.hidden"];
        for key in known.into_iter().chain(["optimizer.trust_ratio", "stage.0.plateau", "objective", "run.from"]) {
            assert!(has_key(&config(), key), "{key}");
        }
        for key in ["", "nonsense", "model.hiden", "stage.2", "stage.0.stps", "run.seed.x", "nonsense.a"] {
            assert!(!has_key(&config(), key), "{key}");
        }
    }

    #[test]
    fn losses_with_other_heads_change_the_parameters() {
        let mut before = config();
        (before.model.family, before.objective.pair) = (Family::Electra, Pair::None);
        let changes = |change: fn(&mut RunConfig)| {
            let mut now = before.clone();
            change(&mut now);
            have_other_parameters(&before, &now)
        };
        assert!(changes(|now| now.objective.span_boundary_weight = 1.0));
        assert!(changes(|now| now.objective.replaced_tokens = Some(ReplacedTokens::default())));
        assert!(changes(|now| now.model.hidden = 256));
        assert!(!changes(|now| now.objective.mask_probability = 0.3));
    }

    #[test]
    fn micro_batch_sizes_affect_dropout() {
        let mut now = config();
        now.stage[0].micro_batch_tokens = 512.into();
        let found = compare(&config(), &now).unwrap();
        assert_eq!(found.trained, []);
        let shown = "stage.0.micro_batch_tokens: \"auto\" in the run, 512 now (changes rounding)";
        assert_eq!(found.untrained[0].to_string(), shown);
    }

    #[test]
    fn of_hosts_only_the_changes_are_shown() {
        let with = |hosts: &[&str]| {
            let mut config = config();
            config.cluster.hosts = hosts.iter().map(|&host| host.to_owned()).collect();
            config
        };
        let shown = |before: &[&str], now: &[&str]| {
            compare(&with(before), &with(now)).unwrap().untrained.iter().map(Difference::to_string).collect::<Vec<_>>()
        };
        let before = ["a:8", "b:8", "c:8"];
        assert_eq!(shown(&before, &["a:8", "b:8", "c:8", "d:8"]), [r#"cluster.hosts: added "d:8""#]);
        assert_eq!(shown(&before, &["a:8", "c:4"]), [r#"cluster.hosts: added "c:4"; removed "b:8", "c:8""#]);
        assert_eq!(shown(&before, &["b:8", "a:8", "c:8"]), ["cluster.hosts: another order"]);
    }

    #[test]
    fn added_and_removed_stages_are_differences() {
        let mut now = config();
        now.stage.pop();
        assert_eq!(
            compare(&config(), &now).unwrap().trained[0].to_string(),
            "stage.1: \"two\" in the run, nothing now"
        );
    }
}
