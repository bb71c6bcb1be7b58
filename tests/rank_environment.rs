//! The environment of the ranks: what libraries of a GPU read there.

use std::process::Command;

use crate::support::{Place, with_worker};

const NAMES: [&str; 6] = [
    "CUBLAS_WORKSPACE_CONFIG",
    "NCCL_ALGO",
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_RUNTIME_CONNECT",
];

/// What of [`NAMES`] rank 1 of a run has, as `NAME=VALUE`.
fn of_rank_1(settings: &[&str], environment: &[(&str, &str)]) -> Vec<String> {
    let place = Place::new();
    let script = format!("env >{}.$OMPI_COMM_WORLD_RANK; exit 2", place.path("env"));
    let (config, run) = (place.config(9, 2), place.path("run"));
    let mut command = Command::new(with_worker(&place, &script));
    command.args(["run", "--config", &config, "--run", &run]).envs(environment.iter().copied());
    command.args(settings.iter().flat_map(|setting| ["--set", setting]));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(place.path("env.1")).unwrap();
    let is_ours = |line: &&str| NAMES.iter().any(|name| line.starts_with(&format!("{name}=")));
    let mut found: Vec<String> = text.lines().filter(is_ours).map(str::to_owned).collect();
    found.sort();
    found
}

#[test]
fn ranks_that_may_have_a_gpu_are_prepared_for_its_libraries() {
    let gpu = r#"device.kind="auto""#;
    let log = ["NCCL_DEBUG=INFO", "NCCL_DEBUG_FILE=/proc/self/fd/250", "NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH"];
    let found = of_rank_1(&[gpu, "device.deterministic=true"], &[]);
    let fixed = ["CUBLAS_WORKSPACE_CONFIG=:4096:8", "NCCL_ALGO=^NVLS,NVLSTree"];
    assert_eq!(found, [&fixed[..], &log, &["NCCL_RUNTIME_CONNECT=0"]].concat());
    // What the user has set goes before, and a deterministic order has its price.
    let found = of_rank_1(&[gpu], &[("NCCL_DEBUG", "WARN"), ("NCCL_ALGO", "Ring")]);
    assert_eq!(found, ["NCCL_ALGO=Ring", "NCCL_DEBUG=WARN", "NCCL_RUNTIME_CONNECT=0"]);
    assert_eq!(of_rank_1(&[r#"device.kind="cpu""#], &[]), [""; 0]);
}

/// Commands without a coordinator prepare themselves, before they have threads.
#[test]
fn a_worker_by_itself_is_prepared_too() {
    let told = |environment: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lambert-worker"));
        command.args(["eval", "/nowhere", "--data", "/nowhere"]).env("RUST_LOG", "debug");
        for name in NAMES {
            command.env_remove(name);
        }
        let output = command.envs(environment.iter().copied()).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        NAMES.map(|name| log.contains(&format!("set {name}=")))
    };
    assert_eq!(told(&[]), [true; 6]);
    assert_eq!(told(&[("NCCL_DEBUG", "WARN"), ("NCCL_ALGO", "Ring")]), [true, false, false, false, false, true]);
    assert_eq!(told(&[("LAMBERT_CONTROL_URL", "http://127.0.0.1:1")]), [false; 6], "its coordinator has done that");
}
