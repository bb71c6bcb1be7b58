//! What a run needs of its machines' memory, by formula, and what this machine has.

use crate::flops;
use crate::load::Fault;
use crate::run::RunConfig;

/// Weights, gradients and two moments, 4 bytes each.
const STATE: u64 = 16;
/// Weights and two moments once more, over all ranks together: the copy that checkpoints are written from.
const SNAPSHOT: u64 = 12;

/// Bytes of the training state of `ranks` ranks on one host, which are all of the run's; activations, libraries and
/// samples come on top.
pub fn state(parameters: u64, ranks: usize) -> u64 {
    parameters.saturating_mul((ranks as u64).saturating_mul(STATE).saturating_add(SNAPSHOT))
}

/// Adds a fault if the training state of `ranks` ranks does not fit into the memory of this host.
pub fn check(config: &RunConfig, vocabulary: usize, ranks: usize, faults: &mut Vec<Fault>) {
    let deepest = config.stage.iter().map(|stage| stage.depth(&config.model)).max().unwrap_or(config.model.layers);
    if !config.model.is_sized() || deepest > 1 << 20 {
        return;
    }
    let parameters = flops::parameters(&config.model, deepest, vocabulary);
    if let Some(there) = of_this_host() {
        faults.extend(shortage(parameters, ranks, there));
    }
}

fn shortage(parameters: u64, ranks: usize, there: u64) -> Option<Fault> {
    let needed = state(parameters, ranks);
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    (needed > there).then(|| {
        let message = format!(
            "its {parameters} parameters take {:.1} GiB with gradients, moments and the copy for checkpoints, for {ranks} \
             rank(s) on this host, before any activation; the host has {:.1} GiB",
            gib(needed),
            gib(there)
        );
        Fault::new("model", message)
    })
}

/// Bytes of memory that processes of this host may have together: its own, or less where a control group says so.
/// `None` where the system does not tell.
pub fn of_this_host() -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limits = limits.into_iter().filter_map(|path| read(path).trim().parse().ok());
    total(&read("/proc/meminfo")).into_iter().chain(limits).min()
}

/// `MemTotal` of /proc/meminfo, in bytes.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bert_large_on_two_ranks() {
        // 336,226,108 parameters: 2 x 16 and 12 bytes each.
        assert_eq!(state(336_226_108, 2), 14_793_948_752);
        assert_eq!(shortage(336_226_108, 2, 14_793_948_752), None);
        let fault = shortage(336_226_108, 2, 14_793_948_751).unwrap().to_string();
        assert!(fault.contains("13.8 GiB"), "{fault}");
        assert_eq!(state(u64::MAX, 2), u64::MAX);
    }

    #[test]
    fn meminfo_is_in_kibibytes() {
        assert_eq!(total("MemTotal:       24602316 kB\nMemFree:         9601388 kB\n"), Some(24_602_316 << 10));
        assert_eq!(total("MemFree: 3 kB"), None);
        assert!(of_this_host().is_some_and(|bytes| bytes > 1 << 28));
    }
}
