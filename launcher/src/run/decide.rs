//! The coordinator's decisions: one pure function from a state and an event to the next state and what is to be done.
//!
//! There is no clock, no I/O and no thread here. Signals, timers, the store, the lease, launchers and the control channel
//! make [`Event`]s; the coordinator carries out [`Action`]s; status, display and log observe both.
//!
//! - [`event`]: events and actions; [`placement`]: which ranks an attempt has, and where
//! - [`watch`]: what is known of the attempt under way, and why it failed; [`limits`]: when a rank is taken for hung
//! - [`after`]: what follows an attempt; [`memory`]: what a later start needs to know

pub mod after;
pub mod event;
pub mod limits;
pub mod memory;
pub mod placement;
pub mod watch;

use lambert_config::RunConfig;
use lambert_config::control::{Directive, EventKind, Fault};
use lambert_config::exit;
use lambert_control::{Saying, Versions};

pub use event::{Action, Death, Event, Exit, FromWorkers, Note, Seconds, Verdict, Wanted};
pub use memory::Memory;
pub use placement::{Attempt, Placement, Room};

use after::Tries;
use limits::Patience;
use watch::{Failure, Watch};

/// What does not change while a coordinator lives.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Ranks of an attempt.
    pub ranks: usize,
    /// Where they may be.
    pub room: Room,
    /// How long phases may take.
    pub patience: Patience,
    /// Failures within the window that are followed by a restart.
    pub restarts: usize,
    /// The window, seconds.
    pub window: Seconds,
    /// How long starts that no rank reports from are tried again, seconds.
    pub absence: Seconds,
    /// Rollbacks in a row without progress.
    pub rollbacks: usize,
    /// When the coordinator began, seconds since 1970.
    pub unix: f64,
    /// What the coordinator is made of.
    pub versions: Versions,
}

impl Settings {
    /// Of a run whose ranks may be in `room`, for a coordinator that begins at `unix`.
    pub fn new(config: &RunConfig, room: Room, unix: f64) -> Self {
        let cluster = &config.cluster;
        Self {
            ranks: cluster.ranks,
            room,
            patience: Patience::new(config),
            restarts: cluster.restarts,
            window: 60.0 * cluster.restart_window_minutes,
            absence: 60.0 * cluster.patience_minutes,
            rollbacks: config.guard.rollbacks,
            unix,
            versions: Versions::of_program(),
        }
    }
}

/// What people have asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Wishes {
    /// A checkpoint and an end.
    pub stop: bool,
    /// Whether a person has asked for that in the store: then nobody is to start the run again.
    pub person: bool,
    /// An end at once.
    pub kill: bool,
    /// A checkpoint: until one was committed after the wish.
    pub save: bool,
    signals: u32,
}

/// An attempt under way.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    /// Which.
    pub attempt: Attempt,
    /// When it was started.
    pub begun: Seconds,
    /// What is known of it.
    pub watch: Watch,
    /// Whether it was said that it is slow.
    slow: bool,
    /// Whether the ranks have been ordered to stop.
    pub stopping: bool,
}

/// Why the processes of an attempt are ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Why {
    /// They have ended by themselves; what is left of them goes, too.
    Left,
    /// A second signal.
    Killed,
    /// Another coordinator has the run.
    Replaced(String),
    /// They failed in a way that only the coordinator sees.
    Failed(Failure),
}

/// Where a coordinator is.
#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// It waits for a lease.
    Leasing(Wanted),
    /// Ranks run.
    Running(Box<Running>),
    /// Their processes are being ended.
    Ending(Box<Running>, Why),
    /// It waits before the next attempt.
    Pausing {
        /// The attempt before.
        last: u32,
        /// Until when.
        until: Seconds,
    },
    /// It is over.
    Over(Verdict),
}

/// All that a coordinator knows.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// What does not change.
    pub settings: Settings,
    /// What a later start needs to know.
    pub memory: Memory,
    /// Where it is.
    pub phase: Phase,
    /// What people have asked for.
    pub wishes: Wishes,
    /// The newest committed checkpoint, if one is known.
    pub checkpoint: Option<String>,
    tries: Tries,
}

impl State {
    /// A coordinator that begins, and the first thing it wants done.
    pub fn begin(settings: Settings, memory: Memory) -> (Self, Vec<Action>) {
        let memory = memory.sanitized(settings.unix);
        let (phase, wishes) = (Phase::Leasing(Wanted::Next), Wishes::default());
        let state = Self { settings, memory, phase, wishes, checkpoint: None, tries: Tries::default() };
        (state, vec![Action::TakeLease(Wanted::Next)])
    }

    /// How it ended, if it has.
    pub fn verdict(&self) -> Option<&Verdict> {
        match &self.phase {
            Phase::Over(verdict) => Some(verdict),
            _ => None,
        }
    }

