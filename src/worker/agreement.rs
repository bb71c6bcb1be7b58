//! What ranks tell each other after a step, beside the sums of the losses: it travels in the same all-reduce, so that all ranks
//! know the same after the same step. And what they decide together before the first.

use lambert_collective::Group;
use lambert_control::Directive;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

/// What `decide` makes, on rank 0, of what each rank has, in their order; the same on all ranks, which call it together.
///
/// # Errors
/// They cannot exchange it.
pub fn together<T, R>(group: &mut dyn Group, own: &T, decide: impl FnOnce(&[T]) -> R) -> Result<R, Error>
where
    T: Serialize + DeserializeOwned,
    R: Serialize + DeserializeOwned,
{
    let gathered = group.gather_bytes(&serde_json::to_vec(own).map_err(Error::Json)?, 0)?;
    let mut word = Vec::new();
    if let Some(all) = gathered {
        let all = all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<Vec<T>, _>>();
        word = serde_json::to_vec(&decide(&all.map_err(Error::Json)?)).map_err(Error::Json)?;
    }
    group.broadcast_bytes(&mut word, 0)?;
    serde_json::from_slice(&word).map_err(Error::Json)
}

/// What one rank says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Vote {
    /// What rank 0 wants to happen; the others want nothing.
    pub directive: Directive,
    /// How the save under way stands with this rank.
    pub save: SaveVote,
    /// Whether this rank could not read its samples.
    pub unread: bool,
}

/// How the save under way stands with one rank.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SaveVote {
    /// There is none, or nothing is to be told of it.
    #[default]
    Nothing,
    /// This rank has written its objects.
    Written,
    /// It takes long by rank 0's clock, and that has not been told yet.
    Slow,
    /// Rank 0 knows what came of it.
    Decided(Decision),
}

/// What came of a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Decision {
    /// The checkpoint exists.
    Committed,
    /// It does not, for a reason that may pass.
    Failed,
    /// It does not, because the ranks do not have the same weights.
    Apart,
    /// It does not, because the state has numbers that are not finite.
    NotFinite,
    /// It does not, and this attempt will never save one.
    Lost,
    /// Nobody knows: a write has not ended within its time limit.
    Stuck,
}

impl Decision {
    /// All of them, in the order of their strength.
    const ALL: [Self; 6] = [Self::Committed, Self::Failed, Self::Apart, Self::NotFinite, Self::Lost, Self::Stuck];
}

/// What all ranks know.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Agreement {
    /// What is to happen after this step.
    pub directive: Directive,
    /// Ranks that have written their objects of the save under way.
    pub written: usize,
    /// Whether the save under way takes so long that people are told now.
    pub slow: bool,
    /// What came of the save under way, once rank 0 knows.
    pub decided: Option<Decision>,
    /// Ranks that could not read their samples.
    pub unread: usize,
}

/// Numbers of an encoded [`Vote`]: how many ranks ask for each directive, have written, find the save slow, could not read,
/// and know each decision.
const LENGTH: usize = 5 + Decision::ALL.len();

impl Vote {
    /// Its number of ranks, one, at the places of what it says: whatever ranks say, the sums can be told apart.
    fn encode(self) -> [f64; LENGTH] {
        let says = |said: bool| f64::from(u8::from(said));
        let decided = Decision::ALL.map(|decision| says(self.save == SaveVote::Decided(decision)));
        let mut numbers = [0.0; LENGTH];
        numbers[..5].copy_from_slice(&[
            says(self.directive == Directive::Checkpoint),
            says(self.directive == Directive::CheckpointAndStop),
            says(self.save == SaveVote::Written),
            says(self.save == SaveVote::Slow),
            says(self.unread),
        ]);
        numbers[5..].copy_from_slice(&decided);
        numbers
    }
}

impl Agreement {
    /// From the sums of all ranks' votes; of what more than one rank says the strongest holds.
    fn decode(sums: [f64; LENGTH]) -> Self {
        let ranks = sums.map(|ranks| ranks as usize);
        let [checkpoint, stop, written, slow, unread, decisions @ ..] = ranks;
        let known = Decision::ALL.into_iter().zip(decisions).filter(|(_, ranks)| *ranks > 0);
        Self {
            directive: match (checkpoint, stop) {
                (0, 0) => Directive::Continue,
                (_, 0) => Directive::Checkpoint,
                _ => Directive::CheckpointAndStop,
            },
            written,
            slow: slow > 0,
            decided: known.map(|(decision, _)| decision).max(),
            unread,
        }
    }
}

