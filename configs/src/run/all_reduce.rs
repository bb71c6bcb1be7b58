//! Gradient all-reduce.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Communication library for gradients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// NCCL between GPUs, MPI between CPUs, none for a single rank.
    #[default]
    Auto,
    /// Single rank without communication.
    Local,
    /// MPI all-reduce. Gradients on a GPU are first copied to pinned host memory.
    Mpi,
    /// NCCL all-reduce, one GPU per rank. Other operations use MPI.
    Nccl,
}

/// Wire format of gradients, and of the updates of Muon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReduceDtype {
    /// fp32, unchanged.
    #[default]
    Fp32,
    /// Rounded to bf16, which halves the traffic.
    Bf16,
}

/// Gradient all-reduce.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AllReduce {
    /// Communication library for gradients.
    pub backend: Backend,
    /// Size of a gradient bucket, MB. The all-reduce of a bucket starts as soon as its gradients are final.
    ///
    /// Absent: 100 with NCCL, otherwise 25.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket_mb: Option<f64>,
    /// Wire format of gradients. MPI accumulates in fp32, NCCL in this format.
    ///
    /// It is also the format in which Muon sums its updates over the ranks. The updates of `optimizer.muon.precision = "bf16"`
    /// are bf16 numbers, so `bf16` does not change them. With `"fp32"`, it rounds them.
    pub dtype: ReduceDtype,
    /// Makes results bitwise identical for every number of ranks.
    ///
    /// This is true on CPUs of one type with the same `device.threads`. For any number of ranks, the global batch is
    /// split into twelve shards, and the gradients of the shards are summed exactly. Training is slower and takes 16
    /// more bytes of memory per parameter.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(!skip_serializing_if)]
    pub canonical: bool,
    /// Overlaps gradient communication with the backward pass.
    ///
    /// Absent: true with NCCL, with several hosts, or if the host has more CPUs than its ranks have threads. Without effect if MPI
    /// sums gradients of GPUs: it sums them in host memory, after the pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<bool>,
}

impl Default for AllReduce {
    fn default() -> Self {
        Self { backend: Backend::Auto, bucket_mb: None, dtype: ReduceDtype::Fp32, canonical: false, overlap: None }
    }
}

/// Number of shards of a global batch in canonical mode. It is divisible by 1, 2, 3, 4, 6 and 12 ranks.
pub const CANONICAL_SHARDS: usize = 12;

impl AllReduce {
    /// Returns the number of shards of a global batch for `world` ranks.
    pub fn shards(&self, world: usize) -> usize {
        if self.canonical { CANONICAL_SHARDS } else { world }
    }

    /// Returns the number of elements in a gradient bucket of [`AllReduce::bucket_mb`], at least 1. `uses_nccl` is true if NCCL
    /// sums the gradients: each of its calls costs more, and it needs larger buckets for the full bandwidth.
    pub fn bucket_elements(&self, uses_nccl: bool) -> usize {
        let megabytes = self.bucket_mb.unwrap_or(if uses_nccl { 100.0 } else { 25.0 });
        (megabytes * 1e6 / size_of::<f32>() as f64).max(1.0) as usize
    }
}
