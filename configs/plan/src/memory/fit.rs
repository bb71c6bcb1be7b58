//! Whether a run's micro-batches fit into its cards, and how large those are that it leaves open.

use serde::{Deserialize, Serialize};

use super::{Data, card};
use crate::architecture::Architecture;
use lambert_config::load::Fault;
use lambert_config::run::{RunConfig, Stage, TokenBudget};

/// The card that has the least room for a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Room {
    /// The rank that has it.
    pub rank: usize,
    /// What the card is, and on which host.
    pub card: String,
    /// Bytes of it that are free for this rank.
    pub free: u64,
    /// Bytes that it has for this rank when nobody else uses it.
    pub memory: u64,
}

/// What does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// One for each stage.
    pub faults: Vec<Fault>,
    /// Whether all would fit if nobody else used the card: it may pass.
    pub is_passing: bool,
}

/// Tokens of a micro-batch of each stage, the same on all `world` ranks: what the configuration says if it fits, or the largest that
/// fits. `room` is `None` where no rank computes on a card: nothing is refused then, and what is left open is the default.
///
/// # Errors
/// A stage does not fit, or may not be left open.
pub fn micro_batches(
    config: &RunConfig,
    data: &[Data],
    world: usize,
    room: Option<&Room>,
) -> Result<Vec<usize>, Shortage> {
    let Some(room) = room else {
        return Ok(config.stage.iter().map(|stage| stage.micro_batch_tokens.or_default()).collect());
    };
    let within = |bytes: u64| {
        let stages = (0..config.stage.len()).zip(data);
        let chosen = stages.map(|(index, data)| Chooser { config, index, data: *data, world, room }.choose(bytes));
        let (chosen, faults): (Vec<_>, Vec<_>) = chosen.partition(Result::is_ok);
        let faults: Vec<Fault> = faults.into_iter().filter_map(Result::err).collect();
        if faults.is_empty() { Ok(chosen.into_iter().flatten().collect()) } else { Err(faults) }
    };
    within(room.free).map_err(|faults| Shortage { faults, is_passing: within(room.memory).is_ok() })
}

/// Of `samples` the four leading bits: a little more or less of free memory, from one start to the next, seldom changes them.
fn rounded_down(samples: usize) -> usize {
    let bits = usize::BITS - samples.leading_zeros();
    samples >> bits.saturating_sub(4) << bits.saturating_sub(4)
}

struct Chooser<'a> {
    config: &'a RunConfig,
    index: usize,
    data: Data,
    world: usize,
    room: &'a Room,
}