    /// The attempt under way, if there is one.
    pub fn running(&self) -> Option<&Running> {
        match &self.phase {
            Phase::Running(running) | Phase::Ending(running, _) => Some(running),
            _ => None,
        }
    }

    fn unix(&self, at: Seconds) -> f64 {
        self.settings.unix + at
    }
}

/// What follows from `event` at the time `at`.
pub fn decide(mut state: State, at: Seconds, event: Event) -> (State, Vec<Action>) {
    if state.verdict().is_some() {
        return (state, Vec::new());
    }
    let mut actions = wish(&mut state, &event);
    let phase = std::mem::replace(&mut state.phase, Phase::Leasing(Wanted::Next));
    state.phase = match phase {
        Phase::Leasing(wanted) => leasing(&mut state, at, wanted, event, &mut actions),
        Phase::Running(running) => run(&mut state, at, running, event, &mut actions),
        Phase::Ending(running, why) => end(&mut state, at, running, why, event, &mut actions),
        Phase::Pausing { last, until } => pause(&mut state, at, last, until, event, &mut actions),
        Phase::Over(verdict) => Phase::Over(verdict),
    };
    if matches!(state.phase, Phase::Over(Verdict::Finished | Verdict::Stopped)) {
        actions.push(Action::ForgetStop);
    }
    (state, actions)
}

/// Takes in what people ask for.
fn wish(state: &mut State, event: &Event) -> Vec<Action> {
    let wishes = &mut state.wishes;
    match event {
        Event::Signal => {
            wishes.signals += 1;
            wishes.stop = true;
            wishes.kill = wishes.signals > 1;
        }
        Event::StopRequested => (wishes.stop, wishes.person) = (true, true),
        Event::SaveRequested if !wishes.save => {
            wishes.save = true;
            return vec![Action::Note(Note::Saving)];
        }
        _ => {}
    }
    Vec::new()
}

fn leasing(state: &mut State, at: Seconds, wanted: Wanted, event: Event, actions: &mut Vec<Action>) -> Phase {
    match event {
        Event::LeaseTaken(number) if wanted == Wanted::Next || wanted == Wanted::Exactly(number) => {
            start(state, at, number, actions)
        }
        Event::LeaseHeld(number) => Phase::Over(replaced(number)),
        Event::LeaseFailed(message) => Phase::Over(Verdict::Failed(exit::FAILED, message)),
        // The wanted one may be this coordinator's own, whose answer is still on its way.
        Event::LeaseSeen(newest) if matches!(wanted, Wanted::Exactly(own) if newest > own) => {
            Phase::Over(replaced(newest))
        }
        _ if state.wishes.stop => Phase::Over(Verdict::Stopped),
        _ => Phase::Leasing(wanted),
    }
}

fn replaced(newest: u32) -> Verdict {
    Verdict::Replaced(format!("another `lambert run` has taken this run over, as attempt {newest}"))
}

fn start(state: &mut State, at: Seconds, number: u32, actions: &mut Vec<Action>) -> Phase {
    if state.wishes.stop {
        return Phase::Over(Verdict::Stopped);
    }
    let settings = &state.settings;
    let mut avoid = state.memory.failed_hosts(state.unix(at) - settings.window);
    avoid.extend(state.tries.unreachable());
    let placement = placement::place(&settings.room, settings.ranks, &avoid);
    let attempt = Attempt { number, world: settings.ranks, placement };
    actions.push(Action::Start(attempt.clone()));
    if state.wishes.save {
        actions.push(Action::Order(Directive::Checkpoint));
    }
    let watch = Watch::new(attempt.placement.places());
    Phase::Running(Box::new(Running { attempt, begun: at, watch, slow: false, stopping: false }))
}

fn run(state: &mut State, at: Seconds, mut running: Box<Running>, event: Event, actions: &mut Vec<Action>) -> Phase {
    let (number, tick) = (running.attempt.number, event == Event::Tick);
    match event {
        Event::Worker(attempt, what) if attempt == number => {
            let gone = matches!(what, FromWorkers::Gone(_));
            // Slurm asks the ranks, and at first nobody else, when the job has to make room. Not so while they are ended.
            state.wishes.stop |= matches!(&what, FromWorkers::Report(report) if report.terminated);
            listen(state, at, &mut running, what, actions);
            if gone {
                return after::follow(state, at, &running, Why::Left, actions);
            }
        }
        Event::StartFailed(attempt, message) if attempt == number => {
            return Phase::Over(Verdict::Failed(exit::FAILED, message));
        }
        Event::LeaseSeen(newest) if newest > number => {
            return to_end(running, Why::Replaced(replaced_message(newest)), actions);
        }
        Event::SaveRequested if !running.stopping => actions.push(Action::Order(Directive::Checkpoint)),
        _ => {}
    }
    // Limits look at all ranks, and so are not for every report.
    let mut why = reason_to_end(state, &mut running, actions);
    if why.is_none() && tick {
        why = overdue(state, at, &mut running, actions);
    }
    match why {
        Some(why) => to_end(running, why, actions),
        None => Phase::Running(running),
    }
}

