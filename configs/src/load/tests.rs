//! Tests of the layers of a configuration.

use std::cell::RefCell;

use super::*;
use serde::Deserialize;

#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
struct Outer {
    number: u32,
    inner: Inner,
    list: Vec<Inner>,
    words: Vec<String>,
    pairs: Vec<[u64; 2]>,
}

#[derive(Deserialize, Default, Debug)]
#[serde(deny_unknown_fields, default)]
struct Inner {
    text: String,
    share: f64,
}

impl Checked for Outer {
    const RENAMED: &'static [(&'static str, &'static str)] = &[("list.*.part", "list.*.share"), ("size", "number")];

    fn read(tree: toml::Value, issues: &mut Vec<ConfigIssue>) -> Option<Self> {
        strict::read_all(tree, issues)
    }

    fn check(&self, issues: &mut Vec<ConfigIssue>) {
        if self.number == 0 {
            issues.push(ConfigIssue::new("number", "must be at least 1"));
        }
    }
}

fn parse(text: &str, sets: &[&str]) -> Result<Outer, ConfigError> {
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    Layers::from_sets(&sets).parse(text, "test.toml")
}

fn keys(error: ConfigError) -> Vec<String> {
    match error {
        ConfigError::Invalid { issues, .. } => issues.into_iter().map(|issue| issue.key).collect(),
        other => panic!("{other}"),
    }
}

#[test]
fn sets_reach_sections_and_list_elements() {
    let config = parse("number = 1\n[[list]]\n[[list]]", &["inner.text=some words", "list.1.share=0.5", "number=7"]);
    let config = config.unwrap();
    assert_eq!((config.number, config.inner.text.as_str(), config.list[1].share), (7, "some words", 0.5));
}

#[test]
fn all_issues_are_listed() {
    let text = "numbr = 3\nnumber = 'x'\n[inner]\ntext = 4\nsize = 1\n[[list]]\nshare = 'much'\nother = 1";
    let mut found = keys(parse(text, &["list.4.share=1", "nonsense"]).unwrap_err());
    found.sort();
    assert_eq!(
        found,
        ["", "inner.size", "inner.text", "list.0.other", "list.0.share", "list.4.share", "number", "numbr"]
    );
}

#[test]
fn an_issue_names_the_option_or_variable_that_set_the_value() {
    let environment = vec![("inner.share".to_owned(), "much".to_owned())];
    let sets = ["number=0", "list[0].share=18446744073709551615x", "=3"].map(str::to_owned).to_vec();
    let layers = Layers { environment, sets, ..Layers::default() };
    let message = layers.parse::<Outer>("number = 1\n[[list]]", "test.toml").unwrap_err().to_string();
    for line in ["--set =3: expected key=value\n", "must be at least 1 (--set number)", "(LAMBERT__INNER__SHARE)"] {
        assert!(message.contains(line), "no {line:?} in {message}");
    }
    assert!(message.contains("(--set list[0].share)"), "{message}");
    let message = parse("", &["number=18446744073709551615"]).unwrap_err().to_string();
    assert!(message.contains("number = 18446744073709551615: must be at most 9223372036854775807 (--set number)"));
    let message = parse("number = 0", &[]).unwrap_err().to_string();
    assert!(message.ends_with("number: must be at least 1"), "{message}");
}

#[test]
fn an_unknown_section_names_the_option_or_variable_that_made_it() {
    let layers = Layers {
        environment: vec![("other.text".to_owned(), "1".to_owned())],
        sets: ["inne.text=a", "inne[0].more=b", "third.text=c"].map(str::to_owned).to_vec(),
        ..Layers::default()
    };
    let message = layers.parse::<Outer>("number = 1\n[third]\n", "test.toml").unwrap_err().to_string();
    for (key, source) in [("inne", " (--set inne[0].more)"), ("other", " (LAMBERT__OTHER__TEXT)"), ("third", "`pairs`")]
    {
        let issue = message.lines().find(|line| line.trim_start().starts_with(&format!("{key}: unknown field")));
        assert!(issue.is_some_and(|line| line.ends_with(source)), "{key}: {message}");
    }
}

#[test]
fn an_invalid_list_element_hides_no_other_issue() {
    for list in ["words = ['a', 4]", "words = [4]", "pairs = [[1, 2], [3, 'x']]"] {
        let found = keys(parse(&format!("{list}\n[inner]\ntext = 4"), &[]).unwrap_err());
        assert!(
            found.len() == 3 && found.contains(&"inner.text".into()) && found.contains(&"number".into()),
            "{list}: {found:?}"
        );
    }
}

#[test]
fn validation_runs_despite_parse_errors() {
    assert_eq!(keys(parse("[inner]\nsize = 1", &[]).unwrap_err()), ["inner.size", "number"]);
}

#[test]
fn syntax_errors_name_the_line() {
    let message = parse("number = 1\n[inner\n", &[]).unwrap_err().to_string();
    assert!(message.contains("test.toml") && message.contains("line 2"), "{message}");
}

