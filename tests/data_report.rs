//! `lambert data report` of real datasets, compared with counts of pyarrow.

use std::process::Command;

use crate::support::{TestDir, cache, done, run};
use serde_json::Value;

/// Counts the samples of a dataset with pyarrow. Returns `None` if pyarrow is missing.
fn counted(dataset: &str) -> Option<Value> {
    let packages = cache("LAMBERT_TEST_READERS", "readers-2")?;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/readers/dataset.py");
    let output = Command::new("python3").env("PYTHONPATH", packages).args([script, dataset]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(serde_json::from_slice(&output.stdout).unwrap())
}

/// Returns the JSON report of a dataset.
fn report(dir: &TestDir, dataset: &str, more: &[&str]) -> Value {
    let file = dir.path("report.json");
    done(&[&["data", "report", dataset, "--format", "json", "--output", &file][..], more].concat());
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// Prepares a dataset whose corpus has each document twice, so that many samples occur twice. Some words are unknown.
fn repeated(dir: &TestDir) -> String {
    let corpus = std::fs::read_to_string(dir.path("corpus.txt")).unwrap().replacen("the", "\u{4e00}", 300);
    let twice = dir.file("twice.txt", format!("{corpus}\n\n{corpus}"));
    let url = dir.path("twice");
    let sets = [
        format!("output.url={url}"),
        format!("source.0.path={twice}"),
        "output.shards=3".into(),
        "output.rows_per_group=50".into(),
        "documents.remove_duplicates=false".into(),
        "samples.pair=none".into(),
        "samples.short_sequence_probability=0".into(),
    ];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    done(&[&["prep", "--config", &dir.path("prep.toml")][..], &sets].concat());
    url + "/train"
}

fn assert_near(found: &Value, expected: &Value) {
    let (found, expected) = (found.as_f64().unwrap(), expected.as_f64().unwrap());
    assert!((found - expected).abs() < 1e-12, "{found}, not {expected}");
}

#[test]
fn figures_are_those_of_an_independent_reader() {
    let dir = TestDir::new();
    for dataset in [dir.path("data/train"), dir.path("data/held-out"), repeated(&dir)] {
        let report = report(&dir, &dataset, &["--threads", "3"]);
        let Some(counted) = counted(&dataset) else { return };
        let pairs = [
            (&report["read"]["samples"], "samples"),
            (&report["read"]["tokens"], "tokens"),
            (&report["counts"]["samples"], "samples"),
            (&report["counts"]["tokens"], "tokens"),
            (&report["shards"], "shards"),
            (&report["bytes"], "bytes"),
            (&report["lengths"]["histogram"], "histogram"),
            (&report["vocabulary"]["used"], "used"),
            (&report["vocabulary"]["never_used"], "never_used"),
            (&report["words"]["words"], "words"),
            (&report["duplicates"]["distinct"], "distinct"),
            (&report["duplicates"]["repeated"], "repeated"),
        ];
        for (found, key) in pairs {
            assert_eq!(*found, counted[key], "{key} of {dataset}");
        }
        assert_near(&report["lengths"]["padding"], &counted["padding"]);
        assert_near(&report["vocabulary"]["unknown"], &counted["unknown"]);
        assert_near(&report["words"]["single_token"], &counted["single_token"]);
        for list in ["frequent", "rare"] {
            let tokens = report["vocabulary"][list].as_array().unwrap();
            let found: Vec<Value> =
                tokens.iter().map(|token| vec![token["token"].clone(), token["count"].clone()].into()).collect();
            assert_eq!(Value::from(found), counted[list], "{list} of {dataset}");
        }
        if dataset.contains("twice") {
            assert_eq!(report["duplicates"]["most_frequent"][0]["count"], counted["most_frequent"]);
            assert!(counted["repeated"].as_u64() > Some(100) && counted["unknown"].as_f64() > Some(0.001), "{counted}");
        }
    }
}

#[test]
fn threads_do_not_change_the_report_and_a_part_is_named_as_such() {
    let dir = TestDir::new();
    let dataset = repeated(&dir);
    let one = report(&dir, &dataset, &["--threads", "1"]);
    assert_eq!(one, report(&dir, &dataset, &["--threads", "4"]));
    assert_eq!((&one["read"]["is_complete"], &one["read"]["seed"]), (&true.into(), &Value::Null));
    let part = |seed: &str| report(&dir, &dataset, &["--samples", "120", "--seed", seed]);
    let read = part("7");
    assert_eq!((&read["read"]["is_complete"], &read["read"]["seed"]), (&false.into(), &7.into()));
    assert!((120..170).contains(&read["read"]["samples"].as_u64().unwrap()), "{}", read["read"]);
    assert_eq!(read, part("7"));
    assert!(["8", "9", "10"].into_iter().any(|seed| part(seed)["lengths"] != read["lengths"]));
    let html = dir.path("report.html");
    done(&["data", "report", &dataset, "--output", &html, "--samples", "120", "--seed", "7"]);
    let html = std::fs::read_to_string(html).unwrap();
    assert!(html.contains("chosen with seed 7") && html.matches("<svg ").count() == 2, "{html}");
}

/// The examples are the first of each reason, whatever the number of threads and kills.
#[test]
fn rejected_items_are_shown_with_file_place_and_text() {
    let dir = TestDir::new();
    let corpus = std::fs::read_to_string(dir.path("corpus.txt")).unwrap();
    let first = corpus.split("\n\n").next().unwrap();
    let short: String = (0..7).map(|index| format!("Short <b>{index}</b>.\n\n")).collect();
    let text = format!("{short}{corpus}\n\n{first}\n\n{}\n", "word ".repeat(1500));
    let input = dir.file("input/a.txt", &text);
    let lines = dir.file("rows.jsonl", "{\"text\": \"The boat.\"}\n{\"text\": 3}\n");
    let config = format!(
        "[[source]]\npath = {input:?}\ndocuments = \"blank-line\"\n[[source]]\npath = {lines:?}\nformat = \"jsonl\"\ndamaged = \"skip\"\n\
         [documents]\nminimum_tokens = 20\nremove_duplicates = true\n[samples]\nsequence_length = 64\n[vocabulary]\nfile = {:?}\n\
         [output]\nurl = {:?}\nshards = 2\n",
        dir.path("vocab.txt"),
        dir.path("rejects")
    );
    let config = dir.file("rejects.toml", config);
    let examples = |threads: &str, name: &str| {
        let url = format!("output.url={}", dir.path(name));
        done(&["prep", "--config", &config, "--threads", threads, "--set", &url]);
        std::fs::read_to_string(dir.path(&format!("{name}/train/rejected.json"))).unwrap()
    };
    assert_eq!(examples("1", "one"), examples("3", "three"));
    let dataset = dir.path("one/train");
    let found = report(&dir, &dataset, &[]);
    let of = |reason: &str| -> Vec<&Value> {
        found["rejected"].as_array().unwrap().iter().filter(|example| example["reason"] == reason).collect()
    };
    let short = of("documents: too short");
    assert_eq!((short.len(), &found["counts"]["rejected"]["documents: too short"]), (5, &8.into()));
    assert_eq!((&short[1]["text"], &short[1]["offset"]), (&"Short <b>1</b>.".into(), &17.into()));
    assert!(short[1]["file"].as_str().unwrap().ends_with("a.txt"), "{}", short[1]);
    // The corpus has 400 documents.
    assert_eq!(of("documents: duplicate")[0]["document"], 407);
    assert!(of("sentences: of over 1024 tokens, cut")[0]["text"].as_str().unwrap().starts_with("word word"));
    assert_eq!(of("jsonl: bad line")[0]["offset"], 22);
    let html = dir.path("rejects.html");
    done(&["data", "report", &dataset, "--output", &html]);
    let html = std::fs::read_to_string(html).unwrap();
    assert!(html.contains("Short &lt;b&gt;1&lt;/b&gt;.") && html.contains("position 22"), "{html}");
    // A damaged file is named. Datasets of older versions do not have the file.
    let file = dir.path("one/train/rejected.json");
    std::fs::write(&file, "[{]").unwrap();
    let failed = run(&["data", "report", &dataset, "--output", &dir.path("x.html")]);
    assert!(failed.code == 1 && failed.err.contains("rejected.json is damaged"), "{}", failed.err);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(report(&dir, &dataset, &[])["rejected"], serde_json::json!([]));
}

/// The file can be mailed: it loads nothing and runs nothing.
#[test]
fn texts_of_a_dataset_are_escaped() {
    let dir = TestDir::new();
    let url = dir.path("data/<script>alert(1)<");
    std::fs::create_dir_all(dir.path("data/<script>alert(1)<")).unwrap();
    crate::support::copy(dir.path("data/train").as_ref(), url.as_ref());
    // Tokens with markup, in a vocabulary with a matching checksum.
    let vocabulary = std::fs::read_to_string(format!("{url}/vocab.txt")).unwrap();
    let common = vocabulary.lines().find(|token| *token == "the").unwrap();
    let hostile = vocabulary.replacen(&format!("\n{common}\n"), "\n<script>x</script>\n", 1);
    assert_ne!(hostile, vocabulary);
    std::fs::write(format!("{url}/vocab.txt"), &hostile).unwrap();
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(format!("{url}/manifest.json")).unwrap()).unwrap();
    manifest["vocabulary"]["bytes"] = hostile.len().into();
    manifest["vocabulary"]["sha256"] = lambert_store::hash::sha256(hostile.as_bytes()).into();
    manifest["counts"]["rejected"]["<img src=x onerror=alert(1)>"] = 3.into();
    std::fs::write(format!("{url}/manifest.json"), manifest.to_string()).unwrap();
    let file = dir.path("report.html");
    done(&["data", "report", &url, "--output", &file]);
    let html = std::fs::read_to_string(file).unwrap();
    assert!(html.contains("&lt;script&gt;x&lt;/script&gt;") && html.contains("&lt;img src=x"), "{html}");
    for forbidden in ["<script", "<img", "src=\"", "href=", "<link", "@import"] {
        assert!(!html.contains(forbidden), "{forbidden} in the report");
    }
}

#[test]
fn a_damaged_shard_is_named_and_nothing_is_written() {
    let dir = TestDir::new();
    let (dataset, file) = (dir.path("data/train"), dir.path("report.html"));
    let shard = format!("{dataset}/shard-00001-of-00002.parquet");
    let mut bytes = std::fs::read(&shard).unwrap();
    let half = bytes.len() / 2;
    bytes[half] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let failed = run(&["data", "report", &dataset, "--output", &file]);
    assert!(failed.code == 1 && failed.err.contains("shard-00001-of-00002.parquet is damaged"), "{}", failed.err);
    assert!(!std::path::Path::new(&file).exists());
    let missing = run(&["data", "report", &dir.path("none"), "--output", &file]);
    assert!(missing.code == 2 && missing.err.contains("is not a dataset"), "{}", missing.err);
}