fn replaced_message(newest: u32) -> String {
    match replaced(newest) {
        Verdict::Replaced(message) => message,
        _ => String::new(),
    }
}

/// What wishes, the end of the launcher and a mixture of versions ask for.
fn reason_to_end(state: &State, running: &mut Running, actions: &mut Vec<Action>) -> Option<Why> {
    // With one rank the others are lost; not every launcher ends them.
    if running.watch.exit.is_some() || running.watch.death.is_some() {
        return Some(Why::Left);
    }
    if state.wishes.kill {
        return Some(Why::Killed);
    }
    if state.wishes.stop && !running.stopping {
        running.stopping = true;
        actions.extend([Action::Note(Note::Stopping), Action::Order(Directive::CheckpointAndStop)]);
    }
    let mixture = running.watch.mixture.as_ref()?;
    let message = format!("the ranks do not run the same programs: {mixture}");
    Some(Why::Failed(Failure { message, fault: Fault::Usage, host: None }))
}

/// What the limits ask for.
fn overdue(state: &State, at: Seconds, running: &mut Running, actions: &mut Vec<Action>) -> Option<Why> {
    let patience = &state.settings.patience;
    match patience.slow(at, &running.watch) {
        Some(message) if !std::mem::replace(&mut running.slow, true) => actions.push(Action::Note(Note::Slow(message))),
        Some(_) => {}
        None => running.slow = false,
    }
    let hang = patience.overdue(at, running.begun, running.attempt.world, &running.watch)?;
    Some(Why::Failed(Failure { host: hang.host, ..Failure::passing(hang.message) }))
}

fn to_end(mut running: Box<Running>, why: Why, actions: &mut Vec<Action>) -> Phase {
    running.slow = false;
    actions.push(Action::End);
    Phase::Ending(running, why)
}

fn end(
    state: &mut State,
    at: Seconds,
    mut running: Box<Running>,
    why: Why,
    event: Event,
    actions: &mut Vec<Action>,
) -> Phase {
    let number = running.attempt.number;
    match event {
        Event::Worker(attempt, what) if attempt == number => {
            let gone = matches!(what, FromWorkers::Gone(_));
            listen(state, at, &mut running, what, actions);
            if gone {
                let why = if state.wishes.kill && why != Why::Left { Why::Killed } else { why };
                return after::follow(state, at, &running, why, actions);
            }
        }
        Event::LeaseSeen(newest) if newest > number => {
            return Phase::Ending(running, Why::Replaced(replaced_message(newest)));
        }
        _ => {}
    }
    Phase::Ending(running, why)
}

/// Takes in what came from the processes of the attempt under way.
fn listen(state: &mut State, at: Seconds, running: &mut Running, what: FromWorkers, actions: &mut Vec<Action>) {
    match &what {
        FromWorkers::Report(report) => {
            if let Some(versions) = &report.versions
                && let Some((name, own, other)) = state.settings.versions.differs(versions)
            {
                let mixture = format!("this coordinator has {name} {own}, rank {} has {other}", report.rank);
                running.watch.mixture.get_or_insert(mixture);
            }
        }
        FromWorkers::Said(_, Saying::Event(EventKind::Started { checkpoint, .. })) => {
            state.checkpoint.clone_from(checkpoint);
        }
        FromWorkers::Said(_, Saying::Event(EventKind::Checkpoint { name, written, .. })) => {
            (state.checkpoint, state.wishes.save) = (Some(name.clone()), false);
            state.memory.last_save_seconds = Some(*written);
        }
        FromWorkers::Gone(left) if !left.is_empty() => actions.push(Action::Note(Note::Left(left.clone()))),
        _ => {}
    }
    running.watch.take(at, what);
    if let Some(recovered) = state.tries.recover(at, &running.watch) {
        state.memory.account(recovered.1);
        actions.push(Action::Note(Note::Recovered { step: recovered.0, seconds: recovered.1 }));
    }
}

fn pause(state: &mut State, at: Seconds, last: u32, until: Seconds, event: Event, actions: &mut Vec<Action>) -> Phase {
    match event {
        Event::LeaseSeen(newest) if newest > last => Phase::Over(replaced(newest)),
        _ if state.wishes.stop => Phase::Over(Verdict::Stopped),
        _ if at >= until => {
            let wanted = Wanted::Exactly(last + 1);
            actions.push(Action::TakeLease(wanted));
            Phase::Leasing(wanted)
        }
        _ => Phase::Pausing { last, until },
    }
}
