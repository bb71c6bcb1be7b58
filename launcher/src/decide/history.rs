//! Restart history of a run, kept in its store across coordinators.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::Seconds;
use super::progress::CheckpointProgress;

/// Maximum number of failures kept.
const MAX_FAILURES: usize = 1000;
/// Number of recent checkpoint durations kept.
const SAVES: usize = 9;

/// History written by a run's coordinators.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RestartHistory {
    /// Failures followed by a restart, oldest first.
    pub restarts: Vec<Restart>,
    /// Time at which a coordinator last gave up the run, seconds since the Unix epoch. Failures up to this time no
    /// longer count.
    pub counted_from: f64,
    /// Total downtime of all failures, seconds.
    pub seconds_lost: f64,
    /// Duration of the last checkpoint, seconds, from the copy of the state to the write of the manifest.
    pub last_save_seconds: Option<f64>,
    /// Durations of recent checkpoints, oldest first, seconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recent_saves: Vec<Seconds>,
    /// Coordinators in Slurm jobs that ended before the run was done, oldest first.
    pub job_ends: Vec<JobEnd>,
    /// Furthest checkpoint, and the attempts after it.
    pub progress: CheckpointProgress,
    /// Slurm job of the current coordinator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
}

/// End of a coordinator in a Slurm job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobEnd {
    /// Time, seconds since the Unix epoch.
    pub unix: f64,
    /// Slurm job ID.
    pub job: String,
    /// Number of completed steps. Absent if the coordinator was killed.
    pub step: Option<u64>,
    pub cause: String,
    /// Nodes that the next start of the job excludes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub excluded: Vec<String>,
}

/// A failure followed by a restart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restart {
    /// Time, seconds since the Unix epoch.
    pub unix: f64,
    /// Failed attempt.
    pub attempt: u32,
    /// Number of completed steps.
    pub step: u64,
    /// Cause of the failure.
    pub cause: String,
    /// True if the failure counts against `cluster.restart.limit`.
    #[serde(alias = "counts")]
    pub counts_toward_limit: bool,
    /// Hosts that caused the failure, if known. Versions up to 0.2 write one `host`.
    #[serde(default, alias = "host", deserialize_with = "one_or_several", skip_serializing_if = "BTreeSet::is_empty")]
    pub hosts: BTreeSet<String>,
    /// Seconds until the run reached `step` again. `None` if the run has not reached `step` again.
    #[serde(default)]
    pub seconds: Option<Seconds>,
}

/// Reads one host or several hosts.
fn one_or_several<'de, D: serde::Deserializer<'de>>(source: D) -> Result<BTreeSet<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Hosts {
        One(String),
        Several(BTreeSet<String>),
    }
    Ok(match Option::<Hosts>::deserialize(source)? {
        None => BTreeSet::new(),
        Some(Hosts::One(host)) => BTreeSet::from([host]),
        Some(Hosts::Several(hosts)) => hosts,
    })
}

impl RestartHistory {
    /// Drops failures with a time after `now`. The clock is wrong, or was wrong when these failures were recorded, so
    /// their real time is unknown.
    pub fn sanitized(mut self, now: f64) -> Self {
        self.counted_from = self.counted_from.min(now);
        self.restarts.retain(|restart| restart.unix <= now);
        self
    }

    /// Changes times after `now` to `now`: the clock was set back.
    pub fn set_back(&mut self, now: f64) {
        self.counted_from = self.counted_from.min(now);
        self.restarts.iter_mut().for_each(|restart| restart.unix = restart.unix.min(now));
        self.job_ends.iter_mut().for_each(|end| end.unix = end.unix.min(now));
    }

    /// Adds a failure.
    pub fn add(&mut self, restart: Restart) {
        self.restarts.push(restart);
        if self.restarts.len() > MAX_FAILURES {
            self.restarts.remove(0);
        }
    }

