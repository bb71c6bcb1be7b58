//! A preparation job that is killed with SIGKILL at random times and then restarted.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{assert_same, config, generated, run, source, tree};
use lambert_config::PrepConfig;
use lambert_config::prep::Documents;
use lambert_dataset::random::Key;

const FOLDER: &str = "LAMBERT_TEST_KILL_FOLDER";

fn job(folder: &Path, work: &Path) -> PrepConfig {
    let mut config = config(
        work,
        &folder.join("vocab.txt"),
        vec![
            source(&folder.join("corpus.txt"), "text", Documents::BlankLine),
            source(&folder.join("corpus.txt"), "text", Documents::File),
        ],
    );
    config.samples.passes = 2;
    config
}

/// Child process of the test below. It does nothing if the test runner runs it directly.
#[test]
fn child() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        let folder = Path::new(&folder);
        run(&job(folder, &folder.join("killed")), 2).unwrap();
    }
}

/// Runs [`child`], and kills it after the time `allowed`, if this is given. Returns true if the child finished.
fn attempt(folder: &Path, allowed: Option<Duration>) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::child", "--test-threads=1"])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "the preparation failed after a kill");
            return true;
        }
        if allowed.is_some_and(|allowed| start.elapsed() >= allowed) {
            child.kill().unwrap();
            child.wait().unwrap();
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Kills a preparation job six times, or `LAMBERT_TEST_KILLS` times.
#[test]
fn a_killed_preparation_resumes_to_the_same_result() {
    let kills: u64 = std::env::var("LAMBERT_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(6);
    let folder = tempfile::tempdir().unwrap();
    generated(folder.path(), 8_000);
    let start = Instant::now();
    run(&job(folder.path(), &folder.path().join("undisturbed")), 2).unwrap();
    let whole = start.elapsed();
    let mut rng = Key::new(whole.as_nanos() as u64).rng();
    let mut finished = 0;
    for _ in 0..kills {
        // The limit can be longer than a full run, so that kills also occur in the last steps.
        let allowed = whole.mul_f64(rng.unit_f64() * 1.2);
        if attempt(folder.path(), Some(allowed)) {
            finished += 1;
            std::fs::remove_dir_all(folder.path().join("killed")).unwrap();
        }
    }
    eprintln!("{} of {kills} attempts were killed; a whole run takes {whole:?}", kills - finished);
    assert!(attempt(folder.path(), None));
    assert_same(&tree(&folder.path().join("undisturbed")), &tree(&folder.path().join("killed")));
}
