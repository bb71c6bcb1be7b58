//! Errors of the set-up of hosts: they end the first attempt of a run, and are failures of single hosts later.

use lambert_config::exit;
use lambert_control::FailureKind;

use super::event::Verdict;
use super::monitor::AttemptFailure;
use super::{CoordinatorState, Phase, Running, Turn};

impl Turn<'_> {
    /// Ends the run if the program of a rank did not load in the first attempt: the set-up of its host is wrong. After an
    /// earlier attempt, a file system may be unavailable, so this is a failure of the host.
    pub(super) fn not_loaded(&mut self, running: &Running, failure: AttemptFailure) -> Phase {
        match self.has_valid_setup() {
            true => self.failed(running, failure),
            false => Phase::Over(Verdict::Failed(exit::USAGE, failure.message)),
        }
    }

    /// True if an earlier attempt of this coordinator, or an earlier start of its job, shows that the set-up is valid.
    pub(super) fn has_valid_setup(&self) -> bool {
        !self.state.counters.is_first() || self.job_has_trained()
    }

    /// True if an earlier start of the Slurm job has trained the run, with the same script and configuration.
    fn job_has_trained(&self) -> bool {
        let CoordinatorState { settings, history, .. } = &*self.state;
        let has_started = |id: &str| history.job_ends.iter().any(|end| end.job == id);
        history.progress.furthest_checkpoint > 0 && settings.job.as_ref().is_some_and(|job| has_started(&job.id))
    }

    /// Changes an error of the set-up to a failure of its hosts if the job has trained before, and other hosts of the
    /// attempt do not report this error. The requeued job then has a node that is not set up like the others.
    pub(super) fn blame_misconfigured_hosts(&self, running: &Running, failure: &mut AttemptFailure) {
        if failure.kind == FailureKind::Usage && self.job_has_trained() {
            let hosts = running.monitor.misconfigured_hosts();
            if !hosts.is_empty() {
                (failure.kind, failure.hosts) = (FailureKind::Host, hosts);
            }
        }
    }
}
