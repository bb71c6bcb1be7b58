//! The coordinator passes events to the decision function and executes the resulting actions until the run is over.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use lambert_config::{duration, exit};
use lambert_store::{RetryPolicy, Store};

use super::clock::Clock;
use super::initial::InitialState;
use super::launch::workers::Workers;
use super::launch::{Launcher, processes};
use super::own_lease::OwnLease;
use super::sources::{self, RequestPoller, STOP_OBJECT, Signals};
use super::spec::RunSpec;
use crate::decide::{
    self, Action, Attempt, CoordinatorState, Event, HostPool, LastKnown, Settings, StopReason, Verdict,
};
use crate::failure::{Failure, Outcome};
use crate::host;
use crate::observe::{Observers, RecordOutput, StepCosts};
use crate::panics;
use crate::slurm::job_report::JobReport;
use crate::slurm::nodes;
use crate::slurm::record::JobRecord;
use crate::status::stored::{Liveness, liveness};
use crate::status::{CoordinatorProcess, Status};
use crate::store_writer::{ObjectWrite, StoreWriter, Urgency};

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct VerdictError(String);

/// Supervises the run until it is over. `launcher` starts the ranks. An error of the coordinator itself also ends the
/// run.
pub fn run(spec: &RunSpec, launcher: &dyn Launcher, records: RecordOutput, sample_flops: &[f64]) -> Outcome {
    let (coordinator, state, actions) = Coordinator::begin(spec, launcher, records, sample_flops)?;
    coordinator.run(state, actions)
}

struct Coordinator<'a> {
    spec: &'a RunSpec,
    launcher: &'a dyn Launcher,
    clock: Clock,
    inbox: Receiver<Event>,
    events: Sender<Event>,
    lease: OwnLease,
    observers: Observers,
    writer: StoreWriter,
    workers: Option<Workers>,
    _sources: (Signals, RequestPoller),
}

impl<'a> Coordinator<'a> {
    /// Starts listening to signals and the store. Returns the coordinator, its initial state and the first actions.
    fn begin(
        spec: &'a RunSpec,
        launcher: &'a dyn Launcher,
        records: RecordOutput,
        sample_flops: &[f64],
    ) -> Result<(Self, CoordinatorState, Vec<Action>), Failure> {
        processes::adopt_orphans().map_err(Failure::failed)?;
        processes::allow_connections();
        let InitialState { stop_requested, status, history, job } = InitialState::read(spec)?;
        warn_of_takeover(&status);
        let (events, inbox) = channel();
        if stop_requested {
            let _ = events.send(Event::StopRequested);
        }
        let signals = Signals::listen(events.clone()).map_err(Failure::failed)?;
        let lease = OwnLease::default();
        let requests =
            RequestPoller::listen(spec.store.clone(), lease.clone(), events.clone()).map_err(Failure::failed)?;
        let own = lease.clone();
        let writer = StoreWriter::start(spec.store.clone(), move || own.confirm()).map_err(Failure::failed)?;
        let clock = Clock::start();
        let settings = Settings { job, ..Settings::new(&spec.config, spec.host_pool.clone(), clock.unix()) };
        let last = LastKnown { step: status.progress.step, checkpoint: status.checkpoint.clone() };
        let (state, actions) = CoordinatorState::begin(settings, history, last);
        let mut observers = Observers::make(&spec.config, spec.store.url(), records, status, &writer);
        observers.set_step_costs(StepCosts::new(&spec.config.stage, sample_flops));
        let (workers, sources) = (None, (signals, requests));
        let coordinator =
            Self { spec, launcher, clock, inbox, events, lease, observers, writer, workers, _sources: sources };
        Ok((coordinator, state, actions))
    }

    fn run(mut self, mut state: CoordinatorState, actions: Vec<Action>) -> Outcome {
        self.observers.begin(&actions, &state);
        let mut done = self.act(actions);
        while done.is_ok() && state.verdict().is_none() {
            (state, done) = self.step(state);
        }
        // Terminates the remaining processes of an attempt.
        self.workers = None;
        let verdict = match (done, state.verdict()) {
            (Err(failure), _) => Verdict::Failed(failure.code, failure.to_string()),
            (Ok(()), Some(verdict)) => verdict.clone(),
            (Ok(()), None) => return Ok(exit::FAILED),
        };
        self.end(&verdict, &state)
    }

    /// Processes one event.
    fn step(&mut self, mut state: CoordinatorState) -> (CoordinatorState, Result<(), Failure>) {
        let event = match self.next() {
            Ok(event) => event,
            Err(failure) => return (state, Err(failure)),
        };
        let at = self.clock.seconds();
        state.set_unix(at, self.clock.unix());
        let (state, actions) = decide::decide(state, at, event.clone());
        self.observers.observe(at, &event, &actions, &state);
        let done = self.act(actions);
        (state, done)
    }

