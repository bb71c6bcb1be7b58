//! Decides what follows an attempt: a restart, a wait or the end of the run.

use std::collections::BTreeSet;

use lambert_config::exit;
use lambert_control::FailureKind;

use super::Seconds;
use super::event::{Action, Note, Verdict};
use super::history::Restart;
use super::monitor::{AttemptEnd, AttemptFailure, AttemptMonitor, Rollback};
use super::stop::StopReason;
use super::{CoordinatorState, EndReason, Phase, Running, stopped};
use crate::text::counted;

/// Maximum pause before a restart, seconds.
const LONGEST_PAUSE: Seconds = 60.0;
/// Maximum number of retries after host failures, on any host.
const HOST_TRIES: usize = 3;

/// Failure counters since the run last made progress.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RestartCounters {
    /// Consecutive failures without progress.
    in_a_row: usize,
    /// Consecutive host failures without progress.
    of_hosts: usize,
    /// Consecutive starts without a report from any rank.
    absent: usize,
    /// True if the lease for the next attempt could not be taken.
    pub(super) lease_failed: bool,
    /// Start of the current series of starts without a report.
    absent_since: Option<Seconds>,
    /// Hosts that the launcher could not reach during this series.
    unreachable: BTreeSet<String>,
    /// Most steps completed by any attempt.
    furthest: u64,
    /// Start of the current recovery, and the step to reach again.
    recovering: Option<(Seconds, u64)>,
}

impl RestartCounters {
    /// True if nothing has failed yet.
    pub fn is_first(&self) -> bool {
        self.in_a_row == 0 && self.absent == 0
    }

    /// Hosts that were unreachable since a rank last reported.
    pub fn unreachable(&self) -> impl Iterator<Item = &str> {
        self.unreachable.iter().map(String::as_str)
    }

    /// Starts waiting for the next attempt's lease; the wait counts towards the start timeout.
    pub fn begin(&mut self, at: Seconds) {
        self.absent_since.get_or_insert(at);
    }

    /// Returns the step and the cost of the last failure, once the run has reached that step again.
    pub fn recover(&mut self, at: Seconds, monitor: &AttemptMonitor) -> Option<(u64, Seconds)> {
        let (since, step) =
            self.recovering.filter(|(_, step)| monitor.steps.started && monitor.steps.finished >= *step)?;
        self.recovering = None;
        Some((step, at - since))
    }

    /// Counts a failure. A checkpoint or more steps than in any earlier attempt reset the counts. If the previous
    /// recovery is incomplete, closes it and returns its cost, so that no time is counted twice.
    fn fail(&mut self, at: Seconds, monitor: &AttemptMonitor) -> Option<Seconds> {
        let progress = monitor.steps.committed || monitor.steps.finished > self.furthest;
        self.furthest = self.furthest.max(monitor.steps.finished);
        if progress {
            (self.in_a_row, self.of_hosts) = (0, 0);
        }
        self.in_a_row += 1;
        (self.absent, self.absent_since) = (0, None);
        self.unreachable.clear();
        let since = monitor.failure_signs.since.unwrap_or(at);
        let before = self.recovering.replace((since, monitor.steps.finished));
        let (begun, step) = before?;
        self.recovering = Some((since, step.max(monitor.steps.finished)));
        Some(since - begun)
    }
}

/// Decides what follows after the processes of `running` were ended for reason `why`.
pub fn follow(
    state: &mut CoordinatorState,
    at: Seconds,
    running: &Running,
    why: EndReason,
    actions: &mut Vec<Action>,
) -> Phase {
    match ending(state, running, why, actions) {
        Ok(AttemptEnd::Finished) => Phase::Over(Verdict::Finished),
        Ok(AttemptEnd::Stopped) => Phase::Over(Verdict::Stopped(state.requests.stop.unwrap_or(StopReason::Signal))),
        Ok(AttemptEnd::Absent(cause)) => absent(state, at, running, cause, actions),
        Ok(AttemptEnd::Unsupervised(cause)) => unsupervised(state, at, running, cause, actions),
        Ok(AttemptEnd::RolledBack(rollback)) => rolled_back(state, at, running, rollback, actions),
        Ok(AttemptEnd::Failed(failure)) => failed(state, at, running, failure, actions),
        Err(verdict) => Phase::Over(verdict),
    }
}