/// Adds `sums` up over all ranks; their votes and a time of each, in seconds, go through the same all-reduce. Returns what they
/// have agreed on, and the times in the order of the ranks.
pub fn exchange(
    group: &mut dyn Group,
    sums: &mut [f64],
    vote: Vote,
    seconds: f64,
) -> Result<(Agreement, Vec<f64>), Error> {
    let mut times = vec![0.0; group.world_size()];
    times[group.rank()] = seconds;
    let mut numbers = [&*sums, &vote.encode(), &times].concat();
    group.all_reduce_sum_f64(&mut numbers)?;
    let (added, rest) = numbers.split_at(sums.len());
    let (votes, times) = rest.split_at(LENGTH);
    sums.copy_from_slice(added);
    let mut of_all = [0.0; LENGTH];
    of_all.copy_from_slice(votes);
    Ok((Agreement::decode(of_all), times.to_vec()))
}

#[cfg(test)]
mod tests {
    use lambert_collective::local;

    use super::*;

    const DIRECTIVES: [Directive; 3] = [Directive::Continue, Directive::Checkpoint, Directive::CheckpointAndStop];

    /// Every vote that there is.
    fn votes() -> impl Iterator<Item = Vote> {
        let saves = [SaveVote::Nothing, SaveVote::Written, SaveVote::Slow];
        let saves = saves.into_iter().chain(Decision::ALL.map(SaveVote::Decided));
        let with = move |directive| {
            let of = move |save| [false, true].map(|unread| Vote { directive, save, unread });
            saves.clone().flat_map(of)
        };
        DIRECTIVES.into_iter().flat_map(with)
    }

    /// The agreement of some votes, and the sums of the numbers 0.1, 1.1, ... that travel with them.
    fn agree(votes: &[Vote]) -> Agreement {
        let ranks = local::group(votes.len()).into_iter().zip(votes.to_vec()).enumerate();
        let rank = |(rank, (mut ends, vote)): (usize, (lambert_collective::Endpoints, Vote))| {
            std::thread::spawn(move || {
                let mut sums = [rank as f64 + 0.1, 7.0];
                let (agreement, times) = exchange(&mut *ends.group, &mut sums, vote, rank as f64 + 0.5).unwrap();
                let expected: Vec<f64> = (0..ends.group.world_size()).map(|rank| rank as f64 + 0.5).collect();
                assert_eq!(times, expected);
                (agreement, sums.map(f64::to_bits))
            })
        };
        let threads: Vec<_> = ranks.map(rank).collect();
        let all: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(all.iter().all(|one| *one == all[0]), "ranks know different things: {all:?}");
        let first = (1..votes.len()).fold(0.1, |sum, rank| sum + (rank as f64 + 0.1));
        assert_eq!(all[0].1, [first, 7.0 * votes.len() as f64].map(f64::to_bits), "the sums of the losses");
        all[0].0
    }

    #[test]
    fn one_rank_alone_is_understood_whatever_it_says() {
        assert_eq!(votes().count(), 54);
        for vote in votes() {
            let Vote { directive, save, unread } = vote;
            let decided = if let SaveVote::Decided(decision) = save { Some(decision) } else { None };
            let expected = Agreement {
                directive,
                written: usize::from(save == SaveVote::Written),
                slow: save == SaveVote::Slow,
                decided,
                unread: unread.into(),
            };
            assert_eq!(agree(&[vote]), expected);
        }
    }

    #[test]
    fn rank_0_is_understood_whatever_the_others_say() {
        for vote in votes() {
            let others = [SaveVote::Written, SaveVote::Nothing].map(|save| Vote {
                directive: Directive::Continue,
                save,
                unread: true,
            });
            let (alone, all) = (agree(&[vote]), agree(&[vote, others[0], others[1], others[0]]));
            assert_eq!((all.directive, all.decided, all.slow), (alone.directive, alone.decided, alone.slow));
            assert_eq!((all.written, all.unread), (alone.written + 2, alone.unread + 3));
        }
    }

    /// Only rank 0 should; if the rule is broken, no other word comes out of it.
    #[test]
    fn of_several_words_the_strongest_holds() {
        let saying = |directive, decision| Vote { directive, save: SaveVote::Decided(decision), unread: false };
        let (once, stop) = (Directive::Checkpoint, Directive::CheckpointAndStop);
        let agreed = agree(&[saying(once, Decision::Committed), saying(once, Decision::Committed)]);
        assert_eq!((agreed.directive, agreed.decided), (once, Some(Decision::Committed)));
        let agreed = agree(&[saying(stop, Decision::Failed), saying(once, Decision::Lost)]);
        assert_eq!((agreed.directive, agreed.decided), (stop, Some(Decision::Lost)));
        let agreed = agree(&[saying(stop, Decision::Stuck), saying(once, Decision::NotFinite)]);
        assert_eq!(agreed.decided, Some(Decision::Stuck));
    }
}
