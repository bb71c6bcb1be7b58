//! Votes of the ranks after a step. The all-reduce of the losses also sums the votes, so that all ranks reach the same
//! decision after the same step. [`gather_and_decide`] and [`broadcast`] make collective decisions outside of steps.

use lambert_collective::Group;
use lambert_control::{Directive, GpuSample};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// Gathers `own` of all ranks in rank order, runs `decide` on rank 0, and broadcasts its result. Collective.
///
/// # Errors
/// A failed collective.
pub fn gather_and_decide<T, R>(group: &mut dyn Group, own: &T, decide: impl FnOnce(&[T]) -> R) -> Result<R, Error>
where
    T: Serialize + DeserializeOwned,
    R: Serialize + DeserializeOwned,
{
    let mut decision = Vec::new();
    if let Some(all) = gather(group, own)? {
        decision = serde_json::to_vec(&decide(&all)).map_err(Error::Json)?;
    }
    broadcast_json(group, decision)
}

/// Gathers `own` of all ranks in rank order on rank 0. Returns `None` on the other ranks. Collective.
///
/// # Errors
/// A failed collective.
pub fn gather<T: Serialize + DeserializeOwned>(group: &mut dyn Group, own: &T) -> Result<Option<Vec<T>>, Error> {
    let gathered = group.gather_bytes(&serde_json::to_vec(own).map_err(Error::Json)?, 0)?;
    let parse =
        |all: Vec<Vec<u8>>| all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<Vec<T>, _>>();
    gathered.map(parse).transpose().map_err(Error::Json)
}

/// Broadcasts the value of rank 0. `own` is ignored on the other ranks. Collective.
///
/// # Errors
/// A failed collective.
pub fn broadcast<T: Serialize + DeserializeOwned>(group: &mut dyn Group, own: &T) -> Result<T, Error> {
    broadcast_json(group, serde_json::to_vec(own).map_err(Error::Json)?)
}

fn broadcast_json<T: DeserializeOwned>(group: &mut dyn Group, mut json: Vec<u8>) -> Result<T, Error> {
    group.broadcast_bytes(&mut json, 0)?;
    serde_json::from_slice(&json).map_err(Error::Json)
}

/// Vote of one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Vote {
    /// Directive of rank 0; `Continue` on the other ranks.
    pub directive: Directive,
    /// State of the save in progress on this rank.
    pub save: SaveVote,
    /// True if this rank could not read its samples.
    pub unread: bool,
}

/// State of the save in progress on one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SaveVote {
    /// No save is in progress, or there is nothing to report.
    #[default]
    Nothing,
    /// This rank has written its objects.
    Written,
    /// The save is slow by the clock of rank 0, and this was not reported yet.
    Slow,
    /// Rank 0 knows the outcome.
    Decided(SaveDecision),
}

/// Outcome of a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SaveDecision {
    /// The checkpoint is committed.
    Committed,
    /// Transient failure.
    Failed,
    /// The weights of the ranks differ.
    ReplicasDiffer,
    /// The state has non-finite elements.
    NotFinite,
    /// Permanent failure: this attempt cannot save any more.
    Permanent,
    /// The outcome is unknown, because a write exceeded its time limit.
    Stuck,
}

impl SaveDecision {
    /// All decisions, by increasing precedence.
    const ALL: [Self; 6] =
        [Self::Committed, Self::Failed, Self::ReplicasDiffer, Self::NotFinite, Self::Permanent, Self::Stuck];
}

/// Result of a vote, equal on all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Directive after this step.
    pub directive: Directive,
    /// Number of ranks that have written their objects of the save in progress.
    pub written_ranks: usize,
    /// True if the save in progress must be reported as slow now.
    pub is_save_slow: bool,
    /// Outcome of the save in progress; `None` until rank 0 knows the outcome.
    pub save_decision: Option<SaveDecision>,
    /// Number of ranks that could not read their samples.
    pub unreadable_ranks: usize,
}

/// Number of elements of an encoded [`Vote`], which consists of counters: one for each of the two directives other than
/// `Continue`, three for `Written`, `Slow` and `unread`, and one for each decision.
const LENGTH: usize = 5 + SaveDecision::ALL.len();

impl Vote {
    /// Encodes the vote as counters, so that sums over ranks are unambiguous.
    fn encode(self) -> [f64; LENGTH] {
        let count = |flag: bool| f64::from(u8::from(flag));
        let decided = SaveDecision::ALL.map(|decision| count(self.save == SaveVote::Decided(decision)));
        let mut numbers = [0.0; LENGTH];
        numbers[..5].copy_from_slice(&[
            count(self.directive == Directive::Checkpoint),
            count(self.directive == Directive::CheckpointAndStop),
            count(self.save == SaveVote::Written),
            count(self.save == SaveVote::Slow),
            count(self.unread),
        ]);
        numbers[5..].copy_from_slice(&decided);
        numbers
    }
}