/// Classifies the end of an attempt, or returns a verdict directly. A result reported by rank 0 stands even if
/// processes crash afterwards: its checkpoint is already committed.
fn ending(
    state: &CoordinatorState,
    running: &Running,
    why: EndReason,
    actions: &mut Vec<Action>,
) -> Result<AttemptEnd, Verdict> {
    let monitor = &running.monitor;
    match (monitor.result(), why) {
        (Some(AttemptEnd::Finished), EndReason::Replaced(_)) => Ok(AttemptEnd::Finished),
        // The new owner must not lose the run to a requeued job.
        (_, EndReason::Replaced(message)) => Err(Verdict::Replaced(message)),
        (Some(result @ (AttemptEnd::Finished | AttemptEnd::Stopped)), EndReason::Killed) => Ok(result),
        (_, EndReason::Killed) => Err(killed(state)),
        (Some(result), why) => {
            let crash = monitor.crash(running.attempt.world).filter(|_| why == EndReason::Exited);
            actions.extend(crash.map(|message| Action::Note(Note::ResultStands(message))));
            Ok(result)
        }
        (None, EndReason::Stopped) => Ok(AttemptEnd::Stopped),
        (None, EndReason::Failed(failure)) if monitor.ranks.is_empty() => Ok(AttemptEnd::Absent(failure.message)),
        (None, EndReason::Failed(failure)) => Ok(AttemptEnd::Failed(failure)),
        (None, EndReason::Exited) => Ok(monitor.failure(running.attempt.world)),
    }
}

/// Ends the run with `verdict`. In a Slurm job the last attempt counts as one without progress, because the next job
/// starts unattended, unless a user ended it.
pub fn conclude(state: &mut CoordinatorState, at: Seconds, mut verdict: Verdict, actions: &mut Vec<Action>) -> Phase {
    let counts = match verdict {
        Verdict::Stopped(reason) => reason != StopReason::Person,
        Verdict::Failed(..) => !state.requests.kill,
        Verdict::Finished | Verdict::Replaced(_) => false,
    };
    state.history.progress.end(counts && state.settings.job.is_some());
    if let Verdict::Stopped(reason) = verdict
        && let Some(message) = fruitless(state, &reason.to_string()).filter(|_| counts)
    {
        verdict = give_up(state, at, exit::FINAL, message);
    }
    // A request that this coordinator has not seen is for the next one, after a requeue.
    if matches!(verdict, Verdict::Finished | Verdict::Stopped(StopReason::Person)) {
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

/// No rank has reported: a host, network link or file system is unavailable. Waits and retries.
fn absent(
    state: &mut CoordinatorState,
    at: Seconds,
    running: &Running,
    cause: String,
    actions: &mut Vec<Action>,
) -> Phase {
    state.counters.unreachable.extend(running.monitor.host_in_messages());
    wait(state, at, (running.begun, running.attempt.number), cause, actions)
}

/// The lease after attempt `last` cannot be taken: the store is unavailable or full. Waits and retries.
pub fn without_lease(
    state: &mut CoordinatorState,
    at: Seconds,
    last: u32,
    cause: String,
    actions: &mut Vec<Action>,
) -> Phase {
    state.counters.lease_failed = true;
    wait(state, at, (at, last), format!("cannot acquire the lease: {cause}"), actions)
}

/// Waits before retrying what has failed since `begun`, after attempt `last`.
pub fn wait(
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
    counters.absent += 1;
    let since = *counters.absent_since.get_or_insert(begun);
    let left = since + state.settings.absence - at;
    if left <= 0.0 {
        let (minutes, limit) = ((at - since) / 60.0, state.settings.absence / 60.0);
        let message = format!(
            "giving up: no rank has reported for {minutes:.1} minutes (cluster.restart.start_timeout_minutes = {limit}); the last failure: {cause}"
        );
        return Phase::Over(give_up(state, at, exit::FAILED, message));
    }
    let pause = pause(counters.absent);
    actions.push(Action::Note(Note::Waiting { cause, pause, minutes_left: left / 60.0 }));
    Phase::Pausing { last, until: at + pause }
}

/// No rank failed: the coordinator itself did not respond. Restarts without limit.
fn unsupervised(
    state: &mut CoordinatorState,
    at: Seconds,
    running: &Running,
    cause: String,
    actions: &mut Vec<Action>,
) -> Phase {
    note(state, at, running, &AttemptFailure::transient(cause.clone()), false);
    state.history.progress.end(false);
    stopped(state).unwrap_or_else(|| again(at, running, cause, 0.0, false, actions))
}

fn rolled_back(
    state: &mut CoordinatorState,
    at: Seconds,
    running: &Running,
    rollback: Rollback,
    actions: &mut Vec<Action>,
) -> Phase {
    let Rollback { message: cause, step, to } = rollback;
    note(state, at, running, &AttemptFailure::transient(cause.clone()), false);
    state.history.progress.rolled_back(step, to);
    // The rollback target is already in the store: there is nothing to save.
    if let Some(over) = stopped(state) {
        return over;
    }
    let limit = state.settings.rollbacks;
    if state.history.progress.rollbacks > limit {
        let message =
            format!("giving up after {} without progress; the last: {cause}", counted(limit as u64, "rollback"));
        return Phase::Over(give_up(state, at, exit::DIVERGED, message));
    }
    again(at, running, cause, 0.0, true, actions)
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
            return Phase::Over(Verdict::Failed(exit::FINAL, message.clone()));
        }
        FailureKind::RetryLater => return Phase::Over(Verdict::Failed(exit::FAILED, message.clone())),
        FailureKind::Host | FailureKind::Transient => {}
    }
    note(state, at, running, &failure, true);
    state.history.progress.end(true);
    if let Some(over) = stopped(state) {
        return over;
    }
    if let Some(message) = one_too_many(state, at, &failure) {
        return Phase::Over(give_up(state, at, exit::FAILED, message));
    }
    let pause = pause(state.counters.in_a_row);
    again(at, running, failure.message, pause, false, actions)
}

