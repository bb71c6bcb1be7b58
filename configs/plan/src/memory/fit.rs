//! Checks that micro-batches fit into GPU memory, and chooses the size for `micro_batch_tokens = "auto"`.

use serde::{Deserialize, Serialize};

use super::{DatasetShape, gpu, uses_gpu};
use crate::architecture::Architecture;
use lambert_config::load::ConfigIssue;
use lambert_config::run::{RunConfig, Stage, TokenBudget};

/// Memory of the GPU with the least free memory per rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuBudget {
    /// Rank that uses the GPU.
    pub rank: usize,
    /// Name of the GPU and its host.
    pub gpu: String,
    /// Free bytes for this rank.
    pub free: u64,
    /// Bytes for this rank if no other process used the GPU.
    pub memory: u64,
}

/// Stages that do not fit into GPU memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// One entry per stage.
    pub issues: Vec<ConfigIssue>,
    /// True if all stages would fit without other processes on the GPU, so a retry may succeed.
    pub is_transient: bool,
}

/// Returns the micro-batch size of each stage in tokens, which is the same on all `world` ranks. The size is the
/// configured number. For `"auto"`, it is the size of an earlier attempt in `earlier` (by stage index) if that fits,
/// otherwise the largest number that fits, at most [`TokenBudget::MAX_AUTO`]. Without a `budget`, no rank uses a GPU.
/// In this case nothing is checked, and `"auto"` means [`TokenBudget::AUTO_ON_CPU`].
///
/// # Errors
/// A stage does not fit.
pub fn micro_batches(
    config: &RunConfig,
    data: &[DatasetShape],
    world: usize,
    budget: Option<&GpuBudget>,
    earlier: &[Option<usize>],
) -> Result<Vec<usize>, Shortage> {
    let Some(budget) = budget else {
        return Ok(config.stage.iter().map(|stage| stage.micro_batch_tokens.on_cpu()).collect());
    };
    let within = |bytes: u64| {
        let stages = (0..config.stage.len()).zip(data);
        let chosen = stages.map(|(index, data)| {
            let earlier = earlier.get(index).copied().flatten();
            Chooser { config, index, data: *data, world, budget, earlier }.choose(bytes)
        });
        let (chosen, issues): (Vec<_>, Vec<_>) = chosen.partition(Result::is_ok);
        let issues: Vec<ConfigIssue> = issues.into_iter().filter_map(Result::err).collect();
        if issues.is_empty() { Ok(chosen.into_iter().flatten().collect()) } else { Err(issues) }
    };
    within(budget.free).map_err(|issues| Shortage { issues, is_transient: within(budget.memory).is_ok() })
}

/// Replaces each `"auto"` by the number of tokens that an attempt on `config.cluster.ranks` ranks would use. `budget` is the
/// memory of the GPU; `None` if it is unknown, and then enough, or if the ranks use CPUs. A stage that does not fit gets
/// micro-batches of one sample.
pub fn replace_auto(config: &mut RunConfig, data: &[DatasetShape], budget: Option<&GpuBudget>) {
    let auto = if uses_gpu(config) { TokenBudget::MAX_AUTO } else { TokenBudget::AUTO_ON_CPU };
    let chosen = |(index, data): (usize, &DatasetShape)| match budget {
        Some(budget) => {
            let chooser = Chooser { config, index, data: *data, world: config.cluster.ranks, budget, earlier: None };
            chooser.choose(budget.free).unwrap_or(data.sequence_length)
        }
        None => auto.max(data.sequence_length),
    };
    let chosen: Vec<usize> = data.iter().enumerate().map(chosen).collect();
    for (stage, tokens) in config.stage.iter_mut().zip(chosen) {
        stage.micro_batch_tokens = stage.micro_batch_tokens.or(tokens).into();
    }
}

/// Rounds `samples` down to its four leading bits, so that small differences in free memory rarely change the result.
fn rounded_down(samples: usize) -> usize {
    let bits = usize::BITS - samples.leading_zeros();
    samples >> bits.saturating_sub(4) << bits.saturating_sub(4)
}

struct Chooser<'a> {
    config: &'a RunConfig,
    index: usize,
    data: DatasetShape,
    world: usize,
    budget: &'a GpuBudget,
    /// Size of an earlier attempt.
    earlier: Option<usize>,
}

