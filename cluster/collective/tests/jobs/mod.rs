//! Jobs of real MPI processes. A test program starts itself under `mpirun`, and each rank runs one of its tests.
//! Outside an MPI job, such a test does nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use lambert_collective::mpi::{self, MpiOptions};
use lambert_collective::{Endpoints, world};

/// Environment variable with the folder in which ranks write files for the test that started them.
pub const FOLDER: &str = "LAMBERT_TEST_FOLDER";

/// Job timeout for mpirun, seconds. It is longer than any job of these tests.
const TIMEOUT: &str = "60";

/// Runs `test` in each rank of a job. Returns the output and the duration.
#[allow(dead_code, reason = "not used by every test program")]
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

/// Initializes MPI if this process is a rank of a job. Returns `None` otherwise.
pub fn as_rank(options: MpiOptions) -> Option<Endpoints> {
    let detected = world::detect()?;
    let endpoints = mpi::init(options).unwrap();
    let rank = endpoints.group.rank();
    assert_eq!((rank, endpoints.group.world_size()), (detected.rank, detected.size));
    std::fs::write(file(&format!("pid-{rank}")), std::process::id().to_string()).unwrap();
    Some(endpoints)
}

/// Path of a file for the test that started the job.
pub fn file(name: &str) -> PathBuf {
    Path::new(&std::env::var(FOLDER).unwrap()).join(name)
}

/// Writes a file for the test atomically.
pub fn write(name: &str, text: &str) {
    write_in(&file(""), name, text);
}

/// Writes a file to `folder` atomically.
pub fn write_in(folder: &Path, name: &str, text: &str) {
    // Two ranks may write the same file at the same time, so each rank uses its own temporary file.
    let temporary = folder.join(format!("temp-{}-{name}", std::process::id()));
    std::fs::write(&temporary, text).unwrap();
    std::fs::rename(&temporary, folder.join(name)).unwrap();
}

/// Waits until the files `names` exist.
#[allow(dead_code, reason = "not used by every test program")]
pub fn wait_for(names: &[&str]) {
    while !names.iter().all(|name| file(name).exists()) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Sends this process the signal `signal` after `delay`.
#[allow(dead_code, reason = "not used by every test program")]
pub fn signal_self_after(signal: &'static str, delay: Duration) {
    std::thread::spawn(move || {
        std::thread::sleep(delay);
        Command::new("kill").args(["-s", signal, &std::process::id().to_string()]).status().unwrap();
    });
}
