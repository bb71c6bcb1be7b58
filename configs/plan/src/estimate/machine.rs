//! Machines: published GPUs and benchmark results.

use lambert_config::run::Precision;

use crate::scaling::Link;

/// Memory traffic of an optimizer update, bytes per parameter (LAMB, docs/experiments/optimizers.md).
const UPDATE_BYTES: f64 = 44.0;

/// Published dense peak rates of a GPU, per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuModel {
    /// Name on the command line.
    pub name: &'static str,
    /// FLOP/s in bf16, tf32 and fp32.
    pub peaks: [f64; 3],
    /// Memory, bytes.
    pub memory: u64,
    /// Memory bandwidth, bytes per second.
    pub memory_bandwidth: f64,
    /// NVLink bandwidth in each direction, bytes per second.
    pub nvlink: f64,
    /// Network bandwidth of a host of eight GPUs in each direction, bytes per second.
    pub network: f64,
    /// Assumed fraction of the peak that training reaches.
    pub utilization: f64,
}

/// Known GPUs. For Hopper and later GPUs, datasheets state tensor-core rates with sparsity. The dense rate is half of
/// the stated rate. The NVLink bandwidth in datasheets is the sum of both directions.
///
/// Utilizations are assumptions. lambert reaches 0.42 on an H100 with BERT-large and 128 tokens, and 0.40 with 512
/// tokens (docs/experiments/gpu-speed.md). The utilization of the A100 follows from
/// a published throughput of BERT-large: 580 samples of 128 tokens per second (NVIDIA DeepLearningExamples). A sample
/// takes 0.24 TFLOP, and the peak is 312 TFLOP/s. The utilization is thus 580 * 0.24 / 312.
pub const GPUS: [GpuModel; 4] = [
    // "NVIDIA A100 Tensor Core GPU" datasheet, 80GB SXM; "NVIDIA DGX A100" datasheet: 8 x 200 Gbit/s.
    GpuModel {
        name: "a100",
        peaks: [312e12, 156e12, 19.5e12],
        memory: 80_000_000_000,
        memory_bandwidth: 2.039e12,
        nvlink: 300e9,
        network: 200e9,
        utilization: 0.45,
    },
    // "NVIDIA H100 Tensor Core GPU" datasheet, SXM; "NVIDIA DGX H100" datasheet: 8 x 400 Gbit/s.
    GpuModel {
        name: "h100",
        peaks: [989e12, 494.5e12, 67e12],
        memory: 80_000_000_000,
        memory_bandwidth: 3.35e12,
        nvlink: 450e9,
        network: 400e9,
        utilization: 0.4,
    },
    // "NVIDIA H200 Tensor Core GPU" datasheet, SXM; network as in DGX H100.
    GpuModel {
        name: "h200",
        peaks: [989e12, 494.5e12, 67e12],
        memory: 141_000_000_000,
        memory_bandwidth: 4.8e12,
        nvlink: 450e9,
        network: 400e9,
        utilization: 0.4,
    },
    // "NVIDIA Blackwell Architecture Technical Brief", HGX B200; "NVIDIA DGX B200" datasheet: 1,440 GB, 8 x 400 Gbit/s.
    GpuModel {
        name: "b200",
        peaks: [2250e12, 1100e12, 80e12],
        memory: 180_000_000_000,
        memory_bandwidth: 8e12,
        nvlink: 900e9,
        network: 400e9,
        utilization: 0.35,
    },
];

