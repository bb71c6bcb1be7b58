//! Coordinator decisions: a pure function from a state and an event to the next state and a list of actions.
//!
//! This module uses no clock, I/O or threads. Signals, timers, the store, the lease, launchers and the control server
//! produce [`Event`]s. The coordinator executes [`Action`]s. Status, display and log observe events and actions.
//!
//! - [`state`]: coordinator state; [`event`]: events and actions; [`placement`]: ranks of an attempt and their hosts
//! - [`monitor`]: monitoring of the running attempt and failure analysis; [`limits`]: phase timeouts
//! - [`restart`]: restart or end after an attempt; [`stop`]: stop reasons; [`history`]: restart history that outlives a
//!   coordinator; [`progress`]: detection of attempts without progress

pub mod event;
pub mod history;
pub mod limits;
pub mod monitor;
pub mod placement;
pub mod progress;
pub mod restart;
pub mod state;
pub mod stop;

use std::collections::BTreeSet;

use lambert_config::exit;
use lambert_control::Message;
use lambert_control::{Directive, EventKind, FailureKind};

pub use event::{Action, Event, LeaseRequest, Note, ProcessExit, RankDeath, Verdict, WorkerEvent};
pub use history::RestartHistory;
pub use placement::{Attempt, ExcludedNodes, HostPool, Placement};
pub use state::{CoordinatorState, EndReason, LastKnown, Phase, Running, Settings};
pub use stop::{JobSettings, JobState, JobView, Requests, Signal, StopReason};

use monitor::{AttemptFailure, AttemptMonitor};

/// Seconds since the coordinator started.
pub type Seconds = f64;

/// Returns the next state and the actions for `event` at time `at`.
pub fn decide(mut state: CoordinatorState, at: Seconds, event: Event) -> (CoordinatorState, Vec<Action>) {
    if state.verdict().is_some() {
        return (state, Vec::new());
    }
    if let Event::Suspended(seconds) = event {
        state.suspended(seconds);
    }
    let mut actions = take_request(&mut state, at, &event);
    let phase = std::mem::replace(&mut state.phase, Phase::Leasing(LeaseRequest::Next));
    let next = match phase {
        Phase::Leasing(wanted) => leasing(&mut state, at, wanted, event, &mut actions),
        Phase::Running(running) => run(&mut state, at, running, event, &mut actions),
        Phase::Ending(running, why) => ending(&mut state, at, running, why, event, &mut actions),
        Phase::Pausing { last, until } => pause(&mut state, at, last, until, event, &mut actions),
        Phase::Over(verdict) => Phase::Over(verdict),
    };
    state.phase = match next {
        Phase::Over(verdict) => restart::conclude(&mut state, at, verdict, &mut actions),
        next => next,
    };
    (state, actions)
}

/// Applies a request from a user or from Slurm. Returns the resulting actions.
fn take_request(state: &mut CoordinatorState, at: Seconds, event: &Event) -> Vec<Action> {
    let (requests, job) = (&mut state.requests, state.settings.job.as_ref());
    match event {
        Event::Signal(signal) => {
            requests.signal(at, *signal, job);
            return ask_slurm(state);
        }
        Event::Job(view) => {
            let Some(job) = job else { return Vec::new() };
            requests.apply_job_view(at, view, job);
            let short = view.seconds_left.zip(state.history.last_save_seconds).filter(|(left, save)| save > left);
            return short.map(|(left, save)| Action::Note(Note::ShortOfTime { left, save })).into_iter().collect();
        }
        Event::StopRequested => requests.stop = Some(StopReason::User),
        Event::SaveRequested if !requests.save => {
            requests.save = true;
            return vec![Action::Note(Note::Saving)];
        }
        _ => {}
    }
    Vec::new()
}

/// Queries Slurm for the job state if a signal requested a stop and the reason for the signal is still unknown.
fn ask_slurm(state: &CoordinatorState) -> Vec<Action> {
    let unexplained = state.settings.job.is_some() && state.requests.stop == Some(StopReason::Signal);
    unexplained.then_some(Action::AskSlurm).into_iter().collect()
}