impl Agreement {
    /// Decodes the summed counters. If ranks disagree, the decision of highest precedence counts.
    fn decode(sums: [f64; LENGTH]) -> Self {
        let ranks = sums.map(|ranks| ranks as usize);
        let [checkpoint, stop, written, slow, unread, decisions @ ..] = ranks;
        let known = SaveDecision::ALL.into_iter().zip(decisions).filter(|(_, ranks)| *ranks > 0);
        Self {
            directive: match (checkpoint, stop) {
                (0, 0) => Directive::Continue,
                (_, 0) => Directive::Checkpoint,
                _ => Directive::CheckpointAndStop,
            },
            written_ranks: written,
            is_save_slow: slow > 0,
            save_decision: known.map(|(decision, _)| decision).max(),
            unreadable_ranks: unread,
        }
    }
}

/// Measurements of one rank in a step.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RankStats {
    /// Time spent on waiting for data and on the forward and backward passes, seconds.
    pub busy: f64,
    /// Peak memory, bytes; 0 if it is unknown. An f64 is exact up to 2^53 bytes.
    pub peak_memory: f64,
    /// Last values of the GPU.
    pub gpu: GpuSample,
}

impl RankStats {
    /// Number of elements of encoded measurements.
    const LENGTH: usize = 7;

    /// Encodes an absent value as NaN.
    fn encode(self) -> [f64; Self::LENGTH] {
        let Self { busy, peak_memory, gpu } = self;
        let value = |value: Option<f64>| value.unwrap_or(f64::NAN);
        let bytes = |bytes: Option<u64>| bytes.map_or(f64::NAN, |bytes| bytes as f64);
        let [used, total] = [gpu.memory_used, gpu.memory_total].map(bytes);
        let [utilization, power, temperature] = [gpu.utilization, gpu.power, gpu.temperature].map(value);
        [busy, peak_memory, utilization, used, total, power, temperature]
    }

    fn decode(numbers: &[f64; Self::LENGTH]) -> Self {
        let [busy, peak_memory, gpu @ ..] = *numbers;
        let [utilization, used, total, power, temperature] =
            gpu.map(|value| Some(value).filter(|value| !value.is_nan()));
        let [memory_used, memory_total] = [used, total].map(|bytes| bytes.map(|bytes| bytes as u64));
        let gpu = GpuSample { utilization, memory_used, memory_total, power, temperature };
        Self { busy, peak_memory, gpu }
    }
}

/// All-reduces `sums` together with the votes and the measurements of the ranks. Returns the agreement and the
/// measurements by rank.
pub fn all_reduce_votes(
    group: &mut dyn Group,
    sums: &mut [f64],
    vote: Vote,
    own: RankStats,
) -> Result<(Agreement, Vec<RankStats>), Error> {
    let mut stats = vec![[0.0; RankStats::LENGTH]; group.world_size()];
    stats[group.rank()] = own.encode();
    let mut numbers = [&*sums, &vote.encode(), stats.as_flattened()].concat();
    group.all_reduce_sum_f64(&mut numbers)?;
    let (added, rest) = numbers.split_at(sums.len());
    let (votes, stats) = rest.split_at(LENGTH);
    sums.copy_from_slice(added);
    let mut of_all = [0.0; LENGTH];
    of_all.copy_from_slice(votes);
    let (stats, _) = stats.as_chunks();
    Ok((Agreement::decode(of_all), stats.iter().map(RankStats::decode).collect()))
}

#[cfg(test)]
mod tests {
    use lambert_collective::local;

    use super::*;

    const DIRECTIVES: [Directive; 3] = [Directive::Continue, Directive::Checkpoint, Directive::CheckpointAndStop];

    /// All possible votes.
    fn votes() -> impl Iterator<Item = Vote> {
        let saves = [SaveVote::Nothing, SaveVote::Written, SaveVote::Slow];
        let saves = saves.into_iter().chain(SaveDecision::ALL.map(SaveVote::Decided));
        let with = move |directive| {
            let of = move |save| [false, true].map(|unread| Vote { directive, save, unread });
            saves.clone().flat_map(of)
        };
        DIRECTIVES.into_iter().flat_map(with)
    }

