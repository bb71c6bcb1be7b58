//! The report of a benchmark.

use std::fmt::{Display, Formatter};

use serde::Serialize;

/// The measurements of a stage, one JSON object. Times are medians; rates are those of steps that are not interrupted to be
/// timed by phase.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// The device.
    pub device: String,
    /// The batches.
    #[serde(flatten)]
    pub batch: BatchSize,
    /// Seconds of a step: the least, the median, the most.
    pub seconds: [f64; 3],
    /// Samples a second.
    pub samples_per_second: f64,
    /// Floating-point operations.
    #[serde(flatten)]
    pub flops: FlopRates,
    /// The phases of a step.
    #[serde(flatten)]
    pub phases: PhaseShares,
    /// Memory.
    #[serde(flatten)]
    pub memory: MemoryUse,
}

/// The size of a step's batch.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct BatchSize {
    /// Samples of a step.
    pub samples: usize,
    /// Tokens of a step without padding, the mean of all.
    pub tokens: f64,
    /// Padding, a share of the tokens that were computed.
    pub padding: f64,
}

/// Floating-point operations per second, in units of 10^12.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct FlopRates {
    /// Useful operations.
    pub teraflops: f64,
    /// Operations of a product of two large square matrices in the model's compute dtype.
    pub peak_teraflops: f64,
    /// `teraflops` over `peak_teraflops`.
    pub utilization: f64,
}

/// The phases of a step, as shares of its time.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct PhaseShares {
    /// Waiting for samples.
    pub data_wait: f64,
    /// Forward and backward passes.
    pub forward_backward: f64,
    /// The update.
    pub optimizer: f64,
    /// Share of the forward and backward passes after which the processor has given all of them to the device. Where it is
    /// nearly 1 the device waits for the processor.
    pub enqueued: f64,
}

/// Memory, bytes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MemoryUse {
    /// The peak: of a card's memory, as libtorch has allocated it; else of the process.
    pub peak_memory: u64,
    /// A card's memory by the formula for the stage.
    pub needed_memory: Option<u64>,
}

impl Display for Measured {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let [least, median, most] = self.seconds;
        writeln!(f, "device            {}", self.device)?;
        let BatchSize { samples, tokens, padding } = self.batch;
        writeln!(f, "step              {samples} samples, {tokens:.0} tokens, {:.1} % padding", 100.0 * padding)?;
        writeln!(f, "seconds           {median:.4} ({least:.4} to {most:.4})")?;
        writeln!(f, "samples/s         {:.1}", self.samples_per_second)?;
        let FlopRates { teraflops, peak_teraflops, utilization } = self.flops;
        writeln!(f, "TFLOP/s           {teraflops:.3}, {:.1} % of {peak_teraflops:.3}", 100.0 * utilization)?;
        writeln!(f, "data wait         {:.1} %", 100.0 * self.phases.data_wait)?;
        writeln!(f, "forward, backward {:.1} %", 100.0 * self.phases.forward_backward)?;
        writeln!(f, "optimizer         {:.1} %", 100.0 * self.phases.optimizer)?;
        writeln!(f, "enqueued after    {:.1} % of forward and backward", 100.0 * self.phases.enqueued)?;
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        write!(f, "peak memory       {:.2} GiB", gib(self.memory.peak_memory))?;
        self.memory.needed_memory.map_or(Ok(()), |needed| write!(f, ", {:.2} by formula", gib(needed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_flat_object() {
        let measured = Measured {
            device: "2 threads of a processor".to_owned(),
            batch: BatchSize { samples: 8, tokens: 80.5, padding: 0.25 },
            seconds: [1.0, 2.0, 3.0],
            samples_per_second: 4.0,
            flops: FlopRates { teraflops: 0.5, peak_teraflops: 2.0, utilization: 0.25 },
            phases: PhaseShares { data_wait: 0.125, forward_backward: 0.75, optimizer: 0.0625, enqueued: 0.5 },
            memory: MemoryUse { peak_memory: 1 << 30, needed_memory: None },
        };
        let expected = concat!(
            r#"{"device":"2 threads of a processor","samples":8,"tokens":80.5,"padding":0.25,"seconds":[1.0,2.0,3.0],"#,
            r#""samples_per_second":4.0,"teraflops":0.5,"peak_teraflops":2.0,"utilization":0.25,"data_wait":0.125,"#,
            r#""forward_backward":0.75,"optimizer":0.0625,"enqueued":0.5,"peak_memory":1073741824,"needed_memory":null}"#,
        );
        assert_eq!(serde_json::to_string(&measured).unwrap(), expected);
    }
}