impl GpuModel {
    /// Returns the model of a product name of the driver, such as `NVIDIA H100 80GB HBM3`. `None` for other models, and for
    /// versions with lower peaks (PCIe and NVL).
    pub fn of_product(product: &str) -> Option<&'static Self> {
        let product = product.to_ascii_lowercase();
        let words: Vec<&str> = product.split(|character: char| !character.is_ascii_alphanumeric()).collect();
        let is_slower = |model: &Self| model.name != "a100" && (words.contains(&"pcie") || words.contains(&"nvl"));
        GPUS.iter().find(|model| words.contains(&model.name) && !is_slower(model))
    }

    /// Returns the peak rate in a precision, FLOP/s.
    pub fn peak(&self, precision: Precision) -> f64 {
        let [bf16, tf32, fp32] = self.peaks;
        match precision {
            Precision::Bf16 => bf16,
            Precision::Tf32 => tf32,
            Precision::Fp32 => fp32,
        }
    }
}

/// Compute rate of a rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Compute {
    /// Fraction of a GPU's peak.
    Published {
        /// The GPU.
        gpu: GpuModel,
        /// Fraction of its peak.
        utilization: f64,
    },
    /// Benchmark of the run's model.
    Measured {
        /// FLOP/s of forward and backward passes, without padding.
        flops_per_second: f64,
        /// Duration of an update, seconds.
        update_seconds: f64,
    },
}

impl Compute {
    /// Returns FLOP/s of forward and backward passes.
    pub fn flops_per_second(&self, precision: Precision) -> f64 {
        match self {
            Self::Published { gpu, utilization } => utilization * gpu.peak(precision),
            Self::Measured { flops_per_second, .. } => *flops_per_second,
        }
    }

    /// Returns the duration of an optimizer update of `parameters` parameters, seconds.
    pub fn update_seconds(&self, parameters: u64) -> f64 {
        match self {
            Self::Published { gpu, .. } => UPDATE_BYTES * parameters as f64 / gpu.memory_bandwidth,
            Self::Measured { update_seconds, .. } => *update_seconds,
        }
    }
}

/// Machine on which a run trains. All hosts are equal.
#[derive(Debug, Clone, PartialEq)]
pub struct Machine {
    /// Name for messages.
    pub name: String,
    /// Compute rate of a rank.
    pub compute: Compute,
    /// Maximum number of ranks per host.
    pub ranks_per_host: usize,
    /// Link between ranks of a host.
    pub intra_host: Link,
    /// Link between hosts.
    pub inter_host: Link,
}

impl Machine {
    /// Returns a machine with eight GPUs of this model per host. The latency of a message is 5 microseconds.
    pub fn published(gpu: GpuModel, utilization: Option<f64>) -> Self {
        let utilization = utilization.unwrap_or(gpu.utilization);
        let link = |bandwidth| Link { bandwidth, latency: 5e-6 };
        Self {
            name: gpu.name.to_owned(),
            compute: Compute::Published { gpu, utilization },
            ranks_per_host: 8,
            intra_host: link(gpu.nvlink),
            inter_host: link(gpu.network),
        }
    }

    /// Returns a machine with `ranks_per_host` ranks per host, which have the measured rates. The links are
    /// assumptions: shared memory at 3.6 GB/s (docs/experiments/collectives.md) and a network of 10 Gbit/s.
    pub fn measured(name: String, flops_per_second: f64, update_seconds: f64, ranks_per_host: usize) -> Self {
        Self {
            name,
            compute: Compute::Measured { flops_per_second, update_seconds },
            ranks_per_host: ranks_per_host.max(1),
            intra_host: Link { bandwidth: 3.6e9, latency: 0.16e-3 },
            inter_host: Link { bandwidth: 1.25e9, latency: 0.16e-3 },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn product_names_have_models() {
        let name = |product| GpuModel::of_product(product).map(|model| model.name);
        assert_eq!(name("NVIDIA H100 80GB HBM3"), Some("h100"));
        assert_eq!(name("NVIDIA A100-SXM4-80GB"), Some("a100"));
        assert_eq!(name("NVIDIA A100 80GB PCIe"), Some("a100"));
        assert_eq!(name("NVIDIA H200"), Some("h200"));
        for other in ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA GeForce RTX 4090", "NVIDIA H1000", ""] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