/// Returns a message if this failure exceeds a restart limit.
fn one_too_many(state: &mut CoordinatorState, at: Seconds, failure: &AttemptFailure) -> Option<String> {
    state.counters.of_hosts += usize::from(failure.kind == FailureKind::Host);
    if state.counters.of_hosts > HOST_TRIES {
        return Some(format!("giving up after {HOST_TRIES} attempts: {}", failure.message));
    }
    let settings = &state.settings;
    let failures = state.history.count(state.unix(at) - settings.window);
    let (limit, minutes) = (settings.restarts, settings.window / 60.0);
    if failures > limit {
        return Some(format!(
            "giving up after {} within {minutes} minutes (cluster.restart.limit = {limit}); the last: {}",
            counted(failures as u64, "failure"),
            failure.message
        ));
    }
    fruitless(state, &failure.message)
}

/// Returns a message if too many attempts made no progress; `last` describes the last one.
pub fn fruitless(state: &CoordinatorState, last: &str) -> Option<String> {
    let (attempts, limit) = (state.history.progress.fruitless, state.settings.restarts);
    (attempts > limit).then(|| {
        format!(
            "giving up after {} without a new checkpoint (cluster.restart.limit = {limit}); the last: {last}",
            counted(attempts as u64, "attempt")
        )
    })
}

/// Records a failure.
fn note(state: &mut CoordinatorState, at: Seconds, running: &Running, failure: &AttemptFailure, counts: bool) {
    let monitor = &running.monitor;
    if let Some(cost) = state.counters.fail(at, monitor) {
        state.history.account(cost);
    }
    let (cause, host, unix) = (failure.message.clone(), failure.host.clone(), state.unix(at));
    let (attempt, step) = (running.attempt.number, monitor.steps.finished);
    state.history.add(Restart { unix, attempt, step, cause, counts_toward_limit: counts, host, seconds: None });
}

/// Gives the run up and resets the counts: a user who restarts it has fixed the cause.
pub fn give_up(state: &mut CoordinatorState, at: Seconds, code: i32, message: String) -> Verdict {
    state.history.counted_from = state.unix(at);
    state.history.progress.forget_failures();
    Verdict::Failed(code, message)
}

fn again(
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

/// Exponential backoff: 1, 2, 4 ... seconds for consecutive failures.
fn pause(failures: usize) -> Seconds {
    let doublings = i32::try_from(failures.saturating_sub(1)).unwrap_or(i32::MAX).min(16);
    f64::powi(2.0, doublings).min(LONGEST_PAUSE)
}
