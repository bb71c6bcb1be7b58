//! Small C libraries that change system calls of the programs that load them (LD_PRELOAD).

use std::path::{Path, PathBuf};
use std::process::Command;

use super::TestDir;

/// Compiles `tests/support/NAME.c`. Returns the environment variable that preloads the library.
pub fn library(dir: &TestDir, name: &str) -> (&'static str, String) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support").join(name).with_extension("c");
    let library = dir.path(&format!("{name}.so"));
    let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o", &library]).arg(source).arg("-ldl").status();
    assert!(built.unwrap().success(), "cc cannot build {name}");
    ("LD_PRELOAD", library)
}

/// Imitates a store whose writes hang: fsync and fdatasync block from [`BlockingFsync::block`] to
/// [`BlockingFsync::release`].
pub struct BlockingFsync {
    /// Environment variables for the affected programs.
    pub environment: [(&'static str, String); 2],
    trigger: PathBuf,
}

impl BlockingFsync {
    /// Prepares the library. Nothing blocks yet.
    pub fn new(dir: &TestDir) -> Self {
        let trigger = dir.path("block-fsync");
        let environment = [library(dir, "blocking_fsync"), ("LAMBERT_TEST_BLOCK_FSYNC", trigger.clone())];
        Self { environment, trigger: trigger.into() }
    }

    /// From now on, fsync blocks for files whose path contains `part`. An empty `part` matches all paths.
    pub fn block(&self, part: &str) {
        let new = self.trigger.with_extension("new");
        std::fs::write(&new, part).unwrap();
        std::fs::rename(new, &self.trigger).unwrap();
    }

    /// Lets blocked calls continue.
    pub fn release(&self) {
        let _ = std::fs::remove_file(&self.trigger);
    }
}

/// Releases blocked processes if a test fails.
impl Drop for BlockingFsync {
    fn drop(&mut self) {
        self.release();
    }
}

/// Makes thread creation fail in `lambert` from [`FailingThreads::fail`] on.
pub struct FailingThreads {
    /// Environment variables for the affected programs.
    pub environment: [(&'static str, String); 2],
    trigger: PathBuf,
}

impl FailingThreads {
    /// Prepares the library. Nothing fails yet.
    pub fn new(dir: &TestDir) -> Self {
        let trigger = dir.path("fail-threads");
        let environment = [library(dir, "failing_threads"), ("LAMBERT_TEST_FAIL_THREADS", trigger.clone())];
        Self { environment, trigger: trigger.into() }
    }

    /// Makes thread creation fail from now on.
    pub fn fail(&self) {
        std::fs::write(&self.trigger, "").unwrap();
    }
}

#[test]
fn fsync_blocks_for_matching_files_until_released() {
    let dir = TestDir::new();
    let fsync = BlockingFsync::new(&dir);
    let write = |name: &str| {
        let output = format!("of={}", dir.path(name));
        let mut command = Command::new("dd");
        command.args(["if=/dev/zero", &output, "bs=1", "count=1", "conv=fsync", "status=none"]);
        command.envs(fsync.environment.iter().map(|(name, value)| (name, value))).spawn().unwrap()
    };
    fsync.block("slow");
    assert!(write("quick").wait().unwrap().success());
    let mut blocked = write("slow");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(blocked.try_wait().unwrap().is_none(), "fsync was not blocked");
    fsync.release();
    assert!(blocked.wait().unwrap().success());
}