    /// Measurements of a rank. Odd ranks have a GPU that does not measure its power.
    fn stats(rank: usize) -> RankStats {
        let (busy, peak_memory) = (rank as f64 + 0.5, (1_u64 << 52) as f64 + rank as f64);
        let (utilization, memory_used, memory_total) = (Some(0.96), Some(71 << 30), Some(80 << 30));
        let gpu = GpuSample { utilization, memory_used, memory_total, power: None, temperature: Some(rank as f64) };
        RankStats { busy, peak_memory, gpu: if rank % 2 == 1 { gpu } else { GpuSample::default() } }
    }

    /// Exchanges `votes`, one per rank, and checks that all ranks get the same agreement and sums.
    fn agree(votes: &[Vote]) -> Agreement {
        let ranks = local::group(votes.len()).into_iter().zip(votes.to_vec()).enumerate();
        let rank = |(rank, (mut ends, vote)): (usize, (lambert_collective::Endpoints, Vote))| {
            std::thread::spawn(move || {
                let mut sums = [rank as f64 + 0.1, 7.0];
                let (agreement, all) = all_reduce_votes(&mut *ends.group, &mut sums, vote, stats(rank)).unwrap();
                let expected: Vec<RankStats> = (0..ends.group.world_size()).map(stats).collect();
                assert_eq!(all, expected);
                (agreement, sums.map(f64::to_bits))
            })
        };
        let threads: Vec<_> = ranks.map(rank).collect();
        let all: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(all.iter().all(|one| *one == all[0]), "ranks disagree: {all:?}");
        let first = (1..votes.len()).fold(0.1, |sum, rank| sum + (rank as f64 + 0.1));
        assert_eq!(all[0].1, [first, 7.0 * votes.len() as f64].map(f64::to_bits), "the sums of the losses");
        all[0].0
    }

    #[test]
    fn any_single_vote_is_decoded() {
        assert_eq!(votes().count(), 54);
        for vote in votes() {
            let Vote { directive, save, unread } = vote;
            let save_decision = if let SaveVote::Decided(decision) = save { Some(decision) } else { None };
            let expected = Agreement {
                directive,
                written_ranks: usize::from(save == SaveVote::Written),
                is_save_slow: save == SaveVote::Slow,
                save_decision,
                unreadable_ranks: unread.into(),
            };
            assert_eq!(agree(&[vote]), expected);
        }
    }

    #[test]
    fn votes_of_other_ranks_do_not_hide_rank_0() {
        for vote in votes() {
            let others = [SaveVote::Written, SaveVote::Nothing].map(|save| Vote {
                directive: Directive::Continue,
                save,
                unread: true,
            });
            let (alone, all) = (agree(&[vote]), agree(&[vote, others[0], others[1], others[0]]));
            assert_eq!(
                (all.directive, all.save_decision, all.is_save_slow),
                (alone.directive, alone.save_decision, alone.is_save_slow)
            );
            assert_eq!(
                (all.written_ranks, all.unreadable_ranks),
                (alone.written_ranks + 2, alone.unreadable_ranks + 3)
            );
        }
    }

    #[test]
    fn all_ranks_get_the_value_of_rank_0() {
        let ranks = local::group(3).into_iter().enumerate();
        let rank = |(rank, mut ends): (usize, lambert_collective::Endpoints)| {
            std::thread::spawn(move || broadcast(&mut *ends.group, &(rank == 0).then(|| "a".to_owned())).unwrap())
        };
        let threads: Vec<_> = ranks.map(rank).collect();
        let all = threads.into_iter().map(|thread| thread.join().unwrap());
        assert!(all.into_iter().all(|value| value.as_deref() == Some("a")));
    }

    /// Only rank 0 should send decisions. If several ranks send decisions, the result is still one of these decisions.
    #[test]
    fn the_decision_of_highest_precedence_counts() {
        let message = |directive, decision| Vote { directive, save: SaveVote::Decided(decision), unread: false };
        let (once, stop) = (Directive::Checkpoint, Directive::CheckpointAndStop);
        let agreed = agree(&[message(once, SaveDecision::Committed), message(once, SaveDecision::Committed)]);
        assert_eq!((agreed.directive, agreed.save_decision), (once, Some(SaveDecision::Committed)));
        let agreed = agree(&[message(stop, SaveDecision::Failed), message(once, SaveDecision::Permanent)]);
        assert_eq!((agreed.directive, agreed.save_decision), (stop, Some(SaveDecision::Permanent)));
        let agreed = agree(&[message(stop, SaveDecision::Stuck), message(once, SaveDecision::NotFinite)]);
        assert_eq!(agreed.save_decision, Some(SaveDecision::Stuck));
    }
}
