//! The coordinator: hands events to the decision and carries out what it wants done, until there is a verdict.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use lambert_config::exit;
use lambert_store::{RetryPolicy, Store};

use super::beginning::Beginning;
use super::clock::Clock;
use super::launch::workers::Workers;
use super::launch::{Launcher, processes};
use super::order::Order;
use super::sources::{self, OwnLease, RequestPoller, STOP_OBJECT, Signals};
use crate::decide::{self, Action, Attempt, Event, Room, Settings, State, StopReason, Verdict};
use crate::failure::{Failure, Outcome};
use crate::observe::{Observers, Records};
use crate::panics;
use crate::slurm::nodes;
use crate::slurm::record::Record;
use crate::store_writer::{StoreWriter, Urgency, Write};

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Bad(String);

/// Watches over the run of `order`, whose ranks `launcher` starts, until there is a verdict. What fails on the way here is one, too.
pub fn run(order: &Order, launcher: &dyn Launcher, records: Records) -> Outcome {
    let (coordinator, state, actions) = Coordinator::begin(order, launcher, records)?;
    coordinator.run(state, actions)
}

struct Coordinator<'a> {
    order: &'a Order,
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
    /// Prepares to watch over `order`: from now on signals and the store are listened to. Also returns the first state, and what is
    /// to be done first.
    fn begin(
        order: &'a Order,
        launcher: &'a dyn Launcher,
        records: Records,
    ) -> Result<(Self, State, Vec<Action>), Failure> {
        processes::adopt_orphans().map_err(Failure::failed)?;
        processes::allow_connections();
        let Beginning { stop_requested, status, memory, job } = Beginning::read(order)?;
        let (events, inbox) = channel();
        if stop_requested {
            let _ = events.send(Event::StopRequested);
        }
        let signals = Signals::listen(events.clone()).map_err(Failure::failed)?;
        let lease = OwnLease::default();
        let requests =
            RequestPoller::listen(order.store.clone(), lease.clone(), events.clone()).map_err(Failure::failed)?;
        let writer = StoreWriter::start(order.store.clone()).map_err(Failure::failed)?;
        let clock = Clock::start();
        let settings = Settings { job, ..Settings::new(&order.config, order.room.clone(), clock.unix()) };
        let (mut state, actions) = State::begin(settings, memory);
        (state.step, state.checkpoint) = (status.progress.step, status.checkpoint.clone());
        let observers = Observers::make(&order.config, order.store.url(), records, status, &writer);
        let (workers, sources) = (None, (signals, requests));
        let coordinator =
            Self { order, launcher, clock, inbox, events, lease, observers, writer, workers, _sources: sources };
        Ok((coordinator, state, actions))
    }

    fn run(mut self, mut state: State, actions: Vec<Action>) -> Outcome {
        self.observers.begin(&actions, &state);
        let mut done = self.act(actions);
        while done.is_ok() && state.verdict().is_none() {
            (state, done) = self.step(state);
        }
        // Whatever is left of an attempt whose end was not waited for.
        self.workers = None;
        let verdict = match (done, state.verdict()) {
            (Err(failure), _) => Verdict::Failed(failure.code, failure.to_string()),
            (Ok(()), Some(verdict)) => verdict.clone(),
            (Ok(()), None) => return Ok(exit::FAILED),
        };
        self.end(&verdict, &state)
    }

    /// Takes in one event.
    fn step(&mut self, mut state: State) -> (State, Result<(), Failure>) {
        let event = match self.next() {
            Ok(event) => event,
            Err(failure) => return (state, Err(failure)),
        };
        state.settings.unix = self.clock.unix();
        let at = self.clock.seconds();
        let (state, actions) = decide::decide(state, at, event.clone());
        self.observers.observe(at, &event, &actions, &state);
        let done = self.act(actions);
        (state, done)
    }

    fn end(&mut self, verdict: &Verdict, state: &State) -> Outcome {
        self.observers.end(verdict, state);
        match verdict {
            Verdict::Finished => Ok(exit::DONE),
            Verdict::Stopped(StopReason::Person) => Ok(exit::ENDED),
            Verdict::Stopped(_) => Ok(exit::STOPPED),
            Verdict::Replaced(why) => Err(Failure::coded(exit::REPLACED, Bad(why.clone()))),
            Verdict::Failed(code, why) => Err(Failure::coded(*code, Bad(why.clone()))),
        }
    }

    /// The next event. Time passes, and processes are looked after, however many other events come.
    fn next(&mut self) -> Result<Event, Failure> {
        loop {
            let left = self.clock.until_tick();
            if left.is_zero() {
                self.clock.tick();
                // A thread that is gone would be waited for without end.
                panics::first().map_or(Ok(()), Err)?;
                self.look_after()?;
                return Ok(Event::Tick);
            }
            if let Ok(event) = self.inbox.recv_timeout(left) {
                return Ok(event);
            }
        }
    }

    fn look_after(&mut self) -> Result<(), Failure> {
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
                    let ((store, patience), lease) = (patient(self.order), self.lease.clone());
                    let events = self.events.clone();
                    sources::take_lease(store, patience, wanted, lease, events).map_err(Failure::failed)?;
                }
                Action::Start(attempt) => self.start(&attempt),
                Action::Order(directive) => self.workers.iter().for_each(|workers| workers.order(directive)),
                Action::End => self.workers.iter_mut().try_for_each(Workers::end).map_err(Failure::failed)?,
                Action::AskSlurm => self.ask_slurm().map_err(Failure::failed)?,
                Action::ForgetStop => {
                    // The run has ended as it was asked to, whether the request can be removed or not.
                    let forget = Write::remove(STOP_OBJECT, "the request to stop stays in the store");
                    self.writer.hand_over(vec![forget], Urgency::Change);
                }
                Action::Note(_) => {}
            }
        }
        Ok(())
    }

    fn ask_slurm(&self) -> std::io::Result<()> {
        match Record::of_process() {
            Some(record) => {
                let start = std::env::var("SLURM_RESTART_COUNT").ok().and_then(|count| count.trim().parse().ok());
                sources::ask_slurm(record.job, start.unwrap_or(0), self.events.clone())
            }
            None => Ok(()),
        }
    }

    fn start(&mut self, attempt: &Attempt) {
        match Workers::start(self.order, self.launcher, attempt, self.events.clone()) {
            Ok(workers) => self.workers = Some(workers),
            Err(error) => {
                let code = if error.is_usage() { exit::USAGE } else { exit::FAILED };
                let failed = Event::StartFailed(attempt.number, code, crate::failure::chain(&error));
                let _ = self.events.send(failed);
            }
        }
    }
}

/// The run's store, with the patience that the workers have: one that is away is waited for.
fn patient(order: &Order) -> (Store, Duration) {
    let minutes = order.config.checkpoint.give_up_minutes;
    let mut patience = RetryPolicy::default();
    patience.total_timeout = patience.total_timeout.max(Duration::from_secs_f64(60.0 * minutes));
    let total = patience.total_timeout;
    (order.store.with_retry_policy(patience), total)
}

/// Where ranks may be: on the hosts that the configuration names, on the nodes of a Slurm job that has others than this one,
/// else here.
pub fn room(config: &lambert_config::RunConfig) -> Room {
    let hosts = config.cluster.host_list().unwrap_or_default();
    let number = std::env::var("SLURM_JOB_NUM_NODES").ok().and_then(|number| number.trim().parse::<u32>().ok());
    // What salloc starts is on no node of the job.
    let is_on_node = std::env::var_os("SLURMD_NODENAME").is_some();
    match (hosts.is_empty(), number) {
        (false, _) => Room::Hosts(hosts),
        (true, Some(number)) if number > 1 || !is_on_node => Room::Allocation(nodes::of_job()),
        (true, _) => Room::Here,
    }
}
