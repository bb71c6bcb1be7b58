//! Scenarios for tests: pass events to the decision function and keep its actions.

use lambert_config::RunConfig;
use lambert_control::{EventKind, FailureKind, StepRecord, StepTimes};
use lambert_control::{Message, WorkerReport};

use lambert::decide::{
    Action, CoordinatorState, Event, HostPool, JobSettings, LastKnown, LeaseRequest, Note, ProcessExit, RestartHistory,
    Seconds, Settings, Verdict, WorkerEvent, decide,
};

/// A coordinator with its clock. `done` has the actions after the last event.
pub struct Scenario {
    pub at: Seconds,
    pub state: CoordinatorState,
    pub done: Vec<Action>,
}

/// Job ID of scenarios in a Slurm job.
pub const JOB: &str = "12";

impl Scenario {
    /// Creates a coordinator in a Slurm job. Slurm signals the job `lead` seconds before its end. The clock of the
    /// coordinator starts `later` seconds later than that of other scenarios.
    pub fn in_job(history: RestartHistory, lead: Seconds, later: Seconds) -> Self {
        let mut settings = Settings::new(&RunConfig::default(), HostPool::Here, 1e9 + later);
        (settings.ranks, settings.job) = (2, Some(JobSettings { id: JOB.to_owned(), lead, ..JobSettings::default() }));
        let (state, done) = CoordinatorState::begin(settings, history, LastKnown::default());
        Self { at: 0.0, state, done }
    }

    pub fn with(change: impl FnOnce(&mut RunConfig), host_pool: HostPool) -> Self {
        let mut config = RunConfig::default();
        config.cluster.ranks = 2;
        change(&mut config);
        let (state, done) = CoordinatorState::begin(
            Settings::new(&config, host_pool, 1e9),
            RestartHistory::default(),
            LastKnown::default(),
        );
        Self { at: 0.0, state, done }
    }

    pub fn new() -> Self {
        Self::with(|_| (), HostPool::Here)
    }

    pub fn give(&mut self, event: Event) -> &mut Self {
        let (state, actions) = decide(self.state.clone(), self.at, event);
        (self.state, self.done) = (state, actions);
        self
    }

    pub fn wait(&mut self, seconds: Seconds) -> &mut Self {
        self.at += seconds;
        self.give(Event::Tick)
    }

    pub fn number(&self) -> u32 {
        self.state.running().map_or(0, |running| running.attempt.number)
    }

    pub fn worker(&mut self, what: WorkerEvent) -> &mut Self {
        let number = self.number();
        self.give(Event::Worker(number, what))
    }

    pub fn send_event(&mut self, kind: EventKind) -> &mut Self {
        self.worker(WorkerEvent::Message(0, Message::Event(kind)))
    }

    pub fn record(&mut self, step: u64) -> &mut Self {
        let times = StepTimes { seconds: 1.0, ..StepTimes::default() };
        let record = StepRecord { step, times, ..StepRecord::default() };
        self.worker(WorkerEvent::Message(0, Message::Record(Box::new(record))))
    }

    pub fn report(&mut self) -> &mut Self {
        self.report_of(0).report_of(1)
    }

    /// Report of one rank.
    pub fn report_of(&mut self, rank: usize) -> &mut Self {
        let (phase, host) = (lambert_control::WorkerPhase::Step, ["a", "b"][rank].into());
        self.worker(WorkerEvent::Report(WorkerReport { rank, pid: 7, host, phase, ..WorkerReport::default() }))
    }

    /// Starts the attempt with this lease. Its ranks are in `phase` before their first step.
    pub fn load(&mut self, lease: u32, phase: lambert_control::WorkerPhase) -> &mut Self {
        self.give(Event::LeaseTaken(lease));
        let report = |rank| WorkerReport { rank, pid: 7, host: "a".into(), phase, ..WorkerReport::default() };
        self.worker(WorkerEvent::Report(report(0))).worker(WorkerEvent::Report(report(1)))
    }

    /// Starts the attempt with this lease. Its ranks report and train up to `step`.
    pub fn train(&mut self, lease: u32, step: u64) -> &mut Self {
        self.give(Event::LeaseTaken(lease)).report();
        self.send_event(EventKind::Started { step: 0, steps: 1000, checkpoint: None, skipped_checkpoints: Vec::new() });
        self.record(step)
    }

    /// Commits a checkpoint after `step` steps.
    pub fn saves(&mut self, step: u64) -> &mut Self {
        self.send_event(EventKind::Checkpoint { name: format!("step-{step}"), step, seconds: 0.1, written: 2.0 })
    }

    pub fn exit(&mut self, code: i32) -> &mut Self {
        self.worker(WorkerEvent::Exited(ProcessExit::Code(code))).worker(WorkerEvent::Gone(Vec::new()))
    }

    pub fn fail(&mut self, kind: FailureKind) -> &mut Self {
        self.send_event(EventKind::Failed { message: "so".into(), kind, missing: Vec::new() }).exit(1)
    }

    /// Waits for the backoff of the last decision. Returns the backoff and the lease that is then requested.
    pub fn pause(&mut self) -> (Seconds, LeaseRequest) {
        let pause = self.done.iter().find_map(|action| match action {
            Action::Note(Note::Restart { pause, .. } | Note::Waiting { pause, .. }) => Some(*pause),
            _ => None,
        });
        let pause = pause.unwrap_or_else(|| panic!("no pause: {:?} {:?}", self.done, self.state.phase));
        self.wait(pause);
        match self.done[..] {
            [Action::TakeLease(wanted)] => (pause, wanted),
            _ => panic!("no lease: {:?}", self.done),
        }
    }

    pub fn failure(&self) -> (i32, &str) {
        match self.state.verdict() {
            Some(Verdict::Failed(code, message)) => (*code, message),
            other => panic!("{other:?}"),
        }
    }
}
