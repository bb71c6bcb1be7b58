//! Benchmark report.

use std::fmt::{Display, Formatter};

use serde::Serialize;

/// Measurements of a stage, serialized as one JSON object. Times and rates are medians.
#[derive(Debug, Clone, Serialize)]
pub struct BenchReport {
    pub device: String,
    /// Batch size.
    #[serde(flatten)]
    pub batch: BatchSize,
    /// Minimum, median and maximum time of a step, seconds.
    pub seconds: [f64; 3],
    pub samples_per_second: f64,
    /// FLOP rates.
    #[serde(flatten)]
    pub flops: FlopRates,
    /// Phases of a step.
    #[serde(flatten)]
    pub phases: PhaseShares,
    /// Memory use.
    #[serde(flatten)]
    pub memory: MemoryUse,
}

/// Batch size of a step.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct BatchSize {
    /// Samples per step.
    pub samples: usize,
    /// Mean tokens per step, without padding.
    pub tokens: f64,
    /// Fraction of padding among the computed tokens.
    pub padding: f64,
}

/// FLOP rates, TFLOP/s.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct FlopRates {
    /// Achieved rate. Operations on padding are not counted.
    pub teraflops: f64,
    /// Measured rate of a large square matmul in the compute dtype of the model.
    pub peak_teraflops: f64,
    /// `teraflops` / `peak_teraflops`.
    pub utilization: f64,
    /// Peak rate in the data sheet of the GPU, if it is known.
    pub datasheet_teraflops: Option<f64>,
    /// FLOPs of the orthogonalizations of Muon in an update; 0 with other optimizers. Not in `teraflops`.
    pub optimizer_flops: f64,
}

/// Time of each phase of a step, as a fraction of the time of the step.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PhaseShares {
    /// Time spent waiting for samples.
    pub data_wait: f64,
    /// Forward and backward passes.
    pub forward_backward: f64,
    /// Optimizer update.
    pub optimizer: f64,
    /// Fraction of the forward and backward time after which the CPU has enqueued all kernels of these passes. If the
    /// fraction is near 1, the GPU waits for the CPU.
    pub enqueued: f64,
}

/// Memory use, bytes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MemoryUse {
    /// Peak GPU memory allocated by libtorch, or peak resident memory of the process on a CPU.
    pub peak_memory: u64,
    /// Estimated GPU memory of the stage; `None` on a CPU.
    pub needed_memory: Option<u64>,
}

impl Display for BenchReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let [least, median, most] = self.seconds;
        writeln!(f, "device            {}", self.device)?;
        let BatchSize { samples, tokens, padding } = self.batch;
        writeln!(f, "step              {samples} samples, {tokens:.0} tokens, {:.1}% padding", 100.0 * padding)?;
        writeln!(f, "seconds           {median:.4} ({least:.4} to {most:.4})")?;
        writeln!(f, "samples/s         {:.1}", self.samples_per_second)?;
        let FlopRates { teraflops, peak_teraflops, utilization, datasheet_teraflops, .. } = self.flops;
        write!(f, "TFLOP/s           {teraflops:.3}, {:.1}% of {peak_teraflops:.3}", 100.0 * utilization)?;
        match datasheet_teraflops {
            Some(peak) => writeln!(f, " measured, {:.1}% of {peak:.0} in the data sheet", 100.0 * teraflops / peak)?,
            None => writeln!(f)?,
        }
        writeln!(f, "data wait         {:.1}%", 100.0 * self.phases.data_wait)?;
        writeln!(f, "forward, backward {:.1}%", 100.0 * self.phases.forward_backward)?;
        writeln!(f, "optimizer         {:.1}%", 100.0 * self.phases.optimizer)?;
        writeln!(f, "enqueued after    {:.1}% of forward and backward", 100.0 * self.phases.enqueued)?;
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        write!(f, "peak memory       {:.2} GiB", gib(self.memory.peak_memory))?;
        self.memory.needed_memory.map_or(Ok(()), |needed| write!(f, ", {:.2} GiB estimated", gib(needed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_serializes_as_one_flat_object() {
        let measured = BenchReport {
            device: "CPU, 2 threads".to_owned(),
            batch: BatchSize { samples: 8, tokens: 80.5, padding: 0.25 },
            seconds: [1.0, 2.0, 3.0],
            samples_per_second: 4.0,
            flops: FlopRates {
                teraflops: 0.5,
                peak_teraflops: 2.0,
                utilization: 0.25,
                datasheet_teraflops: None,
                optimizer_flops: 0.0,
            },
            phases: PhaseShares { data_wait: 0.125, forward_backward: 0.75, optimizer: 0.0625, enqueued: 0.5 },
            memory: MemoryUse { peak_memory: 1 << 30, needed_memory: None },
        };
        let expected = concat!(
            r#"{"device":"CPU, 2 threads","samples":8,"tokens":80.5,"padding":0.25,"seconds":[1.0,2.0,3.0],"#,
            r#""samples_per_second":4.0,"teraflops":0.5,"peak_teraflops":2.0,"utilization":0.25,"datasheet_teraflops":null,"#,
            r#""optimizer_flops":0.0,"data_wait":0.125,"forward_backward":0.75,"optimizer":0.0625,"enqueued":0.5,"peak_memory":1073741824,"needed_memory":null}"#,
        );
        assert_eq!(serde_json::to_string(&measured).unwrap(), expected);
        assert!(measured.to_string().contains("\nTFLOP/s           0.500, 25.0% of 2.000\n"), "{measured}");
        let flops = FlopRates { teraflops: 396.0, peak_teraflops: 792.0, utilization: 0.5, ..measured.flops };
        let flops = FlopRates { datasheet_teraflops: Some(990.0), ..flops };
        let line = "\nTFLOP/s           396.000, 50.0% of 792.000 measured, 40.0% of 990 in the data sheet\n";
        let measured = BenchReport { flops, ..measured };
        assert!(measured.to_string().contains(line), "{measured}");
    }
}
