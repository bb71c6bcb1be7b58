//! Decides what follows an attempt: a restart, a wait or the end of the run.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use lambert_config::exit;
use lambert_control::FailureKind;

use super::Seconds;
use super::event::{Action, Note, RestartKind, Verdict};
use super::history::Restart;
use super::monitor::{AbnormalEnd, AttemptEnd, AttemptFailure, AttemptMonitor, ReportedEnd, Rollback};
use super::stop::StopReason;
use super::{CoordinatorState, EndReason, Phase, Running, Turn, exclusion};
use crate::text::counted;

/// Maximum pause before a restart, seconds.
const MAX_PAUSE: Seconds = 60.0;
/// Maximum number of failures of the same host without progress after which the coordinator retries.
const HOST_TRIES: usize = 3;

/// Failure counters since the run last made progress.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RestartCounters {
    /// Consecutive failures without progress.
    consecutive_failures: usize,
    /// Number of failures of each host without progress.
    host_failures: BTreeMap<String, usize>,
    /// Consecutive starts without a report from any rank.
    unreported_starts: usize,
    /// True if the last request for a lease failed.
    pub(super) lease_failed: bool,
    /// Start of the current series of starts without a report.
    absent_since: Option<Seconds>,
    /// Hosts that the launcher could not reach in that series.
    unreachable: BTreeSet<String>,
    /// Most steps completed by any attempt.
    most_steps: u64,
    /// Current recovery.
    recovery: Option<Recovery>,
}

/// Recovery from one or more failures.
#[derive(Debug, Clone, PartialEq)]
struct Recovery {
    /// Time of the last failure.
    since: Seconds,
    /// Step that the run must reach again.
    target_step: u64,
}

impl RestartCounters {
    /// True if no attempt has failed yet.
    pub fn is_first(&self) -> bool {
        self.consecutive_failures == 0 && self.unreported_starts == 0
    }

    /// Hosts that the launcher could not reach in the current series of starts without a report.
    pub fn unreachable(&self) -> impl Iterator<Item = &str> {
        self.unreachable.iter().map(String::as_str)
    }

    /// Registers the start of the wait for the next lease. The wait counts toward the start timeout.
    pub fn begin(&mut self, at: Seconds) {
        self.absent_since.get_or_insert(at);
    }

    /// Returns the step and the downtime of the last failure, once the run has reached that step again.
    pub fn recover(&mut self, at: Seconds, monitor: &AttemptMonitor) -> Option<(u64, Seconds)> {
        let is_complete =
            |recovery: &mut Recovery| monitor.steps.started && monitor.steps.finished >= recovery.target_step;
        let Recovery { since, target_step } = self.recovery.take_if(is_complete)?;
        Some((target_step, at - since))
    }

    /// Counts a failure. First resets the counts if the attempt made progress: it committed a checkpoint, or completed
    /// more steps than any earlier attempt.
    fn count_failure(&mut self, monitor: &AttemptMonitor) {
        let progress = monitor.steps.committed || monitor.steps.finished > self.most_steps;
        self.most_steps = self.most_steps.max(monitor.steps.finished);
        if progress {
            self.consecutive_failures = 0;
            self.host_failures.clear();
        }
        self.consecutive_failures += 1;
        (self.unreported_starts, self.absent_since) = (0, None);
        self.unreachable.clear();
    }

    /// Begins the recovery from a failure at time `since`, after `step` steps. If the previous recovery is incomplete, ends it
    /// and returns its downtime, so that no time is counted twice.
    fn begin_recovery(&mut self, since: Seconds, step: u64) -> Option<Seconds> {
        let previous = self.recovery.take();
        let target_step = previous.as_ref().map_or(step, |previous| previous.target_step.max(step));
        self.recovery = Some(Recovery { since, target_step });
        previous.map(|previous| since - previous.since)
    }

    /// Counts a failure of the hosts. Returns the host that has failed most often, with the number of its failures.
    fn host_failed(&mut self, hosts: &BTreeSet<String>) -> Option<(&str, usize)> {
        hosts.iter().for_each(|host| *self.host_failures.entry(host.clone()).or_default() += 1);
        self.host_failures.iter().max_by_key(|(_, times)| **times).map(|(host, times)| (host.as_str(), *times))
    }
}

/// Effect of a failure on `cluster.restart.limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RestartLimit {
    /// Counts toward the limit.
    Counted,
    /// No rank failed, or another limit applies.
    Exempt,
}

