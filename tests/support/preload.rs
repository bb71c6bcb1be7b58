//! Small C libraries that change what a system call does in the programs that load them (LD_PRELOAD).

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Place;

/// Compiles `tests/support/NAME.c`; gives the variable that makes a program load it.
pub fn library(place: &Place, name: &str) -> (&'static str, String) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support").join(name).with_extension("c");
    let library = place.path(&format!("{name}.so"));
    let built = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o", &library]).arg(source).arg("-ldl").status();
    assert!(built.unwrap().success(), "cc cannot build {name}");
    ("LD_PRELOAD", library)
}

/// A store whose writes never return: fsync and fdatasync block from [`BlockingFsync::block`] to [`BlockingFsync::release`].
pub struct BlockingFsync {
    /// The variables for the programs that are affected.
    pub environment: [(&'static str, String); 2],
    trigger: PathBuf,
}

impl BlockingFsync {
    /// Nothing blocks yet.
    pub fn new(place: &Place) -> Self {
        let trigger = place.path("block-fsync");
        let environment = [library(place, "blocking_fsync"), ("LAMBERT_TEST_BLOCK_FSYNC", trigger.clone())];
        Self { environment, trigger: trigger.into() }
    }

    /// From now on it blocks for files whose path contains `part`; an empty one: for all.
    pub fn block(&self, part: &str) {
        let new = self.trigger.with_extension("new");
        std::fs::write(&new, part).unwrap();
        std::fs::rename(new, &self.trigger).unwrap();
    }

    /// What is blocked goes on.
    pub fn release(&self) {
        let _ = std::fs::remove_file(&self.trigger);
    }
}

/// A test that fails leaves no process blocked.
impl Drop for BlockingFsync {
    fn drop(&mut self) {
        self.release();
    }
}

/// A system that gives the program `lambert` no thread from [`FailingThreads::fail`] on.
pub struct FailingThreads {
    /// The variables for the programs that are affected.
    pub environment: [(&'static str, String); 2],
    trigger: PathBuf,
}

impl FailingThreads {
    /// Nothing fails yet.
    pub fn new(place: &Place) -> Self {
        let trigger = place.path("fail-threads");
        let environment = [library(place, "failing_threads"), ("LAMBERT_TEST_FAIL_THREADS", trigger.clone())];
        Self { environment, trigger: trigger.into() }
    }

    /// From now on no thread can be created.
    pub fn fail(&self) {
        std::fs::write(&self.trigger, "").unwrap();
    }
}

#[test]
fn fsync_blocks_for_the_files_that_are_named_until_it_is_released() {
    let place = Place::new();
    let fsync = BlockingFsync::new(&place);
    let write = |name: &str| {
        let output = format!("of={}", place.path(name));
        let mut command = Command::new("dd");
        command.args(["if=/dev/zero", &output, "bs=1", "count=1", "conv=fsync", "status=none"]);
        command.envs(fsync.environment.iter().map(|(name, value)| (name, value))).spawn().unwrap()
    };
    fsync.block("slow");
    assert!(write("quick").wait().unwrap().success());
    let mut blocked = write("slow");
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(blocked.try_wait().unwrap().is_none(), "it was not blocked");
    fsync.release();
    assert!(blocked.wait().unwrap().success());
}
