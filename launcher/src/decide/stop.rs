//! Reasons to stop. They come from signals and user requests. Slurm's job state explains ambiguous signals.

use super::Seconds;

/// Maximum time, in seconds, by which Slurm may send SIGUSR1 earlier than requested.
const EARLY: Seconds = 60.0;
/// Allowance for a late answer from Slurm, seconds.
const LATE: Seconds = 10.0;
/// Time allowed for terminating the ranks, seconds.
const ENDING: Seconds = 25.0;
/// Time allowed after `ENDING` for the batch script to query Slurm and requeue the job, seconds.
const REQUEUE: Seconds = 60.0;
/// Time after a signal within which further signals belong to the same request, seconds. For example, `timeout` signals
/// its child and then the process group of the child. A terminal may do the same.
const SAME_REQUEST: Seconds = 1.0;

/// A signal that requests a checkpoint and a stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGHUP: the terminal was closed. Shell and kernel may both send the signal.
    Hangup,
    /// SIGTERM or SIGUSR1, from a supervisor or a batch system.
    Other,
}

/// Reason for stopping with a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// Requested by a user: `lambert stop`, Ctrl-C, scancel.
    User,
    /// Preempted by another job.
    Preempted,
    /// The time limit of the job is near.
    TimeLimit,
    /// The job was requeued: `scontrol requeue`.
    Requeued,
    /// A signal of unknown origin.
    Signal,
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::User => "stopped by a user",
            Self::Preempted => "preempted by another job",
            Self::TimeLimit => "close to the job's time limit",
            Self::Requeued => "requeued",
            Self::Signal => "stopped by a signal",
        })
    }
}

/// The Slurm job of a coordinator.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct JobSettings {
    /// Job ID.
    pub id: String,
    /// Slurm's name of the node on which the coordinator runs. `None` if it runs on no node of the job.
    pub node: Option<String>,
    /// Time for which nodes that caused failures are excluded from later starts, seconds. 0: no node is excluded.
    pub exclude_seconds: Seconds,
    /// Time between SIGUSR1 and the time limit, seconds (`slurm.lead_seconds`).
    pub lead: Seconds,
}

/// State of the job in Slurm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JobView {
    pub job_state: JobState,
    /// Seconds until the time limit, or until a preemption ends the job.
    pub seconds_left: Option<Seconds>,
}

/// Job states that matter to a coordinator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    Running,
    /// Preempted: another job waits for the nodes, or Slurm has already ended this job for the other job.
    Preempted,
    Cancelled,
    /// Being requeued.
    Requeued,
    /// Slurm did not answer, or reports another state.
    Unknown,
}

impl JobView {
    /// Returns the reason why Slurm or a user signals a job in this state.
    pub fn reason(&self, job: &JobSettings) -> StopReason {
        match self.job_state {
            JobState::Cancelled => StopReason::User,
            JobState::Preempted => StopReason::Preempted,
            JobState::Requeued => StopReason::Requeued,
            JobState::Running if self.seconds_left.is_some_and(|left| left <= job.lead + EARLY + LATE) => {
                StopReason::TimeLimit
            }
            JobState::Running | JobState::Unknown => StopReason::Signal,
        }
    }
}

/// Requests from users and Slurm.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Requests {
    /// Reason of the requested checkpoint and stop, if requested.
    pub stop: Option<StopReason>,
    /// True if an immediate end was requested.
    pub kill: bool,
    /// True from the request for a checkpoint until a checkpoint is committed.
    pub save: bool,
    /// Time at which the coordinator terminates the ranks of an ending job, even without a checkpoint.
    pub end_by: Option<Seconds>,
    /// Time of the first signal other than SIGHUP.
    first_signal: Option<Seconds>,
    /// Time of the first Ctrl-C.
    first_interrupt: Option<Seconds>,
}

impl Requests {
    /// Applies a signal received at time `at`. A second signal, at least `SAME_REQUEST` later, requests an immediate
    /// end. In a Slurm job, only a second Ctrl-C requests an immediate end, because Slurm sends SIGTERM repeatedly.
    /// SIGHUP never requests an immediate end: closing the terminal after Ctrl-C must not cancel the checkpoint.
    pub fn signal(&mut self, at: Seconds, signal: Signal, job: Option<&JobSettings>) {
        let is_second = |first: &mut Option<Seconds>| at - *first.get_or_insert(at) >= SAME_REQUEST;
        let second_signal = signal != Signal::Hangup && is_second(&mut self.first_signal);
        let second_interrupt = signal == Signal::Interrupt && is_second(&mut self.first_interrupt);
        self.kill |= second_interrupt || (job.is_none() && second_signal);
        match signal {
            Signal::Interrupt => self.stop = Some(StopReason::User),
            Signal::Hangup | Signal::Other => drop(self.stop.get_or_insert(StopReason::Signal)),
        }
    }

    /// Applies Slurm's explanation of a signal, received at time `at`.
    pub fn apply_job_view(&mut self, at: Seconds, view: &JobView, job: &JobSettings) {
        if self.stop == Some(StopReason::Signal) {
            self.stop = Some(view.reason(job));
        }
        if matches!(self.stop, Some(StopReason::TimeLimit | StopReason::Preempted)) {
            self.end_by = view.seconds_left.map(|left| at + left - end_takes(left));
        }
    }
}

