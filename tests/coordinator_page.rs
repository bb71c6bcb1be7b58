//! Web page that the coordinator serves (`watch.url_file`).

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::prometheus::wait_for;
use crate::support::{ENDLESS, Running, TestDir, done};

/// Status code and text of a page.
fn get(url: &str) -> (u16, String) {
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let mut answer = agent.get(url).call().unwrap();
    (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
}

/// The run in the page's data.
fn shown(url: &str) -> Value {
    let data: Value = serde_json::from_str(&get(&url.replace("/?", "/data?")).1).unwrap();
    data["runs"][0].clone()
}

#[test]
fn the_coordinator_serves_the_page_until_its_end() {
    let dir = TestDir::new();
    let (run, file) = (dir.path("run"), dir.path("demo.url"));
    let set = format!("watch.url_file={file:?}");
    let mut running = Running::start_with(&dir.config(ENDLESS, 2), &run, &["--set", &set]);
    running.reach(10);
    let text = wait_for("the file with the URL", || std::fs::read_to_string(&file).ok());
    assert_eq!(Path::new(&file).metadata().unwrap().permissions().mode() & 0o777, 0o600);
    let (url, hint) = text.trim_end().split_once('\n').unwrap();
    let (address, token) = url.split_once("/?token=").unwrap();
    assert!(address.starts_with("http://127.0.0.1:") && hint.starts_with("from another machine: ssh -L "), "{text}");
    for wrong in [address.to_owned(), format!("{address}/data?token={}", "0".repeat(64))] {
        assert_eq!(get(&wrong).0, 403, "{wrong}");
    }
    assert_eq!(get(url).0, 200);
    let steps = || shown(url)["series"]["columns"]["step"].as_array().map_or(0, Vec::len);
    wait_for("steps on the page", || (steps() > 0).then_some(()));

    // The coordinator goes on serving while it restarts its ranks.
    running.kill_rank(1, "-9");
    wait_for("the second attempt on the page", || (shown(url)["info"]["attempt"] == 2).then_some(()));
    done(&["stop", &run]);
    let ended = running.end();
    assert_eq!(ended.code, Some(76), "{}", ended.log);
    assert!(!Path::new(&file).exists());
    assert!(ended.log.contains("its URL is in") && !ended.log.contains(token), "{}", ended.log);
}

#[test]
fn a_page_that_cannot_be_served_is_a_warning() {
    let dir = TestDir::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = format!("watch.port={}", taken.local_addr().unwrap().port());
    let url_file = |file: &str| format!("watch.url_file={file:?}");
    let (good, bad) = (url_file(&dir.path("demo.url")), url_file(&dir.path("missing/demo.url")));
    for (name, sets, warning) in [
        ("port", vec!["--set", &good, "--set", &port], "127.0.0.1 is in use"),
        ("folder", vec!["--set", &bad], "cannot write watch.url_file"),
    ] {
        let ended = Running::start_with(&dir.config(20, 2), &dir.path(name), &sets).end();
        assert_eq!(ended.code, Some(0), "{}", ended.log);
        let lines = ended.log.lines().filter(|line| line.contains("the page of the run is not served"));
        let lines: Vec<&str> = lines.collect();
        assert!(lines.len() == 1 && lines[0].contains(warning), "{lines:?} in {}", ended.log);
        assert!(!Path::new(&dir.path("demo.url")).exists());
    }
    let refused =
        crate::support::run(&["run", "--config", &dir.config(20, 2), "--run", &dir.path("x"), "--set", &port]);
    assert!(refused.code == 2 && refused.err.contains("watch.port: needs watch.url_file"), "{}", refused.err);
}
