//! A closed output, as in `lambert ... | head`, is not an error.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{self, TestDir, done};

/// Time limit of a command that reads an endless input.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the write end of a pipe that has no reader.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Runs a program twice: with a closed standard output, and with standard output and standard error closed.
fn unread(program: &Path, arguments: &[&str]) {
    let command = || {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null());
        command
    };
    let ended = command().stdout(closed()).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{arguments:?} with a closed output: {text}");
    assert!(!text.contains("panicked") && !text.contains("internal error"), "{arguments:?}: {text}");
    let ended = command().stdout(closed()).stderr(closed()).status().unwrap();
    assert_eq!(ended.code(), Some(0), "{arguments:?} with both closed");
}

#[test]
fn closed_outputs_are_not_an_error() {
    let dir = TestDir::new();
    let (config, run) = (dir.config(4, 1), dir.path("run"));
    done(&["run", "--config", &config, "--run", &run]);
    let data = dir.path("data/held-out");
    let prep = dir.path("prep.toml");
    let texts = dir.file("texts.txt", "the bird sees the star .\nthe star sees the bird .\n");
    let embeddings = dir.path("embeddings.parquet");
    let commands: [&[&str]; 12] = [
        &["eval", &run, "--data", &data, "--samples", "4"],
        &["eval", &run, "--data", &data, "--samples", "4", "--json"],
        &["fill-mask", &run, "the [MASK] sees the star ."],
        &["fill-mask", &run, "the [MASK] sees the star .", "--json"],
        &["score", &run, "--input", &texts],
        &["score", &run, "--input", &texts, "--json"],
        &["embed", &run, "--input", &texts, "--output", &embeddings],
        &["inspect", &data, "--samples", "3"],
        &["status", &run],
        &["checkpoint", "verify", &run],
        &["prep", "--config", &prep],
        &["--help"],
    ];
    commands.iter().for_each(|command| unread(&support::lambert(), command));
    unread(&support::lambert(), &["run", "--config", &config, "--run", &dir.path("second"), "--json"]);
}

/// With a closed output, further scores would be unread: the command ends although the input has no end.
#[test]
fn scores_end_with_their_reader() {
    let dir = TestDir::new();
    let run = dir.path("run");
    done(&["run", "--config", &dir.config(4, 1), "--run", &run]);
    let mut command = Command::new(support::lambert());
    command.args(["score", &run, "--input", "-"]).stdin(Stdio::piped()).stdout(closed());
    let mut score = command.spawn().unwrap();
    let mut input = score.stdin.take().unwrap();
    let writer = std::thread::spawn(move || while input.write_all(b"the bird sees the star .\n").is_ok() {});
    let start = Instant::now();
    let status = loop {
        match score.try_wait().unwrap() {
            Some(status) => break status.code(),
            None if start.elapsed() > LIMIT => {
                score.kill().unwrap();
                break score.wait().unwrap().code();
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    assert_eq!(status, Some(0));
    writer.join().unwrap();
}

/// A full disk behind a redirection, unlike a closed pipe, is an error that names the output.
#[test]
fn a_full_output_is_named() {
    let dir = TestDir::new();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(support::lambert());
    command.args(["inspect", &dir.path("data/held-out")]).stdout(full).stderr(Stdio::piped());
    let ended = command.output().unwrap();
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{text}");
    assert!(text.contains("cannot write to standard output: No space left on device"), "{text}");
}

/// A worker that is started directly, without a coordinator, writes its records to standard output.
#[test]
fn training_continues_with_a_closed_output() {
    let dir = TestDir::new();
    let (config, run) = (dir.config(4, 1), dir.path("run"));
    done(&["run", "--config", &config, "--run", &run, "--set", "cluster.all_reduce.backend=local"]);
    let worker = support::lambert().with_file_name("lambert-worker");
    let arguments = ["train", "--run", &run, "--attempt", "1"];
    unread(&worker, &arguments);
}
