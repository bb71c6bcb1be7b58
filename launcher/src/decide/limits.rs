//! Phase timeouts. Ranks that hang or no longer report are detected from the phase of the training thread, the time in
//! that phase and the time since the last report.

use std::collections::BTreeSet;

use lambert_config::run::{Limits, RunConfig};
use lambert_control::WorkerPhase;

use super::Seconds;
use super::monitor::{AttemptMonitor, Rank, name_list};

/// Maximum time for processes to exit after all work is saved, seconds. The time is short, because the Slurm job may be
/// close to its time limit.
const LEAVING: Seconds = 30.0;

/// Maximum time between the last heartbeats of ranks that fail together, seconds: the interval of heartbeats, and delays
/// of reports.
const HEARTBEAT_SPREAD: Seconds = 4.0;

/// Timeouts for the phases of a rank, seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct PhaseTimeouts {
    limits: Limits,
    /// Time after which a rank gives up if its checkpoints fail, seconds.
    saves: Seconds,
}

/// Ranks that hang or no longer report.
#[derive(Debug, Clone, PartialEq)]
pub struct RankTimeout {
    /// Description of the ranks and the timeout.
    pub message: String,
    /// Hosts to avoid in later attempts. Empty if the rank still reports.
    pub hosts: BTreeSet<String>,
}

impl PhaseTimeouts {
    /// Takes the timeouts from the configuration.
    pub fn new(config: &RunConfig) -> Self {
        Self { limits: config.cluster.limits.clone(), saves: 60.0 * config.checkpoint.give_up_minutes }
    }

    /// Timeout of a phase, seconds. `median` is the median step duration. Infinite if the timeout is disabled.
    fn of(&self, phase: WorkerPhase, median: Option<Seconds>) -> Seconds {
        let limits = &self.limits;
        let (limit, more) = match (phase, median) {
            (WorkerPhase::Join, _) => (limits.join_seconds, 0.0),
            (WorkerPhase::Load, _) => (limits.load_seconds, 0.0),
            (WorkerPhase::Read | WorkerPhase::Step | WorkerPhase::AllReduce, None) => (limits.first_step_seconds, 0.0),
            (WorkerPhase::Read | WorkerPhase::Step | WorkerPhase::AllReduce, Some(median)) => {
                (limits.step_seconds, (limits.step_medians * median - limits.step_seconds).max(0.0))
            }
            (WorkerPhase::Evaluate, _) => (limits.evaluate_seconds, 0.0),
            (WorkerPhase::Save, _) => (limits.save_seconds, self.saves),
            (WorkerPhase::Stop, _) => (limits.stop_seconds, 0.0),
        };
        if limit > 0.0 { limit + more } else { f64::INFINITY }
    }

    /// Returns the ranks that have timed out in an attempt of `world` ranks started at `begun`.
    pub fn overdue(&self, at: Seconds, begun: Seconds, world: usize, monitor: &AttemptMonitor) -> Option<RankTimeout> {
        self.lingering(at, monitor)
            .or_else(|| self.silent(at, monitor))
            .or_else(|| self.absent(at, begun, world, monitor))
            .or_else(|| self.hung(at, monitor))
    }

    /// True if ranks may exit without a reply after the coordinator was suspended for this long. The last reply was at
    /// most a heartbeat and a request before the suspension. Half of the timeout leaves room for both.
    pub fn explains_missing_replies(&self, suspended: Seconds) -> bool {
        let limit = self.limits.coordinator_seconds;
        limit > 0.0 && suspended > 0.5 * limit
    }

    /// Returns a timeout if processes do not exit after all work is done.
    fn lingering(&self, at: Seconds, monitor: &AttemptMonitor) -> Option<RankTimeout> {
        let limit = self.of(WorkerPhase::Stop, None);
        let since = monitor.reported_end_at().filter(|since| limit.is_finite() && at - since > limit.min(LEAVING))?;
        let message = format!("the workers have not exited {:.0} s after finishing", at - since);
        Some(RankTimeout { message, hosts: BTreeSet::new() })
    }

