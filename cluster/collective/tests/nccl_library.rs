//! Test of the real NCCL on a machine without a GPU driver. NCCL must load, return its version and a unique ID, and
//! report why it cannot connect.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[allow(dead_code, reason = "not used by every test program")]
mod fake_gpu;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use lambert_collective::local;
use lambert_collective::nccl::{self, NcclLibrary, NcclLog, NcclOptions};

/// Folders of NVIDIA's libraries that cluster/setup.sh --cuda has installed.
fn library_folders() -> Vec<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache"))).unwrap();
    let installed = std::fs::read_dir(cache.join("lambert")).into_iter().flatten().flatten();
    let cuda = installed.map(|entry| entry.path()).find(|path| path.to_string_lossy().ends_with("-cuda"));
    let packages = cuda.and_then(|path| std::fs::read_dir(path.join("nvidia")).ok()).into_iter().flatten().flatten();
    packages.map(|package| package.path().join("lib")).filter(|folder| folder.is_dir()).collect()
}

/// Runs this program again with additional environment variables, as the coordinator does with its workers.
fn rerun_with(variables: &[(&str, &str)]) {
    let program = std::env::current_exe().unwrap();
    let status = Command::new(program).arg("--nocapture").envs(variables.iter().copied()).status().unwrap();
    assert!(status.success(), "with {variables:?}");
}

#[test]
fn the_real_library_reports_a_missing_driver() {
    let folders = library_folders();
    if NcclLibrary::find(&folders).is_err() {
        eprintln!("SKIPPED: no libnccl.so.2; `cluster/setup.sh --cuda` fetches it");
        return;
    }
    if std::env::var_os("NCCL_DEBUG_FILE").is_none() {
        return rerun_with(&[
            ("NCCL_RUNTIME_CONNECT", "0"),
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_DEBUG_SUBSYS", "INIT,NET,GRAPH"),
            ("NCCL_DEBUG_FILE", "/proc/self/fd/250"),
        ]);
    }
    let log = NcclLog::open();
    let library = Arc::new(NcclLibrary::open(&folders).unwrap());
    assert!(library.version().starts_with("2."), "{}", library.version());
    assert_ne!(library.unique_id().unwrap().to_bytes(), vec![0; 128]);
    if Path::new("/proc/driver/nvidia").exists() {
        eprintln!("SKIPPED: this machine has an NVIDIA driver");
        return;
    }
    let mut endpoints = local::single();
    let gpu = fake_gpu::FakeGpu::new(1);
    let result = nccl::init(&mut *endpoints.group, endpoints.reducer, &library, gpu, NcclOptions::default());
    let Err(error) = result else { panic!("NCCL connected without a GPU") };
    eprintln!("NCCL {} from {}: {error}", library.version(), library.path().display());
    assert!(error.is_nccl_unsupported(), "{error}");
    assert!(error.to_string().contains("CUDA driver version is insufficient for CUDA runtime version"), "{error}");
    let text = log.unwrap().read();
    assert!(text.contains("NCCL INFO"), "{text}");
    let variables = nccl::environment_variables(std::env::vars());
    assert!(variables.contains(&"NCCL_RUNTIME_CONNECT=0".to_owned()), "{variables:?}");
}
