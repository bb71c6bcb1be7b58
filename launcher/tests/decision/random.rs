//! Tests of the decision function with random sequences of plausible and impossible events.

use lambert_config::RunConfig;
use lambert_config::run::Host;
use lambert_control::{EventKind, FailureKind, StepRecord, StepTimes};
use lambert_control::{Message, WorkerPhase, WorkerReport};
use lambert_dataset::random::{Key, Rng};

use lambert::decide::{
    Action, CoordinatorState, Event, HostPool, JobSettings, JobState, JobView, LastKnown, LeaseRequest, Note,
    Placement, ProcessExit, RankDeath, RestartHistory, RestartKind, Seconds, Settings, Signal, Verdict, WorkerEvent,
    decide,
};

/// Number of sequences. Each sequence has its own seed.
const SEQUENCES: u64 = 100_000;
/// Number of events in a sequence.
const EVENTS: usize = 60;

const RESTARTS: usize = 3;
const ROLLBACKS: usize = 1;

/// Returns settings with phase timeouts shorter or longer than the window in which failures are counted. Half of the
/// runs are in a Slurm job.
fn settings(seed: u64) -> Settings {
    let mut config = RunConfig::default();
    let cluster = &mut config.cluster;
    (cluster.ranks, cluster.restart.limit) = (2, RESTARTS);
    (cluster.restart.window_minutes, cluster.restart.start_timeout_minutes) =
        ([10.0, 0.5][seed as usize / 4 % 2], 10.0);
    cluster.limits.join_seconds = 50.0;
    (cluster.limits.load_seconds, cluster.limits.first_step_seconds, cluster.limits.step_seconds) = (90.0, 80.0, 70.0);
    (cluster.limits.evaluate_seconds, cluster.limits.save_seconds, cluster.limits.stop_seconds) = (90.0, 90.0, 90.0);
    config.checkpoint.give_up_minutes = 1.0;
    let host = |name: &str| Host { name: name.into(), ranks: 1 };
    config.guard.rollbacks = ROLLBACKS;
    let mut settings = Settings::new(&config, HostPool::Hosts(vec![host("a"), host("b"), host("c")]), 1e9);
    settings.job = (seed / 2).is_multiple_of(2).then(|| JobSettings {
        id: "12".to_owned(),
        lead: 120.0,
        ..JobSettings::default()
    });
    settings
}

/// Maximum permitted time without a report: the timeout of a save.
const MAX_SILENCE: Seconds = 90.0 + 60.0;

/// Independent model of the decision function that checks its invariants.
#[derive(Default)]
struct InvariantChecker {
    active: Option<u32>,
    ending: bool,
    newest: u32,
    wanted: Option<LeaseRequest>,
    /// Time of the last report from the processes of the attempt.
    alive: Seconds,
    restarts: Vec<Seconds>,
    window: Seconds,
    /// Step of the furthest checkpoint. `without_progress` is the number of restarts since this checkpoint was
    /// committed.
    furthest: u64,
    without_progress: usize,
    /// True if the current attempt has not committed a checkpoint beyond `furthest`.
    pending: bool,
    /// Last rollback reported in this attempt: the step at which it was decided, and the step to resume from.
    reported_rollback: (u64, u64),
    /// Step of the last rollback. `rollbacks` is the number of rollbacks since the last checkpoint beyond this step.
    diverged_at: u64,
    rollbacks: usize,
    waiting: Option<Seconds>,
    verdict: Option<Verdict>,
}

impl InvariantChecker {
    fn before(&mut self, at: Seconds, event: &Event) {
        match event {
            Event::Worker(attempt, WorkerEvent::Gone(_)) | Event::StartFailed(attempt, ..)
                if Some(*attempt) == self.active =>
            {
                (self.active, self.ending) = (None, false);
            }
            Event::Worker(attempt, WorkerEvent::Report(_)) if Some(*attempt) == self.active => {
                (self.alive, self.waiting) = (at, None);
            }
            Event::Worker(attempt, WorkerEvent::Message(rank, Message::Event(text)))
                if Some(*attempt) == self.active =>
            {
                self.worker_event(*rank, text);
            }
            Event::LeaseFailed(_) => self.wanted = None,
            Event::LeaseTaken(number) => self.newest = self.newest.max(*number),
            _ => {}
        }
    }

