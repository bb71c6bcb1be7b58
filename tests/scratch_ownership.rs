//! Directories of an attempt have predictable names, so another user can create them first.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{TestDir, run};

/// World-writable directory of another user, removed on drop.
struct ForeignDirectory(PathBuf);

impl ForeignDirectory {
    fn new(path: PathBuf) -> Self {
        let made = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "mkdir", "-m", "0777"])
            .arg(&path)
            .status();
        assert!(made.unwrap().success(), "{}", path.display());
        Self(path)
    }

    fn is_untouched(&self) -> bool {
        std::fs::read_dir(&self.0).is_ok_and(|mut entries| entries.next().is_none())
    }
}

impl Drop for ForeignDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Returns the paths of the directories of an attempt, as in the launcher.
fn attempt_directories(run: &str, attempt: u32) -> [PathBuf; 2] {
    let run = &lambert_store::hash::sha256(run.as_bytes())[..8];
    let name = format!("lambert-mpirun-{}-{run}-{attempt}", rustix::process::geteuid().as_raw());
    ["/tmp", "/dev/shm"].map(|parent| Path::new(parent).join(&name))
}

/// The coordinator must not start mpirun with a directory of another user. The run ends with an error that names the
/// owner. The next start uses other names.
#[test]
fn the_coordinator_rejects_a_directory_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can act as another user");
        return;
    }
    let dir = TestDir::new();
    let (url, config) = (dir.path("run"), dir.config(2, 2));
    let start = || run(&["run", "--config", &config, "--run", &url]);
    let foreign =
        [attempt_directories(&url, 1)[0].clone(), attempt_directories(&url, 2)[1].clone()].map(ForeignDirectory::new);
    for foreign in &foreign {
        let (ran, path) = (start(), foreign.0.display());
        assert_eq!(ran.code, 1, "{}", ran.err);
        let text =
            format!("cannot use {path} for the files of mpirun and MPI: it belongs to user 65534, expected user 0");
        assert!(ran.err.contains(&text), "no {text:?} in {}", ran.err);
    }
    assert!(!attempt_directories(&url, 2)[0].exists(), "attempt 2 left a directory");
    let ran = start();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(foreign.iter().all(ForeignDirectory::is_untouched));
}

/// The control server of the first attempt cannot listen, so no worker starts.
#[test]
fn a_failed_start_leaves_no_directory() {
    let dir = TestDir::new();
    let (url, config) = (dir.path("run"), dir.config(2, 2));
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let ports = format!("cluster.control.ports=[{port},{port}]");
    let ran = run(&["run", "--config", &config, "--run", &url, "--set", &ports]);
    let message = format!("for the ranks (cluster.control.ports: {port} to {port};");
    assert!(ran.code == 1 && ran.err.contains(&message), "{}: {}", ran.code, ran.err);
    for path in attempt_directories(&url, 1) {
        assert!(!path.exists(), "{} is left", path.display());
    }
}

/// On a host without the coordinator, and under srun, the rank itself checks the directory.
#[test]
fn a_rank_rejects_a_directory_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can act as another user");
        return;
    }
    let dir = TestDir::new();
    let url = dir.path("run");
    let foreign = ForeignDirectory::new(attempt_directories(&url, 1)[1].clone());
    let output = Command::new(env!("CARGO_BIN_EXE_lambert-worker"))
        .args(["train", "--run", &url, "--attempt", "1", "--session"])
        .arg(&foreign.0)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(&format!("cannot use folder {}", foreign.0.display())), "{text}");
    assert!(text.contains("it belongs to user 65534, expected user 0"), "{text}");
    assert!(foreign.is_untouched());
}
