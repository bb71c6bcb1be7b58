//! Ranks that need attention: with GPU errors, slow, or silent.

use lambert_control::RankTimes;

use super::RankStatus;

/// Time of the slowest rank over the median from which it is a straggler.
const STRAGGLER: f64 = 1.2;
/// Seconds without a heartbeat from which a rank is silent; as in watch/assets/panels.js.
const SILENT: f64 = 30.0;

/// Reason to show a rank, the most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Attention {
    /// Its GPU has reported Xid errors.
    GpuErrors,
    /// Slower than the other ranks in the last step, or steps behind them.
    Straggler,
    /// No heartbeat for a while.
    Silent,
    /// No reason.
    None,
}

/// Values of all ranks, with which a rank is compared.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// Slowest rank of the last step, if it is much slower than the median.
    slowest: Option<usize>,
    /// Largest number of completed steps.
    furthest: u64,
}

impl Comparison {
    /// Comparison with `ranks`; `times` are those of the last step.
    pub fn with(ranks: &[RankStatus], times: Option<RankTimes>) -> Self {
        let slowest = times.filter(|times| times.max > STRAGGLER * times.median).map(|times| times.slowest);
        Self { slowest, furthest: ranks.iter().map(|rank| rank.step).max().unwrap_or_default() }
    }

    /// True if a rank is slower than the others in the last step, or steps behind them.
    pub fn is_straggler(&self, rank: &RankStatus) -> bool {
        // Ranks report at different times, so that one is often a step behind.
        self.slowest == Some(rank.rank) || rank.step.saturating_add(1) < self.furthest
    }

    /// Most important reason to show a rank.
    pub fn attention(&self, rank: &RankStatus) -> Attention {
        match rank {
            _ if rank.gpu.as_ref().is_some_and(|gpu| !gpu.xids.is_empty()) => Attention::GpuErrors,
            _ if self.is_straggler(rank) => Attention::Straggler,
            _ if rank.seconds_since_heartbeat > SILENT => Attention::Silent,
            _ => Attention::None,
        }
    }

    /// At most `limit` of the ranks, in rank order: the most important first, then the lowest numbers.
    pub fn choose<'a>(&self, ranks: impl Iterator<Item = &'a RankStatus>, limit: usize) -> Vec<&'a RankStatus> {
        let mut chosen: Vec<&RankStatus> = ranks.collect();
        if chosen.len() > limit {
            chosen.sort_by_key(|rank| (self.attention(rank), rank.rank));
            chosen.truncate(limit);
        }
        chosen.sort_by_key(|rank| rank.rank);
        chosen
    }
}