    fn worker_event(&mut self, rank: usize, text: &EventKind) {
        match text {
            EventKind::Started { step, .. } => self.furthest = self.furthest.max(*step),
            EventKind::Checkpoint { step, .. } => {
                if *step > self.furthest {
                    (self.furthest, self.without_progress, self.pending) = (*step, 0, false);
                }
                if *step > self.diverged_at {
                    (self.diverged_at, self.rollbacks) = (0, 0);
                }
            }
            EventKind::RolledBack { step, last_kept, .. } if rank == 0 => self.reported_rollback = (*step, *last_kept),
            _ => {}
        }
    }

    fn after(&mut self, at: Seconds, tick: bool, state: &CoordinatorState, actions: &[Action]) {
        if self.verdict.is_some() {
            assert_eq!((actions, state.verdict()), (&[][..], self.verdict.as_ref()), "actions after a verdict");
        }
        actions.iter().for_each(|action| self.act(at, action));
        self.verdict = state.verdict().cloned();
        let late = at - self.alive > MAX_SILENCE && tick && self.verdict.is_none();
        assert!(!(late && self.active.is_some() && !self.ending), "a timeout was missed: {state:?}");
        let recent = self.restarts.iter().filter(|then| **then > at - self.window + 0.1).count();
        assert!(recent <= RESTARTS, "{recent} restarts in {} s", self.window);
        assert!(self.without_progress <= RESTARTS, "{} restarts without a new checkpoint", self.without_progress);
        assert!(self.rollbacks <= ROLLBACKS, "{} rollbacks before step {}", self.rollbacks, self.diverged_at);
        assert!(self.waiting.is_none_or(|since| at - since <= 600.0 + 61.0 + MAX_SILENCE || self.verdict.is_some()));
    }

    fn act(&mut self, at: Seconds, action: &Action) {
        match action {
            Action::TakeLease(wanted) => {
                assert_eq!(self.active, None, "a lease request during an attempt");
                self.wanted = Some(*wanted);
            }
            Action::Start(attempt) => {
                assert_eq!(self.active, None, "two attempts at once");
                assert!(self.newest == attempt.number, "an attempt without its lease");
                assert!(self.wanted.take().is_some(), "a start without a lease request");
                (self.active, self.alive, self.pending) = (Some(attempt.number), at, true);
                self.waiting.get_or_insert(at);
                let Placement::Hosts(hosts) = &attempt.placement else { panic!() };
                assert_eq!(hosts.iter().map(|host| host.ranks).sum::<usize>(), attempt.world);
            }
            Action::End => {
                assert!(self.active.is_some() && !self.ending, "nothing to end");
                self.ending = true;
            }
            Action::Command(_) => assert!(self.active.is_some(), "a command without an attempt"),
            Action::Note(Note::Restart { kind, .. }) => {
                self.waiting = None;
                if *kind == RestartKind::Rollback {
                    let (step, to) = self.reported_rollback;
                    (self.furthest, self.diverged_at) = (self.furthest.min(to), step);
                    (self.rollbacks, self.pending) = (self.rollbacks + 1, false);
                } else {
                    self.restarts.push(at);
                    self.without_progress += usize::from(std::mem::take(&mut self.pending));
                }
            }
            Action::Note(_) | Action::AskSlurm | Action::ForgetStop => {}
        }
    }
}

struct Simulation {
    rng: Rng,
    at: Seconds,
    state: CoordinatorState,
    checker: InvariantChecker,
}

impl Simulation {
    fn begin(seed: u64) -> Self {
        let settings = settings(seed);
        let mut checker = InvariantChecker { window: settings.window, ..InvariantChecker::default() };
        let (state, actions) = CoordinatorState::begin(settings, RestartHistory::default(), LastKnown::default());
        actions.iter().for_each(|action| checker.act(0.0, action));
        Self { rng: Key::new(seed).rng(), at: 0.0, state, checker }
    }

