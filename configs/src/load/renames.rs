//! Renamed keys: every layer accepts the old names.
//!
//! Names are dotted paths in which `*` stands for the index of a list element: `stage.*.batch`. The old and the new
//! name contain the same number of `*`.

use toml::Value;

use super::error::ConfigIssue;
use super::layers::{Assignment, Layer};

/// Key that a layer names by its old name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenamedKey {
    /// Old name, for example `stage.0.batch`.
    pub old: String,
    /// New name.
    pub new: String,
}

/// Moves values in `layer` from old names to new names. `renames` has the names as (old, new). Returns the first use of
/// each old name.
///
/// If a layer sets a key by both names, the old name becomes an issue, and the new name keeps its value.
pub fn apply(renames: &[(&str, &str)], layer: &mut Layer, issues: &mut Vec<ConfigIssue>) -> Vec<RenamedKey> {
    renames.iter().filter_map(|(old, new)| rename(old, new, layer, issues)).collect()
}

fn rename(old: &str, new: &str, layer: &mut Layer, issues: &mut Vec<ConfigIssue>) -> Option<RenamedKey> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.split('.').collect(), new.split('.').collect());
    let before = layer.clone();
    let mut first = None;
    for mut assignment in std::mem::take(layer) {
        let found = take(&mut assignment, &old);
        // If the assignment was to the old key or a key below it, nothing remains of the assignment.
        if !matches(&assignment.path, &old) {
            layer.push(assignment);
        }
        for taken in found {
            let (path, below) = taken.path.split_at(old.len());
            let target = substitute(&new, &old, path);
            let key = RenamedKey { old: path.join("."), new: target.join(".") };
            if before.iter().any(|other| other.sets(&target)) {
                let message = format!("is the old name of {}, which is also set: remove {}", key.new, key.old);
                issues.push(ConfigIssue::new(&key.old, message));
            } else {
                layer.push(Assignment { path: [&target, below].concat(), value: taken.value });
            }
            first.get_or_insert(key);
        }
    }
    first
}

/// True if `path` is the key `name` or a key below it.
fn matches(path: &[String], name: &[&str]) -> bool {
    path.len() >= name.len() && path.iter().zip(name).all(|(part, expected)| is_named(part, expected))
}

fn is_named(part: &str, expected: &str) -> bool {
    if expected == "*" { part.parse::<usize>().is_ok() } else { part == expected }
}

/// Removes all values of the key `name` from an assignment and returns them with their paths.
fn take(assignment: &mut Assignment, name: &[&str]) -> Vec<Assignment> {
    if matches(&assignment.path, name) {
        return vec![assignment.clone()];
    }
    let mut taken = Vec::new();
    if assignment.path.iter().zip(name).all(|(part, expected)| is_named(part, expected)) {
        take_within(&mut assignment.value, &name[assignment.path.len()..], &assignment.path, &mut taken);
    }
    taken
}

/// Removes the values of the key `name` from `value`, located at `path`.
fn take_within(value: &mut Value, name: &[&str], path: &[String], taken: &mut Vec<Assignment>) {
    let below = |part: String| [path, &[part]].concat();
    match (value, name) {
        (Value::Table(table), [last]) => {
            let value = table.remove(*last);
            taken.extend(value.map(|value| Assignment { path: below((*last).to_owned()), value }));
        }
        (Value::Table(table), [first, rest @ ..]) => {
            if let Some(inner) = table.get_mut(*first) {
                take_within(inner, rest, &below((*first).to_owned()), taken);
            }
        }
        (Value::Array(items), ["*", rest @ ..]) => {
            for (index, item) in items.iter_mut().enumerate() {
                take_within(item, rest, &below(index.to_string()), taken);
            }
        }
        _ => {}
    }
}

