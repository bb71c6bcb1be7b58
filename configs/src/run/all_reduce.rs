//! The sum of the gradients over the ranks.

use serde::{Deserialize, Serialize};

/// The library that exchanges gradients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// NCCL between several ranks on GPUs, MPI between several on CPUs, nothing for one rank.
    #[default]
    Auto,
    /// One rank in one process.
    Local,
    /// MPI all-reduce; gradients of a GPU go through pinned main memory.
    Mpi,
    /// NCCL all-reduce between GPUs, one a rank; MPI for everything else.
    Nccl,
}

/// The format in which gradients travel between ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReduceDtype {
    /// As they are.
    #[default]
    Fp32,
    /// Rounded to bf16: half the bytes.
    Bf16,
}

/// The sum of the gradients over the ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AllReduce {
    /// The library that exchanges gradients.
    pub backend: Backend,
    /// Size of a bucket of gradients, MB; each is summed as soon as it is final.
    pub bucket_mb: f64,
    /// The format that gradients travel in; MPI adds them up in f32, NCCL in this format.
    pub dtype: ReduceDtype,
    /// Makes every world end with the same bits, on processors of one type with the same `device.threads`: the global batch is cut into
    /// twelve leaves, whatever the world, and their gradients are summed exactly. Slower, with 16 bytes a parameter more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub canonical: bool,
    /// Sends gradients while the rest of the backward pass runs, or at its end. Absent: while it runs, where NCCL sums, where
    /// ranks are on several hosts, or where their host has more processors than they have threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlap: Option<bool>,
}

impl Default for AllReduce {
    fn default() -> Self {
        Self { backend: Backend::Auto, bucket_mb: 25.0, dtype: ReduceDtype::Fp32, canonical: false, overlap: None }
    }
}

/// Parts of a global batch where every world computes alike: those of 1, 2, 3, 4, 6 and 12 ranks are equally many.
pub const LEAVES: usize = 12;

impl AllReduce {
    /// Parts that a global batch is cut into for a world of so many ranks.
    pub fn parts(&self, world: usize) -> usize {
        if self.canonical { LEAVES } else { world }
    }

    /// Gradients in a bucket of [`AllReduce::bucket_mb`]; one at least.
    pub fn bucket_elements(&self) -> usize {
        (self.bucket_mb * 1e6 / size_of::<f32>() as f64).max(1.0) as usize
    }
}
