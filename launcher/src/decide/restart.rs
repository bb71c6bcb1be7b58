//! Decides what follows an attempt: a restart, a wait or the end of the run.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use lambert_config::exit;
use lambert_control::FailureKind;

use super::Seconds;
use super::event::{Action, Note, Verdict};
use super::history::Restart;
use super::monitor::{AbnormalEnd, AttemptEnd, AttemptFailure, AttemptMonitor, ReportedEnd, Rollback};
use super::stop::StopReason;
use super::{CoordinatorState, EndReason, Phase, Running, stopped};
use crate::text::counted;

/// Maximum pause before a restart, seconds.
const LONGEST_PAUSE: Seconds = 60.0;
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

/// Decides the next phase after the processes of `running` have ended for reason `why`.
pub fn after_attempt(
    state: &mut CoordinatorState,
    at: Seconds,
    running: &Running,
    why: EndReason,
    actions: &mut Vec<Action>,
) -> Phase {
    let end = match classify(state, running, why, actions) {
        ControlFlow::Continue(end) => end,
        ControlFlow::Break(verdict) => return Phase::Over(verdict),
    };
    match end {
        AttemptEnd::Reported(ReportedEnd::Finished) => Phase::Over(Verdict::Finished),
        AttemptEnd::Reported(ReportedEnd::Stopped) => {
            Phase::Over(Verdict::Stopped(state.requests.stop.unwrap_or(StopReason::Signal)))
        }
        AttemptEnd::Reported(ReportedEnd::RolledBack(rollback)) => rolled_back(state, at, running, rollback, actions),
        AttemptEnd::Abnormal(AbnormalEnd::Absent(cause)) => retry_unreported_start(state, at, running, cause, actions),
        AttemptEnd::Abnormal(AbnormalEnd::Unsupervised(cause)) => unsupervised(state, at, running, cause, actions),
        AttemptEnd::Abnormal(AbnormalEnd::Failed(failure)) => failed(state, at, running, failure, actions),
    }
}

