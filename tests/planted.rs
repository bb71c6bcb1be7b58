//! Directories of an attempt, whose names anybody can predict, when another user has created them first.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Place, run};

/// Another user's directory, which everybody may write to. It is removed at the end.
struct Planted(PathBuf);

impl Planted {
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

impl Drop for Planted {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The directories of an attempt, as the launcher names them.
fn names(run: &str, attempt: u32) -> [PathBuf; 2] {
    let run = &lambert_store::hash::sha256(run.as_bytes())[..8];
    let name = format!("lambert-mpirun-{}-{run}-{attempt}", rustix::process::geteuid().as_raw());
    ["/tmp", "/dev/shm"].map(|parent| Path::new(parent).join(&name))
}

/// mpirun is not started with them: the run ends with the owner's number. The next start has other names.
#[test]
fn an_attempt_uses_no_directory_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can act as another user");
        return;
    }
    let place = Place::new();
    let (url, config) = (place.path("run"), place.config(2, 2));
    let start = || run(&["run", "--config", &config, "--run", &url]);
    let planted = [names(&url, 1)[0].clone(), names(&url, 2)[1].clone()].map(Planted::new);
    for planted in &planted {
        let (ran, path) = (start(), planted.0.display());
        assert_eq!(ran.code, 1, "{}", ran.err);
        let said =
            format!("cannot use {path} for the files of mpirun and MPI: it belongs to user 65534, expected user 0");
        assert!(ran.err.contains(&said), "no {said:?} in {}", ran.err);
    }
    assert!(!names(&url, 2)[0].exists(), "attempt 2 has left a directory");
    let ran = start();
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(planted.iter().all(Planted::is_untouched));
}

/// On a host without the coordinator, and under srun, it is the rank that looks.
#[test]
fn a_rank_uses_no_directory_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can act as another user");
        return;
    }
    let place = Place::new();
    let url = place.path("run");
    let planted = Planted::new(names(&url, 1)[1].clone());
    let output = Command::new(env!("CARGO_BIN_EXE_lambert-worker"))
        .args(["train", "--run", &url, "--attempt", "1", "--session"])
        .arg(&planted.0)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains(&format!("cannot use {}", planted.0.display())), "{said}");
    assert!(said.contains("it belongs to user 65534, expected user 0"), "{said}");
    assert!(planted.is_untouched());
}