impl Turn<'_> {
    /// Decides the next phase after the processes of `running` have ended for reason `why`.
    pub(super) fn after_attempt(&mut self, running: &Running, why: EndReason) -> Phase {
        let end = match self.classify(running, why) {
            ControlFlow::Continue(end) => end,
            ControlFlow::Break(verdict) => return Phase::Over(verdict),
        };
        match end {
            AttemptEnd::Reported(ReportedEnd::Finished) => Phase::Over(Verdict::Finished),
            AttemptEnd::Reported(ReportedEnd::Stopped) => {
                Phase::Over(Verdict::Stopped(self.state.requests.stop.unwrap_or(StopReason::Signal)))
            }
            AttemptEnd::Reported(ReportedEnd::RolledBack(rollback)) => self.rolled_back(running, rollback),
            AttemptEnd::Abnormal(AbnormalEnd::Absent(cause)) => self.retry_unreported_start(running, cause),
            AttemptEnd::Abnormal(AbnormalEnd::Unsupervised(cause)) => self.unsupervised(running, cause),
            AttemptEnd::Abnormal(AbnormalEnd::NotLoaded(failure)) => self.not_loaded(running, failure),
            AttemptEnd::Abnormal(AbnormalEnd::Failed(failure)) => self.failed(running, failure),
        }
    }

    /// Classifies the end of an attempt. Breaks with the verdict if the reason `why` decides it. An end that rank 0 reported
    /// remains valid even if processes crash afterwards, because its checkpoint is already committed.
    fn classify(&mut self, running: &Running, why: EndReason) -> ControlFlow<Verdict, AttemptEnd> {
        let monitor = &running.monitor;
        let end = match (monitor.reported_end(), why) {
            (Some(end @ ReportedEnd::Finished), EndReason::Replaced(_)) => AttemptEnd::Reported(end),
            // After any other verdict, Slurm might requeue this job, which would then take the run from the new owner.
            (_, EndReason::Replaced(message)) => return ControlFlow::Break(Verdict::Replaced(message)),
            (Some(end @ (ReportedEnd::Finished | ReportedEnd::Stopped)), EndReason::Killed) => {
                AttemptEnd::Reported(end)
            }
            (_, EndReason::Killed) => return ControlFlow::Break(self.killed()),
            (Some(end), why) => {
                let is_final = matches!(end, ReportedEnd::Finished | ReportedEnd::Stopped);
                let crash = match why {
                    EndReason::Exited => monitor.crash(running.attempt.world),
                    // Ranks may complete their work while the coordinator ends them.
                    EndReason::Failed(failure) if is_final => Some(failure.message),
                    _ => None,
                };
                self.actions.extend(crash.map(|message| Action::Note(Note::ResultStands(message))));
                AttemptEnd::Reported(end)
            }
            // The ranks had nothing to save, or no time for it.
            (None, EndReason::Stopped) => AttemptEnd::Reported(ReportedEnd::Stopped),
            (None, EndReason::Failed(failure)) => AttemptEnd::Abnormal(match monitor.ranks.is_empty() {
                true => AbnormalEnd::Absent(failure.message),
                false => AbnormalEnd::Failed(failure),
            }),
            (None, EndReason::Exited) => AttemptEnd::Abnormal(monitor.failure(running.attempt.world)),
        };
        ControlFlow::Continue(end)
    }

    /// Ends the run with `verdict`. In a Slurm job, a last attempt without progress counts toward the limit, because the
    /// next job starts without a user. The attempt does not count if a user ended it.
    pub(super) fn conclude(&mut self, mut verdict: Verdict) -> Phase {
        let counts = match verdict {
            Verdict::Stopped(reason) => reason != StopReason::User,
            Verdict::Failed(..) => !self.state.requests.kill,
            Verdict::Finished | Verdict::Replaced(_) => false,
        };
        self.state.history.progress.end(counts && self.state.settings.job.is_some());
        if let Verdict::Stopped(reason) = verdict
            && let Some(message) = self.exceeded_progress_limit(&reason.to_string()).filter(|_| counts)
        {
            verdict = self.give_up(exit::PERMANENT_FAILURE, message);
        }
        // In these two cases the stop request is deleted. Otherwise it stays in the store for the next coordinator after a
        // requeue.
        if matches!(verdict, Verdict::Finished | Verdict::Stopped(StopReason::User)) {
            self.actions.push(Action::ForgetStop);
        }
        if self.state.settings.job.is_some() {
            let (unix, cause) = (self.state.unix(self.at), verdict.job_end());
            if verdict.is_requeued() {
                let CoordinatorState { settings, history, counters, .. } = &*self.state;
                self.state.excluded = exclusion::nodes_to_exclude(settings, history, counters.unreachable(), unix);
            }
            self.state.history.end_job(unix, self.state.step, cause, self.state.excluded.clone());
        }
        Phase::Over(verdict)
    }

    fn killed(&self) -> Verdict {
        let from = self.state.checkpoint.as_deref().unwrap_or("step 0 (no checkpoint yet)");
        Verdict::Failed(
            exit::FAILED,
            format!("ended by a second signal without a checkpoint; rerun to resume from {from}"),
        )
    }

    /// Waits and retries after an attempt in which no rank reported. A host, network link or file system is unavailable.
    fn retry_unreported_start(&mut self, running: &Running, cause: String) -> Phase {
        self.state.counters.unreachable.extend(running.monitor.hosts_in_messages());
        self.retry_start(running.begun, running.attempt.number, cause)
    }

    /// Waits and retries if the lease after attempt `last` cannot be taken. The store is unavailable or full.
    pub(super) fn without_lease(&mut self, last: u32, cause: String) -> Phase {
        self.state.counters.lease_failed = true;
        self.retry_start(self.at, last, format!("cannot acquire the lease: {cause}"))
    }

    /// Waits before the next start, or gives up after the start timeout. `begun` is the time at which the failed start
    /// began. `last` is the last attempt.
    pub(super) fn retry_start(&mut self, begun: Seconds, last: u32, cause: String) -> Phase {
        if let Some(over) = self.stopped() {
            return over;
        }
        let counters = &mut self.state.counters;
        counters.unreported_starts += 1;
        let since = *counters.absent_since.get_or_insert(begun);
        let left = since + self.state.settings.start_timeout - self.at;
        if left <= 0.0 {
            let (minutes, limit) = ((self.at - since) / 60.0, self.state.settings.start_timeout / 60.0);
            let message = format!(
                "giving up: no rank has reported for {minutes:.1} minutes (cluster.restart.start_timeout_minutes = {limit}); the last failure: {cause}"
            );
            return Phase::Over(self.give_up(exit::FAILED, message));
        }
        let pause = pause(counters.unreported_starts);
        self.actions.push(Action::Note(Note::Waiting { cause, pause, minutes_left: left / 60.0 }));
        Phase::Pausing { last, until: self.at + pause }
    }

    /// Restarts after the coordinator was suspended and did not respond to the ranks. No rank failed, so such restarts are
    /// unlimited.
    fn unsupervised(&mut self, running: &Running, cause: String) -> Phase {
        self.record_failure(running, &AttemptFailure::transient(cause.clone()), RestartLimit::Exempt);
        self.state.history.progress.end(false);
        self.stopped().unwrap_or_else(|| self.schedule_restart(running, cause, 0.0, RestartKind::Resume))
    }

    fn rolled_back(&mut self, running: &Running, rollback: Rollback) -> Phase {
        let Rollback { message: cause, step, last_kept } = rollback;
        self.record_failure(running, &AttemptFailure::transient(cause.clone()), RestartLimit::Exempt);
        self.state.history.progress.rolled_back(step, last_kept);
        // The checkpoint to resume from is already in the store, so a requested stop needs no other checkpoint.
        if let Some(over) = self.stopped() {
            return over;
        }
        let limit = self.state.settings.rollbacks;
        if self.state.history.progress.rollbacks > limit {
            let rollbacks = counted(limit as u64, "rollback");
            let message = format!(
                "giving up after {rollbacks} without progress; the last: {cause}; lower the learning rate or lengthen the \
                 warm-up, or check the data, then rerun to resume"
            );
            return Phase::Over(self.give_up(exit::DIVERGED, message));
        }
        self.schedule_restart(running, cause, 0.0, RestartKind::Rollback)
    }

    pub(super) fn failed(&mut self, running: &Running, mut failure: AttemptFailure) -> Phase {
        running.monitor.blame_defective_gpus(&mut failure);
        self.blame_misconfigured_hosts(running, &mut failure);
        let AttemptFailure { message, kind, .. } = &failure;
        if *kind == FailureKind::LeaseLost {
            return Phase::Over(Verdict::Replaced(message.clone()));
        }
        if running.stopping {
            let message = format!("the workers failed before the requested checkpoint and stop: {message}");
            let may_pass = matches!(kind, FailureKind::Host | FailureKind::Transient);
            return Phase::Over(match self.state.requests.stop {
                // The job is requeued in any case, so this is not one of the failures that end it.
                Some(reason) if may_pass && reason != StopReason::User && self.state.settings.job.is_some() => {
                    self.actions.push(Action::Note(Note::StopFailed(message)));
                    Verdict::Stopped(reason)
                }
                _ => Verdict::Failed(exit::FAILED, message),
            });
        }
        match kind {
            FailureKind::Usage => return Phase::Over(Verdict::Failed(exit::USAGE, message.clone())),
            FailureKind::Permanent | FailureKind::LeaseLost => {
                return Phase::Over(Verdict::Failed(exit::PERMANENT_FAILURE, message.clone()));
            }
            FailureKind::RetryLater => return Phase::Over(Verdict::Failed(exit::FAILED, message.clone())),
            FailureKind::Host | FailureKind::Transient => {}
        }
        self.record_failure(running, &failure, RestartLimit::Counted);
        self.state.history.progress.end(true);
        if let Some(over) = self.stopped() {
            return over;
        }
        if let Some(message) = self.exceeded_restart_limit(&failure) {
            return Phase::Over(self.give_up(exit::FAILED, message));
        }
        let pause = pause(self.state.counters.consecutive_failures);
        self.schedule_restart(running, failure.message, pause, RestartKind::Resume)
    }

    /// Returns a message if this failure exceeds a restart limit.
    fn exceeded_restart_limit(&mut self, failure: &AttemptFailure) -> Option<String> {
        if failure.kind == FailureKind::Host
            && let Some((host, times)) = self.state.counters.host_failed(&failure.hosts)
            && times > HOST_TRIES
        {
            let last = &failure.message;
            return Some(format!(
                "giving up after {times} failures of host {host} without progress; last failure: {last}"
            ));
        }
        let settings = &self.state.settings;
        let failures = self.state.history.count(self.state.unix(self.at) - settings.window);
        let (limit, minutes) = (settings.restarts, settings.window / 60.0);
        if failures > limit {
            return Some(format!(
                "giving up after {} within {minutes} minutes (cluster.restart.limit = {limit}); last failure: {}",
                counted(failures as u64, "failure"),
                failure.message
            ));
        }
        self.exceeded_progress_limit(&failure.message)
    }

    /// Returns a message if too many attempts made no progress. `last` describes the end of the last attempt.
    pub(super) fn exceeded_progress_limit(&self, last: &str) -> Option<String> {
        let (attempts, limit) = (self.state.history.progress.attempts_without_checkpoint, self.state.settings.restarts);
        (attempts > limit).then(|| {
            format!(
                "giving up after {} without a new checkpoint (cluster.restart.limit = {limit}); last attempt: {last}",
                counted(attempts as u64, "attempt")
            )
        })
    }

    /// Records a failure.
    fn record_failure(&mut self, running: &Running, failure: &AttemptFailure, limit: RestartLimit) {
        let monitor = &running.monitor;
        let (attempt, step) = (running.attempt.number, monitor.steps.finished);
        self.state.counters.count_failure(monitor);
        if let Some(downtime) = self.state.counters.begin_recovery(monitor.failure_signs.since.unwrap_or(self.at), step)
        {
            self.state.history.account(downtime);
        }
        let (cause, hosts, unix) = (failure.message.clone(), failure.hosts.clone(), self.state.unix(self.at));
        self.state.history.add(Restart {
            unix,
            attempt,
            step,
            cause,
            counts_toward_limit: limit == RestartLimit::Counted,
            hosts,
            seconds: None,
        });
    }

    /// Gives up the run and resets the counts, because a user who restarts the run has fixed the cause.
    pub(super) fn give_up(&mut self, code: i32, message: String) -> Verdict {
        self.state.history.counted_from = self.state.unix(self.at);
        self.state.history.progress.forget_failures();
        Verdict::Failed(code, message)
    }

    fn schedule_restart(&mut self, running: &Running, cause: String, pause: Seconds, kind: RestartKind) -> Phase {
        self.actions.push(Action::Note(Note::Restart { cause, pause, kind }));
        Phase::Pausing { last: running.attempt.number, until: self.at + pause }
    }
}

/// Returns the pause after the given number of consecutive failures: 1, 2, 4, ... seconds, at most `MAX_PAUSE`.
fn pause(failures: usize) -> Seconds {
    let doublings = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX).min(16);
    f64::powi(2.0, doublings).min(MAX_PAUSE)
}
