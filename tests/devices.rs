//! Available and missing devices: messages and exit codes.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{self, TestDir, run_in};
use lambert_worker::gpu::{Driver, DriverError, Libtorch};
use lambert_worker::torch;

/// Starts a run on a GPU with the libtorch in `folder`. Returns exit code and output.
fn on_a_gpu(dir: &TestDir, folder: &str, environment: &[(&'static str, String)]) -> (i32, String) {
    on_gpus(dir, folder, environment, "auto")
}

/// Like [`on_a_gpu`], with an all-reduce backend.
fn on_gpus(dir: &TestDir, folder: &str, environment: &[(&'static str, String)], backend: &str) -> (i32, String) {
    let (config, run) = (dir.config(9, 1), dir.path("run"));
    let libtorch = format!("device.libtorch={folder:?}");
    let backend = format!("cluster.all_reduce.backend={backend:?}");
    let sets = ["--set", "device.kind=\"cuda\"", "--set", &libtorch, "--set", &backend];
    let ran = run_in(&[&["run", "--config", &config, "--run", &run][..], &sets].concat(), environment);
    let _ = std::fs::remove_dir_all(run);
    (ran.code, ran.err)
}

/// Creates a folder that looks like a libtorch of this version.
fn libtorch(dir: &TestDir, name: &str, version: &str) -> String {
    dir.file(&format!("{name}/lib/libtorch_cuda.so"), "no library");
    dir.file(&format!("{name}/version.py"), format!("__version__ = '{version}'\ncuda: Optional[str] = '13.0'\n"));
    dir.path(name)
}

#[test]
fn a_missing_gpu_library_is_reported_in_one_message() {
    let dir = TestDir::new();
    let (code, printed) = on_a_gpu(&dir, &dir.path("data"), &[]);
    assert!(
        printed.contains("libtorch_cuda.so not found in") && printed.contains("(set by device.libtorch)"),
        "{printed}"
    );
    assert_eq!(code, 2, "{printed}");
    let (code, printed) = on_a_gpu(&dir, &libtorch(&dir, "other", "2.9.1+cu128"), &[]);
    assert!(printed.contains("is 2.9.1+cu128; install 2."), "{printed}");
    assert_eq!(code, 2, "{printed}");
    // The environment variable applies if the configuration names no libtorch.
    let (code, printed) = on_a_gpu(&dir, "", &[("LAMBERT_LIBTORCH", dir.path("nothing"))]);
    assert!(
        printed.contains("libtorch_cuda.so not found in") && printed.contains("(set by LAMBERT_LIBTORCH)"),
        "{printed}"
    );
    assert_eq!(code, 2, "{printed}");
}

/// A missing NCCL must be reported even if the driver is missing, too. Errors that users can fix themselves are
/// reported first.
#[test]
fn missing_nccl_is_reported_in_one_message() {
    let dir = TestDir::new();
    let folder = libtorch(&dir, "right", &format!("{}+cu130", torch::BUILT_WITH));
    let (code, printed) = on_gpus(&dir, &folder, &[], "nccl");
    let expected =
        format!("cannot use NCCL for the gradient all-reduce: libnccl.so.2 (NCCL) not found in {folder}/lib");
    assert!(
        printed.contains(&expected) && !printed.contains("backtrace") && !printed.contains("restarting all workers"),
        "{printed}"
    );
    assert_eq!(code, 2, "{printed}");
    for (setting, why) in [
        ("device.kind=\"cpu\"", "nccl requires GPUs; device.kind is cpu"),
        ("cluster.all_reduce.canonical=true", "nccl requires GPUs; cluster.all_reduce.canonical computes on CPUs"),
        ("cluster.launcher=\"direct\"", "nccl requires ranks started by mpirun or srun; cluster.launcher is direct"),
    ] {
        let (config, run) = (dir.config(9, 1), dir.path("refused"));
        let sets = ["--set", "cluster.all_reduce.backend=\"nccl\"", "--set", setting];
        let ran = run_in(&[&["run", "--config", &config, "--run", &run][..], &sets].concat(), &[]);
        assert!(ran.code == 2 && ran.err.contains(&format!("cluster.all_reduce.backend: {why}")), "{}", ran.err);
    }
}

#[test]
fn a_missing_driver_is_reported() {
    if !matches!(Driver::open(), Err(DriverError::Absent(_))) {
        eprintln!("SKIPPED: this machine has an NVIDIA driver");
        return;
    }
    let dir = TestDir::new();
    let folder = libtorch(&dir, "right", &format!("{}+cu130", torch::BUILT_WITH));
    let (code, printed) = on_a_gpu(&dir, &folder, &[]);
    assert!(printed.contains("this machine has no NVIDIA driver: libcuda.so.1"), "{printed}");
    assert!(!printed.contains("backtrace") && !printed.contains("restarting all workers"), "{printed}");
    assert_eq!(code, 2, "{printed}");
    // The configuration does not require a GPU, so a missing driver is not an error.
    let ran = run_in(
        &["run", "--config", &dir.config(9, 1), "--run", &dir.path("run"), "--set", "device.kind=\"auto\""],
        &[],
    );
    assert_eq!(ran.code, 0, "{}", ran.err);
}

fn build(source: &str, library: &str) {
    std::fs::create_dir_all(Path::new(library).parent().unwrap()).unwrap();
    let source = format!("{}/tests/support/{source}", env!("CARGO_MANIFEST_DIR"));
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o", library, &source]).status().unwrap();
    assert!(built.success());
}

/// Creates a folder that looks like a matching libtorch. Its library records that it was loaded.
fn recording_libtorch(dir: &TestDir, name: &str) -> String {
    let folder = libtorch(dir, name, &format!("{}+cu130", torch::BUILT_WITH));
    dir.file(&format!("{name}/__init__.py"), "");
    build("loaded.c", &format!("{folder}/lib/libtorch_cuda.so"));
    folder
}

/// Commands that read a run must use only a libtorch that their user has chosen. They must not load the libtorch that
/// the configuration of the run names, nor a libtorch in the working directory.
#[test]
fn readers_load_only_libraries_chosen_by_their_user() {
    let dir = TestDir::new();
    let run = dir.path("run");
    support::done(&["run", "--config", &dir.config(2, 1), "--run", &run]);
    build("driver.c", &dir.path("driver/libcuda.so.1"));
    let theirs = recording_libtorch(&dir, "theirs");
    recording_libtorch(&dir, "here/torch");
    let loaded = PathBuf::from(dir.path("loaded"));
    let (data, path) = (dir.path("data/held-out"), std::env::var("LD_LIBRARY_PATH").unwrap_or_default());
    let reads = |more: &[(&str, String)]| {
        let readers = [vec!["eval", &run, "--data", &data], vec!["fill-mask", &run, "the [MASK]"]];
        readers.map(|line| {
            let _ = std::fs::remove_file(&loaded);
            let mut command = Command::new(env!("CARGO_BIN_EXE_lambert-worker"));
            command.args(line).current_dir(dir.path("here")).env("LAMBERT_TEST_LOADED", &loaded);
            command.env("LD_LIBRARY_PATH", format!("{}:{path}", dir.path("driver"))).envs(more.iter().cloned());
            let output = command.output().unwrap();
            (loaded.exists(), String::from_utf8_lossy(&output.stderr).into_owned())
        })
    };
    for (loaded, printed) in reads(&[]) {
        assert!(!loaded, "a library of the working directory was loaded: {printed}");
    }
    let text = std::fs::read_to_string(format!("{run}/run.toml")).unwrap();
    let named = text.replacen("[device]\n", &format!("[device]\nlibtorch = {theirs:?}\n"), 1);
    assert_ne!(named, text);
    std::fs::write(format!("{run}/run.toml"), named).unwrap();
    for (loaded, printed) in reads(&[]) {
        assert!(!loaded, "the library that the run names was loaded: {printed}");
    }
    // The settings of the user still apply.
    for own in [("LAMBERT_LIBTORCH", theirs), ("PYTHONPATH", dir.path("here"))] {
        for (loaded, printed) in reads(std::slice::from_ref(&own)) {
            assert!(loaded, "{own:?}: {printed}");
        }
    }
}

/// The real library loads without a driver, and finds no GPU.
#[test]
fn libtorch_cuda_loads_without_a_driver() {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cache"))).unwrap();
    let folder = cache.join(format!("lambert/libtorch-{}-cuda/torch", torch::BUILT_WITH));
    if !folder.exists() {
        eprintln!("SKIPPED: no {}; `cluster/setup.sh --cuda` fetches it", folder.display());
        return;
    }
    let found = Libtorch::find(folder.to_str().unwrap(), torch::BUILT_WITH).unwrap();
    found.load().unwrap();
    assert_eq!(tch::Cuda::is_available(), Driver::open().is_ok_and(|driver| driver.device_count().unwrap() > 0));
    // This message comes from libtorch_cuda. The CPU build of libtorch does not know the device.
    let made = torch::guard(|| tch::Tensor::zeros([1], (tch::Kind::Float, tch::Device::Cuda(0))));
    assert!(
        made.as_ref().is_ok() || made.as_ref().is_err_and(|error| error.to_string().contains("no NVIDIA driver")),
        "{made:?}"
    );
    assert!(found.nvidia_folders().iter().any(|folder| folder.join("libnvrtc.so.13").exists()));
    assert!(found.nvidia_folders().iter().any(|folder| folder.join("libnccl.so.2").exists()));
}

/// Tests the output of `lambert-worker bench` for a stage, and its usage errors.
#[test]
fn bench_measures_a_stage() {
    let dir = TestDir::new();
    let config = dir.config(9, 1);
    let bench = |more: &[&str]| {
        let line = [&["bench", "--config", &config, "--steps", "3", "--warmup", "1"][..], more].concat();
        let output = Command::new(env!("CARGO_BIN_EXE_lambert-worker")).args(line).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, out, err) = bench(&["--json", "--samples", "8"]);
    assert_eq!(code, Some(0), "{err}");
    let measured: serde_json::Value = serde_json::from_str(&out).unwrap();
    let number = |name: &str| measured[name].as_f64().unwrap_or_else(|| panic!("no {name} in {out}"));
    assert_eq!(number("samples"), 8.0);
    let seconds = measured["seconds"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap());
    let seconds: Vec<f64> = seconds.collect();
    assert!(seconds.is_sorted() && seconds[0] > 0.0, "{out}");
    assert!((number("samples_per_second") * seconds[1] / 8.0 - 1.0).abs() < 1e-9, "{out}");
    assert!((number("teraflops") / number("peak_teraflops") / number("utilization") - 1.0).abs() < 1e-9, "{out}");
    assert!(number("utilization") > 0.0 && number("utilization") < 1.0, "{out}");
    for phase in ["data_wait", "forward_backward", "optimizer"] {
        assert!(number(phase) >= 0.0 && number(phase) < 1.0, "{phase} in {out}");
    }
    assert!(number("forward_backward") > number("optimizer"), "{out}");
    assert!(number("peak_memory") > 10e6, "{out}");
    let (code, out, _) = bench(&["--samples", "8"]);
    assert!(code == Some(0) && out.contains("8 samples, ") && out.contains("% of "), "{out}");
    let (code, _, err) = bench(&["--stage", "1"]);
    assert!(code == Some(2) && err.contains("--stage 1: expected 0 to 0"), "{err}");
    let (code, _, err) = bench(&["--set", "stage.0.data=\"/nowhere\""]);
    assert!(code == Some(2) && err.contains("/nowhere"), "{err}");
}

/// Without the handler, an exception in a destructor aborts the process without a message of lambert.
#[test]
fn a_cuda_error_in_a_destructor_ends_the_process_with_one_line() {
    let dir = TestDir::new();
    let main = r#"
        #include <stdexcept>
        extern "C" void lambert_exit_on_cuda_error(int code);
        struct Memory {
            const char *message;
            ~Memory() { throw std::runtime_error(message); }
        };
        int main(int count, char **arguments) {
            lambert_exit_on_cuda_error(74);
            lambert_exit_on_cuda_error(74);
            Memory memory{arguments[count - 1]};
        }"#;
    let (main, program) = (dir.file("main.cpp", main), dir.path("program"));
    let handler = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/torch/terminate.cpp");
    let mut compiler = Command::new("c++");
    let built = compiler.args(["-std=c++17", "-w", "-o", &program, &main]).arg(handler).status().unwrap();
    assert!(built.success());
    let ended = |message: &str| {
        let ended = Command::new(&program).arg(message).output().unwrap();
        (ended.status.code(), ended.status.signal(), String::from_utf8(ended.stderr).unwrap())
    };
    let (code, _, printed) = ended("CUDA error: unspecified launch failure\nCompile with TORCH_USE_CUDA_DSA");
    assert_eq!(
        (code, printed.as_str()),
        (Some(74), "ERROR the GPU failed while memory was freed: CUDA error: unspecified launch failure\n")
    );
    let (_, signal, printed) = ended("out of range");
    assert!(signal == Some(6) && printed.contains("out of range"), "{printed}");
}
