//! Checks of this machine: the worker and its libraries, and the addresses on which the coordinator listens.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use lambert_config::run::{Backend, DeviceKind, RunConfig};

use crate::decide::{HostPool, placement};
use crate::failure::{Failure, chain};
use crate::run::control::address;
use crate::run::spec::ValidatedRun;
use crate::worker;

/// Checks that lambert-worker starts. Returns a warning if it does not, but the ranks are on other hosts.
///
/// # Errors
/// The worker does not start, and the ranks are on this host.
pub fn worker_warning(validated: &ValidatedRun) -> Result<Option<String>, Failure> {
    match worker::version(validated.worker()) {
        Ok(_) => Ok(None),
        Err(error) if *validated.host_pool() == HostPool::Here => Err(Failure::usage(error)),
        Err(error) => Ok(Some(chain(&error))),
    }
}

/// Loads the libraries of the compute device in a worker. Returns the device. `None` if the ranks compute on CPUs, or are on
/// other hosts.
///
/// # Errors
/// The device cannot be used.
pub fn device(validated: &ValidatedRun) -> Result<Option<String>, Failure> {
    let RunConfig { device, cluster, .. } = validated.config();
    if device.kind == DeviceKind::Cpu || *validated.host_pool() != HostPool::Here {
        return Ok(None);
    }
    let uses_nccl = match cluster.all_reduce.backend {
        Backend::Nccl => true,
        Backend::Auto => cluster.ranks > 1,
        Backend::Local | Backend::Mpi => false,
    };
    worker::device(validated.worker(), device, uses_nccl).map(Some).map_err(Failure::usage)
}

/// True if the kernel of this machine has loaded the NVIDIA driver.
pub fn has_gpu_driver() -> bool {
    Path::new("/proc/driver/nvidia/version").exists()
}

/// Describes why the coordinator cannot listen for the ranks, if it cannot.
pub fn control_problem(config: &RunConfig, host_pool: &HostPool) -> Option<String> {
    let placement = placement::place(host_pool, config.cluster.ranks, &BTreeSet::new());
    address::listen(&config.cluster.control, &placement).err().map(|error| chain(&error))
}

/// Warnings about addresses of servers that a run does not need.
pub fn server_warnings(config: &RunConfig) -> Vec<String> {
    let (watch, prometheus) = (&config.watch, &config.prometheus);
    let page = (!watch.url_file.is_empty() && watch.port > 0)
        .then(|| ("watch.port", watch.port.to_string(), TcpListener::bind((Ipv4Addr::LOCALHOST, watch.port))));
    let metrics = (!prometheus.address.is_empty())
        .then(|| ("prometheus.address", prometheus.address.clone(), TcpListener::bind(&prometheus.address)));
    let warning = |(key, value, bound): (&str, String, std::io::Result<TcpListener>)| {
        let error = bound.err()?;
        Some(format!("{key}: cannot listen on {value}: {error}; training would continue without this server"))
    };
    page.into_iter().chain(metrics).filter_map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_in_use_are_warned_about() {
        let held = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let [page, metrics] = held.each_ref().map(|listener| listener.local_addr().unwrap());
        let mut config = RunConfig::default();
        assert_eq!(server_warnings(&config), [""; 0]);
        (config.watch.url_file, config.watch.port) = ("url".to_owned(), page.port());
        config.prometheus.address = metrics.to_string();
        let warnings = server_warnings(&config);
        assert!(warnings[0].starts_with(&format!("watch.port: cannot listen on {}: ", page.port())), "{warnings:?}");
        assert!(warnings[1].starts_with(&format!("prometheus.address: cannot listen on {metrics}: ")), "{warnings:?}");
        drop(held);
        assert_eq!(server_warnings(&config), [""; 0]);
    }
}