fn leasing(
    state: &mut CoordinatorState,
    at: Seconds,
    wanted: LeaseRequest,
    event: Event,
    actions: &mut Vec<Action>,
) -> Phase {
    match event {
        Event::LeaseTaken(number) if wanted == LeaseRequest::Next || wanted == LeaseRequest::Exactly(number) => {
            start(state, at, number, actions)
        }
        Event::LeaseHeld(number) => Phase::Over(Verdict::Replaced(takeover_message(number))),
        // The first attempt needs the store at once. Later attempts wait until the store recovers.
        Event::LeaseFailed(message) => match wanted {
            LeaseRequest::Next => Phase::Over(Verdict::Failed(exit::FAILED, message)),
            LeaseRequest::Exactly(number) => restart::without_lease(state, at, number - 1, message, actions),
        },
        // The newest lease may be the requested lease, whose confirmation is still in flight. Only a newer lease shows
        // that another coordinator has taken over.
        Event::LeaseSeen(newest) if matches!(wanted, LeaseRequest::Exactly(own) if newest > own) => {
            Phase::Over(Verdict::Replaced(takeover_message(newest)))
        }
        // The lease of the last attempt is missing: the run was moved or removed.
        Event::LeaseGone(_, message) if matches!(wanted, LeaseRequest::Exactly(_)) => {
            Phase::Over(Verdict::Replaced(message))
        }
        _ => stopped(state).unwrap_or(Phase::Leasing(wanted)),
    }
}

/// Returns the final phase if a stop was requested.
fn stopped(state: &CoordinatorState) -> Option<Phase> {
    state.requests.stop.map(|reason| Phase::Over(Verdict::Stopped(reason)))
}

fn takeover_message(newest: u32) -> String {
    format!("another coordinator has taken over the run as attempt {newest}")
}

fn start(state: &mut CoordinatorState, at: Seconds, number: u32, actions: &mut Vec<Action>) -> Phase {
    if let Some(over) = stopped(state) {
        return over;
    }
    state.counters.lease_failed = false;
    let settings = &state.settings;
    let mut avoid = state.history.failed_hosts(state.unix(at) - settings.window);
    avoid.extend(state.counters.unreachable());
    let placement = placement::place(&settings.host_pool, settings.ranks, &avoid);
    let attempt = Attempt { number, world: settings.ranks, placement };
    state.history.progress.begin();
    actions.push(Action::Start(attempt.clone()));
    if state.requests.save {
        actions.push(Action::Command(Directive::Checkpoint));
    }
    let monitor = AttemptMonitor::new(attempt.placement.rank_hosts());
    Phase::Running(Box::new(Running { attempt, begun: at, monitor, has_warned_slow: false, stopping: false }))
}

