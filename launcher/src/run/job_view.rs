//! Interpretation of the coordinator's Slurm job.

use crate::decide::{JobView, Standing};
use crate::slurm::job::Job;

/// Interprets the state of `job`, of which the coordinator is in start number `start` (from 0). A job is `COMPLETING`
/// while its processes exit, whatever follows; a requeued job counts one more start, a cancelled one does not.
pub fn view(job: &Job, start: u32) -> JobView {
    let standing = match job.state.as_str() {
        "CANCELLED" => Standing::Cancelled,
        "PREEMPTED" => Standing::Preempted,
        _ if job.preempted => Standing::Preempted,
        "RUNNING" => Standing::Running,
        _ if job.is_pending() || job.requeues > start => Standing::Requeued,
        "COMPLETING" if job.seconds_left.is_some_and(|left| left > 0) => Standing::Cancelled,
        _ => Standing::Unknown,
    };
    JobView { standing, seconds_left: job.seconds_left.map(|left| left as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_mean_something_to_a_coordinator() {
        let standing = |state: &str, preempted| {
            let job = Job { state: state.to_owned(), preempted, ..Job::default() };
            view(&job, 0).standing
        };
        assert_eq!(standing("RUNNING", false), Standing::Running);
        assert_eq!(standing("RUNNING", true), Standing::Preempted);
        assert_eq!(standing("CANCELLED", true), Standing::Cancelled);
        assert_eq!(standing("PENDING", false), Standing::Requeued);
        assert_eq!(standing("NODE_FAIL", false), Standing::Unknown);
        let ending = |start| {
            let job = Job { state: "COMPLETING".into(), requeues: 1, seconds_left: Some(9), ..Job::default() };
            view(&job, start).standing
        };
        assert_eq!((ending(0), ending(1)), (Standing::Requeued, Standing::Cancelled));
        assert_eq!(standing("COMPLETING", false), Standing::Unknown, "its time is over");
    }
}
