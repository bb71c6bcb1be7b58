//! Environment variables passed to ranks on other hosts, and variables set for all ranks. The command line of mpirun
//! contains only the names of variables. mpirun itself sends the values.

use lambert_config::gpu_environment;
use lambert_config::run::{Device, DeviceKind};
use lambert_control::{TOKEN_VARIABLE, URL_VARIABLE};

/// Variables that are always passed on: credentials and endpoints of stores, certificates, logging and library
/// settings. mpirun itself forwards only the `OMPI_MCA_*` variables that concern mpirun. With this list, ranks get all
/// `OMPI_MCA_*` variables.
const USUAL: [&str; 15] = [
    "AWS_*",
    "GOOGLE_*",
    "AZURE_*",
    "SSL_CERT_*",
    "RUST_LOG",
    "LAMBERT_*",
    "NCCL_*",
    "CUBLAS_WORKSPACE_CONFIG",
    "UCX_*",
    "FI_*",
    "OMPI_MCA_*",
    "OMP_*",
    "PYTORCH_*",
    "LD_LIBRARY_PATH",
    "RUST_BACKTRACE",
];

/// Default variables for ranks on GPUs, without those for which `is_set` is true.
pub fn for_gpus<'a>(device: &Device, is_set: impl Fn(&str) -> bool) -> Vec<(&'a str, &'a str)> {
    match device.kind {
        DeviceKind::Cpu => Vec::new(),
        _ => gpu_environment::defaults(device.deterministic, is_set),
    }
}

/// Variable with the address of NCCL's RAS service.
pub const RAS_ADDRESS: &str = "NCCL_RAS_ADDR";

/// Returns the value of [`RAS_ADDRESS`] for ranks on GPUs, unless it is set. At the same port, a process of another run on the host
/// could answer, so the port depends on the run and the attempt. The ports are below those that systems give to clients.
pub fn ras_address(device: &Device, (run, attempt): (&str, u32), is_set: impl Fn(&str) -> bool) -> Option<String> {
    let port = 20_000 + crc32c::crc32c(format!("{run} {attempt}").as_bytes()) % 8_000;
    (device.kind != DeviceKind::Cpu && !is_set(RAS_ADDRESS)).then(|| format!("localhost:{port}"))
}

/// Returns the names in `present` that match a pattern in `USUAL` or `more`, and the variables of the control server.
pub fn passed_on(present: impl Iterator<Item = String>, more: &[String]) -> Vec<String> {
    let patterns: Vec<&str> = USUAL.into_iter().chain(more.iter().map(String::as_str)).collect();
    let mut names: Vec<String> =
        present.filter(|name| patterns.iter().any(|pattern| matches(pattern, name)) && is_plain(name)).collect();
    names.extend([URL_VARIABLE, TOKEN_VARIABLE].map(str::to_owned));
    names.sort_unstable();
    names.dedup();
    names
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

/// True if mpirun cannot misinterpret the name on its command line.
fn is_plain(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_have_different_ports() {
        let address = |run: &str, attempt: u32| ras_address(&Device::default(), (run, attempt), |_| false).unwrap();
        assert_eq!(address("a", 1), address("a", 1));
        assert!(address("a", 1) != address("a", 2) && address("a", 1) != address("b", 1));
        assert_eq!(ras_address(&Device::default(), ("a", 1), |name| name == RAS_ADDRESS), None);
    }

    #[test]
    fn variables_are_exported_by_pattern() {
        let present =
            ["AWS_SECRET_ACCESS_KEY", "PATH", "OMP_NUM_THREADS", "SSL_CERT_FILE", "RUST_LOG", "RUST_LOGS", "MY_KEY"];
        let odd = ["AWS_X=Y", "LAMBERT__CLUSTER__RANKS", "LAMBERT_CONTROL_TOKEN"];
        let names = present.iter().chain(&odd).map(|name| (*name).to_owned());
        assert_eq!(
            passed_on(names, &["MY_*".to_owned()]),
            [
                "AWS_SECRET_ACCESS_KEY",
                "LAMBERT_CONTROL_TOKEN",
                "LAMBERT_CONTROL_URL",
                "LAMBERT__CLUSTER__RANKS",
                "MY_KEY",
                "OMP_NUM_THREADS",
                "RUST_LOG",
                "SSL_CERT_FILE"
            ]
        );
    }
}
