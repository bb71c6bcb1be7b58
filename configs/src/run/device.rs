//! The device of each rank.

use serde::{Deserialize, Serialize};

/// Where tensors live.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A GPU where there is a driver with one, which then has to be usable; else main memory.
    #[default]
    Auto,
    /// Main memory.
    Cpu,
    /// A GPU.
    Cuda,
}

impl DeviceKind {
    /// Their names in a configuration and on a command line.
    pub const NAMES: [&str; 3] = ["auto", "cpu", "cuda"];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        let place = Self::NAMES.iter().position(|other| *other == name)?;
        Some([Self::Auto, Self::Cpu, Self::Cuda][place])
    }
}

/// The device of each rank, and its CPU threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Device {
    /// Where tensors live.
    pub kind: DeviceKind,
    /// The folder of the CUDA half of libtorch on each host; empty: what `LAMBERT_LIBTORCH` names, lib/ beside the program, or
    /// the installed Python package torch, or what cluster/setup.sh --cuda has fetched.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub libtorch: String,
    /// Lets ranks of a host share a GPU; with `cluster.all_reduce.backend = "mpi"`, because NCCL takes one rank a GPU.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub share: bool,
    /// Makes a GPU add up in one order, so that a run that was interrupted ends with the bits of one that was not; slower.
    /// Main memory always does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deterministic: bool,
    /// CPU threads of a rank.
    pub threads: usize,
}

impl Default for Device {
    fn default() -> Self {
        Self { kind: DeviceKind::Auto, libtorch: String::new(), share: false, deterministic: false, threads: 1 }
    }
}