/// Classifies the end of an attempt. Breaks with the verdict if the reason `why` decides it. An end that rank 0 reported
/// remains valid even if processes crash afterwards, because its checkpoint is already committed.
fn classify(
    state: &CoordinatorState,
    running: &Running,
    why: EndReason,
    actions: &mut Vec<Action>,
) -> ControlFlow<Verdict, AttemptEnd> {
    let monitor = &running.monitor;
    let end = match (monitor.reported_end(), why) {
        (Some(end @ ReportedEnd::Finished), EndReason::Replaced(_)) => AttemptEnd::Reported(end),
        // After any other verdict, Slurm might requeue this job, which would then take the run from the new owner.
        (_, EndReason::Replaced(message)) => return ControlFlow::Break(Verdict::Replaced(message)),
        (Some(end @ (ReportedEnd::Finished | ReportedEnd::Stopped)), EndReason::Killed) => AttemptEnd::Reported(end),
        (_, EndReason::Killed) => return ControlFlow::Break(killed(state)),
        (Some(end), why) => {
            let is_final = matches!(end, ReportedEnd::Finished | ReportedEnd::Stopped);
            let crash = match why {
                EndReason::Exited => monitor.crash(running.attempt.world),
                // Ranks may complete their work while the coordinator ends them.
                EndReason::Failed(failure) if is_final => Some(failure.message),
                _ => None,
            };
            actions.extend(crash.map(|message| Action::Note(Note::ResultStands(message))));
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
pub fn conclude(state: &mut CoordinatorState, at: Seconds, mut verdict: Verdict, actions: &mut Vec<Action>) -> Phase {
    let counts = match verdict {
        Verdict::Stopped(reason) => reason != StopReason::User,
        Verdict::Failed(..) => !state.requests.kill,
        Verdict::Finished | Verdict::Replaced(_) => false,
    };
    state.history.progress.end(counts && state.settings.job.is_some());
    if let Verdict::Stopped(reason) = verdict
        && let Some(message) = exceeded_progress_limit(state, &reason.to_string()).filter(|_| counts)
    {
        verdict = give_up(state, at, exit::PERMANENT_FAILURE, message);
    }
    // In these two cases the stop request is deleted. Otherwise it stays in the store for the next coordinator after a
    // requeue.
    if matches!(verdict, Verdict::Finished | Verdict::Stopped(StopReason::User)) {
        actions.push(Action::ForgetStop);
    }
    if state.settings.job.is_some() {
        let (unix, cause) = (state.unix(at), verdict.job_end());
        state.history.end_job(unix, state.step, cause);
    }
    Phase::Over(verdict)
}

fn killed(state: &CoordinatorState) -> Verdict {
    let from = state.checkpoint.as_deref().unwrap_or("step 0 (no checkpoint yet)");
    Verdict::Failed(exit::FAILED, format!("ended without a checkpoint by a second signal; rerun to resume from {from}"))
}

/// Waits and retries after an attempt in which no rank reported. A host, network link or file system is unavailable.
fn retry_unreported_start(
    state: &mut CoordinatorState,
    at: Seconds,
    running: &Running,
    cause: String,
    actions: &mut Vec<Action>,
) -> Phase {
    state.counters.unreachable.extend(running.monitor.hosts_in_messages());
    retry_start(state, at, (running.begun, running.attempt.number), cause, actions)
}

/// Waits and retries if the lease after attempt `last` cannot be taken. The store is unavailable or full.
pub fn without_lease(
    state: &mut CoordinatorState,
    at: Seconds,
    last: u32,
    cause: String,
    actions: &mut Vec<Action>,
) -> Phase {
    state.counters.lease_failed = true;
    retry_start(state, at, (at, last), format!("cannot acquire the lease: {cause}"), actions)
}

/// Waits before the next start, or gives up after the start timeout. `begun` is the time at which the failed start
/// began. `last` is the last attempt.
pub fn retry_start(
    state: &mut CoordinatorState,
    at: Seconds,
    (begun, last): (Seconds, u32),
    cause: String,
    actions: &mut Vec<Action>,
) -> Phase {
    if let Some(over) = stopped(state) {
        return over;
    }
    let counters = &mut state.counters;
    counters.unreported_starts += 1;
    let since = *counters.absent_since.get_or_insert(begun);
    let left = since + state.settings.start_timeout - at;
    if left <= 0.0 {
        let (minutes, limit) = ((at - since) / 60.0, state.settings.start_timeout / 60.0);
        let message = format!(
            "giving up: no rank has reported for {minutes:.1} minutes (cluster.restart.start_timeout_minutes = {limit}); the last failure: {cause}"
        );
        return Phase::Over(give_up(state, at, exit::FAILED, message));
    }
    let pause = pause(counters.unreported_starts);
    actions.push(Action::Note(Note::Waiting { cause, pause, minutes_left: left / 60.0 }));
    Phase::Pausing { last, until: at + pause }
}

/// Restarts after the coordinator was suspended and did not respond to the ranks. No rank failed, so such restarts are
/// unlimited.
fn unsupervised(
    state: &mut CoordinatorState,
    at: Seconds,
    running: &Running,
    cause: String,
    actions: &mut Vec<Action>,
) -> Phase {
    record_failure(state, at, running, &AttemptFailure::transient(cause.clone()), false);
    state.history.progress.end(false);
    stopped(state).unwrap_or_else(|| schedule_restart(at, running, cause, 0.0, false, actions))
}

fn rolled_back(
    state: &mut CoordinatorState,
    at: Seconds,
    running: &Running,
    rollback: Rollback,
    actions: &mut Vec<Action>,
) -> Phase {
    let Rollback { message: cause, step, last_kept } = rollback;
    record_failure(state, at, running, &AttemptFailure::transient(cause.clone()), false);
    state.history.progress.rolled_back(step, last_kept);
    // The checkpoint to resume from is already in the store, so a requested stop needs no other checkpoint.
    if let Some(over) = stopped(state) {
        return over;
    }
    let limit = state.settings.rollbacks;
    if state.history.progress.rollbacks > limit {
        let message =
            format!("giving up after {} without progress; the last: {cause}", counted(limit as u64, "rollback"));
        return Phase::Over(give_up(state, at, exit::DIVERGED, message));
    }
    schedule_restart(at, running, cause, 0.0, true, actions)
}

fn failed(
    state: &mut CoordinatorState,
    at: Seconds,
    running: &Running,
    failure: AttemptFailure,
    actions: &mut Vec<Action>,
) -> Phase {
    let AttemptFailure { message, kind, .. } = &failure;
    if *kind == FailureKind::LeaseLost {
        return Phase::Over(Verdict::Replaced(message.clone()));
    }
    if running.stopping {
        let message = format!("the workers failed before the requested checkpoint and stop: {message}");
        return Phase::Over(Verdict::Failed(exit::FAILED, message));
    }
    match kind {
        FailureKind::Usage => return Phase::Over(Verdict::Failed(exit::USAGE, message.clone())),
        FailureKind::Permanent | FailureKind::LeaseLost => {
            return Phase::Over(Verdict::Failed(exit::PERMANENT_FAILURE, message.clone()));
        }
        FailureKind::RetryLater => return Phase::Over(Verdict::Failed(exit::FAILED, message.clone())),
        FailureKind::Host | FailureKind::Transient => {}
    }
    record_failure(state, at, running, &failure, true);
    state.history.progress.end(true);
    if let Some(over) = stopped(state) {
        return over;
    }
    if let Some(message) = exceeded_restart_limit(state, at, &failure) {
        return Phase::Over(give_up(state, at, exit::FAILED, message));
    }
    let pause = pause(state.counters.consecutive_failures);
    schedule_restart(at, running, failure.message, pause, false, actions)
}

/// Returns a message if this failure exceeds a restart limit.
fn exceeded_restart_limit(state: &mut CoordinatorState, at: Seconds, failure: &AttemptFailure) -> Option<String> {
    if failure.kind == FailureKind::Host
        && let Some((host, times)) = state.counters.host_failed(&failure.hosts)
        && times > HOST_TRIES
    {
        let last = &failure.message;
        return Some(format!("giving up after {times} failures of host {host} without progress; last failure: {last}"));
    }
    let settings = &state.settings;
    let failures = state.history.count(state.unix(at) - settings.window);
    let (limit, minutes) = (settings.restarts, settings.window / 60.0);
    if failures > limit {
        return Some(format!(
            "giving up after {} within {minutes} minutes (cluster.restart.limit = {limit}); last failure: {}",
            counted(failures as u64, "failure"),
            failure.message
        ));
    }
    exceeded_progress_limit(state, &failure.message)
}

/// Returns a message if too many attempts made no progress. `last` describes the end of the last attempt.
pub fn exceeded_progress_limit(state: &CoordinatorState, last: &str) -> Option<String> {
    let (attempts, limit) = (state.history.progress.attempts_without_checkpoint, state.settings.restarts);
    (attempts > limit).then(|| {
        format!(
            "giving up after {} without a new checkpoint (cluster.restart.limit = {limit}); last attempt: {last}",
            counted(attempts as u64, "attempt")
        )
    })
}

/// Records a failure.
fn record_failure(
    state: &mut CoordinatorState,
    at: Seconds,
    running: &Running,
    failure: &AttemptFailure,
    counts: bool,
) {
    let monitor = &running.monitor;
    let (attempt, step) = (running.attempt.number, monitor.steps.finished);
    state.counters.count_failure(monitor);
    if let Some(downtime) = state.counters.begin_recovery(monitor.failure_signs.since.unwrap_or(at), step) {
        state.history.account(downtime);
    }
    let (cause, hosts, unix) = (failure.message.clone(), failure.hosts.clone(), state.unix(at));
    state.history.add(Restart { unix, attempt, step, cause, counts_toward_limit: counts, hosts, seconds: None });
}

/// Gives up the run and resets the counts, because a user who restarts the run has fixed the cause.
pub fn give_up(state: &mut CoordinatorState, at: Seconds, code: i32, message: String) -> Verdict {
    state.history.counted_from = state.unix(at);
    state.history.progress.forget_failures();
    Verdict::Failed(code, message)
}

fn schedule_restart(
    at: Seconds,
    running: &Running,
    cause: String,
    pause: Seconds,
    rollback: bool,
    actions: &mut Vec<Action>,
) -> Phase {
    actions.push(Action::Note(Note::Restart { cause, pause, rollback }));
    Phase::Pausing { last: running.attempt.number, until: at + pause }
}

/// Returns the pause after the given number of consecutive failures: 1, 2, 4, ... seconds, at most `LONGEST_PAUSE`.
fn pause(failures: usize) -> Seconds {
    let doublings = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX).min(16);
    f64::powi(2.0, doublings).min(LONGEST_PAUSE)
}
