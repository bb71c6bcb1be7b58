//! State of a run, its ranks and notes for the user.

use lambert_control::RankTimes;
use serde::Serialize;

use crate::status::attention::Comparison;
use crate::status::goodput::TimeCategory;
use crate::status::gpus;
use crate::status::stored::{Liveness, liveness};
use crate::status::{RankStatus, RunState, Status};
use crate::text::counted;

/// Maximum number of ranks; those that need attention and those with the lowest numbers are kept.
const RANKS: usize = 256;

/// State of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Info {
    /// Title on the page: the run's name, or the last part of its URL.
    pub title: String,
    pub url: String,
    /// `None` before the first status.
    pub state: Option<RunState>,
    pub attempt: u32,
    pub step: u64,
    pub steps: u64,
    pub samples_per_second: f64,
    pub seconds_left: Option<f64>,
    /// Peak memory of the rank with the highest peak, bytes.
    pub peak_memory: Option<u64>,
    pub checkpoint: Option<String>,
    pub restarts: u64,
    /// Name of the main objective.
    pub objective: String,
    /// Time of the status, seconds since the Unix epoch.
    pub updated: f64,
    /// Categories of wall-clock time with their seconds, the longest first.
    pub goodput: Vec<(TimeCategory, f64)>,
    pub rank_times: Option<RankTimes>,
    /// Number of ranks, those not in `ranks` included.
    pub rank_count: usize,
    pub ranks: Vec<Rank>,
    /// Problems of the run or of reading it.
    pub notes: Vec<String>,
}

/// A rank of the current attempt.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rank {
    pub rank: usize,
    pub host: String,
    pub pid: u32,
    pub step: u64,
    pub phase: String,
    /// Age of the last heartbeat at the time of the status, seconds.
    pub seconds_since_heartbeat: f64,
    /// Slower than the other ranks in the last step, or steps behind them.
    pub is_straggler: bool,
    /// Values and Xid errors of its GPU.
    pub gpu: Option<String>,
}

impl Info {
    /// Builds the information from the last status of the run.
    pub fn new(url: &str, title: &str, status: Option<&Status>) -> Self {
        let (title, url) = (title.to_owned(), url.to_owned());
        let Some(status) = status else {
            return Self { title, url, notes: vec!["the run has not started yet".to_owned()], ..Self::default() };
        };
        let (record, progress) = (status.latest.record.as_ref(), &status.progress);
        let rank_times = record.and_then(|record| record.times.ranks);
        let is_over = status.state.is_over();
        Self {
            title,
            url,
            state: Some(status.state),
            attempt: status.attempt,
            step: progress.step,
            steps: progress.steps,
            samples_per_second: progress.samples_per_second,
            seconds_left: progress.seconds_left.filter(|_| status.state == RunState::Training),
            peak_memory: record.and_then(|record| record.peak_memory),
            checkpoint: status.checkpoint.clone(),
            restarts: status.restarts.count,
            objective: record.map_or(String::new(), |record| record.scores.main().name),
            updated: status.updated,
            goodput: status.goodput.by_time(),
            rank_times,
            rank_count: if is_over { 0 } else { status.workers.ranks.len() },
            ranks: if is_over { Vec::new() } else { ranks(&status.workers.ranks, rank_times) },
            notes: notes(status),
        }
    }
}

fn notes(status: &Status) -> Vec<String> {
    let gone = match liveness(status) {
        Liveness::Gone => Some("its coordinator is gone: `lambert run` resumes the run".to_owned()),
        Liveness::Unknown => Some("its coordinator may be gone: the status is older than a minute".to_owned()),
        Liveness::Alive | Liveness::Over => None,
    };
    let saves = status.failed_saves.as_ref().map(|failed| {
        let failures = counted(failed.count, "failure");
        format!("saves fail ({failures} since the last checkpoint), last: {}", failed.error)
    });
    let is_failure = matches!(status.state, RunState::Failed | RunState::Restarting);
    gone.into_iter().chain(saves).chain(status.error.clone().filter(|_| is_failure)).collect()
}

fn ranks(ranks: &[RankStatus], times: Option<RankTimes>) -> Vec<Rank> {
    let comparison = Comparison::with(ranks, times);
    let shown = |rank: &RankStatus| Rank {
        rank: rank.rank,
        host: rank.host.clone(),
        pid: rank.pid,
        step: rank.step,
        phase: rank.phase.clone(),
        seconds_since_heartbeat: rank.seconds_since_heartbeat,
        is_straggler: comparison.is_straggler(rank),
        gpu: rank.gpu.as_ref().map(gpus::of_rank),
    };
    comparison.choose(ranks.iter(), RANKS).into_iter().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use lambert_control::GpuStatus;

    use super::*;

    fn rank(rank: usize, step: u64, age: f64) -> RankStatus {
        let (host, phase) = ("node1".to_owned(), "computing a step".to_owned());
        RankStatus { rank, host, pid: 7, step, phase, seconds_since_heartbeat: age, gpu: None }
    }

    #[test]
    fn slow_and_late_ranks_are_stragglers() {
        let stragglers = |times: RankTimes| -> Vec<usize> {
            let all = ranks(&[rank(0, 9, 0.0), rank(1, 8, 0.0), rank(2, 3, 0.0)], Some(times));
            all.iter().filter(|rank| rank.is_straggler).map(|rank| rank.rank).collect()
        };
        let times = RankTimes { min: 1.0, median: 1.0, max: 1.1, slowest: 0 };
        assert_eq!(stragglers(times), [2]);
        assert_eq!(stragglers(RankTimes { max: 1.5, ..times }), [0, 2]);
    }

    /// The status comes from a file.
    #[test]
    fn the_largest_step_is_no_straggler() {
        assert!(!ranks(&[rank(0, u64::MAX, 0.0)], None)[0].is_straggler);
    }

    #[test]
    fn ranks_have_the_text_of_their_gpus() {
        let gpu = Some(GpuStatus { index: 1, xids: vec![79], ..GpuStatus::default() });
        let shown = ranks(&[rank(0, 9, 0.0), RankStatus { gpu, ..rank(1, 9, 0.0) }], None);
        assert_eq!((&shown[0].gpu, shown[1].gpu.as_deref()), (&None, Some("GPU 1: no values; Xid 79")));
    }

    #[test]
    fn of_many_ranks_those_that_need_attention_are_shown() {
        let mut many: Vec<RankStatus> = (0..1000).map(|number| rank(number, 9, number as f64 / 100.0)).collect();
        many[500].gpu = Some(GpuStatus { xids: vec![79], ..GpuStatus::default() });
        many[600].step = 3;
        many[700].seconds_since_heartbeat = 31.0;
        let shown: Vec<usize> = ranks(&many, None).iter().map(|rank| rank.rank).collect();
        assert_eq!(shown, (0..RANKS - 3).chain([500, 600, 700]).collect::<Vec<_>>());
    }
}
