//! Tests of the command line with the `lambert` program: exit codes, output streams, error messages.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Output};

struct CommandOutput {
    code: i32,
    out: String,
    err: String,
}

/// Runs `lambert` in `folder` with one thread and without configuration from the environment.
fn lambert(folder: &Path, arguments: &[&str]) -> CommandOutput {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_lambert")).args(arguments).current_dir(folder).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    CommandOutput { code: status.code().unwrap(), out: text(stdout), err: text(stderr) }
}

/// Asserts that the exit code is `code`, that standard output is empty, and that there is a single error message, which
/// contains all `words`.
fn refused(ran: &CommandOutput, code: i32, words: &[&str]) {
    assert_eq!(ran.code, code, "{}", ran.err);
    assert_eq!(ran.out, "");
    assert_eq!(ran.err.matches("lambert: error: ").count(), 1, "{}", ran.err);
    assert!(!ran.err.contains("panicked"), "{}", ran.err);
    for word in words {
        assert!(ran.err.contains(word), "no {word:?} in {}", ran.err);
    }
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn help_goes_to_standard_output_and_lists_the_exit_codes() {
    let ran = lambert(folder().path(), &["--help"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    for word in ["prep", "run", "status", "stop", "checkpoint", "export", "75 stopped"] {
        assert!(ran.out.contains(word), "no {word:?} in {}", ran.out);
    }
}

#[test]
fn invalid_command_lines_are_usage_errors() {
    let here = folder();
    for arguments in [
        &[][..],
        &["traim"],
        &["run"],
        &["run", "--run", "r", "--ranks", "two"],
        &["prep", "--config", "p.toml", "--part", "3/3"],
        &["checkpoint", "list"],
        &["export", "r"],
        &["status", "r", "--jsn"],
    ] {
        let ran = lambert(here.path(), arguments);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains("--help"), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn locations_without_a_run_are_rejected() {
    let here = folder();
    for arguments in [
        &["status", "r"][..],
        &["stop", "r"],
        &["checkpoint", "list", "r"],
        &["checkpoint", "verify", "r"],
        &["checkpoint", "prune", "r"],
        &["export", "r", "--output", "o"],
    ] {
        refused(&lambert(here.path(), arguments), 2, &["is not a run: run.toml not found"]);
    }
    refused(&lambert(here.path(), &["status", "nonsense://r"]), 2, &["nonsense://r"]);
    assert_eq!(std::fs::read_dir(here.path()).unwrap().count(), 0, "files were written");
}

/// As paths, they would name a folder `s3:` in the working directory.
#[test]
fn urls_with_one_slash_and_urls_of_local_outputs_are_rejected() {
    let here = folder();
    let (no_url, mut accepted) = ("is a URL; expected a local path", Vec::new());
    for (arguments, message) in [
        (&["run", "--config", "c.toml", "--run", "s3:/bucket/run"][..], "a URL has two slashes: s3://bucket/run"),
        (&["tune", "--config", "c.toml", "--runs", "gs:/bucket/runs"], "a URL has two slashes: gs://bucket/runs"),
        (&["import", "folder", "--output", "az:/bucket/run"], "a URL has two slashes: az://bucket/run"),
        (&["status", "s3:/bucket/run"], "a URL has two slashes: s3://bucket/run"),
        (&["export", "r", "--output", "s3:/bucket/model"], no_url),
        (&["export", "r", "--output", "s3://bucket/model"], no_url),
        (&["generate", "--documents", "1", "--output", "s3:/bucket/corpus.txt"], no_url),
        (&["vocab", "--input", "t.txt", "--output", "gs:/bucket/vocab.txt"], no_url),
        (&["report", "r", "--output", "az:/bucket/report.html"], no_url),
        (&["metrics", "r", "--output", "s3:/bucket/m.csv"], no_url),
        (&["plan", "--config", "c.toml", "--machine", "h100", "--plot", "s3:/bucket/p.svg"], no_url),
        (&["init", "--output", "s3:/bucket/files"], no_url),
    ] {
        let ran = lambert(here.path(), arguments);
        if ran.code != 2 || !ran.out.is_empty() || !ran.err.contains(message) {
            accepted.push(format!("{arguments:?}: {} {}", ran.code, ran.err));
        }
    }
    assert_eq!(accepted, [""; 0]);
    assert_eq!(std::fs::read_dir(here.path()).unwrap().count(), 0, "files were written");
}

#[test]
fn missing_files_are_named() {
    let here = folder();
    refused(&lambert(here.path(), &["prep", "--config", "p.toml"]), 2, &["cannot read configuration p.toml"]);
    refused(&lambert(here.path(), &["inspect", "d"]), 2, &["d is not a dataset: manifest.json not found"]);
    refused(&lambert(here.path(), &["vocab", "--input", "t.txt", "--output", "v.txt"]), 2, &["t.txt"]);
}

/// The variables include one with an unknown name, one with a secret, and one that every store reads.
#[test]
fn foreign_variables_need_not_be_utf8() {
    let here = folder();
    for name in ["ODD", "ODD_SECRET", "AWS_ACCESS_KEY_ID", "RUST_LOG", "HTTP_PROXY"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lambert"));
        command.args(["status", "nonsense://r"]).current_dir(here.path());
        let Output { status, stdout, stderr } =
            command.env(name, OsStr::from_bytes(b"caf\xe9 au lait")).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let ran = CommandOutput { code: status.code().unwrap(), out: text(stdout), err: text(stderr) };
        refused(&ran, 2, &["nonsense://r"]);
    }
}

/// A configuration variable that is not UTF-8 is an error and is not ignored.
#[test]
fn a_configuration_variable_must_be_utf8() {
    let here = folder();
    std::fs::write(here.path().join("p.toml"), "").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lambert"));
    command.args(["prep", "--config", "p.toml"]).current_dir(here.path());
    command.env("LAMBERT__OUTPUT__URL", OsStr::from_bytes(b"caf\xe9"));
    let Output { stderr, .. } = command.output().unwrap();
    let printed = String::from_utf8(stderr).unwrap();
    assert!(printed.contains("LAMBERT__OUTPUT__URL: the value is not UTF-8"), "{printed}");
}

#[test]
fn all_errors_of_a_preparation_are_listed() {
    let here = folder();
    std::fs::write(here.path().join("p.toml"), "[samples]\npasses = 'x'\nsize = 3\n[output]\nshards = 0\n").unwrap();
    let sets = ["--set", "samples.held_out=2", "--set", "output.rows_per_group=10000000"];
    let ran = lambert(here.path(), &[&["prep", "--config", "p.toml"], &sets[..]].concat());
    let keys = [
        "output.rows_per_group: must be from 1 to 2097152",
        "samples.passes",
        "samples.size",
        "output.shards",
        "output.url",
        "samples.held_out",
        "source:",
    ];
    refused(&ran, 2, &keys);
}

/// The corpus is too small for the vocabulary, which is logged as a warning.
#[test]
fn a_quiet_command_prints_only_its_result_and_errors() {
    let here = folder();
    let path = here.path();
    assert_eq!(lambert(path, &["generate", "--documents", "60", "--output", "corpus.txt"]).code, 0);
    let vocab = ["vocab", "--input", "corpus.txt", "--size", "20000", "--output", "vocab.txt"];
    let loud = lambert(path, &vocab);
    assert!(loud.err.contains("corpus too small"), "{}", loud.err);
    for quiet in [[&["-q"], &vocab[..]].concat(), [&vocab[..], &["--quiet"]].concat()] {
        let quiet = lambert(path, &quiet);
        assert_eq!((quiet.code, &quiet.out, quiet.err.as_str()), (0, &loud.out, ""));
    }
    let config = "[[source]]\npath = 'corpus.txt'\ndocuments = 'blank-line'\n[output]\nurl = 'data'\n\
                  [vocabulary]\nfile = 'vocab.txt'\n[samples]\nsequence_length = 64\n";
    std::fs::write(path.join("prep.toml"), config).unwrap();
    let prepared = lambert(path, &["prep", "--config", "prep.toml", "--quiet"]);
    assert_eq!((prepared.code, prepared.err.as_str()), (0, ""));
    assert!(prepared.out.contains("data/train: "), "{}", prepared.out);
    refused(&lambert(path, &["--quiet", "inspect", "d"]), 2, &["d is not a dataset"]);
}

#[test]
fn a_generated_corpus_is_prepared() {
    let here = folder();
    let path = here.path();
    let generated = lambert(path, &["generate", "--documents", "60", "--output", "corpus.txt", "--json"]);
    assert_eq!(generated.code, 0, "{}", generated.err);
    let figures: serde_json::Value = serde_json::from_str(&generated.out).unwrap();
    assert_eq!(figures["documents"], 60);
    assert!(figures["unigram_entropy"].as_f64().unwrap() > 3.0);
    let vocab = lambert(path, &["vocab", "--input", "corpus.txt", "--size", "250", "--output", "vocab.txt"]);
    assert_eq!((vocab.code, vocab.out.as_str()), (0, "wrote vocab.txt (250 tokens)\n"), "{}", vocab.err);
    let config = "[[source]]\npath = 'corpus.txt'\ndocuments = 'blank-line'\n[output]\nurl = 'data'\nshards = 2\n\
                  [vocabulary]\nfile = 'vocab.txt'\n[samples]\nsequence_length = 64\nheld_out = 0.1\n";
    std::fs::write(path.join("prep.toml"), config).unwrap();
    let prepared = lambert(path, &["prep", "--config", "prep.toml"]);
    assert_eq!(prepared.code, 0, "{}", prepared.err);
    assert!(prepared.out.contains("data/train: "), "{}", prepared.out);
    let again = lambert(path, &["prep", "--config", "prep.toml", "--json"]);
    assert!(again.out.contains("\"unchanged\":true"), "{}", again.out);
    let shown = lambert(path, &["inspect", "data/train", "--samples", "2", "--verify"]);
    assert_eq!(shown.code, 0, "{}", shown.err);
    assert_eq!(shown.out.matches("\nsample ").count(), 2, "{}", shown.out);
    let text: serde_json::Value =
        serde_json::from_str(&lambert(path, &["inspect", "data/held-out", "--json"]).out).unwrap();
    assert_eq!(text["manifest"]["split"], "held-out");
}

#[test]
fn the_version_includes_the_git_commit_if_the_build_has_one() {
    let version = lambert(folder().path(), &["--version"]).out;
    let expected = match option_env!("LAMBERT_GIT") {
        Some(commit) => format!("lambert {} ({commit})\n", env!("CARGO_PKG_VERSION")),
        None => format!("lambert {}\n", env!("CARGO_PKG_VERSION")),
    };
    assert_eq!(version, expected);
}
