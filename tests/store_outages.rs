//! Tests of saves while the store is unavailable: a bucket rejects requests, or a folder is read-only or full.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::s3_server::{self, Fault, Rule, Server};
use crate::support::{self, Running, TestDir, checkpoints, done, tree};

fn status_of(url: &str) -> String {
    done(&["status", url])
}

/// A rejected save must be logged as a warning with the reason, and be in the status until a save succeeds. Saves must resume when the bucket accepts them again.
#[test]
fn a_rejecting_bucket_delays_checkpoints() {
    let dir = TestDir::new();
    let server = Server::start(Path::new(&dir.path("s3")), 0);
    support::ENVIRONMENT.set(server.environment());
    let (config, url) = (dir.config(100_000, 2), format!("s3://{}/run", s3_server::BUCKET));
    let mut running = Running::start(&config, &url);
    running.wait_until(|| !checkpoints(&url).is_empty());
    let refusals = [(403, "AccessDenied"), (400, "ExpiredToken"), (403, "RequestTimeTooSkewed")];
    for (status, code) in refusals {
        let before = checkpoints(&url);
        let fault = Fault::Refuse(status, code);
        let rule =
            Rule { method: "PUT".parse().unwrap(), contains: "/checkpoints/", after: 0, times: usize::MAX, fault };
        server.fail(rule);
        running.wait_until(|| server.hits() > 0);
        running.wait_until(|| status_of(&url).contains("\nsaves        failing for "));
        let shown = status_of(&url);
        assert!(shown.contains(code), "{shown}");
        let json: serde_json::Value = serde_json::from_str(&done(&["status", &url, "--json"])).unwrap();
        let failed = &json["status"]["failed_saves"];
        assert!(failed["since"].as_f64() > Some(0.0) && failed["error"].as_str().unwrap().contains(code), "{json}");
        running.reach_now(50);
        server.clear();
        running.wait_until(|| checkpoints(&url)[0] != before[0]);
        running.wait_until(|| !status_of(&url).contains("\nsaves "));
    }
    running.kill_coordinator("-TERM");
    let ended = running.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    for (_, code) in refusals {
        let line = ended.log.lines().find(|line| line.contains("was not saved") && line.contains(code));
        assert!(
            line.is_some_and(|line| line.contains("access denied") && line.contains("credentials")),
            "{code}: {}",
            ended.log
        );
    }
    assert!(!ended.log.contains(s3_server::SECRET_KEY) && !ended.log.contains("attempt 2"), "{}", ended.log);
    done(&["checkpoint", "verify", &url]);
}

/// A tmpfs, unmounted on drop.
struct Disk(tempfile::TempDir);

impl Disk {
    /// Returns `None` if this process lacks the permission to mount.
    fn mount(options: &str) -> Option<Self> {
        let disk = Self(tempfile::tempdir().unwrap());
        let mounted = mount(&["-t", "tmpfs", "-o", options, "tmpfs"], disk.0.path());
        if !mounted {
            eprintln!("SKIPPED: this process lacks the permission to mount a file system");
        }
        mounted.then_some(disk)
    }

    fn url(&self) -> String {
        self.0.path().join("run").to_str().unwrap().to_owned()
    }

    fn remount(&self, how: &str) {
        assert!(mount(&["-o", &format!("remount,{how}")], self.0.path()));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).stderr(Stdio::null()).status();
    }
}

