//! Interpretation of the state of the Slurm job in which the coordinator runs.

use crate::decide::{JobState, JobView};
use crate::slurm::job::Job;

/// Interprets the state of `job`. The coordinator belongs to start number `start` of the job, counted from 0. While the
/// processes of a job exit, its state is `COMPLETING`, no matter if the job is then requeued or cancelled. Slurm counts
/// one more start for a requeued job, but not for a cancelled job.
pub fn view(job: &Job, start: u32) -> JobView {
    let job_state = match job.state.as_str() {
        "CANCELLED" => JobState::Cancelled,
        "PREEMPTED" => JobState::Preempted,
        _ if job.preempted => JobState::Preempted,
        "RUNNING" => JobState::Running,
        _ if job.is_pending() || job.requeues > start => JobState::Requeued,
        "COMPLETING" if job.seconds_left.is_some_and(|left| left > 0) => JobState::Cancelled,
        _ => JobState::Unknown,
    };
    JobView { job_state, seconds_left: job.seconds_left.map(|left| left as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slurm_states_are_mapped_to_job_states() {
        let job_state = |state: &str, preempted| {
            let job = Job { state: state.to_owned(), preempted, ..Job::default() };
            view(&job, 0).job_state
        };
        assert_eq!(job_state("RUNNING", false), JobState::Running);
        assert_eq!(job_state("RUNNING", true), JobState::Preempted);
        assert_eq!(job_state("CANCELLED", true), JobState::Cancelled);
        assert_eq!(job_state("PENDING", false), JobState::Requeued);
        assert_eq!(job_state("NODE_FAIL", false), JobState::Unknown);
        let ending = |start| {
            let job = Job { state: "COMPLETING".into(), requeues: 1, seconds_left: Some(9), ..Job::default() };
            view(&job, start).job_state
        };
        assert_eq!((ending(0), ending(1)), (JobState::Requeued, JobState::Cancelled));
        assert_eq!(job_state("COMPLETING", false), JobState::Unknown, "its time is over");
    }
}
