//! When a rank is taken for hung, or for gone: from the phase of its training thread, the time it has been in it, and the
//! time since it was heard.

use lambert_config::run::{Limits, RunConfig};
use lambert_control::Phase;

use super::Seconds;
use super::watch::{Rank, Watch};

/// How long processes may take to end when everything is done and saved, seconds: a job's time may be almost up.
const LEAVING: Seconds = 30.0;

/// How long a rank may be in each phase, seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Patience {
    limits: Limits,
    /// How long saves may fail before a rank gives up by itself.
    saves: Seconds,
}

/// A rank that is taken for hung or gone.
#[derive(Debug, Clone, PartialEq)]
pub struct Hang {
    /// Which and how, for people.
    pub message: String,
    /// Its host, where it is the host that is not heard.
    pub host: Option<String>,
}

impl Patience {
    /// As the configuration says.
    pub fn new(config: &RunConfig) -> Self {
        Self { limits: config.cluster.limits.clone(), saves: 60.0 * config.checkpoint.give_up_minutes }
    }

    /// How long a phase may take; infinite without a limit.
    fn of(&self, phase: Phase, median: Option<Seconds>) -> Seconds {
        let limits = &self.limits;
        let (limit, more) = match (phase, median) {
            (Phase::Join, _) => (limits.join_seconds, 0.0),
            (Phase::Load, _) => (limits.load_seconds, 0.0),
            (Phase::Read | Phase::Step | Phase::Exchange, None) => (limits.first_step_seconds, 0.0),
            (Phase::Read | Phase::Step | Phase::Exchange, Some(median)) => {
                (limits.step_seconds, (limits.step_medians * median - limits.step_seconds).max(0.0))
            }
            (Phase::Evaluate, _) => (limits.evaluate_seconds, 0.0),
            (Phase::Save, _) => (limits.save_seconds, self.saves),
            (Phase::Stop, _) => (limits.stop_seconds, 0.0),
        };
        if limit > 0.0 { limit + more } else { f64::INFINITY }
    }

    /// The rank of an attempt of `world` ranks that is over its limit, if one is. `begun` is when the attempt was started.
    pub fn overdue(&self, at: Seconds, begun: Seconds, world: usize, watch: &Watch) -> Option<Hang> {
        self.lingering(at, watch)
            .or_else(|| self.silent(at, watch))
            .or_else(|| self.absent(at, begun, world, watch))
            .or_else(|| self.hung(at, watch))
    }

    /// Processes that do not end though all is done.
    fn lingering(&self, at: Seconds, watch: &Watch) -> Option<Hang> {
        let limit = self.of(Phase::Stop, None);
        let since = watch.leaving().filter(|since| limit.is_finite() && at - since > limit.min(LEAVING))?;
        let message = format!("the ranks have not left {:.0} s after the last of their work", at - since);
        Some(Hang { message, host: None })
    }

    /// A process that is not heard any more. One that was leaving may have left.
    fn silent(&self, at: Seconds, watch: &Watch) -> Option<Hang> {
        let limit = self.limits.silence_seconds;
        let silent = |rank: &Rank| limit > 0.0 && rank.phase != Phase::Stop && at - rank.heard > limit;
        let (number, _) = watch.ranks.iter().find(|(_, rank)| silent(rank))?;
        let message = format!("{} has been silent for {limit} s", watch.ranks.who(*number));
        Some(Hang { message, host: watch.ranks.host(*number) })
    }

    fn absent(&self, at: Seconds, begun: Seconds, world: usize, watch: &Watch) -> Option<Hang> {
        let limit = self.of(Phase::Join, None);
        let missing = (0..world).find(|rank| !watch.ranks.has(*rank))?;
        let message = format!("rank {missing} has not reported within {limit} s of its start");
        (at - begun > limit).then(|| Hang { message, host: watch.ranks.host(missing) })
    }

    /// All ranks work in step, so that one that hangs holds up all, and one that is busy with something longer may hold
    /// up others without harm: the attempt hangs when every rank is over its limit. The suspect is the first that does not
    /// wait for others.
    fn hung(&self, at: Seconds, watch: &Watch) -> Option<Hang> {
        let median = watch.steps.median();
        let over = |rank: &Rank| at - rank.since > self.of(rank.phase, median);
        if !watch.ranks.are_all(over) {
            return None;
        }
        let (number, rank) = suspect(watch)?;
        let limit = self.of(rank.phase, median);
        let (who, phase, step, time) = (watch.ranks.who(number), rank.phase, rank.step + 1, at - rank.since);
        let place = if phase.is_step() { format!(" (step {step})") } else { String::new() };
        let message = format!("{who} hangs: {phase}{place} for {time:.0} s; the limit is {limit:.0} s");
        Some(Hang { message, host: None })
    }

    /// A rank that is over half its limit: not hung, but slow.
    pub fn slow(&self, at: Seconds, watch: &Watch) -> Option<String> {
        let median = watch.steps.median();
        let slow = |rank: &Rank| at - rank.since > 0.5 * self.of(rank.phase, median);
        let (number, rank) = suspect(watch).filter(|_| watch.ranks.are_all(slow))?;
        let (who, phase, time, limit) =
            (watch.ranks.who(number), rank.phase, at - rank.since, self.of(rank.phase, median));
        let usual = median.filter(|_| phase.is_step());
        let usual = usual.map_or(String::new(), |median| format!(" (a step takes {median:.1} s in the median)"));
        Some(format!("{who} is slow: {phase} for {time:.0} s{usual}; it is taken for hung after {limit:.0} s"))
    }
}