    /// Adds the duration of a checkpoint.
    pub fn add_save(&mut self, seconds: Seconds) {
        self.last_save_seconds = Some(seconds);
        self.recent_saves.push(seconds);
        if self.recent_saves.len() > SAVES {
            self.recent_saves.remove(0);
        }
    }

    /// Median duration of recent checkpoints, seconds. For an even number of durations, the larger of the two middle
    /// durations.
    pub fn median_save(&self) -> Option<Seconds> {
        let mut saves = self.recent_saves.clone();
        saves.sort_by(f64::total_cmp);
        saves.get(saves.len() / 2).copied().or(self.last_save_seconds)
    }

    /// Registers a coordinator in a Slurm job. A previous coordinator that did not register its end was killed.
    pub fn begin_job(&mut self, unix: f64, job: &str) {
        if let Some(before) = self.job.replace(job.to_owned()) {
            let cause = "the coordinator or its node died".to_owned();
            self.add_job_end(JobEnd { unix, job: before, cause, ..JobEnd::default() });
        }
    }

    /// Registers the end of the coordinator, with the cause if the run is not done. The next start excludes the nodes
    /// `excluded`.
    pub fn end_job(&mut self, unix: f64, step: u64, cause: Option<String>, excluded: Vec<String>) {
        if let (Some(job), Some(cause)) = (self.job.take(), cause) {
            self.add_job_end(JobEnd { unix, job, step: Some(step), cause, excluded });
        }
    }

    fn add_job_end(&mut self, end: JobEnd) {
        self.job_ends.push(end);
        if self.job_ends.len() > MAX_FAILURES {
            self.job_ends.remove(0);
        }
    }

    /// Number of failures after time `since` that count toward the restart limit.
    pub fn count(&self, since: f64) -> usize {
        let since = since.max(self.counted_from);
        let counts = |restart: &&Restart| restart.counts_toward_limit && restart.unix > since;
        self.restarts.iter().filter(counts).count()
    }

    /// Hosts that caused failures after time `since`.
    pub fn failed_hosts(&self, since: f64) -> BTreeSet<&str> {
        let recent = self.restarts.iter().filter(|restart| restart.unix > since);
        recent.flat_map(|restart| restart.hosts.iter().map(String::as_str)).collect()
    }

    /// Hosts that caused failures after time `since`, those of the most recent failure first.
    pub fn recently_failed_hosts(&self, since: f64) -> impl Iterator<Item = &str> {
        let recent = self.restarts.iter().rev().filter(move |restart| restart.unix > since);
        recent.flat_map(|restart| restart.hosts.iter().map(String::as_str))
    }

    /// Sets the downtime that the last failure caused.
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
    use lambert_store::run::FURTHEST_CHECKPOINT;

    use super::*;

    fn restart(unix: f64, counts: bool, host: Option<&str>) -> Restart {
        let hosts = host.into_iter().map(str::to_owned).collect();
        Restart { unix, attempt: 1, step: 1, cause: "c".into(), counts_toward_limit: counts, hosts, seconds: None }
    }

    #[test]
    fn only_failures_within_the_window_are_counted() {
        let mut history = RestartHistory { counted_from: 20.0, ..RestartHistory::default() };
        for (unix, counts) in [(10.0, true), (30.0, true), (40.0, false), (50.0, true)] {
            history.add(restart(unix, counts, (unix > 35.0).then_some("b")));
        }
        assert_eq!((history.count(0.0), history.count(30.0)), (2, 1));
        assert_eq!(history.failed_hosts(35.0), BTreeSet::from(["b"]));
        assert_eq!(history.failed_hosts(60.0), BTreeSet::new());
        let earlier = history.clone().sanitized(15.0);
        assert_eq!((earlier.counted_from, earlier.restarts.len()), (15.0, 1));
        let mut set_back = history.clone();
        set_back.set_back(35.0);
        let times: Vec<f64> = set_back.restarts.iter().map(|restart| restart.unix).collect();
        assert_eq!((times, set_back.counted_from), (vec![10.0, 30.0, 35.0, 35.0], 20.0));
        history.account(3.0);
        history.account(5.0);
        assert_eq!((history.restarts[3].seconds, history.seconds_lost), (Some(3.0), 3.0));
        (0..2000).for_each(|i| history.add(restart(f64::from(i), true, None)));
        assert_eq!(history.restarts.len(), MAX_FAILURES);
    }