    /// Returns the ranks that no longer report. Skips ranks in the stop phase, which may already have exited. A host or a
    /// rack may fail with many ranks. So the first rank that exceeds the limit is reported together with ranks that are
    /// about to exceed it.
    fn silent(&self, at: Seconds, monitor: &AttemptMonitor) -> Option<RankTimeout> {
        let limit = self.limits.silence_seconds;
        let silent_for = |rank: &Rank, time: Seconds| rank.phase != WorkerPhase::Stop && at - rank.last_report > time;
        if limit <= 0.0 || !monitor.ranks.iter().any(|(_, rank)| silent_for(rank, limit)) {
            return None;
        }
        let time = (limit - HEARTBEAT_SPREAD).max(0.5 * limit);
        let silent = monitor.ranks.iter().filter(|(_, rank)| silent_for(rank, time));
        let silent: Vec<usize> = silent.map(|(number, _)| *number).collect();
        let message = match silent[..] {
            [rank] => {
                let (who, note) = (monitor.ranks.who(rank), monitor.ranks.xid_note(rank));
                format!("{who} has sent no heartbeat for {limit} s{note}")
            }
            _ => {
                let (who, note) = (monitor.ranks.who_all(&silent), monitor.ranks.first_xid_note(&silent));
                format!("{who} have sent no heartbeat for {limit} s{note}")
            }
        };
        Some(RankTimeout { message, hosts: monitor.ranks.hosts_to_avoid(silent) })
    }

    fn absent(&self, at: Seconds, begun: Seconds, world: usize, monitor: &AttemptMonitor) -> Option<RankTimeout> {
        let limit = self.of(WorkerPhase::Join, None);
        if at - begun <= limit {
            return None;
        }
        let missing: Vec<usize> = (0..world).filter(|rank| !monitor.ranks.has(*rank)).collect();
        let mut message = match missing[..] {
            [] => return None,
            [_, _, ..] if !monitor.ranks.is_empty() => {
                format!("{} have not reported within {limit} s of the start", monitor.ranks.who_all(&missing))
            }
            [first, ..] => format!("rank {first} has not reported within {limit} s of the start"),
        };
        let hosts = monitor.ranks.hosts_of_absent(&missing);
        if !hosts.is_empty() && missing.iter().any(|rank| monitor.ranks.host(*rank).is_none()) {
            message.push_str(&format!("; no rank on {} has reported", name_list(&hosts)));
        }
        Some(RankTimeout { message, hosts })
    }

    /// Returns the suspect if the attempt hangs. All ranks work in lockstep, so one hung rank stalls all other ranks. A
    /// rank in a longer phase, such as a save, also stalls the other ranks although nothing hangs. Therefore the
    /// attempt hangs only if every rank exceeds the timeout of its phase.
    fn hung(&self, at: Seconds, monitor: &AttemptMonitor) -> Option<RankTimeout> {
        let median = monitor.steps.median();
        let over = |rank: &Rank| at - rank.since > self.of(rank.phase, median);
        if !monitor.ranks.are_all(over) {
            return None;
        }
        let (number, rank) = suspect(monitor)?;
        let limit = self.of(rank.phase, median);
        let (who, phase, step, time) = (monitor.ranks.who(number), rank.phase, rank.step + 1, at - rank.since);
        let place = if phase.is_step() { format!(" (step {step})") } else { String::new() };
        let note = monitor.ranks.xid_note(number);
        let message = format!("{who} hangs: {phase}{place} for {time:.0} s; the limit is {limit:.0} s{note}");
        Some(RankTimeout { message, hosts: BTreeSet::new() })
    }

    /// Returns a warning about the suspect if every rank has used more than half of its timeout.
    pub fn slow(&self, at: Seconds, monitor: &AttemptMonitor) -> Option<String> {
        let median = monitor.steps.median();
        let slow = |rank: &Rank| at - rank.since > 0.5 * self.of(rank.phase, median);
        let (number, rank) = suspect(monitor).filter(|_| monitor.ranks.are_all(slow))?;
        let (who, phase, time, limit) =
            (monitor.ranks.who(number), rank.phase, at - rank.since, self.of(rank.phase, median));
        let usual = median.filter(|_| phase.is_step());
        let usual = usual.map_or(String::new(), |median| format!(" (median step: {median:.1} s)"));
        Some(format!("{who} is slow: {phase} for {time:.0} s{usual}; treated as hung after {limit:.0} s"))
    }
}