    fn give(&mut self, event: Event) {
        // Time advances with every event, and a tick follows every event.
        self.at += if self.rng.below(4) == 0 { self.rng.below(40) as f64 } else { 0.1 };
        for event in [event, Event::Tick] {
            let tick = event == Event::Tick;
            self.checker.before(self.at, &event);
            let state = self.state.clone();
            let (state, actions) = decide(state, self.at, event);
            self.checker.after(self.at, tick, &state, &actions);
            self.state = state;
        }
    }

    fn rank(&mut self) -> usize {
        self.rng.below(2) as usize
    }

    /// Returns a random event, which is mostly plausible and sometimes impossible.
    fn event(&mut self) -> Event {
        let (attempt, newest) = (self.checker.active.unwrap_or(self.checker.newest), self.checker.newest);
        match self.rng.below(40) {
            0 => Event::Signal(if self.rng.below(2) == 0 { Signal::Interrupt } else { Signal::Other }),
            1 => Event::StopRequested,
            2 => Event::SaveRequested,
            3 => Event::LeaseSeen(newest + self.rng.below(20) as u32 / 18),
            4 => Event::LeaseSeen(newest.saturating_sub(1)),
            5 => Event::Worker(attempt.saturating_sub(1), WorkerEvent::Gone(Vec::new())),
            6 if self.rng.below(40) == 0 => Event::LeaseGone(newest, "moved".into()),
            6 => Event::StartFailed(attempt.saturating_sub(1), 1, "late".into()),
            7 => Event::Job(self.job()),
            8..14 => Event::Tick,
            _ if self.checker.wanted.is_some() => self.lease(),
            _ if self.checker.active.is_none() => Event::Tick,
            14..18 => Event::Worker(attempt, self.end()),
            _ => Event::Worker(attempt, self.message()),
        }
    }

    fn job(&mut self) -> JobView {
        use JobState::{Cancelled, Preempted, Requeued, Running, Unknown};
        let job_state = [Running, Preempted, Cancelled, Requeued, Unknown][self.rng.below(5) as usize];
        JobView { job_state, seconds_left: (self.rng.below(2) == 0).then(|| self.rng.below(300) as f64) }
    }

    fn lease(&mut self) -> Event {
        let next = self.checker.newest + 1;
        match self.rng.below(30) {
            0 => Event::LeaseHeld(next),
            1 => Event::LeaseFailed("the store is away".into()),
            _ => Event::LeaseTaken(next),
        }
    }

    fn end(&mut self) -> WorkerEvent {
        match self.rng.below(8) {
            0 | 1 => WorkerEvent::Exited(ProcessExit::Code([0, 0, 1, 2, 69, 75][self.rng.below(6) as usize])),
            2 => WorkerEvent::Exited(ProcessExit::Signal(9)),
            3 => WorkerEvent::Died(RankDeath::Signal { rank: self.rank(), signal: 9 }),
            4 => WorkerEvent::Died(RankDeath::Exit { rank: self.rank(), code: [1, 69][self.rng.below(2) as usize] }),
            5 => WorkerEvent::Remark("no route to host".into()),
            _ if self.checker.ending || self.rng.below(3) == 0 => WorkerEvent::Gone(Vec::new()),
            _ => WorkerEvent::Line(0, "text".into()),
        }
    }