/// Time reserved for ending and requeuing a job that has `left` seconds left. The reserved time is at most half of
/// `left`, because ending and requeuing usually takes only one or two seconds.
fn end_takes(left: Seconds) -> Seconds {
    (ENDING + REQUEUE).min(0.5 * left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> JobSettings {
        JobSettings { id: "12".to_owned(), lead: 120.0, ..JobSettings::default() }
    }

    #[test]
    fn the_meaning_of_a_signal_comes_from_slurm() {
        let reason = |job_state, seconds_left| JobView { job_state, seconds_left }.reason(&job());
        assert_eq!(reason(JobState::Cancelled, Some(20.0)), StopReason::User);
        assert_eq!(reason(JobState::Preempted, Some(20.0)), StopReason::Preempted);
        assert_eq!(reason(JobState::Requeued, None), StopReason::Requeued);
        assert_eq!(reason(JobState::Running, Some(120.0 + 60.0)), StopReason::TimeLimit);
        assert_eq!(reason(JobState::Running, Some(200.0)), StopReason::Signal);
        assert_eq!(reason(JobState::Running, None), StopReason::Signal);
        assert_eq!(reason(JobState::Unknown, Some(1.0)), StopReason::Signal);
    }

    #[test]
    fn in_a_job_only_a_second_interrupt_ends_at_once() {
        let after = |signals: &[Signal], job: Option<&JobSettings>| {
            let mut requests = Requests::default();
            signals.iter().enumerate().for_each(|(second, signal)| requests.signal(second as f64, *signal, job));
            (requests.stop, requests.kill)
        };
        use Signal::{Hangup, Interrupt, Other};
        let (person, signal) = (Some(StopReason::User), Some(StopReason::Signal));
        assert_eq!(after(&[Other], None), (signal, false));
        assert_eq!(after(&[Other, Other], None), (signal, true));
        assert_eq!(after(&[Interrupt, Other], None), (person, true));
        assert_eq!(after(&[Hangup, Hangup], None), (signal, false));
        assert_eq!(after(&[Interrupt, Hangup], None), (person, false));
        assert_eq!(after(&[Hangup, Other], None), (signal, false));
        assert_eq!(after(&[Hangup, Other, Other], None), (signal, true));
        assert_eq!(after(&[Other, Other, Other], Some(&job())), (signal, false));
        assert_eq!(after(&[Other, Interrupt], Some(&job())), (person, false));
        assert_eq!(after(&[Interrupt, Interrupt], Some(&job())), (person, true));
    }

    /// `timeout 5 lambert run` signals the child and then its process group.
    #[test]
    fn signals_within_a_second_of_the_first_are_one_request() {
        let kills = |times: &[Seconds], signal: Signal, job: Option<&JobSettings>| {
            let mut requests = Requests::default();
            times.iter().for_each(|at| requests.signal(*at, signal, job));
            (requests.stop.is_some(), requests.kill)
        };
        assert_eq!(kills(&[5.0, 5.001], Signal::Other, None), (true, false));
        assert_eq!(kills(&[5.0, 5.4, 5.9], Signal::Other, None), (true, false), "all of them within a second");
        assert_eq!(kills(&[5.0, 5.4, 6.1], Signal::Other, None), (true, true), "the third is a second request");
        assert_eq!(kills(&[5.0, 6.0], Signal::Interrupt, None), (true, true));
        assert_eq!(kills(&[5.0, 5.5], Signal::Interrupt, Some(&job())), (true, false));
        assert_eq!(kills(&[5.0, 6.5], Signal::Interrupt, Some(&job())), (true, true));
        let mut requests = Requests::default();
        requests.signal(5.0, Signal::Other, Some(&job()));
        requests.signal(7.0, Signal::Interrupt, Some(&job()));
        requests.signal(7.5, Signal::Interrupt, Some(&job()));
        assert!(!requests.kill, "the first Ctrl-C is no second one");
    }

    #[test]
    fn a_manual_stop_keeps_its_reason() {
        let view = JobView { job_state: JobState::Preempted, seconds_left: None };
        let mut requests = Requests { stop: Some(StopReason::User), ..Requests::default() };
        requests.apply_job_view(0.0, &view, &job());
        assert_eq!(requests.stop, Some(StopReason::User));
        requests.stop = None;
        requests.apply_job_view(0.0, &view, &job());
        assert_eq!(requests.stop, None, "nobody has asked");
    }

    #[test]
    fn time_is_reserved_for_the_end_of_a_job() {
        let end_by = |job_state, seconds_left| {
            let mut requests = Requests { stop: Some(StopReason::Signal), ..Requests::default() };
            requests.apply_job_view(1000.0, &JobView { job_state, seconds_left }, &job());
            requests.end_by
        };
        assert_eq!(end_by(JobState::Running, Some(180.0)), Some(1095.0));
        assert_eq!(end_by(JobState::Preempted, Some(400.0)), Some(1315.0));
        assert_eq!(end_by(JobState::Preempted, Some(30.0)), Some(1015.0), "at most half of what is left");
        assert_eq!(end_by(JobState::Running, Some(4000.0)), None, "a signal of somebody else");
        assert_eq!(end_by(JobState::Cancelled, Some(180.0)), None, "the job is not queued again");
        assert_eq!(end_by(JobState::Preempted, None), None);
    }
}
