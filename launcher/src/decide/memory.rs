//! What a later start of the same run needs to know: kept in the run's store.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Seconds;
use super::progress::Progress;

/// So many failures are remembered.
const MOST: usize = 1000;
/// How many checkpoints' times are remembered.
const SAVES: usize = 9;

/// What coordinators of a run remember.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// Failures that were followed by another start, oldest first.
    pub restarts: Vec<Restart>,
    /// Failures up to this moment (seconds since 1970) no longer count: the run was given up, and started again by hand.
    pub counted_from: f64,
    /// What all failures have cost so far, seconds.
    pub seconds_lost: f64,
    /// How long the last checkpoint took from the copy of the state to the manifest, seconds.
    pub last_save_seconds: Option<f64>,
    /// The same of the newest checkpoints, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recent_saves: Vec<Seconds>,
    /// How coordinators in jobs of Slurm ended before the run did, oldest first.
    pub job_ends: Vec<JobEnd>,
    /// How far the run has come, and how often it has been tried since.
    pub progress: Progress,
    /// The job that a coordinator works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

/// How a coordinator in a job of Slurm ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobEnd {
    /// When, seconds since 1970.
    pub unix: f64,
    /// The job's number.
    pub job: String,
    /// Steps finished then; absent where the coordinator said nothing.
    pub step: Option<u64>,
    /// Why.
    pub cause: String,
}

/// A failure that was followed by another start.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restart {
    /// When, seconds since 1970.
    pub unix: f64,
    /// The attempt that failed.
    pub attempt: u32,
    /// Steps finished then.
    pub step: u64,
    /// Which rank failed and how.
    pub cause: String,
    /// Whether it counts against `cluster.restart.limit`.
    pub counts: bool,
    /// The host that is to blame, if one is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Seconds until as many steps were finished again; none until then.
    #[serde(default)]
    pub seconds: Option<Seconds>,
}

impl Memory {
    /// Drops failures from the future of `now`: a clock was wrong then or is now, and when they were cannot be known.
    pub fn sanitized(mut self, now: f64) -> Self {
        self.counted_from = self.counted_from.min(now);
        self.restarts.retain(|restart| restart.unix <= now);
        self
    }

    /// Adds a failure.
    pub fn add(&mut self, restart: Restart) {
        self.restarts.push(restart);
        if self.restarts.len() > MOST {
            self.restarts.remove(0);
        }
    }

    /// A checkpoint took this long.
    pub fn add_save(&mut self, seconds: Seconds) {
        self.last_save_seconds = Some(seconds);
        self.recent_saves.push(seconds);
        if self.recent_saves.len() > SAVES {
            self.recent_saves.remove(0);
        }
    }

    /// The median time of the newest checkpoints, if there were any; the larger middle one of two.
    pub fn median_save(&self) -> Option<Seconds> {
        let mut saves = self.recent_saves.clone();
        saves.sort_by(f64::total_cmp);
        saves.get(saves.len() / 2).copied().or(self.last_save_seconds)
    }

    /// A coordinator begins in this job. One that was there before and has not said how it ended was killed.
    pub fn begin_job(&mut self, unix: f64, job: &str) {
        if let Some(before) = self.job.replace(job.to_owned()) {
            let cause = "the coordinator was killed, or its node failed".to_owned();
            self.add_job_end(JobEnd { unix, job: before, step: None, cause });
        }
    }

    /// The coordinator ends, for a reason in words if the run is not done.
    pub fn end_job(&mut self, unix: f64, step: u64, cause: Option<String>) {
        if let (Some(job), Some(cause)) = (self.job.take(), cause) {
            self.add_job_end(JobEnd { unix, job, step: Some(step), cause });
        }
    }

    fn add_job_end(&mut self, end: JobEnd) {
        self.job_ends.push(end);
        if self.job_ends.len() > MOST {
            self.job_ends.remove(0);
        }
    }

    /// Failures that count, after the moment `since`.
    pub fn count(&self, since: f64) -> usize {
        let since = since.max(self.counted_from);
        let counts = |restart: &&Restart| restart.counts && restart.unix > since;
        self.restarts.iter().filter(counts).count()
    }

    /// Hosts that were to blame after the moment `since`.
    pub fn failed_hosts(&self, since: f64) -> BTreeSet<&str> {
        let recent = self.restarts.iter().filter(|restart| restart.unix > since);
        recent.filter_map(|restart| restart.host.as_deref()).collect()
    }

    /// Notes what the last failure has cost.
    pub fn account(&mut self, cost: Seconds) {
        if let Some(last) = self.restarts.last_mut()
            && last.seconds.is_none()
        {
            last.seconds = Some(cost);
            self.seconds_lost += cost;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restart(unix: f64, counts: bool, host: Option<&str>) -> Restart {
        let host = host.map(str::to_owned);
        Restart { unix, attempt: 1, step: 1, cause: "c".into(), counts, host, seconds: None }
    }

    #[test]
    fn only_what_counts_within_the_window_is_counted() {
        let mut memory = Memory { counted_from: 20.0, ..Memory::default() };
        for (unix, counts) in [(10.0, true), (30.0, true), (40.0, false), (50.0, true)] {
            memory.add(restart(unix, counts, (unix > 35.0).then_some("b")));
        }
        assert_eq!((memory.count(0.0), memory.count(30.0)), (2, 1));
        assert_eq!(memory.failed_hosts(35.0), BTreeSet::from(["b"]));
        assert_eq!(memory.failed_hosts(60.0), BTreeSet::new());
        let earlier = memory.clone().sanitized(15.0);
        assert_eq!((earlier.counted_from, earlier.restarts.len()), (15.0, 1));
        memory.account(3.0);
        memory.account(5.0);
        assert_eq!((memory.restarts[3].seconds, memory.seconds_lost), (Some(3.0), 3.0));
        (0..2000).for_each(|i| memory.add(restart(f64::from(i), true, None)));
        assert_eq!(memory.restarts.len(), MOST);
    }

    /// A program of before wrote no progress.
    #[test]
    fn an_older_memory_is_read() {
        let text = r#"{"restarts":[],"counted_from":1.0,"seconds_lost":2.0,"last_save_seconds":null,"job_ends":[]}"#;
        let memory: Memory = serde_json::from_str(text).unwrap();
        assert_eq!((memory.counted_from, memory.progress), (1.0, Progress::default()));
    }

    #[test]
    fn the_median_is_of_the_newest_saves() {
        let mut memory = Memory { last_save_seconds: Some(4.0), ..Memory::default() };
        assert_eq!(memory.median_save(), Some(4.0), "of a coordinator that kept no list");
        [100.0, 100.0, 1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 5.0].into_iter().for_each(|save| memory.add_save(save));
        assert_eq!((memory.median_save(), memory.last_save_seconds), (Some(5.0), Some(5.0)));
        assert_eq!(memory.recent_saves.len(), SAVES);
        assert_eq!(Memory::default().median_save(), None);
    }

    #[test]
    fn a_job_whose_coordinator_vanished_is_told_from_one_that_ended() {
        let mut memory = Memory::default();
        memory.begin_job(1.0, "12");
        memory.end_job(2.0, 7, Some("preempted".to_owned()));
        memory.begin_job(3.0, "12");
        memory.begin_job(4.0, "13");
        memory.end_job(5.0, 9, None);
        let told: Vec<_> = memory.job_ends.iter().map(|end| (end.unix, end.job.as_str(), end.step)).collect();
        assert_eq!(told, [(2.0, "12", Some(7)), (4.0, "12", None)]);
        assert_eq!((memory.job_ends[0].cause.as_str(), memory.job), ("preempted", None));
    }
}