/// The rank that the others wait for, as far as one can tell: the furthest behind that does not wait itself.
fn suspect(watch: &Watch) -> Option<(usize, &Rank)> {
    let order = |rank: &Rank| (rank.step, rank.phase == Phase::Exchange);
    let behind =
        |one: &Rank, other: &Rank| order(one).cmp(&order(other)).then(one.since.total_cmp(&other.since)).is_lt();
    let mut ranks = watch.ranks.iter().map(|(number, rank)| (*number, rank));
    let first = ranks.next()?;
    Some(ranks.fold(first, |worst, next| if behind(next.1, worst.1) { next } else { worst }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::FromWorkers;
    use lambert_control::{EventKind, StepRecord, StepTimes};
    use lambert_control::{Report, Saying};

    fn patience() -> Patience {
        Patience::new(&RunConfig::default())
    }

    fn report(watch: &mut Watch, at: Seconds, rank: usize, phase: Phase, in_phase: f64) {
        let report = Report { rank, pid: 7, host: "x".into(), step: 4, phase, in_phase, ..Report::default() };
        watch.take(at, FromWorkers::Report(report));
    }

    fn pace(watch: &mut Watch, seconds: f64) {
        let times = StepTimes { seconds, ..StepTimes::default() };
        let record = StepRecord { times, ..StepRecord::default() };
        (0..5).for_each(|_| watch.take(0.0, FromWorkers::Message(0, Saying::Record(Box::new(record.clone())))));
    }

    fn hang(watch: &Watch, at: Seconds) -> Option<String> {
        patience().overdue(at, 0.0, 2, watch).map(|hang| hang.message)
    }

    #[test]
    fn a_rank_that_hangs_is_told_from_those_that_wait_for_it() {
        let mut watch = Watch::default();
        pace(&mut watch, 1.0);
        for (at, hung) in [(250.0, false), (299.0, false), (301.0, true)] {
            report(&mut watch, at, 0, Phase::Exchange, at - 0.5);
            report(&mut watch, at, 1, Phase::Read, at);
            assert_eq!(hang(&watch, at).is_some(), hung, "{at}");
        }
        let expected = "rank 1 (pid 7 on host x) hangs: waiting for samples (step 5) for 301 s; the limit is 300 s";
        assert_eq!(hang(&watch, 301.0).unwrap(), expected);
        let slow = patience().slow(301.0, &watch).unwrap();
        assert!(
            slow.starts_with("rank 1 (pid 7 on host x) is slow: waiting for samples for 301 s (a step takes 1.0 s")
        );
    }

    #[test]
    fn steps_have_a_floor_and_a_multiple_of_the_median() {
        let mut watch = Watch::default();
        (0..2).for_each(|rank| report(&mut watch, 7000.0, rank, Phase::Step, 7000.0));
        assert_eq!(hang(&watch, 7000.0), None, "the first step has a limit of its own");
        pace(&mut watch, 60.0);
        (0..2).for_each(|rank| report(&mut watch, 7000.0, rank, Phase::Step, 500.0));
        assert_eq!(hang(&watch, 7000.0), None);
        (0..2).for_each(|rank| report(&mut watch, 7000.0, rank, Phase::Step, 601.0));
        assert!(hang(&watch, 7000.0).unwrap().ends_with("the limit is 600 s"));
    }

    #[test]
    fn who_waits_for_a_longer_phase_of_another_is_not_hung() {
        let mut watch = Watch::default();
        pace(&mut watch, 1.0);
        report(&mut watch, 4000.0, 0, Phase::Save, 4000.0);
        report(&mut watch, 4000.0, 1, Phase::Exchange, 4000.0);
        assert_eq!(hang(&watch, 4000.0), None, "saves may fail for two hours");
    }

    #[test]
    fn silence_and_absence_have_limits() {
        let mut watch = Watch::default();
        report(&mut watch, 100.0, 0, Phase::Join, 1.0);
        assert_eq!(hang(&watch, 190.0), None);
        assert_eq!(hang(&watch, 191.0).unwrap(), "rank 0 (pid 7 on host x) has been silent for 90 s");
        report(&mut watch, 601.0, 0, Phase::Join, 1.0);
        assert_eq!(hang(&watch, 601.0).unwrap(), "rank 1 has not reported within 600 s of its start");
        report(&mut watch, 650.0, 0, Phase::Stop, 1.0);
        report(&mut watch, 650.0, 1, Phase::Stop, 1.0);
        assert_eq!(hang(&watch, 1200.0), None, "ranks that leave are silent");
        assert!(hang(&watch, 1300.0).unwrap().contains("leaving for 651 s"));
    }

    #[test]
    fn ranks_that_are_done_have_less_time_to_leave() {
        let mut watch = Watch::default();
        (0..2).for_each(|rank| report(&mut watch, 100.0, rank, Phase::Stop, 1.0));
        assert_eq!(hang(&watch, 160.0), None);
        let done = Saying::Event(EventKind::Finished { step: 4, stopped: true });
        watch.take(160.0, FromWorkers::Message(0, done));
        assert_eq!(hang(&watch, 190.0), None);
        assert_eq!(hang(&watch, 190.5).unwrap(), "the ranks have not left 30 s after the last of their work");
        let mut config = RunConfig::default();
        config.cluster.limits.stop_seconds = 0.0;
        assert_eq!(Patience::new(&config).overdue(500.0, 0.0, 2, &watch), None);
    }

    #[test]
    fn a_limit_of_zero_is_none() {
        let mut config = RunConfig::default();
        let limits = &mut config.cluster.limits;
        (limits.silence_seconds, limits.join_seconds, limits.step_seconds) = (0.0, 0.0, 0.0);
        let mut watch = Watch::default();
        pace(&mut watch, 1.0);
        report(&mut watch, 0.0, 0, Phase::Step, 1.0);
        assert_eq!(Patience::new(&config).overdue(1e9, 0.0, 2, &watch), None);
    }
}
