//! `notify.command`: a webhook that gets all events, a command that hangs, a command that does not exist.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use serde_json::{Value, json};

use crate::support::{Ended, Running, TestDir, observed};

/// Bodies posted to a local HTTP server, and its URL.
fn webhook() -> (String, Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let (sender, bodies) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = sender.send(body(stream.unwrap()));
        }
    });
    (url, bodies)
}

/// Reads a request and answers it.
fn body(mut stream: TcpStream) -> Value {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line).unwrap() > 2 {
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").unwrap();
    serde_json::from_slice(&body).unwrap()
}

#[test]
fn a_webhook_gets_the_events() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("SKIPPED: curl is missing");
        return;
    }
    let dir = TestDir::new();
    let (run, (url, bodies)) = (dir.path("run"), webhook());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/notify/webhook.sh");
    let command = format!("notify.command=[{script:?}]");
    let notified = r#"notify.events=["restart","rollback","plateau","evaluation","checkpoint","end"]"#;
    let plateau = ["--set", "stage.1.plateau.evaluations=1", "--set", "stage.1.plateau.min_delta=1000"];
    let more = [&["--set", &command, "--set", notified, "--set", "run.name=\"watched\""][..], &plateau].concat();
    let mut running = Running::start_in(&observed::config(&dir), &run, &more, &[("WEBHOOK_URL", url)]);
    running.reach(observed::KILLED);
    running.kill_rank(1, "-9");
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert!(!ended.log.contains("notify.command"), "{}", ended.log);

    let events: Vec<Value> = bodies.try_iter().collect();
    let of = |name: &str| events.iter().find(|event| event["event"] == name).unwrap_or_else(|| panic!("{events:?}"));
    assert!(of("restart")["cause"].as_str().unwrap().contains("killed by SIGKILL"), "{events:?}");
    assert!(of("rollback")["cause"].as_str().unwrap().contains("rolled back"), "{events:?}");
    assert_eq!(of("plateau")["stage"], "deep");
    let end = of("end");
    assert_eq!((&end["state"], &end["error"]), (&json!("finished"), &Value::Null));
    assert_eq!((&end["name"], &end["run"]), (&json!("watched"), &json!(run)));
    let count = |name: &str| events.iter().filter(|event| event["event"] == name).count();
    assert!(count("evaluation") >= 9 && of("evaluation")["loss"].is_number(), "{events:?}");
    assert!(
        count("checkpoint") > 9 && of("checkpoint")["checkpoint"].as_str().unwrap().starts_with("step-"),
        "{events:?}"
    );
    assert_eq!(count("restart") + count("rollback") + count("plateau") + count("end"), 4, "{events:?}");
}

/// A substitute of curl prints its arguments and the configuration that it gets.
#[test]
fn the_url_of_a_webhook_is_no_argument() {
    let folder = tempfile::tempdir().unwrap();
    let curl = folder.path().join("curl");
    std::fs::write(&curl, "#!/bin/sh\necho \"$@\"\ncat /dev/fd/3\ncat\n").unwrap();
    std::fs::set_permissions(&curl, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/notify/webhook.sh");
    let mut command = Command::new(script);
    command.env("PATH", path).env("WEBHOOK_URL", "https://example.com/?k=$secret").stdin(Stdio::null());
    let printed = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let (arguments, configuration) = printed.split_once('\n').unwrap();
    assert!(arguments.contains("--config /dev/fd/3") && !arguments.contains("secret"), "{arguments}");
    assert_eq!(configuration, "url = \"https://example.com/?k=$secret\"\n");
}

/// A run of two ranks, one of which is killed.
fn killed_once(command: &str) -> Ended {
    let dir = TestDir::new();
    let command = format!("notify.command={command}");
    let more = ["--set", &command, "--set", "notify.timeout_seconds=10000"];
    let mut running = Running::start_with(&dir.config(60, 2), &dir.path("run"), &more);
    running.reach(10);
    running.kill_rank(1, "-9");
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert!(ended.log.contains("restarting all workers"), "{}", ended.log);
    ended
}

#[test]
fn a_hanging_command_is_killed() {
    let ended = killed_once("[\"sh\", \"-c\", \"sleep 73519 & wait\"]");
    assert_eq!(ended.log.matches("notify.command sh was killed after").count(), 1, "{}", ended.log);
    let left = Command::new("pgrep").args(["-f", "^sleep 73519"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&left.stdout), "", "the command still runs");
}

#[test]
fn a_missing_command_is_reported_once() {
    let ended = killed_once("[\"./no-such-command\"]");
    let warning = "notify.command ./no-such-command exited with code 127";
    assert_eq!(ended.log.matches(warning).count(), 1, "{}", ended.log);
}