impl Chooser<'_> {
    /// Tokens of the stage's micro-batches, on a card of which `free` bytes are free.
    fn choose(&self, free: u64) -> Result<usize, Fault> {
        let usable = free.saturating_sub(card::reserve(free));
        let stage = &self.config.stage[self.index];
        match stage.micro_batch_tokens {
            TokenBudget::Auto => {
                if card::follows_cuts(self.config) {
                    return Err(Fault::new(self.key("micro_batch_tokens"), TokenBudget::NOT_FUSED));
                }
                let largest = card::largest(self.config, self.index, self.data, self.world, usable);
                let longest = self.data.longest;
                largest.map(|tokens| rounded_down(tokens / longest) * longest).ok_or_else(|| self.fault(longest, free))
            }
            TokenBudget::Tokens(tokens) => {
                match card::needed(self.config, self.index, self.data, self.world, tokens) <= usable {
                    true => Ok(tokens),
                    false => Err(self.fault(tokens, free)),
                }
            }
        }
    }

    fn key(&self, name: &str) -> String {
        format!("stage.{}.{name}", self.index)
    }

    /// What is told where micro-batches of `tokens` tokens do not fit.
    fn fault(&self, tokens: usize, free: u64) -> Fault {
        let (Self { config, index, data, world, room }, stage) = (self, &self.config.stage[self.index]);
        let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
        let reserve = card::reserve(free);
        let largest = |config: &RunConfig| card::largest(config, *index, *data, *world, free.saturating_sub(reserve));
        let mut advice = match largest(config) {
            Some(largest) => format!("the largest micro_batch_tokens that fits is {largest}"),
            None => format!("not even one sample of {} tokens fits", data.longest),
        };
        if !stage.recompute {
            let mut again = (*config).clone();
            again.stage[*index] = Stage { recompute: true, ..stage.clone() };
            if let Some(largest) = largest(&again) {
                advice += &format!(", with {} = true {largest}", self.key("recompute"));
            }
        }
        let (needed, state) = (
            card::needed(config, *index, *data, *world, tokens),
            card::state(config, stage.depth(&config.model), data.pieces),
        );
        let parameters = Architecture::of_run(config, stage.depth(&config.model), data.pieces).parameters();
        let message = format!(
            "micro-batches of {tokens} tokens need about {} of {} (rank {}), which has {} free of {}, {} of them for CUDA and what \
             its allocator cannot use: {} for {parameters} parameters with gradients and moments, {} for activations; {advice}",
            gib(needed),
            room.card,
            room.rank,
            gib(free),
            gib(room.memory),
            gib(reserve),
            gib(state),
            gib(needed.saturating_sub(state)),
        );
        Fault::new(self.key("micro_batch_tokens"), message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_config::run::{Attention, Model};

    const GIB: u64 = 1 << 30;
    const DATA: Data = Data { pieces: 30522, longest: 128, rows: 1 << 20, row_group: 1024 };

    fn room(free: u64) -> Room {
        Room { rank: 3, card: "card 1 (NVIDIA H200, 0000:1B:00.0) of host a".to_owned(), free, memory: 139 * GIB }
    }

    /// A run of two stages of BERT-base with keyed attention.
    fn config(budgets: [TokenBudget; 2]) -> RunConfig {
        let stage = |micro_batch_tokens| Stage { micro_batch_tokens, global_batch: 1 << 16, ..Stage::default() };
        let model = Model { attention: Attention::Keyed, ..Model::default() };
        RunConfig { model, stage: budgets.map(stage).to_vec(), ..RunConfig::default() }
    }

    fn fit(config: &RunConfig, free: u64) -> Result<Vec<usize>, Shortage> {
        micro_batches(config, &[DATA; 2], 8, Some(&room(free)))
    }

    #[test]
    fn what_fits_is_left_alone_and_what_does_not_is_refused_with_the_largest_that_does() {
        let config = |first: usize| config([first.into(), 4096.into()]);
        assert_eq!(fit(&config(8192), 80 * GIB), Ok(vec![8192, 4096]));
        let short = fit(&config(1 << 20), 80 * GIB).unwrap_err();
        let message = short.faults[0].to_string();
        assert_eq!(short.faults.len(), 1);
        assert!(!short.is_passing, "nor would it fit into the whole card");
        let begin = "stage.0.micro_batch_tokens: micro-batches of 1048576 tokens need about ";
        assert!(message.starts_with(begin), "{message}");
        for words in
            ["(rank 3), which has 80.0 GiB free of 139.0 GiB, 5.0 GiB of them", "of host a", "110106428 parameters"]
        {
            assert!(message.contains(words), "{message}");
        }
        // What is suggested fits, and one sample more does not.
        let suggested =
            |after: &str| message.split_once(after).unwrap().1.split(',').next().unwrap().parse::<usize>().unwrap();
        let largest = suggested("the largest micro_batch_tokens that fits is ");
        assert!(fit(&config(largest), 80 * GIB).is_ok() && fit(&config(largest + 128), 80 * GIB).is_err(), "{largest}");
        assert!(suggested("stage.0.recompute = true ") > largest);
    }

    #[test]
    fn a_card_that_others_use_may_be_free_later() {
        let config = config([(1 << 16).into(), 4096.into()]);
        assert!(fit(&config, 139 * GIB).is_ok());
        assert!(fit(&config, 40 * GIB).unwrap_err().is_passing);
    }

    #[test]
    fn without_room_for_one_sample_there_is_nothing_to_suggest() {
        let short = fit(&config([TokenBudget::Auto, 128.into()]), 2 * GIB).unwrap_err();
        assert_eq!(short.faults.len(), 2);
        assert!(short.faults[0].message.ends_with("not even one sample of 128 tokens fits"), "{}", short.faults[0]);
    }

    #[test]
    fn auto_takes_what_fits_and_a_little_memory_more_or_less_changes_nothing() {
        let config = config([TokenBudget::Auto, 4096.into()]);
        let auto = |free: u64| fit(&config, free).unwrap()[0];
        let (taken, usable) = (auto(80 * GIB), 80 * GIB - card::reserve(80 * GIB));
        assert_eq!(taken % 128, 0);
        assert!(card::needed(&config, 0, DATA, 8, taken) <= usable);
        assert!(card::needed(&config, 0, DATA, 8, taken + taken / 7) > usable, "{taken} is far from what fits");
        let taken: std::collections::BTreeSet<usize> = (0..64).map(|step| auto(60 * GIB + (step << 24))).collect();
        assert!(taken.len() <= 2, "a GiB in 64 steps: {taken:?}");
        // No more than a rank has of the global batch.
        let mut small = config.clone();
        small.stage[0].global_batch = 64;
        assert_eq!(fit(&small, 80 * GIB).unwrap()[0], 8 * 128);
        small.stage[0].micro_batch_tokens = usize::MAX.into();
        assert!(fit(&small, 80 * GIB).is_ok(), "micro-batches that no rank can fill");
        // In main memory nothing is looked at.
        assert_eq!(micro_batches(&config, &[DATA; 2], 8, None), Ok(vec![4096, 4096]));
    }

    #[test]
    fn auto_is_refused_where_dropout_would_follow_it() {
        let fused = |dropout| {
            let mut config = config([TokenBudget::Auto, 4096.into()]);
            (config.model.attention, config.model.attention_dropout) = (Attention::Auto, dropout);
            fit(&config, 80 * GIB)
        };
        let short = fused(None).unwrap_err();
        assert!(short.faults[0].message.contains("model.attention = \"keyed\"") && !short.is_passing);
        assert!(fused(Some(0.0)).is_ok());
    }

    #[test]
    fn four_bits_stay() {
        assert_eq!([0, 1, 15, 16, 17, 31, 33, 1000].map(rounded_down), [0, 1, 15, 16, 16, 30, 32, 960]);
    }
}
