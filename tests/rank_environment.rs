//! Environment variables that the ranks set for GPU libraries.

use std::process::Command;

use crate::support::{TestDir, with_worker};

const NAMES: [&str; 8] = [
    "CUBLAS_WORKSPACE_CONFIG",
    "NCCL_ALGO",
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_NVLS_ENABLE",
    "NCCL_RUNTIME_CONNECT",
    "PYTORCH_ALLOC_CONF",
];

/// Returns the variables in [`NAMES`] that rank 1 of a run has, as `NAME=VALUE`.
fn variables_of_rank_1(settings: &[&str], environment: &[(&str, &str)]) -> Vec<String> {
    let text = environment_of_rank_1(settings, environment);
    let is_ours = |line: &&str| NAMES.iter().any(|name| line.starts_with(&format!("{name}=")));
    let mut found: Vec<String> = text.lines().filter(is_ours).map(str::to_owned).collect();
    found.sort();
    found
}

/// Returns the output of `env` in rank 1 of a run.
fn environment_of_rank_1(settings: &[&str], environment: &[(&str, &str)]) -> String {
    let dir = TestDir::new();
    let script = format!("env >{}.$OMPI_COMM_WORLD_RANK; exit 2", dir.path("env"));
    let (config, run) = (dir.config(9, 2), dir.path("run"));
    let mut command = Command::new(with_worker(&dir, &script));
    command.args(["run", "--config", &config, "--run", &run]).envs(environment.iter().copied());
    command.args(settings.iter().flat_map(|setting| ["--set", setting]));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::read_to_string(dir.path("env.1")).unwrap()
}

#[test]
fn ranks_with_a_gpu_have_a_port_for_the_service_of_nccl() {
    let address = |settings: &[&str], environment: &[(&str, &str)]| {
        let text = environment_of_rank_1(settings, environment);
        text.lines().find_map(|line| line.strip_prefix("NCCL_RAS_ADDR=").map(str::to_owned))
    };
    let gpu = [r#"device.kind="auto""#];
    let one = address(&gpu, &[]).unwrap();
    let port: u16 = one.strip_prefix("localhost:").unwrap().parse().unwrap();
    assert!((20_000..28_000).contains(&port), "{one}");
    assert_eq!(address(&gpu, &[("NCCL_RAS_ADDR", "localhost:9")]).as_deref(), Some("localhost:9"));
    assert_eq!(address(&[r#"device.kind="cpu""#], &[]), None);
}

#[test]
fn ranks_with_a_gpu_have_the_variables_of_its_libraries() {
    let gpu = r#"device.kind="auto""#;
    let log = ["NCCL_DEBUG=INFO", "NCCL_DEBUG_FILE=/proc/self/fd/250", "NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH"];
    let found = variables_of_rank_1(&[gpu, "device.deterministic=true"], &[]);
    let fixed = ["CUBLAS_WORKSPACE_CONFIG=:4096:8", "NCCL_ALGO=^NVLS,NVLSTree"];
    let segments = "PYTORCH_ALLOC_CONF=expandable_segments:True";
    assert_eq!(found, [&fixed[..], &log, &["NCCL_NVLS_ENABLE=0", "NCCL_RUNTIME_CONNECT=0", segments]].concat());
    // Settings of the user take precedence. Without `device.deterministic`, no variable for cuBLAS is set.
    let found = variables_of_rank_1(&[gpu], &[("NCCL_DEBUG", "WARN"), ("NCCL_ALGO", "Ring")]);
    assert_eq!(found, ["NCCL_ALGO=Ring", "NCCL_DEBUG=WARN", "NCCL_RUNTIME_CONNECT=0", segments]);
    // The older name of the allocator's variable counts, too.
    let found = variables_of_rank_1(&[gpu], &[("NCCL_DEBUG", "WARN"), ("PYTORCH_CUDA_ALLOC_CONF", "backend:native")]);
    assert_eq!(found, ["NCCL_DEBUG=WARN", "NCCL_RUNTIME_CONNECT=0"]);
    assert_eq!(variables_of_rank_1(&[r#"device.kind="cpu""#], &[]), [""; 0]);
}

/// A worker without a coordinator sets the variables itself, before it starts threads.
#[test]
fn a_worker_without_a_coordinator_sets_the_variables() {
    let variables_set = |environment: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lambert-worker"));
        command.args(["eval", "/nowhere", "--data", "/nowhere"]).env("RUST_LOG", "debug");
        for name in NAMES {
            command.env_remove(name);
        }
        let output = command.envs(environment.iter().copied()).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        NAMES.map(|name| log.contains(&format!("set {name}=")))
    };
    assert_eq!(variables_set(&[]), [true; 8]);
    assert_eq!(
        variables_set(&[("NCCL_DEBUG", "WARN"), ("NCCL_ALGO", "Ring")]),
        [true, false, false, false, false, false, true, true]
    );
    assert_eq!(
        variables_set(&[("LAMBERT_CONTROL_URL", "http://127.0.0.1:1")]),
        [false; 8],
        "set although the coordinator does that"
    );
}