/// Maps `path`, a key under the old name, to the new name.
fn substitute(new: &[&str], old: &[&str], path: &[String]) -> Vec<String> {
    let mut indices = path.iter().zip(old).filter(|(_, expected)| **expected == "*").map(|(part, _)| part.clone());
    let index_or = |part: &&str| if *part == "*" { indices.next() } else { None }.unwrap_or_else(|| (*part).to_owned());
    new.iter().map(index_or).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::layers;

    const RENAMES: [(&str, &str); 2] = [("cluster.device", "device.kind"), ("stage.*.batch", "stage.*.global.batch")];

    fn settings(settings: &[(&str, &str)]) -> Layer {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        layers::of_settings(&settings.iter().map(owned).collect::<Vec<_>>())
    }

    /// Returns the merged tree, the old names found and the issues.
    fn renamed(mut layers: Vec<Layer>) -> (Value, Vec<String>, Vec<String>) {
        let (mut found, mut issues) = (Vec::new(), Vec::new());
        for layer in &mut layers {
            found.extend(apply(&RENAMES, layer, &mut issues).into_iter().map(|key| key.old));
        }
        let tree = layers::merge(layers, &mut issues).unwrap();
        (tree, found, issues.iter().map(ConfigIssue::to_string).collect())
    }

    fn file(text: &str) -> Layer {
        layers::of_file(toml::from_str(text).unwrap())
    }

    fn tree(text: &str) -> Value {
        Value::Table(toml::from_str(text).unwrap())
    }

    #[test]
    fn old_names_in_a_file_are_renamed() {
        let text =
            "[cluster]\nranks = 2\ndevice = 'cpu'\n[[stage]]\nbatch = 1\n[[stage]]\nsteps = 3\n[[stage]]\nbatch = 2\n";
        let (found, names, issues) = renamed(vec![file(text)]);
        let new = "[cluster]\nranks = 2\n[device]\nkind = 'cpu'\n\
                   [[stage]]\nglobal.batch = 1\n[[stage]]\nsteps = 3\n[[stage]]\nglobal.batch = 2\n";
        assert_eq!(found, tree(new));
        assert_eq!(names, ["cluster.device", "stage.0.batch"], "once for each key");
        assert_eq!(issues, [""; 0]);
    }

    #[test]
    fn old_names_in_settings_are_renamed() {
        for set in [("stage[1].batch", "7"), ("stage.1", "{ batch = 7 }"), ("stage", "[{}, { batch = 7 }]")] {
            let (found, names, issues) = renamed(vec![file("[[stage]]\n[[stage]]\nbatch = 5\n"), settings(&[set])]);
            assert_eq!(found["stage"][1]["global"]["batch"].as_integer(), Some(7), "{set:?}");
            assert_eq!(names, ["stage.1.batch"; 2]);
            assert_eq!(issues, [""; 0]);
        }
    }

    #[test]
    fn layers_may_use_different_names_of_a_key() {
        let old = || settings(&[("cluster.device", "cpu")]);
        let new = || settings(&[("device.kind", "cuda")]);
        let kind = |layers| renamed(layers).0["device"]["kind"].as_str().map(str::to_owned);
        assert_eq!(kind(vec![file(""), old(), new()]).as_deref(), Some("cuda"));
        assert_eq!(kind(vec![file(""), new(), old()]).as_deref(), Some("cpu"));
        assert_eq!(kind(vec![file("device.kind = 'auto'"), old()]).as_deref(), Some("cpu"));
    }

    #[test]
    fn both_names_in_one_layer_are_an_issue() {
        let message = "cluster.device: is the old name of device.kind, which is also set: remove cluster.device";
        let both = "[cluster]\ndevice = 'cpu'\n[device]\nkind = 'cuda'\n";
        let sets = [("device", "{ kind = \"cuda\" }"), ("cluster.device", "cpu")];
        for layers in [vec![file(both)], vec![file(""), settings(&sets)]] {
            let (found, _, issues) = renamed(layers);
            assert_eq!(issues, [message]);
            assert_eq!(found["device"]["kind"].as_str(), Some("cuda"));
        }
        let (_, _, issues) = renamed(vec![file("[[stage]]\nbatch = 1\n[[stage]]\nglobal = { batch = 2 }\n")]);
        assert_eq!(issues, [""; 0], "of different elements");
        let (_, _, issues) = renamed(vec![file("[[stage]]\nbatch = 1\nglobal = { batch = 2 }\n")]);
        assert!(issues[0].starts_with("stage.0.batch: is the old name of stage.0.global.batch"), "{issues:?}");
    }

    #[test]
    fn a_value_in_place_of_a_section_is_an_issue() {
        let (_, _, issues) = renamed(vec![file("device = 'cpu'\n[cluster]\ndevice = 'cpu'\n")]);
        assert_eq!(issues, ["device.kind: no key kind: the parent is a value, not a section"]);
    }
}
