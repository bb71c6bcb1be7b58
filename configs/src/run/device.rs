//! Device of each rank.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Device that stores tensors and computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// A GPU if a driver reports a GPU, otherwise the CPU. A reported GPU must be usable.
    #[default]
    Auto,
    /// CPU.
    Cpu,
    /// CUDA GPU.
    Cuda,
}

impl DeviceKind {
    /// Names in configurations and on the command line.
    pub const NAMES: [&str; 3] = ["auto", "cpu", "cuda"];

    /// Name of the kind.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Returns the kind with this name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        let place = Self::NAMES.iter().position(|other| *other == name)?;
        Some([Self::Auto, Self::Cpu, Self::Cuda][place])
    }
}

/// Removal of the padding between the samples of a micro-batch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unpadded {
    /// `always` on a GPU of compute capability 8.0 or later with `model.precision = "bf16"`, if the model supports it;
    /// otherwise `never`.
    #[default]
    Auto,
    /// The samples of a micro-batch follow each other without padding. Micro-batches are larger, because samples of any
    /// lengths share one. Dropout of attention weights is drawn as with `model.attention = "fused"`.
    Always,
    /// Samples of similar lengths are padded to the same length.
    Never,
}

impl Unpadded {
    fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

/// Device of each rank, and its CPU threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Device {
    /// Device that stores tensors and computes.
    pub kind: DeviceKind,
    /// Folder of the CUDA build of libtorch on each host.
    ///
    /// Empty: the value of `LAMBERT_LIBTORCH`, lib/ beside the program, the installed Python package torch, or the
    /// download of `cluster/setup.sh --cuda`.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(!skip_serializing_if)]
    pub libtorch: String,
    /// Lets the ranks of a host share a GPU.
    ///
    /// Requires `cluster.all_reduce.backend = "mpi"`, or with NCCL a different `NCCL_HOSTID` for each of these ranks.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(!skip_serializing_if)]
    pub share: bool,
    /// Uses deterministic GPU algorithms, which are slower. CPU computation is always deterministic.
    ///
    /// With this setting, an interrupted run and an uninterrupted run end with bitwise equal weights. NCCL does not use
    /// its NVLS algorithms.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(!skip_serializing_if)]
    pub deterministic: bool,
    /// Removes the padding between the samples of a micro-batch.
    #[serde(skip_serializing_if = "Unpadded::is_auto")]
    #[schemars(!skip_serializing_if)]
    pub unpadded: Unpadded,
    /// CPU threads per rank.
    pub threads: usize,
}

impl Default for Device {
    fn default() -> Self {
        Self {
            kind: DeviceKind::Auto,
            libtorch: String::new(),
            share: false,
            deterministic: false,
            unpadded: Unpadded::Auto,
            threads: 1,
        }
    }
}