    /// Versions up to 0.2 write one host.
    #[test]
    fn hosts_of_older_and_newer_versions_are_read() {
        let read = |key: &str| {
            let text = format!(r#"{{"unix":30.0,"attempt":1,"step":1,"cause":"c","counts_toward_limit":true{key}}}"#);
            serde_json::from_str::<Restart>(&text).unwrap().hosts
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(read(""), names(&[]));
        assert_eq!(read(r#","host":"b""#), names(&["b"]));
        assert_eq!(read(r#","hosts":["b","c"]"#), names(&["b", "c"]));
        let written =
            serde_json::to_string(&Restart { hosts: names(&["b", "c"]), ..restart(1.0, true, None) }).unwrap();
        assert_eq!(serde_json::from_str::<Restart>(&written).unwrap().hosts, names(&["b", "c"]));
    }

    /// Versions up to 0.1 call this key `counts`.
    #[test]
    fn the_old_key_of_counted_failures_is_read() {
        let text = r#"{"restarts":[{"unix":30.0,"attempt":1,"step":1,"cause":"c","counts":true}]}"#;
        assert_eq!(serde_json::from_str::<RestartHistory>(text).unwrap().count(0.0), 1);
    }

    /// Older versions do not write the key `progress`.
    #[test]
    fn histories_of_older_versions_are_read() {
        let text = r#"{"restarts":[],"counted_from":1.0,"seconds_lost":2.0,"last_save_seconds":null,"job_ends":[]}"#;
        let history: RestartHistory = serde_json::from_str(text).unwrap();
        assert_eq!((history.counted_from, history.progress), (1.0, CheckpointProgress::default()));
    }

    /// A worker reads this key, to notice that checkpoints are gone.
    #[test]
    fn the_furthest_checkpoint_has_its_key() {
        let mut history = RestartHistory::default();
        history.progress.committed(7);
        let value = serde_json::to_value(history).unwrap();
        assert_eq!(value.pointer(FURTHEST_CHECKPOINT).and_then(serde_json::Value::as_u64), Some(7));
    }

    #[test]
    fn the_median_uses_the_newest_saves() {
        let mut history = RestartHistory { last_save_seconds: Some(4.0), ..RestartHistory::default() };
        assert_eq!(history.median_save(), Some(4.0), "of a coordinator that kept no list");
        [100.0, 100.0, 1.0, 9.0, 2.0, 8.0, 3.0, 7.0, 4.0, 6.0, 5.0].into_iter().for_each(|save| history.add_save(save));
        assert_eq!((history.median_save(), history.last_save_seconds), (Some(5.0), Some(5.0)));
        assert_eq!(history.recent_saves.len(), SAVES);
        assert_eq!(RestartHistory::default().median_save(), None);
    }

    #[test]
    fn a_killed_coordinator_is_distinguished_from_one_that_ended() {
        let mut history = RestartHistory::default();
        history.begin_job(1.0, "12");
        history.end_job(2.0, 7, Some("preempted".to_owned()), Vec::new());
        history.begin_job(3.0, "12");
        history.begin_job(4.0, "13");
        history.end_job(5.0, 9, None, Vec::new());
        let reported: Vec<_> = history.job_ends.iter().map(|end| (end.unix, end.job.as_str(), end.step)).collect();
        assert_eq!(reported, [(2.0, "12", Some(7)), (4.0, "12", None)]);
        assert_eq!((history.job_ends[0].cause.as_str(), history.job), ("preempted", None));
    }
}