    fn message(&mut self) -> WorkerEvent {
        if self.rng.below(2) == 0 {
            let phase = WorkerPhase::ALL[self.rng.below(8) as usize];
            let (rank, step, seconds_in_phase) = (self.rank(), self.rng.below(50), self.rng.below(60) as f64);
            let host = ["a", "b", "c"][self.rng.below(3) as usize].into();
            return WorkerEvent::Report(WorkerReport {
                rank,
                pid: 1,
                host,
                step,
                phase,
                seconds_in_phase,
                ..WorkerReport::default()
            });
        }
        let (step, message) = (self.rng.below(50), "m".to_owned());
        let failed = |message, kind| EventKind::Failed { message, kind, missing: Vec::new() };
        let event = match self.rng.below(12) {
            0 | 1 => EventKind::Started { step, steps: 50, checkpoint: None, skipped_checkpoints: Vec::new() },
            2 | 3 => EventKind::Checkpoint { name: "c".into(), step, seconds: 1.0, written: 1.0 },
            4 => EventKind::Finished { step, stopped: self.rng.below(2) == 0 },
            5 | 10 => EventKind::RolledBack { message, step, last_kept: step.saturating_sub(3) },
            6 => {
                let missing = (0..self.rng.below(2) as usize).map(|_| self.rank()).collect();
                EventKind::Failed { message, kind: FailureKind::Transient, missing }
            }
            7 => failed(message, FailureKind::Host),
            8 if self.rng.below(4) == 0 => failed(message, FailureKind::Permanent),
            8 if self.rng.below(4) == 0 => failed(message, FailureKind::LeaseLost),
            9 => EventKind::SaveFailed { error: message.clone(), message },
            _ => {
                let times = StepTimes { seconds: 1.0, ..StepTimes::default() };
                let record = StepRecord { step, times, ..StepRecord::default() };
                return WorkerEvent::Message(0, Message::Record(Box::new(record)));
            }
        };
        WorkerEvent::Message(self.rank(), Message::Event(event))
    }

    /// Returns the event for which the coordinator waits: the response to a lease request, or the exit of terminated
    /// processes.
    fn expected_event(&mut self) -> Event {
        match self.checker.active {
            _ if self.checker.wanted.is_some() => Event::LeaseTaken(self.checker.newest + 1),
            Some(attempt) if self.checker.ending => Event::Worker(attempt, WorkerEvent::Gone(Vec::new())),
            _ => Event::Tick,
        }
    }
}

/// Sends two signals and a few expected events. They must lead to a verdict from every state. Returns the verdict.
fn signals_end(mut simulation: Simulation) -> Option<Verdict> {
    // In a Slurm job, only a second Ctrl-C ends the run at once.
    simulation.give(Event::Signal(Signal::Interrupt));
    simulation.at += 1.0;
    simulation.give(Event::Signal(Signal::Interrupt));
    for _ in 0..8 {
        let event = simulation.expected_event();
        simulation.give(event);
    }
    assert!(simulation.checker.verdict.is_some(), "no verdict: {:?}", simulation.state);
    simulation.checker.verdict
}

/// Sends no more reports. The timeouts must then lead to a verdict from every state. Returns the verdict.
fn silence_ends(mut simulation: Simulation) -> Option<Verdict> {
    for _ in 0..4000 {
        let event = simulation.expected_event();
        simulation.give(event);
        if simulation.checker.verdict.is_some() {
            return simulation.checker.verdict;
        }
    }
    panic!("no verdict after {} s: {:?}", simulation.at, simulation.state);
}

#[test]
fn random_sequences_violate_no_invariant() {
    let first = std::env::var("LAMBERT_TEST_SEED").map_or(0, |seed| seed.parse().unwrap());
    let mut verdicts = std::collections::BTreeMap::<String, u64>::new();
    for seed in first..first + SEQUENCES {
        let run = move || {
            let mut simulation = Simulation::begin(seed);
            for _ in 0..EVENTS {
                let event = simulation.event();
                simulation.give(event);
            }
            if seed % 2 == 0 { signals_end(simulation) } else { silence_ends(simulation) }
        };
        let verdict = std::panic::catch_unwind(run).unwrap_or_else(|_| panic!("LAMBERT_TEST_SEED={seed}"));
        let name = verdict.map_or(String::new(), |verdict| match verdict {
            Verdict::Failed(code, why) => format!("{code} {}", why.split(' ').take(2).collect::<Vec<_>>().join(" ")),
            other => format!("{other:?}").split('(').next().unwrap_or_default().to_owned(),
        });
        *verdicts.entry(name).or_default() += 1;
    }
    eprintln!("{verdicts:?}");
    // The sequences must reach all kinds of verdicts.
    for word in ["Finished", "Stopped", "Replaced", "1 giving up", "65 giving up", "1 ended by"] {
        assert!(verdicts.iter().any(|(name, times)| name.starts_with(word) && *times > 100), "{word}: {verdicts:?}");
    }
}
