//! Coordinator decisions: a pure function from a state and an event to the next state and a list of actions.
//!
//! This module uses no clock, I/O or threads. Signals, timers, the store, the lease, launchers and the control server
//! produce [`Event`]s. The coordinator executes [`Action`]s. Status, display and log observe events and actions.
//!
//! - [`state`]: coordinator state; [`event`]: events and actions; [`placement`]: ranks of an attempt and their hosts
//! - [`exclusion`]: nodes that the next start of a Slurm job excludes
//! - [`monitor`]: monitoring of the running attempt and failure analysis; [`limits`]: phase timeouts
//! - [`restart`]: restart or end after an attempt; [`setup`]: errors of the set-up of hosts; [`stop`]: stop reasons
//! - [`history`]: restart history that outlives a coordinator; [`progress`]: detection of attempts without progress

pub mod event;
pub mod exclusion;
pub mod history;
pub mod limits;
pub mod monitor;
pub mod placement;
pub mod progress;
pub mod restart;
pub mod setup;
pub mod state;
pub mod stop;

use std::collections::BTreeSet;

use lambert_config::exit;
use lambert_control::Message;
use lambert_control::{Directive, EventKind, FailureKind};

pub use event::{Action, Event, LeaseRequest, Note, ProcessExit, RankDeath, RestartKind, Verdict, WorkerEvent};
pub use history::RestartHistory;
pub use placement::{Attempt, AttemptNodes, ExcludedNodes, HostPool, Placement};
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
    let mut turn = Turn { state: &mut state, at, actions: Vec::new() };
    turn.take_request(&event);
    // The phase is a placeholder until the end of the decision: the methods of `Turn` must not read `state.phase`.
    let phase = std::mem::replace(&mut turn.state.phase, Phase::Leasing(LeaseRequest::Next));
    let next = match phase {
        Phase::Leasing(wanted) => turn.leasing(wanted, event),
        Phase::Running(running) => turn.run(running, event),
        Phase::Ending(running, why) => turn.ending(running, why, event),
        Phase::Pausing { last, until } => turn.pause(last, until, event),
        Phase::Over(verdict) => Phase::Over(verdict),
    };
    turn.state.phase = match next {
        Phase::Over(verdict) => turn.conclude(verdict),
        next => next,
    };
    let actions = turn.actions;
    (state, actions)
}

/// One decision: the state, the time of the event, and the actions so far.
struct Turn<'a> {
    state: &'a mut CoordinatorState,
    at: Seconds,
    actions: Vec<Action>,
}