impl Chooser<'_> {
    /// Returns the micro-batch size of the stage in tokens, with `free` bytes of free GPU memory.
    fn choose(&self, free: u64) -> Result<usize, ConfigIssue> {
        let usable = free.saturating_sub(gpu::reserve(free));
        let stage = &self.config.stage[self.index];
        let fits = |tokens| gpu::needed(self.config, self.index, self.data, self.world, tokens) <= usable;
        let longest = self.data.sequence_length;
        match (stage.micro_batch_tokens, self.earlier) {
            (TokenBudget::Auto, Some(tokens))
                if tokens >= longest && gpu::fits(self.config, self.index, self.data, self.world, tokens, usable) =>
            {
                Ok(tokens)
            }
            (TokenBudget::Auto, _) => {
                let largest = gpu::largest(self.config, self.index, self.data, self.world, usable);
                let largest = largest.ok_or_else(|| self.issue(longest, free))?;
                let most = largest.min(TokenBudget::MAX_AUTO.max(longest));
                Ok(rounded_down(most / longest) * longest)
            }
            (TokenBudget::Tokens(tokens), _) if fits(tokens) => Ok(tokens),
            (TokenBudget::Tokens(tokens), _) => Err(self.issue(tokens, free)),
        }
    }

    fn key(&self, name: &str) -> String {
        format!("stage.{}.{name}", self.index)
    }

    /// Returns the issue for micro-batches of `tokens` tokens that do not fit. The message names the largest size that
    /// fits.
    fn issue(&self, tokens: usize, free: u64) -> ConfigIssue {
        let (Self { config, index, data, world, budget, .. }, stage) = (self, &self.config.stage[self.index]);
        let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
        let reserve = gpu::reserve(free);
        let largest = |config: &RunConfig| gpu::largest(config, *index, *data, *world, free.saturating_sub(reserve));
        let mut advice = match largest(config) {
            Some(largest) => format!("the largest micro_batch_tokens that fits is {largest}"),
            None => format!("not even one sample of {} tokens fits", data.sequence_length),
        };
        if !stage.recompute {
            let mut again = (*config).clone();
            again.stage[*index] = Stage { recompute: true, ..stage.clone() };
            if let Some(largest) = largest(&again) {
                advice += &format!(", with {} = true {largest}", self.key("recompute"));
            }
        }
        let (needed, state) = (
            gpu::needed(config, *index, *data, *world, tokens),
            gpu::state(config, stage.depth(&config.model), data.vocabulary),
        );
        let parameters = Architecture::of_run(config, stage.depth(&config.model), data.vocabulary).parameters();
        let message = format!(
            "micro-batches of {tokens} tokens need about {} of {} (rank {}), which has {} free of {}, {} of them reserved for CUDA and \
             fragmentation: {} for {parameters} parameters with gradients and moments, {} for activations; {advice}",
            gib(needed),
            budget.gpu,
            budget.rank,
            gib(free),
            gib(budget.memory),
            gib(reserve),
            gib(state),
            gib(needed.saturating_sub(state)),
        );
        ConfigIssue::new(self.key("micro_batch_tokens"), message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_config::run::{Attention, DeviceKind, Model};

    const GIB: u64 = 1 << 30;
    const DATA: DatasetShape =
        DatasetShape { vocabulary: 30522, sequence_length: 128, mean_length: 128, rows: 1 << 20, row_group: 1024 };

    fn room(free: u64) -> GpuBudget {
        GpuBudget { rank: 3, gpu: "GPU 1 (NVIDIA H200, 0000:1B:00.0) on host a".to_owned(), free, memory: 139 * GIB }
    }

    /// Run with two stages of BERT-base and `model.attention = "keyed"`.
    fn config(budgets: [TokenBudget; 2]) -> RunConfig {
        let stage = |micro_batch_tokens| Stage { micro_batch_tokens, global_batch: 1 << 16, ..Stage::default() };
        let model = Model { attention: Attention::Keyed, ..Model::default() };
        RunConfig { model, stage: budgets.map(stage).to_vec(), ..RunConfig::default() }
    }

    fn fit(config: &RunConfig, free: u64) -> Result<Vec<usize>, Shortage> {
        micro_batches(config, &[DATA; 2], 8, Some(&room(free)), &[])
    }

    #[test]
    fn oversized_micro_batches_are_rejected_with_the_largest_that_fits() {
        let config = |first: usize| config([first.into(), 4096.into()]);
        assert_eq!(fit(&config(8192), 80 * GIB), Ok(vec![8192, 4096]));
        let short = fit(&config(1 << 20), 80 * GIB).unwrap_err();
        let message = short.issues[0].to_string();
        assert_eq!(short.issues.len(), 1);
        assert!(!short.is_transient, "does not fit into the whole GPU either");
        let begin = "stage.0.micro_batch_tokens: micro-batches of 1048576 tokens need about ";
        assert!(message.starts_with(begin), "{message}");
        for words in
            ["(rank 3), which has 80.0 GiB free of 139.0 GiB, 5.0 GiB of them", "on host a", "110106428 parameters"]
        {
            assert!(message.contains(words), "{message}");
        }
        // The suggested size fits, but one more sample does not fit.
        let suggested =
            |after: &str| message.split_once(after).unwrap().1.split(',').next().unwrap().parse::<usize>().unwrap();
        let largest = suggested("the largest micro_batch_tokens that fits is ");
        assert!(fit(&config(largest), 80 * GIB).is_ok() && fit(&config(largest + 128), 80 * GIB).is_err(), "{largest}");
        assert!(suggested("stage.0.recompute = true ") > largest);
    }

    #[test]
    fn shortage_on_a_shared_gpu_is_transient() {
        let config = config([(1 << 16).into(), 4096.into()]);
        assert!(fit(&config, 139 * GIB).is_ok());
        assert!(fit(&config, 40 * GIB).unwrap_err().is_transient);
    }

    #[test]
    fn no_size_is_suggested_if_one_sample_does_not_fit() {
        let short = fit(&config([TokenBudget::Auto, 128.into()]), 2 * GIB).unwrap_err();
        assert_eq!(short.issues.len(), 2);
        assert!(short.issues[0].message.ends_with("not even one sample of 128 tokens fits"), "{}", short.issues[0]);
    }

    #[test]
    fn auto_is_stable_under_small_changes_of_free_memory() {
        let config = config([TokenBudget::Auto, 4096.into()]);
        let auto = |free: u64| fit(&config, free).unwrap()[0];
        let (taken, usable) = (auto(12 * GIB), 12 * GIB - gpu::reserve(12 * GIB));
        assert_eq!(taken % 128, 0);
        assert!(gpu::needed(&config, 0, DATA, 8, taken) <= usable);
        assert!(gpu::needed(&config, 0, DATA, 8, taken + taken / 7) > usable, "{taken} is far below the limit");
        let taken: std::collections::BTreeSet<usize> = (0..64).map(|step| auto(14 * GIB + (step << 22))).collect();
        assert!(taken.len() <= 2, "256 MiB in 64 steps: {taken:?}");
        assert_eq!([80, 139].map(|free| auto(free * GIB)), [TokenBudget::MAX_AUTO; 2]);
        // The size is at most the rank batch.
        let mut small = config.clone();
        small.stage[0].global_batch = 64;
        assert_eq!(fit(&small, 80 * GIB).unwrap()[0], 8 * 128);
        small.stage[0].micro_batch_tokens = usize::MAX.into();
        assert!(fit(&small, 80 * GIB).is_ok(), "no rank can fill these micro-batches");
        // Nothing is checked on CPUs.
        assert_eq!(micro_batches(&config, &[DATA; 2], 8, None, &[Some(128), None]), Ok(vec![4096, 4096]));
    }

    #[test]
    fn auto_keeps_the_size_of_an_earlier_attempt_if_it_fits() {
        // Fused attention with dropout, whose draws depend on the size.
        let mut config = config([TokenBudget::Auto, 4096.into()]);
        config.model.attention = Attention::Auto;
        let with = |earlier: Option<usize>, free: u64| {
            micro_batches(&config, &[DATA; 2], 8, Some(&room(free)), &[earlier, Some(256)]).map(|chosen| chosen[0])
        };
        let first = with(None, 12 * GIB).unwrap();
        assert!(first > 4096);
        // More memory does not change the size, and less memory only if it has to.
        assert_eq!(with(Some(first), 20 * GIB), Ok(first));
        assert!(with(None, 20 * GIB).unwrap() > first);
        let less = with(None, 8 * GIB).unwrap();
        assert!(less < first);
        assert_eq!(with(Some(first), 8 * GIB), Ok(less));
        assert_eq!(with(Some(64), 12 * GIB), Ok(first), "the samples are longer now");
        // A version without a limit chose more.
        let many = 2 * TokenBudget::MAX_AUTO;
        assert_eq!(with(Some(many), 139 * GIB), Ok(many));
        let fixed = micro_batches(&config, &[DATA; 2], 8, Some(&room(80 * GIB)), &[None, Some(256)]).unwrap();
        assert_eq!(fixed[1], 4096, "a configured size is kept");
    }

    #[test]
    fn plans_use_the_number_that_an_attempt_would_choose() {
        let mut config = config([TokenBudget::Auto, 1024.into()]);
        config.cluster.ranks = 8;
        let replaced = |mut config: RunConfig, free: Option<u64>| {
            replace_auto(&mut config, &[DATA; 2], free.map(room).as_ref());
            config.stage.iter().map(|stage| stage.micro_batch_tokens).collect::<Vec<_>>()
        };
        let numbers = |first: usize| vec![first.into(), TokenBudget::Tokens(1024)];
        assert_eq!(replaced(config.clone(), Some(12 * GIB)), numbers(fit(&config, 12 * GIB).unwrap()[0]));
        assert_eq!(replaced(config.clone(), Some(GIB)), numbers(128), "not even one sample fits");
        config.device.kind = DeviceKind::Cuda;
        assert_eq!(replaced(config.clone(), None), numbers(65_536));
        config.device.kind = DeviceKind::Cpu;
        assert_eq!(replaced(config, None), numbers(4096));
    }

    #[test]
    fn rounding_keeps_four_bits() {
        assert_eq!([0, 1, 15, 16, 17, 31, 33, 1000].map(rounded_down), [0, 1, 15, 16, 16, 30, 32, 960]);
    }
}
