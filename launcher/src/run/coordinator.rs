//! The coordinator: hands events to the decision and carries out what it wants done, until there is a verdict.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use lambert_config::exit;
use lambert_store::checkpoint::{self, Listed, Undone};
use lambert_store::{Patience, Store};

use super::decide::{self, Action, Attempt, Event, JobSettings, Memory, Room, Settings, State, StopReason, Verdict};
use super::launch::workers::Workers;
use super::launch::{Launcher, processes};
use super::observers::{Observers, Records};
use super::order::Order;
use super::sources::{self, RequestPoller, STOP_OBJECT, Signals};
use crate::failure::{Failure, Outcome};
use crate::slurm::record::Record;
use crate::status::{self, Reporter, Status};

/// How often time passes.
const TICK: Duration = Duration::from_millis(50);
/// Nothing that the coordinator does takes so long: if time did not pass meanwhile, the process was stopped.
const STOPPED: Duration = Duration::from_secs(10);
/// No memory is longer than this, bytes.
const LONGEST: u64 = 16 << 20;

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Bad(String);

/// Watches over a run.
pub struct Coordinator<'a> {
    order: &'a Order,
    launcher: &'a dyn Launcher,
    begun: Instant,
    /// When time passed last.
    ticked: Instant,
    /// How long this process was stopped since it began, seconds.
    stopped: f64,
    inbox: Receiver<Event>,
    events: Sender<Event>,
    observers: Observers,
    workers: Option<Workers>,
    _sources: (Signals, RequestPoller),
}

impl<'a> Coordinator<'a> {
    /// Prepares to watch over `order`: from now on signals and the store are listened to.
    pub fn new(order: &'a Order, launcher: &'a dyn Launcher, records: Records) -> Result<Self, Failure> {
        processes::adopt_orphans().map_err(Failure::failed)?;
        processes::allow_connections();
        let (events, inbox) = channel();
        sources::old_requests(&order.store, Record::of_process().is_some(), &events).map_err(Failure::failed)?;
        let signals = Signals::listen(events.clone()).map_err(Failure::failed)?;
        let requests = RequestPoller::listen(order.store.clone(), events.clone()).map_err(Failure::failed)?;
        let reporter = Reporter::start(order.store.clone()).map_err(Failure::failed)?;
        let before = before(&order.store);
        let observers = Observers::new(&order.config, records, order.store.url(), before, reporter);
        let (now, workers, sources) = (Instant::now(), None, (signals, requests));
        Ok(Self {
            order,
            launcher,
            begun: now,
            ticked: now,
            stopped: 0.0,
            inbox,
            events,
            observers,
            workers,
            _sources: sources,
        })
    }