fn mount(arguments: &[&str], on: &Path) -> bool {
    Command::new("mount").args(arguments).arg(on).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Starts a run on `disk`, and makes the disk read-only after the first checkpoint. Returns the run and its URL.
fn start_before_read_only(disk: &Disk, dir: &TestDir) -> (Running, String) {
    let (config, url) = (dir.config(100_000, 2), disk.url());
    let mut running = Running::start(&config, &url);
    running.wait_until(|| !checkpoints(&url).is_empty());
    disk.remount("ro");
    (running, url)
}

/// A read-only folder must only delay checkpoints. Saves must resume when the folder is writable again.
#[test]
fn training_continues_while_the_store_is_read_only() {
    let Some(disk) = Disk::mount("size=64m") else { return };
    let dir = TestDir::new();
    let (mut running, url) = start_before_read_only(&disk, &dir);
    let before = checkpoints(&url);
    // The status is written every three seconds.
    let start = Instant::now();
    running.wait_until(|| start.elapsed().as_secs() >= 5);
    assert_eq!(checkpoints(&url), before);
    disk.remount("rw");
    running.wait_until(|| checkpoints(&url)[0] != before[0]);
    running.kill_coordinator("-TERM");
    let ended = running.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    assert!(!ended.log.contains("restarting all workers"), "{}", ended.log);
    for word in ["was not saved; training continues, retrying in", "access denied", "mounted read-only"] {
        assert!(ended.log.contains(word), "no {word:?} in {}", ended.log);
    }
    // The warnings have the cause. Only the first of the failed writes is reported.
    for object in ["cannot write ", "was not saved"] {
        let has_cause = |line: &str| line.contains(object) && line.contains("Read-only file system");
        assert!(ended.log.lines().any(has_cause), "no cause of {object:?} in {}", ended.log);
    }
    assert!(!ended.log.contains("credentials"), "{}", ended.log);
}

/// At a stop, no step is run while the save is retried, and the pauses are short.
#[test]
fn a_stop_waits_for_a_read_only_store() {
    let Some(disk) = Disk::mount("size=64m") else { return };
    let dir = TestDir::new();
    let (mut running, _) = start_before_read_only(&disk, &dir);
    running.reach_now(20);
    running.kill_coordinator("-TERM");
    std::thread::sleep(std::time::Duration::from_secs(10));
    disk.remount("rw");
    let ended = running.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    let pauses: Vec<&str> = ended.log.split("training waits until it is saved, retrying in ").skip(1).collect();
    let is_short = |rest: &&str| rest.starts_with("1 s: ") || rest.starts_with("2 s: ");
    assert!(!pauses.is_empty() && pauses.iter().all(is_short), "{}", ended.log);
}

/// A full disk must end the run after the timeout, with one message. Earlier checkpoints must be kept.
#[test]
fn a_permanent_outage_ends_the_run() {
    let Some(disk) = Disk::mount("size=1m") else { return };
    let dir = TestDir::new();
    let (config, url) = (dir.config(100_000, 2), disk.url());
    let more = ["--set", "checkpoint.give_up_minutes=0.05", "--set", "checkpoint.keep=100"];
    let ended = Running::start_with(&config, &url, &more).end();
    assert_eq!(ended.code, Some(1), "{}", ended.log);
    for word in ["No space left on device", "checkpoint.give_up_minutes = 0.05", "was not saved; training continues"] {
        assert!(ended.log.contains(word), "no {word:?} in {}", ended.log);
    }
    assert_eq!(ended.log.matches("attempt 2").count(), 0, "the workers were restarted: {}", ended.log);
    assert_eq!(ended.log.matches("lambert: error: ").count(), 1, "{}", ended.log);
    done(&["checkpoint", "verify", &url]);
    let (before, all) = (checkpoints(&url), tree(&Path::new(&url).join("checkpoints")));
    assert!(!before.is_empty());
    let orphans: Vec<_> =
        all.keys().filter(|name| !before.iter().any(|checkpoint| name.starts_with(checkpoint))).collect();
    assert!(orphans.is_empty(), "failed saves left files: {orphans:?}");
}

/// S3 answers 403 for a missing object if the credentials may read, but not list.
#[test]
fn a_dataset_of_an_earlier_version_is_read_without_permission_to_list() {
    let dir = TestDir::new();
    let data = Path::new(&dir.path("s3")).join(s3_server::BUCKET).join("data");
    support::copy(Path::new(&dir.path("data/train")), &data);
    std::fs::remove_file(data.join("checksums.json")).unwrap();
    let server = Server::start(Path::new(&dir.path("s3")), 0);
    let fault = Fault::Refuse(403, "AccessDenied");
    for contains in ["checksums.json", "list-type=2"] {
        server.fail(Rule { method: "GET".parse().unwrap(), contains, after: 0, times: 1000, fault });
    }
    let sets = [
        format!("stage.0.data=s3://{}/data", s3_server::BUCKET),
        format!("cluster.dataset_cache.folder={}", dir.path("cache")),
    ];
    let sets = ["--set", &sets[0], "--set", &sets[1]];
    let ended = Running::start_in(&dir.config(2, 2), &dir.path("run"), &sets, &server.environment()).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert!(server.hits() > 0, "the file was not asked for");
    // The coordinator has checked the sizes of the files once. The ranks have not checked them again.
    let requests = server.requests();
    let count = |what: &str| requests.iter().filter(|request| request.contains(what)).count();
    let mut lookups: Vec<_> = requests.iter().filter(|request| request.starts_with("HEAD ")).collect();
    lookups.sort();
    lookups.dedup();
    assert!(lookups.len() > 1 && lookups.len() == count("HEAD "), "{requests:?}");
    // With the permission, one request lists the sizes of all files.
    server.clear();
    let ended = Running::start_in(&dir.config(2, 2), &dir.path("other"), &sets, &server.environment()).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let requests = server.requests();
    let count = |what: &str| requests.iter().filter(|request| request.contains(what)).count();
    assert_eq!((count("list-type=2"), count("HEAD ")), (1, 0), "{requests:?}");
}