fn run(
    state: &mut CoordinatorState,
    at: Seconds,
    mut running: Box<Running>,
    event: Event,
    actions: &mut Vec<Action>,
) -> Phase {
    let (number, tick) = (running.attempt.number, event == Event::Tick);
    match event {
        Event::Worker(attempt, what) if attempt == number => {
            let gone = matches!(what, WorkerEvent::Gone(_));
            // On preemption, Slurm may first signal only the ranks. The SIGTERM cannot come from this coordinator,
            // which sends SIGTERM only in `Phase::Ending`.
            if matches!(&what, WorkerEvent::Report(report) if report.has_received_sigterm)
                && state.requests.stop.is_none()
            {
                state.requests.stop = Some(StopReason::Signal);
                actions.extend(ask_slurm(state));
            }
            apply_worker_event(state, at, &mut running, what, actions);
            if gone {
                return restart::after_attempt(state, at, &running, EndReason::Exited, actions);
            }
        }
        Event::StartFailed(attempt, code, message) if attempt == number => {
            // If the processes of an earlier attempt could be started, the configuration is valid. An address or a
            // mount is then temporarily unavailable.
            return match state.counters.is_first() {
                true => Phase::Over(Verdict::Failed(code, message)),
                false => restart::retry_start(state, at, (running.begun, number), message, actions),
            };
        }
        Event::LeaseSeen(newest) if newest > number => {
            return to_end(running, EndReason::Replaced(takeover_message(newest)), actions);
        }
        Event::LeaseGone(attempt, message) if attempt == number => {
            return to_end(running, EndReason::Replaced(message), actions);
        }
        Event::SaveRequested if !running.stopping => actions.push(Action::Command(Directive::Checkpoint)),
        _ => {}
    }
    // The timeout checks iterate over all ranks, so they run on timer ticks and not on every report.
    let mut why = reason_to_end(state, at, &mut running, actions);
    if why.is_none() && tick {
        why = overdue(state, at, &mut running, actions);
    }
    match why {
        Some(why) => to_end(running, why, actions),
        None => Phase::Running(running),
    }
}

/// Returns the reason to end the attempt, if there is one: a request, the exit of the launcher or of a rank, or a
/// version mismatch.
fn reason_to_end(
    state: &CoordinatorState,
    at: Seconds,
    running: &mut Running,
    actions: &mut Vec<Action>,
) -> Option<EndReason> {
    // The other ranks cannot continue. Some launchers do not terminate these ranks.
    if running.monitor.failure_signs.has_ended() {
        return Some(EndReason::Exited);
    }
    if state.requests.kill {
        return Some(EndReason::Killed);
    }
    if state.requests.stop.is_some() && !running.stopping {
        if running.monitor.is_fresh() {
            // Launchers need seconds to end the ranks. Ranks that have completed a step meanwhile save it.
            actions.extend([Action::Note(Note::NothingToSave), Action::Command(Directive::CheckpointAndStop)]);
            return Some(EndReason::Stopped);
        }
        running.stopping = true;
        actions.extend([Action::Note(Note::Stopping), Action::Command(Directive::CheckpointAndStop)]);
    }
    if running.stopping
        && running.monitor.reported_end_at().is_none()
        && state.requests.end_by.is_some_and(|by| at >= by)
    {
        actions.push(Action::Note(Note::OutOfTime));
        return Some(EndReason::Stopped);
    }
    let mismatch = running.monitor.versions.mismatch.as_ref()?;
    let message = format!("version mismatch: {mismatch}");
    Some(EndReason::Failed(AttemptFailure { message, kind: FailureKind::Usage, hosts: BTreeSet::new() }))
}

/// Checks the phase timeouts. Returns the reason to end the attempt if a timeout has expired.
fn overdue(
    state: &CoordinatorState,
    at: Seconds,
    running: &mut Running,
    actions: &mut Vec<Action>,
) -> Option<EndReason> {
    let timeouts = &state.settings.timeouts;
    match timeouts.slow(at, &running.monitor) {
        Some(message) if !std::mem::replace(&mut running.has_warned_slow, true) => {
            actions.push(Action::Note(Note::Slow(message)));
        }
        Some(_) => {}
        None => running.has_warned_slow = false,
    }
    let hang = timeouts.overdue(at, running.begun, running.attempt.world, &running.monitor)?;
    if running.monitor.reported_end_at().is_some() {
        // All work is done, so the run may still succeed.
        actions.push(Action::Note(Note::Slow(format!("{}; terminating them", hang.message))));
    }
    Some(EndReason::Failed(AttemptFailure { hosts: hang.hosts, ..AttemptFailure::transient(hang.message) }))
}

fn to_end(mut running: Box<Running>, why: EndReason, actions: &mut Vec<Action>) -> Phase {
    running.has_warned_slow = false;
    actions.push(Action::End);
    Phase::Ending(running, why)
}

