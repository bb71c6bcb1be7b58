//! The real NCCL on a machine without a driver: it loads, tells its version, makes an id, and refuses to connect with its own words.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

#[allow(dead_code, reason = "nothing sums here")]
mod cards;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use lambert_collective::local;
use lambert_collective::nccl::{self, Library, Log, Options};

/// Folders of NVIDIA's libraries, as cluster/setup.sh --cuda makes them.
fn folders() -> Vec<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache"))).unwrap();
    let fetched = std::fs::read_dir(cache.join("lambert")).into_iter().flatten().flatten();
    let cuda = fetched.map(|entry| entry.path()).find(|path| path.to_string_lossy().ends_with("-cuda"));
    let packages = cuda.and_then(|path| std::fs::read_dir(path.join("nvidia")).ok()).into_iter().flatten().flatten();
    packages.map(|package| package.path().join("lib")).filter(|folder| folder.is_dir()).collect()
}

/// Runs this program again with these variables, as a coordinator starts its ranks.
fn again_with(variables: &[(&str, &str)]) {
    let program = std::env::current_exe().unwrap();
    let status = Command::new(program).arg("--nocapture").envs(variables.iter().copied()).status().unwrap();
    assert!(status.success(), "with {variables:?}");
}

#[test]
fn the_real_library_refuses_without_a_driver() {
    let folders = folders();
    if Library::find(&folders).is_err() {
        eprintln!("SKIPPED: no libnccl.so.2; `cluster/setup.sh --cuda` fetches it");
        return;
    }
    if std::env::var_os("NCCL_DEBUG_FILE").is_none() {
        return again_with(&[
            ("NCCL_RUNTIME_CONNECT", "0"),
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_DEBUG_SUBSYS", "INIT,NET,GRAPH"),
            ("NCCL_DEBUG_FILE", "/proc/self/fd/250"),
        ]);
    }
    let log = Log::begin();
    let library = Arc::new(Library::open(&folders).unwrap());
    assert!(library.version_text().starts_with("2."), "{}", library.version_text());
    assert_ne!(library.unique_id().unwrap().to_bytes(), vec![0; 128]);
    if Path::new("/proc/driver/nvidia").exists() {
        eprintln!("SKIPPED: this machine has an NVIDIA driver");
        return;
    }
    let mut ends = local::alone();
    let card = cards::LazyCard::new(1);
    let joined = nccl::join(&mut *ends.group, ends.reducer, &library, card, Options::default());
    let Err(error) = joined else { panic!("NCCL connects cards that are not there") };
    eprintln!("NCCL {} from {}: {error}", library.version_text(), library.path().display());
    assert!(error.is_refusal(), "{error}");
    assert!(error.to_string().contains("CUDA driver version is insufficient for CUDA runtime version"), "{error}");
    // What it says of its choices goes where we read it.
    let said = log.unwrap().text();
    assert!(said.contains("NCCL INFO"), "{said}");
    let variables = nccl::variables(std::env::vars());
    assert!(variables.contains(&"NCCL_RUNTIME_CONNECT=0".to_owned()), "{variables:?}");
}