impl Turn<'_> {
    /// Applies a request from a user or from Slurm.
    fn take_request(&mut self, event: &Event) {
        let (requests, job) = (&mut self.state.requests, self.state.settings.job.as_ref());
        match event {
            Event::Signal(signal) => {
                requests.signal(self.at, *signal, job);
                self.ask_slurm();
            }
            Event::Job(view) => {
                let Some(job) = job else { return };
                requests.apply_job_view(self.at, view, job);
                let save = self.state.history.last_save_seconds;
                let short = view.seconds_left.zip(save).filter(|(left, save)| save > left);
                self.actions.extend(short.map(|(left, save)| Action::Note(Note::ShortOfTime { left, save })));
            }
            Event::StopRequested => requests.stop = Some(StopReason::User),
            Event::SaveRequested if !requests.save => {
                requests.save = true;
                self.actions.push(Action::Note(Note::Saving));
            }
            _ => {}
        }
    }

    /// Queries Slurm for the job state if a signal requested a stop and the reason for the signal is still unknown.
    fn ask_slurm(&mut self) {
        if self.state.settings.job.is_some() && self.state.requests.stop == Some(StopReason::Signal) {
            self.actions.push(Action::AskSlurm);
        }
    }

    fn leasing(&mut self, wanted: LeaseRequest, event: Event) -> Phase {
        match event {
            Event::LeaseTaken(number) if wanted == LeaseRequest::Next || wanted == LeaseRequest::Exactly(number) => {
                self.start(number)
            }
            Event::LeaseHeld(number) => Phase::Over(Verdict::Replaced(takeover_message(number))),
            // The first attempt needs the store at once. Later attempts wait until the store recovers.
            Event::LeaseFailed(message) => match wanted {
                LeaseRequest::Next => Phase::Over(Verdict::Failed(exit::FAILED, message)),
                LeaseRequest::Exactly(number) => self.without_lease(number - 1, message),
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
            _ => self.stopped().unwrap_or(Phase::Leasing(wanted)),
        }
    }

    /// Returns the final phase if a stop was requested.
    fn stopped(&self) -> Option<Phase> {
        self.state.requests.stop.map(|reason| Phase::Over(Verdict::Stopped(reason)))
    }

    fn start(&mut self, number: u32) -> Phase {
        if let Some(over) = self.stopped() {
            return over;
        }
        self.state.counters.lease_failed = false;
        let settings = &self.state.settings;
        let mut avoid = self.state.history.failed_hosts(self.state.unix(self.at) - settings.window);
        avoid.extend(self.state.counters.unreachable());
        let placement = placement::place(&settings.host_pool, settings.ranks, &avoid);
        let attempt = Attempt { number, world: settings.ranks, placement };
        self.state.history.progress.begin();
        self.actions.push(Action::Start(attempt.clone()));
        if self.state.requests.save {
            self.actions.push(Action::Command(Directive::Checkpoint));
        }
        let nodes = self.state.settings.nodes(&attempt);
        let monitor = AttemptMonitor::new(attempt.placement.rank_hosts()).on_nodes(nodes);
        Phase::Running(Box::new(Running { attempt, begun: self.at, monitor, has_warned_slow: false, stopping: false }))
    }

    fn run(&mut self, mut running: Box<Running>, event: Event) -> Phase {
        let (number, tick) = (running.attempt.number, event == Event::Tick);
        match event {
            Event::Worker(attempt, what) if attempt == number => {
                let gone = matches!(what, WorkerEvent::Gone(_));
                // On preemption, Slurm may first signal only the ranks. The SIGTERM cannot come from this coordinator,
                // which sends SIGTERM only in `Phase::Ending`.
                if matches!(&what, WorkerEvent::Report(report) if report.has_received_sigterm)
                    && self.state.requests.stop.is_none()
                {
                    self.state.requests.stop = Some(StopReason::Signal);
                    self.ask_slurm();
                }
                self.apply_worker_event(&mut running, what);
                if gone {
                    return self.after_attempt(&running, EndReason::Exited);
                }
            }
            Event::StartFailed(attempt, code, message) if attempt == number => {
                // If the processes of an earlier attempt could be started, the configuration is valid. An address or a
                // mount is then temporarily unavailable.
                return match self.has_valid_setup() {
                    true => self.retry_start(running.begun, number, message),
                    false => Phase::Over(Verdict::Failed(code, message)),
                };
            }
            Event::LeaseSeen(newest) if newest > number => {
                return self.begin_ending(running, EndReason::Replaced(takeover_message(newest)));
            }
            Event::LeaseGone(attempt, message) if attempt == number => {
                return self.begin_ending(running, EndReason::Replaced(message));
            }
            Event::SaveRequested if !running.stopping => self.actions.push(Action::Command(Directive::Checkpoint)),
            _ => {}
        }
        // The timeout checks iterate over all ranks, so they run on timer ticks and not on every report.
        let mut why = self.reason_to_end(&mut running);
        if why.is_none() && tick {
            why = self.overdue(&mut running);
        }
        match why {
            Some(why) => self.begin_ending(running, why),
            None => Phase::Running(running),
        }
    }

    /// Returns the reason to end the attempt, if there is one: a request, the exit of the launcher or of a rank, or a
    /// version mismatch.
    fn reason_to_end(&mut self, running: &mut Running) -> Option<EndReason> {
        // The other ranks cannot continue. Some launchers do not terminate these ranks.
        if running.monitor.failure_signs.has_ended() {
            return Some(EndReason::Exited);
        }
        if self.state.requests.kill {
            return Some(EndReason::Killed);
        }
        if self.state.requests.stop.is_some() && !running.stopping {
            if running.monitor.is_fresh() {
                // Launchers need seconds to end the ranks. Ranks that have completed a step meanwhile save it.
                self.actions.extend([Action::Note(Note::NothingToSave), Action::Command(Directive::CheckpointAndStop)]);
                return Some(EndReason::Stopped);
            }
            running.stopping = true;
            self.actions.extend([Action::Note(Note::Stopping), Action::Command(Directive::CheckpointAndStop)]);
        }
        if running.stopping
            && running.monitor.reported_end_at().is_none()
            && self.state.requests.end_by.is_some_and(|by| self.at >= by)
        {
            self.actions.push(Action::Note(Note::OutOfTime));
            return Some(EndReason::Stopped);
        }
        let mismatch = running.monitor.versions.mismatch.as_ref()?;
        let message = format!("version mismatch: {mismatch}");
        Some(EndReason::Failed(AttemptFailure { message, kind: FailureKind::Usage, hosts: BTreeSet::new() }))
    }

    /// Checks the phase timeouts. Returns the reason to end the attempt if a timeout has expired.
    fn overdue(&mut self, running: &mut Running) -> Option<EndReason> {
        let timeouts = &self.state.settings.timeouts;
        match timeouts.slow(self.at, &running.monitor) {
            Some(message) if !std::mem::replace(&mut running.has_warned_slow, true) => {
                self.actions.push(Action::Note(Note::Slow(message)));
            }
            Some(_) => {}
            None => running.has_warned_slow = false,
        }
        let hang = timeouts.overdue(self.at, running.begun, running.attempt.world, &running.monitor)?;
        if running.monitor.reported_end_at().is_some() {
            // All work is done, so the run may still succeed.
            self.actions.push(Action::Note(Note::Slow(format!("{}; terminating them", hang.message))));
        }
        Some(EndReason::Failed(AttemptFailure { hosts: hang.hosts, ..AttemptFailure::transient(hang.message) }))
    }

    fn begin_ending(&mut self, mut running: Box<Running>, why: EndReason) -> Phase {
        running.has_warned_slow = false;
        self.actions.push(Action::End);
        Phase::Ending(running, why)
    }

    fn ending(&mut self, mut running: Box<Running>, why: EndReason, event: Event) -> Phase {
        let number = running.attempt.number;
        match event {
            Event::Worker(attempt, what) if attempt == number => {
                let gone = matches!(what, WorkerEvent::Gone(_));
                self.apply_worker_event(&mut running, what);
                if gone {
                    let why =
                        if self.state.requests.kill && why != EndReason::Exited { EndReason::Killed } else { why };
                    return self.after_attempt(&running, why);
                }
            }
            // A request came while the processes were being started. No process will report its end.
            Event::StartFailed(attempt, _, message) if attempt == number => {
                self.actions.push(Action::Note(Note::StartFailed(message)));
                let why = if self.state.requests.kill { EndReason::Killed } else { why };
                return self.after_attempt(&running, why);
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
    fn apply_worker_event(&mut self, running: &mut Running, what: WorkerEvent) {
        match &what {
            WorkerEvent::Report(report) => {
                if let Some(versions) = &report.versions
                    && let Some((name, own, other)) = self.state.settings.versions.first_difference(versions)
                {
                    let mismatch = format!("this coordinator has {name} {own}, rank {} has {other}", report.rank);
                    running.monitor.versions.mismatch.get_or_insert(mismatch);
                }
            }
            WorkerEvent::Message(_, Message::Event(EventKind::Started { checkpoint, step, .. })) => {
                self.state.checkpoint.clone_from(checkpoint);
                self.state.history.progress.loaded(*step);
            }
            WorkerEvent::Message(_, Message::Event(EventKind::Checkpoint { name, step, written, .. })) => {
                (self.state.checkpoint, self.state.requests.save) = (Some(name.clone()), false);
                self.state.history.add_save(*written);
                self.state.history.progress.committed(*step);
            }
            WorkerEvent::Gone(left) if !left.is_empty() => {
                self.actions.push(Action::Note(Note::LeftoverProcesses(left.clone())));
            }
            _ => {}
        }
        running.monitor.take(self.at, what);
        if running.monitor.steps.finished > 0 {
            self.state.step = running.monitor.steps.finished;
        }
        if let Some(recovered) = self.state.counters.recover(self.at, &running.monitor) {
            self.state.history.account(recovered.1);
            self.actions.push(Action::Note(Note::Recovered { step: recovered.0, seconds: recovered.1 }));
        }
    }

    fn pause(&mut self, last: u32, until: Seconds, event: Event) -> Phase {
        match event {
            // A failed lease request may nevertheless have created lease `last + 1` in the store for this coordinator.
            Event::LeaseSeen(newest) if newest > last + u32::from(self.state.counters.lease_failed) => {
                Phase::Over(Verdict::Replaced(takeover_message(newest)))
            }
            Event::LeaseGone(attempt, message) if attempt == last => Phase::Over(Verdict::Replaced(message)),
            _ if self.state.requests.stop.is_some() => self.stopped().unwrap_or(Phase::Pausing { last, until }),
            _ if self.at >= until => {
                let wanted = LeaseRequest::Exactly(last + 1);
                // The lease request lasts as long as the store is unavailable, and this time counts toward the start
                // timeout.
                self.state.counters.begin(self.at);
                self.actions.push(Action::TakeLease(wanted));
                Phase::Leasing(wanted)
            }
            _ => Phase::Pausing { last, until },
        }
    }
}

fn takeover_message(newest: u32) -> String {
    format!("another coordinator has taken over the run as attempt {newest}")
}