fn ending(
    state: &mut CoordinatorState,
    at: Seconds,
    mut running: Box<Running>,
    why: EndReason,
    event: Event,
    actions: &mut Vec<Action>,
) -> Phase {
    let number = running.attempt.number;
    match event {
        Event::Worker(attempt, what) if attempt == number => {
            let gone = matches!(what, WorkerEvent::Gone(_));
            apply_worker_event(state, at, &mut running, what, actions);
            if gone {
                let why = if state.requests.kill && why != EndReason::Exited { EndReason::Killed } else { why };
                return restart::after_attempt(state, at, &running, why, actions);
            }
        }
        // A request came while the processes were being started. No process will report its end.
        Event::StartFailed(attempt, _, message) if attempt == number => {
            actions.push(Action::Note(Note::StartFailed(message)));
            let why = if state.requests.kill { EndReason::Killed } else { why };
            return restart::after_attempt(state, at, &running, why, actions);
        }
        Event::LeaseSeen(newest) if newest > number => {
            return Phase::Ending(running, EndReason::Replaced(takeover_message(newest)));
        }
        Event::LeaseGone(attempt, message) if attempt == number => {
            return Phase::Ending(running, EndReason::Replaced(message));
        }
        _ => {}
    }
    Phase::Ending(running, why)
}

/// Applies an event from the processes of the running attempt.
fn apply_worker_event(
    state: &mut CoordinatorState,
    at: Seconds,
    running: &mut Running,
    what: WorkerEvent,
    actions: &mut Vec<Action>,
) {
    match &what {
        WorkerEvent::Report(report) => {
            if let Some(versions) = &report.versions
                && let Some((name, own, other)) = state.settings.versions.first_difference(versions)
            {
                let mismatch = format!("this coordinator has {name} {own}, rank {} has {other}", report.rank);
                running.monitor.versions.mismatch.get_or_insert(mismatch);
            }
        }
        WorkerEvent::Message(_, Message::Event(EventKind::Started { checkpoint, step, .. })) => {
            state.checkpoint.clone_from(checkpoint);
            state.history.progress.loaded(*step);
        }
        WorkerEvent::Message(_, Message::Event(EventKind::Checkpoint { name, step, written, .. })) => {
            (state.checkpoint, state.requests.save) = (Some(name.clone()), false);
            state.history.add_save(*written);
            state.history.progress.committed(*step);
        }
        WorkerEvent::Gone(left) if !left.is_empty() => {
            actions.push(Action::Note(Note::LeftoverProcesses(left.clone())));
        }
        _ => {}
    }
    running.monitor.take(at, what);
    if running.monitor.steps.finished > 0 {
        state.step = running.monitor.steps.finished;
    }
    if let Some(recovered) = state.counters.recover(at, &running.monitor) {
        state.history.account(recovered.1);
        actions.push(Action::Note(Note::Recovered { step: recovered.0, seconds: recovered.1 }));
    }
}

fn pause(
    state: &mut CoordinatorState,
    at: Seconds,
    last: u32,
    until: Seconds,
    event: Event,
    actions: &mut Vec<Action>,
) -> Phase {
    match event {
        // A failed lease request may nevertheless have created lease `last + 1` in the store for this coordinator.
        Event::LeaseSeen(newest) if newest > last + u32::from(state.counters.lease_failed) => {
            Phase::Over(Verdict::Replaced(takeover_message(newest)))
        }
        Event::LeaseGone(attempt, message) if attempt == last => Phase::Over(Verdict::Replaced(message)),
        _ if state.requests.stop.is_some() => stopped(state).unwrap_or(Phase::Pausing { last, until }),
        _ if at >= until => {
            let wanted = LeaseRequest::Exactly(last + 1);
            // The lease request lasts as long as the store is unavailable, and this time counts toward the start
            // timeout.
            state.counters.begin(at);
            actions.push(Action::TakeLease(wanted));
            Phase::Leasing(wanted)
        }
        _ => Phase::Pausing { last, until },
    }
}
