//! Jobs of real MPI processes: a test program starts itself again under `mpirun`, so that one of its tests is what a rank does.
//! Run outside an MPI job, such a test does nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use lambert_collective::mpi::{self, Options};
use lambert_collective::{Endpoints, world};

/// Where the ranks of a job leave files for the test that started them.
pub const FOLDER: &str = "LAMBERT_TEST_FOLDER";

/// Seconds after which mpirun ends a job: none here takes as long.
const TIMEOUT: &str = "60";

/// Runs `test` as the ranks of a job; its output, and how long it took.
#[allow(dead_code, reason = "a test program may start its jobs in another way")]
pub fn mpirun(ranks: usize, test: &str, folder: &Path) -> (Output, Duration) {
    let start = Instant::now();
    let output = Command::new("mpirun")
        .args([
            "--allow-run-as-root",
            "--oversubscribe",
            "--bind-to",
            "none",
            "--timeout",
            TIMEOUT,
            "-n",
            &ranks.to_string(),
        ])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(FOLDER, folder)
        .output()
        .expect("mpirun is installed (cluster/setup.sh does it)");
    (output, start.elapsed())
}

/// This process as a rank of the job that was started for the calling test, or `None` outside one.
pub fn as_rank(options: Options) -> Option<Endpoints> {
    let detected = world::detect()?;
    let ends = mpi::init(options).unwrap();
    let rank = ends.group.rank();
    assert_eq!((rank, ends.group.world()), (detected.rank, detected.size));
    std::fs::write(file(&format!("pid-{rank}")), std::process::id().to_string()).unwrap();
    Some(ends)
}

/// A file for the test that started the job.
pub fn file(name: &str) -> PathBuf {
    Path::new(&std::env::var(FOLDER).unwrap()).join(name)
}

/// Writes such a file, whole.
pub fn write(name: &str, text: &str) {
    write_in(&file(""), name, text);
}

/// The same from outside the job.
pub fn write_in(folder: &Path, name: &str, text: &str) {
    // Two ranks may write the same one.
    let unfinished = folder.join(format!("unfinished-{}-{name}", std::process::id()));
    std::fs::write(&unfinished, text).unwrap();
    std::fs::rename(&unfinished, folder.join(name)).unwrap();
}

/// Waits until there are such files.
#[allow(dead_code, reason = "not every test program has ranks that wait for each other")]
pub fn wait_for(names: &[&str]) {
    while !names.iter().all(|name| file(name).exists()) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends this process a signal, by its name, in a while.
#[allow(dead_code, reason = "not every test program ends its ranks")]
pub fn signal_self_after(signal: &'static str, delay: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(delay);
        Command::new("kill").args(["-s", signal, &std::process::id().to_string()]).status().unwrap();
    });
}