/// Returns the rank that the others wait for: the rank with the fewest completed steps. Among ranks with the same
/// number of steps, prefers a rank outside an all-reduce, then the rank that has been in its phase for the longest
/// time.
fn suspect(monitor: &AttemptMonitor) -> Option<(usize, &Rank)> {
    let order = |rank: &Rank| (rank.step, rank.phase == WorkerPhase::AllReduce);
    let behind =
        |one: &Rank, other: &Rank| order(one).cmp(&order(other)).then(one.since.total_cmp(&other.since)).is_lt();
    let mut ranks = monitor.ranks.iter().map(|(number, rank)| (*number, rank));
    let first = ranks.next()?;
    Some(ranks.fold(first, |worst, next| if behind(next.1, worst.1) { next } else { worst }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::WorkerEvent;
    use lambert_control::{EventKind, StepRecord, StepTimes};
    use lambert_control::{Message, WorkerReport};

    fn timeouts() -> PhaseTimeouts {
        PhaseTimeouts::new(&RunConfig::default())
    }

    fn report(monitor: &mut AttemptMonitor, at: Seconds, rank: usize, phase: WorkerPhase, seconds_in_phase: f64) {
        let report = WorkerReport {
            rank,
            pid: 7,
            host: "x".into(),
            step: 4,
            phase,
            seconds_in_phase,
            ..WorkerReport::default()
        };
        monitor.take(at, WorkerEvent::Report(report));
    }

    fn pace(monitor: &mut AttemptMonitor, seconds: f64) {
        let times = StepTimes { seconds, ..StepTimes::default() };
        let record = StepRecord { times, ..StepRecord::default() };
        (0..5).for_each(|_| monitor.take(0.0, WorkerEvent::Message(0, Message::Record(Box::new(record.clone())))));
    }

    fn hang(monitor: &AttemptMonitor, at: Seconds) -> Option<String> {
        timeouts().overdue(at, 0.0, 2, monitor).map(|hang| hang.message)
    }

    #[test]
    fn a_hanging_rank_is_distinguished_from_ranks_that_wait_for_it() {
        let mut monitor = AttemptMonitor::default();
        pace(&mut monitor, 1.0);
        for (at, hung) in [(250.0, false), (299.0, false), (301.0, true)] {
            report(&mut monitor, at, 0, WorkerPhase::AllReduce, at - 0.5);
            report(&mut monitor, at, 1, WorkerPhase::Read, at);
            assert_eq!(hang(&monitor, at).is_some(), hung, "{at}");
        }
        let expected = "rank 1 (pid 7, host x) hangs: waiting for samples (step 5) for 301 s; the limit is 300 s";
        assert_eq!(hang(&monitor, 301.0).unwrap(), expected);
        let slow = timeouts().slow(301.0, &monitor).unwrap();
        assert!(slow.starts_with("rank 1 (pid 7, host x) is slow: waiting for samples for 301 s (median step: 1.0 s"));
    }

    #[test]
    fn the_step_timeout_is_a_multiple_of_the_median_with_a_minimum() {
        let mut monitor = AttemptMonitor::default();
        (0..2).for_each(|rank| report(&mut monitor, 7000.0, rank, WorkerPhase::Step, 7000.0));
        assert_eq!(hang(&monitor, 7000.0), None, "the first step has a limit of its own");
        pace(&mut monitor, 60.0);
        (0..2).for_each(|rank| report(&mut monitor, 7000.0, rank, WorkerPhase::Step, 500.0));
        assert_eq!(hang(&monitor, 7000.0), None);
        (0..2).for_each(|rank| report(&mut monitor, 7000.0, rank, WorkerPhase::Step, 601.0));
        assert!(hang(&monitor, 7000.0).unwrap().ends_with("the limit is 600 s"));
    }

    #[test]
    fn waiting_for_a_longer_phase_of_another_rank_is_not_a_hang() {
        let mut monitor = AttemptMonitor::default();
        pace(&mut monitor, 1.0);
        report(&mut monitor, 4000.0, 0, WorkerPhase::Save, 4000.0);
        report(&mut monitor, 4000.0, 1, WorkerPhase::AllReduce, 4000.0);
        assert_eq!(hang(&monitor, 4000.0), None, "saves may fail for two hours");
    }

    #[test]
    fn silence_and_absence_have_timeouts() {
        let mut monitor = AttemptMonitor::default();
        report(&mut monitor, 100.0, 0, WorkerPhase::Join, 1.0);
        assert_eq!(hang(&monitor, 190.0), None);
        assert_eq!(hang(&monitor, 191.0).unwrap(), "rank 0 (pid 7, host x) has sent no heartbeat for 90 s");
        report(&mut monitor, 601.0, 0, WorkerPhase::Join, 1.0);
        assert_eq!(hang(&monitor, 601.0).unwrap(), "rank 1 has not reported within 600 s of the start");
        report(&mut monitor, 650.0, 0, WorkerPhase::Stop, 1.0);
        report(&mut monitor, 650.0, 1, WorkerPhase::Stop, 1.0);
        assert_eq!(hang(&monitor, 1200.0), None, "ranks that leave are silent");
        assert!(hang(&monitor, 1300.0).unwrap().contains("leaving for 651 s"));
    }

    /// Monitor of an attempt with two ranks on each of six hosts. All ranks have reported at `at`.
    fn of_six_hosts(at: Seconds) -> AttemptMonitor {
        let hosts = (0..12).map(|rank| format!("n{}", rank / 2)).collect();
        let mut monitor = AttemptMonitor::new(hosts);
        (0..12).for_each(|rank| report(&mut monitor, at, rank, WorkerPhase::Step, 1.0));
        monitor
    }

    #[test]
    fn all_hosts_of_silent_ranks_are_avoided() {
        let end = |live: &[usize]| {
            let mut monitor = of_six_hosts(100.0);
            (2..12).step_by(2).for_each(|rank| report(&mut monitor, 102.0, rank, WorkerPhase::Step, 1.0));
            live.iter().for_each(|rank| report(&mut monitor, 190.0, *rank, WorkerPhase::Step, 1.0));
            assert_eq!(timeouts().overdue(190.0, 0.0, 12, &monitor), None);
            let end = timeouts().overdue(190.5, 0.0, 12, &monitor).unwrap();
            (end.message, end.hosts.into_iter().collect::<Vec<_>>().join(" "))
        };
        let expected = "4 ranks on 2 hosts (n4, n5) have sent no heartbeat for 90 s";
        assert_eq!(end(&[0, 1, 2, 3, 4, 5, 6, 7]), (expected.to_owned(), "n4 n5".to_owned()));
        let expected = "2 ranks on host n5 have sent no heartbeat for 90 s";
        assert_eq!(end(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), (expected.to_owned(), "n5".to_owned()));
        let expected = "10 ranks on 5 hosts (n1, n2, n3, ...) have sent no heartbeat for 90 s";
        assert_eq!(end(&[0, 1]), (expected.to_owned(), "n1 n2 n3 n4 n5".to_owned()));
        let expected = "12 ranks on 6 hosts (n0, n1, n2, ...) have sent no heartbeat for 90 s";
        assert_eq!(end(&[]), (expected.to_owned(), String::new()), "other hosts are no better");
    }

    #[test]
    fn all_hosts_of_absent_ranks_are_avoided() {
        let mut monitor = AttemptMonitor::new(["a", "b", "c", "c"].map(str::to_owned).into());
        report(&mut monitor, 600.0, 0, WorkerPhase::Join, 1.0);
        let end = timeouts().overdue(601.0, 0.0, 4, &monitor).unwrap();
        assert_eq!(end.message, "3 ranks on 2 hosts (b, c) have not reported within 600 s of the start");
        assert_eq!(end.hosts, BTreeSet::from(["b".to_owned(), "c".to_owned()]));
        let mut anywhere = AttemptMonitor::default();
        report(&mut anywhere, 600.0, 1, WorkerPhase::Join, 1.0);
        let end = timeouts().overdue(601.0, 0.0, 6, &anywhere).unwrap();
        assert_eq!(end.message, "5 ranks (0, 2, 3, ...) have not reported within 600 s of the start");
    }

    #[test]
    fn finished_ranks_have_a_shorter_timeout() {
        let mut monitor = AttemptMonitor::default();
        (0..2).for_each(|rank| report(&mut monitor, 100.0, rank, WorkerPhase::Stop, 1.0));
        assert_eq!(hang(&monitor, 160.0), None);
        let done = Message::Event(EventKind::Finished { step: 4, stopped: true });
        monitor.take(160.0, WorkerEvent::Message(0, done));
        assert_eq!(hang(&monitor, 190.0), None);
        assert_eq!(hang(&monitor, 190.5).unwrap(), "the workers have not exited 30 s after finishing");
        let mut config = RunConfig::default();
        config.cluster.limits.stop_seconds = 0.0;
        assert_eq!(PhaseTimeouts::new(&config).overdue(500.0, 0.0, 2, &monitor), None);
    }

    #[test]
    fn a_suspension_of_half_the_timeout_explains_missing_replies() {
        assert!(timeouts().explains_missing_replies(23.0) && !timeouts().explains_missing_replies(22.0));
        let mut config = RunConfig::default();
        config.cluster.limits.coordinator_seconds = 0.0;
        assert!(!PhaseTimeouts::new(&config).explains_missing_replies(1e9), "ranks wait forever");
    }

    #[test]
    fn a_limit_of_zero_disables_the_timeout() {
        let mut config = RunConfig::default();
        let limits = &mut config.cluster.limits;
        (limits.silence_seconds, limits.join_seconds, limits.step_seconds) = (0.0, 0.0, 0.0);
        let mut monitor = AttemptMonitor::default();
        pace(&mut monitor, 1.0);
        report(&mut monitor, 0.0, 0, WorkerPhase::Step, 1.0);
        assert_eq!(PhaseTimeouts::new(&config).overdue(1e9, 0.0, 2, &monitor), None);
    }
}
