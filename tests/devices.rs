//! Devices that a machine has, and those that it lacks: what is said, and what the program exits with.

use std::path::{Path, PathBuf};

use crate::support::{self, Place, run_in};
use lambert_worker::gpu::{Driver, DriverError, Libtorch};
use lambert_worker::torch;

/// What a run on a GPU with the libtorch of `folder` says and exits with.
fn on_a_gpu(place: &Place, folder: &str, environment: &[(&'static str, String)]) -> (i32, String) {
    on_gpus(place, folder, environment, "auto")
}

/// The same with a backend.
fn on_gpus(place: &Place, folder: &str, environment: &[(&'static str, String)], backend: &str) -> (i32, String) {
    let (config, run) = (place.config(9, 1), place.path("run"));
    let libtorch = format!("device.libtorch={folder:?}");
    let backend = format!("cluster.all_reduce.backend={backend:?}");
    let sets = ["--set", "device.kind=\"cuda\"", "--set", &libtorch, "--set", &backend];
    let ran = run_in(&[&["run", "--config", &config, "--run", &run][..], &sets].concat(), environment);
    let _ = std::fs::remove_dir_all(run);
    (ran.code, ran.err)
}

/// A folder that looks like a libtorch of this version.
fn libtorch(place: &Place, name: &str, version: &str) -> String {
    place.file(&format!("{name}/lib/libtorch_cuda.so"), "no library");
    place.file(&format!("{name}/version.py"), format!("__version__ = '{version}'\ncuda: Optional[str] = '13.0'\n"));
    place.path(name)
}

#[test]
fn what_a_gpu_lacks_is_told_in_one_message() {
    let place = Place::new();
    let (code, said) = on_a_gpu(&place, &place.path("data"), &[]);
    assert!(said.contains("libtorch_cuda.so not found in") && said.contains("(set by device.libtorch)"), "{said}");
    assert_eq!(code, 2, "{said}");
    let (code, said) = on_a_gpu(&place, &libtorch(&place, "other", "2.9.1+cu128"), &[]);
    assert!(said.contains("is 2.9.1+cu128; this program was built with 2."), "{said}");
    assert_eq!(code, 2, "{said}");
    // The environment names one where the configuration does not.
    let (code, said) = on_a_gpu(&place, "", &[("LAMBERT_LIBTORCH", place.path("nothing"))]);
    assert!(said.contains("libtorch_cuda.so not found in") && said.contains("(set by LAMBERT_LIBTORCH)"), "{said}");
    assert_eq!(code, 2, "{said}");
}

/// Without a driver, too: what can be mended without the machine's operator is told first.
#[test]
fn what_sums_between_gpus_lack_is_told_in_one_message() {
    let place = Place::new();
    let folder = libtorch(&place, "right", &format!("{}+cu130", torch::BUILT_WITH));
    let (code, said) = on_gpus(&place, &folder, &[], "nccl");
    let expected =
        format!("cannot use NCCL for the gradient all-reduce: libnccl.so.2 (NCCL) not found in {folder}/lib");
    assert!(said.contains(&expected) && !said.contains("backtrace") && !said.contains("started again"), "{said}");
    assert_eq!(code, 2, "{said}");
    for (setting, why) in [
        ("device.kind=\"cpu\"", "nccl requires GPUs; device.kind is cpu"),
        ("cluster.all_reduce.canonical=true", "nccl requires GPUs; cluster.all_reduce.canonical computes on CPUs"),
        ("cluster.launcher=\"direct\"", "nccl requires ranks started by mpirun or srun; cluster.launcher is direct"),
    ] {
        let (config, run) = (place.config(9, 1), place.path("refused"));
        let sets = ["--set", "cluster.all_reduce.backend=\"nccl\"", "--set", setting];
        let ran = run_in(&[&["run", "--config", &config, "--run", &run][..], &sets].concat(), &[]);
        assert!(ran.code == 2 && ran.err.contains(&format!("cluster.all_reduce.backend: {why}")), "{}", ran.err);
    }
}

#[test]
fn a_machine_without_a_driver_says_so() {
    if !matches!(Driver::open(), Err(DriverError::Absent(_))) {
        eprintln!("SKIPPED: this machine has an NVIDIA driver");
        return;
    }
    let place = Place::new();
    let folder = libtorch(&place, "right", &format!("{}+cu130", torch::BUILT_WITH));
    let (code, said) = on_a_gpu(&place, &folder, &[]);
    assert!(said.contains("this machine has no NVIDIA driver: libcuda.so.1"), "{said}");
    assert!(!said.contains("backtrace") && !said.contains("started again"), "{said}");
    assert_eq!(code, 2, "{said}");
    // Nobody asked for a card.
    let ran = run_in(
        &["run", "--config", &place.config(9, 1), "--run", &place.path("run"), "--set", "device.kind=\"auto\""],
        &[],
    );
    assert_eq!(ran.code, 0, "{}", ran.err);
}

fn build(source: &str, library: &str) {
    std::fs::create_dir_all(Path::new(library).parent().unwrap()).unwrap();
    let source = format!("{}/tests/support/{source}", env!("CARGO_MANIFEST_DIR"));
    let built = std::process::Command::new("cc").args(["-shared", "-fPIC", "-o", library, &source]).status().unwrap();
    assert!(built.success());
}

/// A folder that looks like a libtorch of the right version, whose library says that it was loaded.
fn telling_libtorch(place: &Place, name: &str) -> String {
    let folder = libtorch(place, name, &format!("{}+cu130", torch::BUILT_WITH));
    place.file(&format!("{name}/__init__.py"), "");
    build("loaded.c", &format!("{folder}/lib/libtorch_cuda.so"));
    folder
}

/// Who reads a run with a GPU in the machine loads a library of their own choice: neither the one that the run's configuration
/// names, nor one that lies in the working directory.
#[test]
fn readers_load_no_library_that_somebody_else_chose() {
    let place = Place::new();
    let run = place.path("run");
    support::done(&["run", "--config", &place.config(2, 1), "--run", &run]);
    build("driver.c", &place.path("driver/libcuda.so.1"));
    let theirs = telling_libtorch(&place, "theirs");
    telling_libtorch(&place, "here/torch");
    let loaded = PathBuf::from(place.path("loaded"));
    let (data, path) = (place.path("data/held-out"), std::env::var("LD_LIBRARY_PATH").unwrap_or_default());
    let reads = |more: &[(&str, String)]| {
        let readers = [vec!["eval", &run, "--data", &data], vec!["fill-mask", &run, "the [MASK]"]];
        readers.map(|line| {
            let _ = std::fs::remove_file(&loaded);
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lambert-worker"));
            command.args(line).current_dir(place.path("here")).env("LAMBERT_TEST_LOADED", &loaded);
            command.env("LD_LIBRARY_PATH", format!("{}:{path}", place.path("driver"))).envs(more.iter().cloned());
            let output = command.output().unwrap();
            (loaded.exists(), String::from_utf8_lossy(&output.stderr).into_owned())
        })
    };
    for (loaded, said) in reads(&[]) {
        assert!(!loaded, "a library of the working directory was loaded: {said}");
    }
    let text = std::fs::read_to_string(format!("{run}/run.toml")).unwrap();
    let named = text.replacen("[device]\n", &format!("[device]\nlibtorch = {theirs:?}\n"), 1);
    assert_ne!(named, text);
    std::fs::write(format!("{run}/run.toml"), named).unwrap();
    for (loaded, said) in reads(&[]) {
        assert!(!loaded, "the library that the run names was loaded: {said}");
    }
    // One's own choices still count.
    for own in [("LAMBERT_LIBTORCH", theirs), ("PYTHONPATH", place.path("here"))] {
        for (loaded, said) in reads(std::slice::from_ref(&own)) {
            assert!(loaded, "{own:?}: {said}");
        }
    }
}

/// The real library loads without a driver, and finds no card.
#[test]
fn the_cuda_half_of_libtorch_loads() {
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
    // Its own words; the other half knows no such device.
    let made = torch::guard(|| tch::Tensor::zeros([1], (tch::Kind::Float, tch::Device::Cuda(0))));
    assert!(
        made.as_ref().is_ok() || made.as_ref().is_err_and(|error| error.to_string().contains("no NVIDIA driver")),
        "{made:?}"
    );
    assert!(found.nvidia_folders().iter().any(|folder| folder.join("libnvrtc.so.13").exists()));
    assert!(found.nvidia_folders().iter().any(|folder| folder.join("libnccl.so.2").exists()));
}

/// What `lambert-worker bench` prints of a stage, and what a user gets wrong.
#[test]
fn a_stage_is_measured() {
    let place = Place::new();
    let config = place.config(9, 1);
    let bench = |more: &[&str]| {
        let line = [&["bench", "--config", &config, "--steps", "3", "--warmup", "1"][..], more].concat();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_lambert-worker")).args(line).output().unwrap();
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
    assert!(code == Some(0) && out.contains("8 samples, ") && out.contains(" % of "), "{out}");
    let (code, _, err) = bench(&["--stage", "1"]);
    assert!(code == Some(2) && err.contains("--stage 1: expected 0 to 0"), "{err}");
    let (code, _, err) = bench(&["--set", "stage.0.data=\"/nowhere\""]);
    assert!(code == Some(2) && err.contains("/nowhere"), "{err}");
}
