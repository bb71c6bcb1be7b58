//! Report of a run that does not fit into the memory of a host: all parts of the sum, and the settings that are enough to make it
//! fit.

use lambert_config::load::ConfigIssue;
use lambert_config::run::RunConfig;

use super::{DatasetShape, RankMemory, max_micro_batch, rank_bytes, teacher, uses_gpu};
use crate::architecture::Architecture;

/// Advice if no single setting is enough.
const NO_SINGLE_SETTING: &str = "no single setting is enough: combine fewer workers on this host with smaller micro-batches, \
                                 use more hosts, or a smaller model";

/// Reports the stage that needs the most memory, if its `ranks` ranks need more than `available` bytes on one host. `data` has
/// the shapes of the datasets of the stages.
pub fn find(config: &RunConfig, data: &[DatasetShape], ranks: usize, available: u64) -> Option<ConfigIssue> {
    let stages = config.stage.iter().zip(data).enumerate();
    let needed =
        stages.map(|(index, (stage, data))| (all_ranks(rank_bytes(config, stage, *data, ranks), ranks), index));
    let (needed, index) = needed.max()?;
    if needed <= available {
        return None;
    }
    let workers = if ranks == 1 { "1 worker".to_owned() } else { format!("{ranks} workers") };
    let kind = if uses_gpu(config) { " of host memory" } else { "" };
    // Rounded apart, so that the two differ.
    let (more, less) = ((10.0 * gib(needed)).ceil() / 10.0, (10.0 * gib(available)).floor() / 10.0);
    let (parts, settings) =
        (parts(config, index, data[index], ranks), settings(config, index, data[index], ranks, available));
    let advice = if settings.is_empty() { NO_SINGLE_SETTING.to_owned() } else { settings.join(", or ") };
    let message = format!(
        "needs about {more:.1} GiB{kind} for {workers} on this host, which has {less:.1} GiB: {}; {advice}",
        parts.join(", ")
    );
    Some(ConfigIssue::new(format!("stage.{index}"), message))
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

/// Bytes of all ranks of a host.
fn all_ranks(bytes: u64, ranks: usize) -> u64 {
    bytes.saturating_mul(ranks as u64)
}

/// Describes what all ranks of the host need in a stage. The parts add up to the whole; small parts are left out.
fn parts(config: &RunConfig, index: usize, data: DatasetShape, ranks: usize) -> Vec<String> {
    let stage = &config.stage[index];
    let memory = RankMemory::new(config, stage, data, ranks);
    let count = Architecture::of_run(config, stage.depth(&config.model), data.vocabulary).parameters();
    let tokens = max_micro_batch(stage, config.cluster.ranks.max(ranks), data.sequence_length);
    let with_teacher = if teacher::state(config, data.vocabulary) > 0 { " and the teacher" } else { "" };
    let parameters = match uses_gpu(config) {
        true => format!("copies of {count} parameters for checkpoints and all-reduce"),
        false => {
            format!("{count} parameters with gradients, moments and the checkpoint snapshot{with_teacher}")
        }
    };
    let parts = [
        (memory.program, format!("the programs and their libraries ({:.2} GiB per worker)", gib(memory.program))),
        (memory.parameters, parameters),
        (memory.temporary, format!("micro-batches of {tokens} tokens")),
        (memory.samples, "prefetched samples".to_owned()),
        (
            memory.gradients,
            "further gradients (cluster.all_reduce.canonical, metrics.noise_scale_every_steps)".to_owned(),
        ),
    ];
    let shown = parts.into_iter().map(|(bytes, what)| (gib(all_ranks(bytes, ranks)), what));
    shown.filter(|(gib, _)| *gib >= 0.05).map(|(gib, what)| format!("{gib:.1} GiB for {what}")).collect()
}

/// Returns the settings each of which is enough to make the stage fit.
fn settings(config: &RunConfig, index: usize, data: DatasetShape, ranks: usize, available: u64) -> Vec<String> {
    let fits = |ranks: usize, change: &dyn Fn(&mut RunConfig)| {
        let mut config = config.clone();
        change(&mut config);
        all_ranks(rank_bytes(&config, &config.stage[index], data, ranks), ranks) <= available
    };
    let halves = |from: usize, least: usize| {
        std::iter::successors(Some(from / 2), |half| Some(half / 2)).take_while(move |half| *half >= least.max(1))
    };
    let stage = &config.stage[index];
    let tokens = max_micro_batch(stage, config.cluster.ranks.max(ranks), data.sequence_length);
    let fewer_tokens = halves(tokens, data.sequence_length)
        .find(|tokens| fits(ranks, &|config| config.stage[index].micro_batch_tokens = (*tokens).into()));
    let recomputes = !stage.recompute && fits(ranks, &|config| config.stage[index].recompute = true);
    // All ranks of the run are on this host, or each host has as many.
    let is_only_host = config.cluster.ranks == ranks;
    let on_host = |count: usize| {
        fits(count, &|config| {
            if is_only_host {
                config.cluster.ranks = count;
            }
        })
    };
    let (mut fewer, mut too_many) = (0, ranks);
    while too_many - fewer > 1 {
        let middle = fewer + (too_many - fewer) / 2;
        if on_host(middle) { fewer = middle } else { too_many = middle }
    }
    let key = if is_only_host { "set cluster.ranks to" } else { "run on this host" };
    let smaller_batch = halves(stage.global_batch, ranks)
        .find(|batch| fits(ranks, &|config| config.stage[index].global_batch = *batch));
    [
        fewer_tokens.map(|tokens| format!("set stage.{index}.micro_batch_tokens to at most {tokens}")),
        recomputes.then(|| format!("set stage.{index}.recompute = true")),
        (fewer > 0).then(|| format!("{key} at most {fewer}{}", if is_only_host { "" } else { " ranks" })),
        smaller_batch.map(|batch| format!("set stage.{index}.global_batch to at most {batch}")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use lambert_config::run::{Device, DeviceKind, Stage};

    use super::*;

    fn shape() -> DatasetShape {
        DatasetShape { vocabulary: 300, sequence_length: 64, mean_length: 64, rows: 1 << 16, row_group: 1024 }
    }

    /// A tiny model, of which `ranks` ranks share a host.
    fn tiny(ranks: usize) -> RunConfig {
        let stage = Stage { micro_batch_tokens: 256.into(), global_batch: 1024, ..Stage::default() };
        let device = Device { kind: DeviceKind::Cpu, ..Device::default() };
        let mut config = RunConfig { stage: vec![stage], device, ..RunConfig::default() };
        (config.model.layers, config.model.hidden, config.model.intermediate) = (2, 32, 64);
        (config.model.heads, config.model.positions, config.cluster.ranks) = (2, 64, ranks);
        config
    }

    fn message(config: &RunConfig, available: u64) -> String {
        find(config, &[shape()], config.cluster.ranks, available).unwrap().message
    }

    /// Regression test: the memory of the programs was missing, and the advice was to add ranks.
    #[test]
    fn many_small_ranks_need_fewer_ranks() {
        let (config, available) = (tiny(64), 8 << 30);
        let message = message(&config, available);
        assert!(message.contains("12.5 GiB for the programs and their libraries (0.20 GiB per worker)"), "{message}");
        assert!(!message.contains("micro_batch_tokens") && !message.contains("global_batch"), "{message}");
        let fewer: usize = message.rsplit_once("; set cluster.ranks to at most ").unwrap().1.parse().unwrap();
        assert!((30..=40).contains(&fewer), "{message}");
        assert_eq!(find(&tiny(fewer), &[shape()], fewer, available), None);
        assert!(find(&tiny(fewer + 1), &[shape()], fewer + 1, available).is_some());
    }

    #[test]
    fn the_parts_add_up() {
        let message = message(&tiny(64), 8 << 30);
        let (whole, rest) = message.split_once("needs about ").unwrap().1.split_once(" GiB").unwrap();
        let parts = rest.split_once(": ").unwrap().1.split_once("; ").unwrap().0.split(" GiB for ");
        let numbers = parts.filter_map(|part| part.rsplit(' ').next()?.parse::<f64>().ok());
        let (sum, whole) = (numbers.sum::<f64>(), whole.parse::<f64>().unwrap());
        assert!((sum - whole).abs() < 0.3, "{sum} of {whole}: {message}");
    }

    #[test]
    fn each_setting_is_enough() {
        let mut config = tiny(2);
        config.stage[0].micro_batch_tokens = 65536.into();
        config.model.hidden = 256;
        let needed = all_ranks(rank_bytes(&config, &config.stage[0], shape(), 2), 2);
        let settings = settings(&config, 0, shape(), 2, needed - 1);
        assert_eq!(settings[..2], ["set stage.0.micro_batch_tokens to at most 16416", "set stage.0.recompute = true"]);
        assert!(message(&config, 1 << 20).ends_with(NO_SINGLE_SETTING));
        // Whole and available memory differ in the message, even if they are almost equal.
        let message = message(&config, needed - 1);
        let numbers: Vec<&str> = message.split(" GiB").take(2).filter_map(|text| text.rsplit(' ').next()).collect();
        assert_ne!(numbers[0], numbers[1], "{message}");
    }

    /// The check of a worker on one of several hosts.
    #[test]
    fn the_ranks_of_one_of_several_hosts() {
        let config = tiny(128);
        let message = find(&config, &[shape()], 64, 8 << 30).unwrap().message;
        assert!(message.contains("; run on this host at most ") && message.ends_with(" ranks"), "{message}");
    }
}
