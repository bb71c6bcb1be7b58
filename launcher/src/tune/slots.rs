//! How many runs go side by side, and on which cards.

use lambert_config::RunConfig;
use lambert_config::run::Device;

/// The variable by which a process is given cards.
pub const CARDS: &str = "CUDA_VISIBLE_DEVICES";

/// Room for one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Its cards, as [`CARDS`] has them; `None` for a run that is left to itself.
    pub cards: Option<String>,
}

/// What a host has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Processors.
    pub processors: usize,
    /// Cards, by the names that [`CARDS`] has for them.
    pub cards: Vec<String>,
}

impl Machine {
    /// This one.
    pub fn here() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let cards = match std::env::var(CARDS) {
            Ok(list) => list.split(',').map(str::trim).filter(|card| !card.is_empty()).map(str::to_owned).collect(),
            Err(_) => devices(),
        };
        Self { processors, cards }
    }

    /// As many slots as runs of `config` fit here side by side, one at least; or `wanted` ones. A run on other hosts, too, has
    /// them to itself.
    pub fn slots(&self, config: &RunConfig, wanted: Option<usize>) -> Vec<Slot> {
        let cluster = &config.cluster;
        let (ranks, alone) = (cluster.ranks.max(1), Slot { cards: None });
        let on_cards = cluster.device != Device::Cpu && !self.cards.is_empty() && cluster.hosts.is_empty();
        if on_cards && self.cards.len() >= ranks {
            let all: Vec<Slot> =
                self.cards.chunks_exact(ranks).map(|cards| Slot { cards: Some(cards.join(",")) }).collect();
            let count = wanted.unwrap_or(all.len()).max(1);
            return all.into_iter().cycle().take(count).collect();
        }
        let here = if cluster.hosts.is_empty() { self.processors / (ranks * cluster.threads.max(1)) } else { 1 };
        vec![alone; wanted.unwrap_or(here).max(1)]
    }
}

/// The cards of which the driver has made devices.
fn devices() -> Vec<String> {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let number = |name: String| name.strip_prefix("nvidia")?.parse::<usize>().ok();
    let mut numbers: Vec<usize> =
        entries.filter_map(|entry| number(entry.file_name().to_string_lossy().into_owned())).collect();
    numbers.sort_unstable();
    (0..numbers.len()).map(|index| index.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(ranks: usize, threads: usize, device: Device) -> RunConfig {
        let mut config = RunConfig::default();
        (config.cluster.ranks, config.cluster.threads, config.cluster.device) = (ranks, threads, device);
        config
    }

    fn slots(cards: usize, config: &RunConfig, wanted: Option<usize>) -> Vec<String> {
        let machine = Machine { processors: 8, cards: (0..cards).map(|card| card.to_string()).collect() };
        machine.slots(config, wanted).into_iter().map(|slot| slot.cards.unwrap_or_default()).collect()
    }

    #[test]
    fn runs_share_processors() {
        assert_eq!(slots(0, &config(1, 2, Device::Auto), None).len(), 4);
        assert_eq!(slots(4, &config(2, 3, Device::Cpu), None), [""]);
        assert_eq!(slots(0, &config(16, 1, Device::Auto), None).len(), 1);
        assert_eq!(slots(0, &config(1, 8, Device::Auto), Some(3)).len(), 3);
    }

    #[test]
    fn each_run_has_cards_of_its_own() {
        assert_eq!(slots(4, &config(2, 1, Device::Auto), None), ["0,1", "2,3"]);
        assert_eq!(slots(4, &config(1, 1, Device::Cuda), Some(2)), ["0", "1"]);
        assert_eq!(slots(3, &config(2, 1, Device::Auto), None), ["0,1"]);
        let mut hosts = config(2, 1, Device::Cuda);
        hosts.cluster.hosts = vec!["a:1".into(), "b:1".into()];
        assert_eq!(slots(4, &hosts, None), [""]);
    }
}