fn merge(texts: &[(&'static str, &'static str)], sets: &[&str]) -> Result<Outer, ConfigError> {
    let texts: Vec<Text<'_>> = texts
        .iter()
        .map(|(origin, text)| Text { text: (*text).into(), origin: (*origin).into(), is_stored: false })
        .collect();
    let sets: Vec<String> = sets.iter().map(|set| set.to_string()).collect();
    Layers::from_sets(&sets).read(&texts, |_, _| {})
}

#[test]
fn a_later_file_overrides_keys_and_replaces_lists() {
    let site = "size = 3\nwords = ['a', 'b']\n[inner]\ntext = 'site'\nshare = 0.5\n[[list]]\nshare = 1.0\n[[list]]\n";
    let experiment = "number = 4\nwords = ['c']\n[inner]\ntext = 'experiment'\n[[list]]\ntext = 'one'\n";
    let config = merge(&[("site.toml", site), ("run.toml", experiment)], &["inner.share=0.25"]).unwrap();
    assert_eq!((config.number, config.inner.text.as_str(), config.inner.share), (4, "experiment", 0.25));
    assert_eq!(config.words, ["c"]);
    assert_eq!((config.list.len(), config.list[0].text.as_str(), config.list[0].share), (1, "one", 0.0));
    // The old name in a later file overrides the new one in an earlier file.
    assert_eq!(merge(&[("a", "number = 4"), ("b", "size = 3\n[inner]")], &[]).unwrap().number, 3);
    let other_kind = merge(&[("a", "number = 1\n[list]\nx = 1"), ("b", "[[list]]")], &[]);
    assert_eq!(other_kind.unwrap().list.len(), 1, "a list in place of a section");
}

#[test]
fn an_issue_names_the_file_of_several() {
    let site = "numbr = 3\nnumber = 1\n[inner]\ntext = 4\nshare = 'x'\n[[list]]\nshare = 'much'\nother = 1\n";
    let experiment = "number = 0\n[inner]\nshare = 'y'\nsize = 1\n[[list]]\nshare = 'little'\n";
    let sets = ["list.3.share=1", "words=3"];
    let message = merge(&[("site.toml", site), ("run.toml", experiment)], &sets).unwrap_err().to_string();
    assert!(message.starts_with("the configuration in site.toml, run.toml has 8 errors:"), "{message}");
    for (key, file) in [
        ("numbr", "site.toml"),
        ("inner.text", "site.toml"),
        ("inner.share", "run.toml"),
        ("inner.size", "run.toml"),
        ("list.0.share", "run.toml"),
        ("number", "run.toml"),
        ("list.3.share", "--set list.3.share"),
        ("words", "--set words"),
    ] {
        let issue = message.lines().find(|line| line.trim_start().starts_with(&format!("{key}: ")));
        assert!(issue.is_some_and(|line| line.ends_with(&format!(" ({file})"))), "{key}: {message}");
    }
    let message = merge(&[("site.toml", ""), ("run.toml", "number = 1\n[inner\n")], &[]).unwrap_err().to_string();
    assert!(message.starts_with("run.toml is not TOML") && message.contains("line 2"), "{message}");
}

thread_local! {
    static WARNINGS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Layers that collect their warnings in `WARNINGS`. The environment and `--set` each contain an old name.
fn layers_with_old_names() -> Layers {
    let environment = vec![("list.1.part".to_owned(), "0.25".to_owned())];
    let sets = vec!["list[0].part=0.5".to_owned()];
    let layers = Layers { environment, sets, ..Layers::default() };
    layers.warn_with(|message| WARNINGS.with_borrow_mut(|all| all.push(message.to_owned())))
}

#[test]
fn old_names_of_keys_are_warned_about() {
    let folder = std::env::temp_dir().join(format!("lambert-renamed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("run.toml");
    std::fs::write(&path, "size = 3\n[[list]]\npart = 0.1\n[[list]]\npart = 0.2\n").unwrap();
    let config: Outer = layers_with_old_names().load(std::slice::from_ref(&path)).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!((config.number, config.list[0].share, config.list[1].share), (3, 0.5, 0.25));
    let path = path.display();
    let expected = [
        format!("{path}: list.0.part was renamed to list.0.share"),
        format!("{path}: size was renamed to number"),
        "LAMBERT__LIST__1__PART was renamed to LAMBERT__LIST__1__SHARE".to_owned(),
        "--set list.0.part was renamed to --set list.0.share".to_owned(),
    ];
    assert_eq!(WARNINGS.take(), expected);
}

#[test]
fn files_that_lambert_wrote_are_read_silently() {
    let text = "size = 3\n[[list]]\npart = 0.1\n[[list]]\npart = 0.2\n";
    let config: Outer = layers_with_old_names().parse(text, "run.toml").unwrap();
    assert_eq!((config.number, config.list[1].share), (3, 0.25));
    let warnings = WARNINGS.take();
    assert!(warnings.len() == 2 && !warnings.iter().any(|warning| warning.contains("run.toml")), "{warnings:?}");
}

#[test]
fn both_names_of_a_key_are_rejected() {
    let message = parse("size = 3\nnumber = 4\n", &[]).unwrap_err().to_string();
    assert!(message.contains("size: is the old name of number, which is also set"), "{message}");
}