    fn end(&mut self, verdict: &Verdict, state: &CoordinatorState) -> Outcome {
        self.observers.end(verdict, state);
        JobReport { step: state.history.progress.furthest_checkpoint, excluded: &state.excluded }.write();
        match verdict {
            Verdict::Finished => Ok(exit::DONE),
            Verdict::Stopped(StopReason::User) => Ok(exit::STOPPED_BY_USER),
            Verdict::Stopped(_) => Ok(exit::INTERRUPTED),
            Verdict::Replaced(why) => Err(Failure::coded(exit::TAKEN_OVER, VerdictError(why.clone()))),
            Verdict::Failed(code, why) => Err(Failure::coded(*code, VerdictError(why.clone()))),
        }
    }

    /// Returns the next event. Ticks and process checks are on time even if many events are queued.
    fn next(&mut self) -> Result<Event, Failure> {
        loop {
            let left = self.clock.until_tick();
            if left.is_zero() {
                let suspended = self.clock.tick();
                // If a thread has panicked, the coordinator could wait forever for an event from this thread.
                panics::first().map_or(Ok(()), Err)?;
                self.poll_workers()?;
                return Ok(suspended.map_or(Event::Tick, Event::Suspended));
            }
            if let Ok(event) = self.inbox.recv_timeout(left) {
                return Ok(event);
            }
        }
    }

    fn poll_workers(&mut self) -> Result<(), Failure> {
        let Some(workers) = &mut self.workers else { return Ok(()) };
        self.observers.set_refused(workers.refused());
        if workers.poll().map_err(Failure::failed)? {
            self.workers = None;
        }
        Ok(())
    }

    fn act(&mut self, actions: Vec<Action>) -> Result<(), Failure> {
        for action in actions {
            match action {
                Action::TakeLease(wanted) => {
                    let ((store, store_timeout), lease) = (store_with_worker_timeout(self.spec), self.lease.clone());
                    let events = self.events.clone();
                    sources::take_lease(store, store_timeout, wanted, lease, events).map_err(Failure::failed)?;
                }
                Action::Start(attempt) => self.start(&attempt),
                Action::Command(directive) => self.workers.iter().for_each(|workers| workers.send_command(directive)),
                Action::End => self.workers.iter_mut().try_for_each(Workers::end).map_err(Failure::failed)?,
                Action::AskSlurm => self.ask_slurm().map_err(Failure::failed)?,
                Action::ForgetStop => {
                    // If the request cannot be removed, the writer only logs a warning, because the run has stopped as
                    // requested.
                    let forget = ObjectWrite::remove(STOP_OBJECT, "cannot delete the stop request from the store");
                    self.writer.hand_over(vec![forget], Urgency::Change);
                }
                Action::Note(_) => {}
            }
        }
        Ok(())
    }

    fn ask_slurm(&self) -> std::io::Result<()> {
        match JobRecord::of_process() {
            Some(record) => {
                let start = std::env::var("SLURM_RESTART_COUNT").ok().and_then(|count| count.trim().parse().ok());
                sources::ask_slurm(record.job, start.unwrap_or(0), self.events.clone())
            }
            None => Ok(()),
        }
    }

    fn start(&mut self, attempt: &Attempt) {
        match Workers::start(self.spec, self.launcher, attempt, self.events.clone()) {
            Ok(workers) => self.workers = Some(workers),
            Err(error) => {
                let code = if error.is_usage() { exit::USAGE } else { exit::FAILED };
                let failed = Event::StartFailed(attempt.number, code, crate::failure::chain(&error));
                let _ = self.events.send(failed);
            }
        }
    }
}

/// Returns the store of the run with the retry timeout of the workers, so that requests wait until an outage ends. Also
/// returns the timeout.
fn store_with_worker_timeout(spec: &RunSpec) -> (Store, Duration) {
    let mut policy = RetryPolicy::default();
    policy.total_timeout = policy.total_timeout.max(duration::minutes(spec.config.checkpoint.give_up_minutes));
    let total = policy.total_timeout;
    (spec.store.with_retry_policy(policy), total)
}

/// Returns the hosts available to a run: the configured hosts, else the nodes of the Slurm job if the job has a node
/// other than this host, else this host.
pub fn host_pool(config: &lambert_config::RunConfig) -> HostPool {
    let hosts = config.cluster.host_list().unwrap_or_default();
    let number = std::env::var("SLURM_JOB_NUM_NODES").ok().and_then(|number| number.trim().parse::<u32>().ok());
    let is_on_node = nodes::own().is_some();
    match (hosts.is_empty(), number) {
        (false, _) => HostPool::Hosts(hosts),
        (true, Some(number)) if number > 1 || !is_on_node => HostPool::Allocation(nodes::of_job()),
        (true, _) => HostPool::Here,
    }
}

/// Warns if the run seems to have a coordinator, which this one replaces.
fn warn_of_takeover(status: &Status) {
    let CoordinatorProcess { host, pid, .. } = &status.coordinator;
    if *pid != 0 && liveness(status) == Liveness::Alive {
        let age = host::now() - status.updated;
        tracing::warn!(
            "taking over the run from another coordinator (pid {pid}, host {host}), which wrote its status {age:.0} s ago; if \
             it still runs, it ends with exit code {}",
            exit::TAKEN_OVER
        );
    }
}