    /// Runs until there is a verdict.
    pub fn run(mut self) -> Outcome {
        let unix = status::now();
        let mut settings = Settings::new(&self.order.config, self.order.room.clone(), unix);
        settings.job = join_job(self.order);
        let (mut state, actions) = State::begin(settings, remembered(&self.order.store));
        (state.step, state.checkpoint) = self.observers.before();
        self.observers.begin(&actions, &state);
        self.act(actions)?;
        while state.verdict().is_none() {
            let event = self.next()?;
            state.settings.unix = unix + self.stopped;
            let at = self.begun.elapsed().as_secs_f64();
            let actions;
            (state, actions) = decide::decide(state, at, event.clone());
            self.observers.see(at, &event, &actions, &state);
            self.act(actions)?;
        }
        // Whatever is left of an attempt whose end was not waited for.
        self.workers = None;
        match state.verdict() {
            Some(verdict) => self.end(verdict, &state),
            None => Ok(exit::FAILED),
        }
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
            let passed = self.ticked.elapsed();
            let left = TICK.saturating_sub(passed);
            if left.is_zero() {
                self.ticked = Instant::now();
                self.skip(passed);
                self.look_after()?;
                return Ok(Event::Tick);
            }
            if let Ok(event) = self.inbox.recv_timeout(left) {
                return Ok(event);
            }
        }
    }

    /// Time in which this process was stopped (a job that is suspended) does not count: ranks were not heard in it.
    fn skip(&mut self, passed: Duration) {
        if passed > STOPPED {
            self.begun += passed;
            self.stopped += passed.as_secs_f64();
            tracing::info!("this coordinator was stopped for {:.0} s, and goes on", passed.as_secs_f64());
        }
    }

    fn look_after(&mut self) -> Result<(), Failure> {
        let Some(workers) = &mut self.workers else { return Ok(()) };
        self.observers.refused(workers.refused());
        if workers.poll().map_err(Failure::failed)? {
            self.workers = None;
        }
        Ok(())
    }

    fn act(&mut self, actions: Vec<Action>) -> Result<(), Failure> {
        for action in actions {
            match action {
                Action::TakeLease(wanted) => {
                    sources::take_lease(patient(self.order), wanted, self.events.clone()).map_err(Failure::failed)?;
                }
                Action::Start(attempt) => self.start(&attempt),
                Action::Order(directive) => self.workers.iter().for_each(|workers| workers.order(directive)),
                Action::End => self.workers.iter_mut().try_for_each(Workers::end).map_err(Failure::failed)?,
                Action::AskSlurm => self.ask_slurm().map_err(Failure::failed)?,
                Action::ForgetStop => self.forget_stop(),
                Action::Note(_) => {}
            }
        }
        Ok(())
    }

    /// The run has ended as it was asked to, whether the request can be taken away or not.
    fn forget_stop(&self) {
        if let Err(error) = self.order.store.delete(STOP_OBJECT) {
            tracing::warn!("the request to stop stays in the store: {error}");
        }
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

/// The Slurm job that this process is part of, which the run's store names from now on.
fn join_job(order: &Order) -> Option<JobSettings> {
    let record = Record::of_process()?;
    let known = Record::read(&order.store).ok().flatten();
    if known.as_ref() != Some(&record)
        && let Err(error) = record.write(&order.store)
    {
        tracing::warn!("`lambert status` will not know of job {}: {error}", record.job);
    }
    Some(JobSettings { id: record.job, lead: order.config.slurm.lead_seconds as f64 })
}

/// What the last coordinator wrote, with the newest checkpoint that no rollback has undone: a run that was copied here has that, and no
/// status.
fn before(store: &Store) -> Status {
    let mut before = status::before(store);
    if let Ok(listed) = checkpoint::list(store) {
        let rollbacks = Undone::read_all(store).unwrap_or_default();
        let stays = |listed: &&Listed| !rollbacks.iter().any(|undone| undone.holds(listed.place));
        let newest = listed.iter().find(stays).or(listed.first());
        before.checkpoint = newest.map(|newest| newest.name.clone());
        before.step = before.step.max(newest.map_or(0, |newest| newest.place.step));
    }
    before
}

/// The run's store, with the patience that the workers have: one that is away is waited for.
fn patient(order: &Order) -> Store {
    let minutes = order.config.checkpoint.give_up_minutes;
    let mut patience = Patience::default();
    patience.total = patience.total.max(Duration::from_secs_f64(60.0 * minutes));
    order.store.with_patience(patience)
}

/// What earlier coordinators of the run have left; nothing, where it cannot be read.
fn remembered(store: &Store) -> Memory {
    let bytes = match store.get_at_most(lambert_store::run::COORDINATOR, LONGEST) {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return Memory::default(),
        Err(error) => {
            tracing::warn!("what earlier coordinators left cannot be read; restarts are counted anew: {error}");
            return Memory::default();
        }
    };
    serde_json::from_slice(&bytes).unwrap_or_else(|error| {
        let url = store.url();
        tracing::warn!(
            "{url}/{} is not a coordinator's memory; restarts are counted anew: {error}",
            lambert_store::run::COORDINATOR
        );
        Memory::default()
    })
}

/// Where ranks may be: on the hosts that the configuration names, on the nodes of a Slurm job that has others than this one,
/// else here.
pub fn room(config: &lambert_config::RunConfig) -> Room {
    let hosts = config.cluster.host_list().unwrap_or_default();
    let nodes = std::env::var("SLURM_JOB_NUM_NODES").ok().and_then(|nodes| nodes.trim().parse::<u32>().ok());
    // What salloc starts is on no node of the job.
    let is_on_node = std::env::var_os("SLURMD_NODENAME").is_some();
    match (hosts.is_empty(), nodes) {
        (false, _) => Room::Hosts(hosts),
        (true, Some(nodes)) if nodes > 1 || !is_on_node => Room::Allocation,
        (true, _) => Room::Here,
    }
}
