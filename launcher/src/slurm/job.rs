//! State of a Slurm job, from squeue, or from sacct if squeue no longer lists the job.

use lambert_config::run::Slurm;
use serde::Serialize;

use super::programs::{SlurmError, query};

/// Output fields of squeue, separated by `|`.
const FIELDS: &str = "State:|,Reason:|,StartTime:|,NodeList:|,Partition:|,RestartCnt:|,PreemptTime:|,TimeLeft:|";

/// A Slurm job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Job {
    /// Job ID.
    pub id: String,
    /// Slurm state: `PENDING`, `RUNNING`, ...
    pub state: String,
    /// Reason that Slurm gives for not running the job.
    pub reason: Option<String>,
    /// Actual or expected start time, in Slurm's format: `2026-11-23T03:46:12`.
    pub start: Option<String>,
    /// Nodes, e.g. `n[1-2]`.
    pub nodes: Option<String>,
    pub partition: Option<String>,
    /// Number of requeues.
    pub requeues: u32,
    /// True if Slurm has set a preemption time, because another job waits for the nodes of this job.
    pub preempted: bool,
    /// Seconds until the time limit.
    pub seconds_left: Option<u64>,
}

/// Queries Slurm for a job. Returns `None` if Slurm does not know the job.
pub fn look(id: &str) -> Result<Option<Job>, SlurmError> {
    match query("squeue", &["--noheader", "--states=all", &format!("--jobs={id}"), "--Format", FIELDS]) {
        Ok(text) => Ok(of_squeue(id, &text).or_else(|| in_accounting(id))),
        // A job that ended minutes ago is only in the accounting database.
        Err(SlurmError::Refused { stderr, .. }) if stderr.contains("Invalid job id") => Ok(in_accounting(id)),
        Err(error) => Err(error),
    }
}

/// Parses a line of squeue.
fn of_squeue(id: &str, text: &str) -> Option<Job> {
    let fields: Vec<&str> = text.lines().next()?.split('|').map(str::trim).collect();
    let [state, reason, start, nodes, partition, requeues, preempted, left, ..] = fields[..] else { return None };
    let time = Slurm { time: Some(left.to_owned()), ..Slurm::default() };
    Some(Job {
        id: id.to_owned(),
        state: state.to_owned(),
        reason: known(reason),
        start: known(start),
        nodes: known(nodes),
        partition: known(partition),
        requeues: requeues.parse().unwrap_or(0),
        preempted: known(preempted).is_some(),
        seconds_left: time.time_seconds(),
    })
}

/// Queries Slurm's accounting database. Returns `None` if the database is not available.
fn in_accounting(id: &str) -> Option<Job> {
    let fields = ["--noheader", "--parsable2", "--allocations", "--format=state,start,nodelist,partition"];
    of_sacct(id, &query("sacct", &[&fields[..], &["--jobs", id]].concat()).ok()?)
}

/// Parses a line of sacct.
fn of_sacct(id: &str, text: &str) -> Option<Job> {
    let fields: Vec<&str> = text.lines().next()?.split('|').map(str::trim).collect();
    let [state, start, nodes, partition] = fields[..] else { return None };
    // `CANCELLED by 1000`
    let state = state.split(' ').next()?.to_owned();
    let (start, nodes, partition) = (known(start), known(nodes), known(partition));
    Some(Job { id: id.to_owned(), state, start, nodes, partition, ..Job::default() })
}

fn known(field: &str) -> Option<String> {
    let nothing = ["", "N/A", "None", "(null)", "Unknown", "None assigned"];
    (!nothing.contains(&field)).then(|| field.to_owned())
}

impl Job {
    /// True if the job waits in the queue.
    pub fn is_pending(&self) -> bool {
        ["PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "REQUEUE_FED"].contains(&self.state.as_str())
    }

    /// True if the job is suspended.
    pub fn is_suspended(&self) -> bool {
        ["SUSPENDED", "STOPPED"].contains(&self.state.as_str())
    }

    /// True if the job is pending, running or ending.
    pub fn is_alive(&self) -> bool {
        let under_way = ["RUNNING", "COMPLETING", "CONFIGURING", "SIGNALING", "STAGE_OUT", "RESIZING", "RESV_DEL_HOLD"];
        self.is_pending() || self.is_suspended() || under_way.contains(&self.state.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Output of Slurm 22.05.8.

    #[test]
    fn squeue_output_is_parsed() {
        let job = of_squeue("1", "RUNNING|None|2026-11-23T02:46:12|n[1-2]|batch|2|N/A|9:58|\n").unwrap();
        assert_eq!((job.state.as_str(), job.nodes.as_deref(), job.requeues), ("RUNNING", Some("n[1-2]"), 2));
        assert_eq!((job.reason.as_deref(), job.preempted, job.seconds_left), (None, false, Some(598)));
        let job = of_squeue("2", "PENDING|BeginTime|2026-11-23T03:46:12||batch|0|N/A|10:00|").unwrap();
        assert_eq!((job.reason.as_deref(), job.start.as_deref()), (Some("BeginTime"), Some("2026-11-23T03:46:12")));
        assert!(job.is_pending() && job.is_alive() && job.nodes.is_none());
        assert_eq!(of_squeue("3", ""), None);
    }

    #[test]
    fn sacct_output_of_an_ended_job_is_parsed() {
        let job = of_sacct("1", "CANCELLED by 999|2026-11-23T02:46:12|n1|batch\n").unwrap();
        assert_eq!((job.state.as_str(), job.is_alive()), ("CANCELLED", false));
        assert_eq!(of_sacct("1", "\n"), None);
    }
}
