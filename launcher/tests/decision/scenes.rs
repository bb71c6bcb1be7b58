//! The decision, scene by scene.

use lambert_config::RunConfig;
use lambert_config::control::{Directive, EventKind, Fault, StepRecord};
use lambert_config::run::Host;
use lambert_control::{Report, Saying};

use lambert_control::Versions;
use lambert_launcher::run::decide::{
    Action, Attempt, Death, Event, Exit, FromWorkers, JobSettings, JobView, Memory, Note, Phase, Placement, Room,
    Seconds, Settings, Signal, Standing, State, StopReason, Verdict, Wanted, decide,
};

/// A coordinator on a stage: events in, what was decided out.
struct Scene {
    at: Seconds,
    state: State,
    done: Vec<Action>,
}

impl Scene {
    fn with(change: impl FnOnce(&mut RunConfig), room: Room) -> Self {
        let mut config = RunConfig::default();
        config.cluster.ranks = 2;
        change(&mut config);
        let (state, done) = State::begin(Settings::new(&config, room, 1e9), Memory::default());
        Self { at: 0.0, state, done }
    }

    fn new() -> Self {
        Self::with(|_| (), Room::Here)
    }

    fn give(&mut self, event: Event) -> &mut Self {
        let (state, actions) = decide(self.state.clone(), self.at, event);
        (self.state, self.done) = (state, actions);
        self
    }

    fn wait(&mut self, seconds: Seconds) -> &mut Self {
        self.at += seconds;
        self.give(Event::Tick)
    }

    fn number(&self) -> u32 {
        self.state.running().map_or(0, |running| running.attempt.number)
    }

    fn worker(&mut self, what: FromWorkers) -> &mut Self {
        let number = self.number();
        self.give(Event::Worker(number, what))
    }

    fn says(&mut self, kind: EventKind) -> &mut Self {
        self.worker(FromWorkers::Message(0, Saying::Event(kind)))
    }

    fn record(&mut self, step: u64) -> &mut Self {
        let record = StepRecord { step, seconds: 1.0, ..StepRecord::default() };
        self.worker(FromWorkers::Message(0, Saying::Record(Box::new(record))))
    }

    fn report(&mut self) -> &mut Self {
        for (rank, host) in ["a", "b"].into_iter().enumerate() {
            let phase = lambert_control::Phase::Step;
            let report = Report { rank, pid: 7, host: host.into(), phase, ..Report::default() };
            self.worker(FromWorkers::Report(report));
        }
        self
    }

    /// Starts the attempt of this lease, whose ranks report and train up to `step`.
    fn train(&mut self, lease: u32, step: u64) -> &mut Self {
        self.give(Event::LeaseTaken(lease)).report();
        self.says(EventKind::Started { step: 0, steps: 1000, checkpoint: None, passed_over: Vec::new() });
        self.record(step)
    }

    fn exit(&mut self, code: i32) -> &mut Self {
        self.worker(FromWorkers::Exited(Exit::Code(code))).worker(FromWorkers::Gone(Vec::new()))
    }

    fn fail(&mut self, fault: Fault) -> &mut Self {
        self.says(EventKind::Failed { message: "so".into(), fault }).exit(1)
    }

    /// The pause that was decided on; then the lease that is wanted after it.
    fn pause(&mut self) -> (Seconds, Wanted) {
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

    fn failure(&self) -> (i32, &str) {
        match self.state.verdict() {
            Some(Verdict::Failed(code, message)) => (*code, message),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_run_that_finishes() {
    let mut scene = Scene::new();
    assert_eq!(scene.done, [Action::TakeLease(Wanted::Next)]);
    scene.give(Event::LeaseTaken(4));
    let attempt = Attempt { number: 4, world: 2, placement: Placement::Here };
    assert_eq!(scene.done, [Action::Start(attempt)]);
    scene.report().says(EventKind::Finished { step: 9, stopped: false });
    scene.worker(FromWorkers::Exited(Exit::Code(0)));
    assert_eq!(scene.done, [Action::End]);
    scene.worker(FromWorkers::Gone(Vec::new()));
    assert_eq!((scene.state.verdict(), &scene.done[..]), (Some(&Verdict::Finished), &[Action::ForgetStop][..]));
    assert_eq!(scene.give(Event::Signal(Signal::Other)).done, [], "nothing after the end");
}

/// A folder that is full, or a file system that is away, is waited for as a bucket is.
#[test]
fn a_run_under_way_waits_for_its_lease() {
    let mut scene = Scene::new();
    scene.give(Event::LeaseFailed("no space".into()));
    assert_eq!(scene.failure(), (1, "no space"), "a run that begins is to be looked at at once");

    let mut scene = Scene::new();
    assert_eq!(scene.train(1, 5).fail(Fault::Passing).pause(), (1.0, Wanted::Exactly(2)));
    for pause in [1.0, 2.0, 4.0] {
        scene.give(Event::LeaseFailed("no space".into()));
        // The creation may have failed when the object was there already.
        let cause = "the lease cannot be taken: no space";
        assert!(matches!(&scene.done[..], [Action::Note(Note::Waiting { cause: said, .. })] if said == cause));
        assert_eq!(scene.give(Event::LeaseSeen(2)).state.verdict(), None);
        scene.done = vec![Action::Note(Note::Waiting { cause: cause.into(), pause, minutes_left: 1.0 })];
        assert_eq!(scene.pause(), (pause, Wanted::Exactly(2)));
    }
    assert!(matches!(scene.train(2, 9).state.phase, Phase::Running(_)));

    scene.fail(Fault::Passing).pause();
    scene.give(Event::LeaseFailed("no space".into())).give(Event::LeaseSeen(4));
    assert!(matches!(scene.state.verdict(), Some(Verdict::Replaced(_))), "another has gone further");

    let mut scene = Scene::new();
    scene.train(1, 5).fail(Fault::Passing).pause();
    scene.give(Event::LeaseFailed("no space".into())).wait(3601.0).give(Event::LeaseFailed("no space".into()));
    let (code, message) = scene.failure();
    assert!(code == 1 && message.contains("60.0 minutes") && message.ends_with("no space"), "{message}");

    // That the store was asked for long counts.
    let mut scene = Scene::new();
    scene.train(1, 5).fail(Fault::Passing).pause();
    scene.wait(7200.0).give(Event::LeaseFailed("no space".into()));
    let (code, message) = scene.failure();
    assert!(code == 1 && message.contains("120.0 minutes"), "{message}");
}

#[test]
fn pauses_grow_and_progress_sets_them_back() {
    let mut scene = Scene::with(|config| config.cluster.restarts = 100, Room::Here);
    let mut pauses = Vec::new();
    for lease in 1..=9 {
        let (pause, wanted) = scene.train(lease, 10).fail(Fault::Passing).pause();
        assert_eq!(wanted, Wanted::Exactly(lease + 1));
        pauses.push(pause);
    }
    assert_eq!(pauses, [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]);
    assert_eq!(scene.train(10, 11).fail(Fault::Passing).pause().0, 1.0, "a step further");
    scene.train(11, 3).says(EventKind::Checkpoint { name: "c".into(), step: 3, seconds: 0.1, written: 2.0 });
    assert_eq!(scene.fail(Fault::Passing).pause().0, 1.0, "a newer checkpoint");
    assert_eq!(scene.state.memory.last_save_seconds, Some(2.0));
}

/// Crashes with a step between them restarted for ever once.
#[test]
fn restarts_are_counted_in_a_window_whatever_progress_they_make() {
    let mut scene = Scene::new();
    for lease in 1..=5 {
        scene.train(lease, u64::from(lease)).fail(Fault::Passing).pause();
    }
    let mut patient = Scene { at: scene.at + 3601.0, state: scene.state.clone(), done: Vec::new() };
    scene.train(6, 6).fail(Fault::Passing);
    let (code, message) = scene.failure();
    assert!(code == 1 && message.starts_with("given up after 6 failures within 60 minutes"), "{message}");
    patient.train(6, 6).fail(Fault::Passing).pause();
    // A coordinator that comes after one that vanished counts on; after one that has given up it begins anew.
    let (vanished, _) = State::begin(patient.state.settings.clone(), patient.state.memory.clone());
    assert_eq!(vanished.memory.count(1e9 - 1.0), 6);
    let (anew, _) = State::begin(Settings { unix: 1e9 + 9999.0, ..scene.state.settings.clone() }, scene.state.memory);
    assert_eq!(anew.memory.count(1e9 - 1.0), 0);
}

#[test]
fn no_restarts_may_be_wanted() {
    let mut scene = Scene::with(|config| config.cluster.restarts = 0, Room::Here);
    assert_eq!(scene.train(1, 50).fail(Fault::Passing).failure().0, 1);
}

#[test]
fn what_cannot_get_better_is_not_tried_again() {
    for (fault, code) in [(Fault::Lasting, 70), (Fault::Later, 1), (Fault::Usage, 2)] {
        let mut scene = Scene::new();
        assert_eq!(scene.train(1, 5).fail(fault).failure().0, code);
    }
    let mut scene = Scene::new();
    scene.train(1, 5).fail(Fault::LeaseLost);
    assert!(matches!(scene.state.verdict(), Some(Verdict::Replaced(_))));
}

#[test]
fn a_failure_of_a_host_is_tried_elsewhere_and_three_times() {
    let host = |name: &str| Host { name: name.into(), ranks: 1 };
    let mut scene = Scene::with(|_| (), Room::Hosts(vec![host("a"), host("b"), host("c")]));
    let names = |scene: &Scene| match &scene.state.running().unwrap().attempt.placement {
        Placement::Hosts(hosts) => hosts.iter().map(|host| host.name.as_str()).collect::<String>(),
        other => panic!("{other:?}"),
    };
    scene.train(1, 5);
    assert_eq!(names(&scene), "ab");
    // Rank 0 is on host a.
    scene.fail(Fault::Host).pause();
    scene.train(2, 5);
    assert_eq!(names(&scene), "bc");
    scene.fail(Fault::Host).pause();
    scene.train(3, 5).fail(Fault::Host).pause();
    let (_, message) = { scene.train(4, 5).fail(Fault::Host).failure() };
    assert!(message.starts_with("given up after 3 tries: rank 0"), "{message}");
}

#[test]
fn going_back_does_not_wait_and_has_its_limit() {
    let mut scene = Scene::with(|config| config.guard.rollbacks = 2, Room::Here);
    for lease in 1..=2 {
        scene.train(lease, 9).says(EventKind::RolledBack { message: "the loss".into() }).exit(0);
        assert_eq!(scene.pause(), (0.0, Wanted::Exactly(lease + 1)));
    }
    scene.train(3, 9).says(EventKind::RolledBack { message: "the loss".into() }).exit(0);
    assert_eq!(scene.failure(), (65, "given up after 2 rollbacks without progress; the last: the loss"));
}

/// The run's end does not depend on how its processes leave.
#[test]
fn ranks_that_are_done_and_do_not_leave_are_ended() {
    let ends = [(false, Verdict::Finished), (true, Verdict::Stopped(StopReason::Person))];
    for (stopped, verdict) in ends {
        let mut scene = Scene::new();
        scene.train(1, 5);
        if stopped {
            scene.give(Event::StopRequested);
        }
        scene.says(EventKind::Finished { step: 9, stopped }).wait(30.0);
        assert_eq!(scene.done, []);
        scene.wait(1.0);
        let said = "the ranks have not left 31 s after the last of their work: they are ended";
        assert!(
            matches!(&scene.done[..], [Action::Note(Note::Slow(text)), Action::End] if text == said),
            "{:?}",
            scene.done
        );
        scene.worker(FromWorkers::Exited(Exit::Signal(9))).worker(FromWorkers::Gone(Vec::new()));
        assert_eq!(scene.state.verdict(), Some(&verdict));
    }
    // A rank that has failed by then counts.
    let mut scene = Scene::new();
    scene.train(1, 5).says(EventKind::Finished { step: 9, stopped: false });
    scene.says(EventKind::Failed { message: "so".into(), fault: Fault::Passing }).wait(31.0).exit(1);
    scene.pause();
}

/// An address or a mount that is away for a moment.
#[test]
fn processes_that_cannot_be_started_again_are_waited_for() {
    let none = || "this host has no interface eth0".to_owned();
    let mut scene = Scene::new();
    scene.give(Event::LeaseTaken(1)).give(Event::StartFailed(1, 2, none()));
    assert_eq!(scene.failure(), (2, &*none()), "a run that begins is to be looked at at once");

    let mut scene = Scene::new();
    scene.train(1, 5).fail(Fault::Passing).pause();
    for (lease, pause) in [(2, 1.0), (3, 2.0)] {
        scene.give(Event::LeaseTaken(lease)).give(Event::StartFailed(lease, 2, none()));
        assert_eq!(scene.pause(), (pause, Wanted::Exactly(lease + 1)));
    }
    scene.wait(3601.0).give(Event::LeaseTaken(4)).give(Event::StartFailed(4, 2, none()));
    let (code, message) = scene.failure();
    assert!(code == 1 && message.contains("minutes") && message.ends_with(&none()), "{message}");
}

#[test]
fn a_start_that_nobody_reports_from_is_waited_for_and_no_restart() {
    let mut scene = Scene::new();
    let (mut lease, mut pauses) = (0, Vec::new());
    let message = loop {
        lease += 1;
        scene.give(Event::LeaseTaken(lease)).wait(10.0);
        scene.worker(FromWorkers::Remark("no route to host b".into())).exit(1);
        match scene.state.verdict() {
            None => pauses.push(scene.pause().0),
            Some(_) => break scene.failure().1.to_owned(),
        }
    };
    assert_eq!(pauses[..7], [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]);
    assert!((3600.0..3700.0).contains(&scene.at), "given up after {} s", scene.at);
    assert!(message.ends_with("the launcher exited with code 1: no route to host b"), "{message}");
    assert_eq!(scene.state.memory.restarts, [], "none of them is a restart");
}

/// Slurm asks ranks to end, and at first nobody else; a rank's death has its own consequence.
#[test]
fn what_slurm_says_to_ranks_counts() {
    let terminated = || FromWorkers::Report(Report { terminated: true, ..Report::default() });
    let mut scene = Scene::new();
    scene.train(1, 5).worker(terminated());
    assert_eq!(scene.done, [Action::Note(Note::Stopping), Action::Order(Directive::CheckpointAndStop)]);
    scene.says(EventKind::Finished { step: 6, stopped: true }).exit(0);
    assert_eq!(scene.state.verdict(), Some(&Verdict::Stopped(StopReason::Signal)));

    let mut scene = Scene::new();
    scene.train(1, 5).worker(FromWorkers::Died(Death::Signal { rank: 1, signal: 9 }));
    assert_eq!(scene.done, [Action::End], "the other ranks wait for it for ever");
    assert_eq!(scene.worker(terminated()).done, [], "the launcher ends the others so");
    assert_eq!(scene.exit(143).pause(), (1.0, Wanted::Exactly(2)));

    let mut scene = Scene::new();
    scene.train(1, 5).give(Event::StopRequested);
    assert_eq!(scene.state.requests.stop, Some(StopReason::Person), "nobody is to start it again");
}

#[test]
fn signals_count_in_every_phase() {
    let mut scene = Scene::new();
    assert_eq!(
        scene.give(Event::Signal(Signal::Other)).state.verdict(),
        Some(&Verdict::Stopped(StopReason::Signal)),
        "while a lease is waited for"
    );

    let mut scene = Scene::new();
    scene.train(1, 5).fail(Fault::Passing);
    assert_eq!(
        scene.give(Event::Signal(Signal::Other)).state.verdict(),
        Some(&Verdict::Stopped(StopReason::Signal)),
        "in a pause"
    );

    let mut scene = Scene::new();
    scene.train(1, 5).give(Event::Signal(Signal::Other));
    assert_eq!(scene.done, [Action::Note(Note::Stopping), Action::Order(Directive::CheckpointAndStop)]);
    assert_eq!(scene.give(Event::StopRequested).done, [], "said once");
    assert_eq!(scene.give(Event::Signal(Signal::Other)).done, [Action::End]);
    scene.worker(FromWorkers::Gone(Vec::new()));
    assert!(scene.failure().1.starts_with("ended at once by a second signal"));

    let mut scene = Scene::new();
    scene.train(1, 5).give(Event::StopRequested).fail(Fault::Passing);
    assert!(scene.failure().1.starts_with("the ranks failed while they were to save a checkpoint and stop: rank 0"));
}

/// A request that was not honoured by the attempt that heard it is passed on to the next.
#[test]
fn a_request_for_a_checkpoint_lives_until_one_is_saved() {
    let mut scene = Scene::new();
    scene.train(1, 5).give(Event::SaveRequested);
    assert_eq!(scene.done, [Action::Note(Note::Saving), Action::Order(Directive::Checkpoint)]);
    scene.wait(50.0);
    scene.report().fail(Fault::Passing).pause();
    scene.give(Event::LeaseTaken(2));
    assert!(matches!(scene.done[..], [Action::Start(_), Action::Order(Directive::Checkpoint)]), "{:?}", scene.done);
    scene.report().says(EventKind::Checkpoint { name: "c".into(), step: 5, seconds: 0.1, written: 0.2 });
    scene.fail(Fault::Passing).pause();
    assert!(matches!(scene.give(Event::LeaseTaken(3)).done[..], [Action::Start(_)]), "{:?}", scene.done);
}

#[test]
fn a_coordinator_does_not_evict_itself_and_leaves_to_a_successor() {
    let mut scene = Scene::new();
    scene.train(1, 5).fail(Fault::Passing).pause();
    // The poller sees the lease that this coordinator is about to get.
    assert_eq!(scene.give(Event::LeaseSeen(2)).state.phase, Phase::Leasing(Wanted::Exactly(2)));
    scene.train(2, 5).give(Event::LeaseSeen(2));
    assert!(matches!(scene.state.phase, Phase::Running(_)));
    assert_eq!(scene.give(Event::LeaseSeen(3)).done, [Action::End]);
    scene.worker(FromWorkers::Gone(Vec::new()));
    assert!(matches!(scene.state.verdict(), Some(Verdict::Replaced(_))));

    let mut scene = Scene::new();
    scene.train(1, 5).fail(Fault::Passing).pause();
    scene.give(Event::LeaseHeld(2));
    assert!(matches!(scene.state.verdict(), Some(Verdict::Replaced(_))), "the one after its own is another's");

    let mut scene = Scene::new();
    scene.train(1, 5).fail(Fault::Passing).give(Event::LeaseSeen(2));
    assert!(matches!(scene.state.verdict(), Some(Verdict::Replaced(_))), "in a pause");
}

#[test]
fn a_silent_rank_ends_its_attempt_and_its_host_is_remembered() {
    let mut scene = Scene::new();
    scene.train(1, 5).wait(91.0);
    assert_eq!(scene.done, [Action::End]);
    scene.worker(FromWorkers::Gone(vec!["pid 12 (state D)".into()]));
    assert_eq!(scene.done[0], Action::Note(Note::Left(vec!["pid 12 (state D)".into()])));
    assert_eq!(scene.state.memory.restarts[0].host.as_deref(), Some("a"));
    assert!(scene.state.memory.restarts[0].cause.ends_with("has been silent for 90 s"));
}

#[test]
fn a_mixture_of_versions_is_refused() {
    let mut scene = Scene::new();
    let versions = Versions { program: "0.0.9".into(), ..Versions::of_program() };
    scene.give(Event::LeaseTaken(1));
    scene.worker(FromWorkers::Report(Report { versions: Some(versions), ..Report::default() }));
    assert_eq!(scene.done, [Action::End]);
    scene.worker(FromWorkers::Gone(Vec::new()));
    let (code, message) = scene.failure();
    let expected = "the ranks do not run the same programs: this coordinator has program 0.1.0, rank 0 has 0.0.9";
    assert_eq!((code, message), (2, expected));
}

#[test]
fn what_a_restart_costs_is_counted_once() {
    let mut scene = Scene::new();
    scene.train(1, 100).wait(1.0).fail(Fault::Passing).pause();
    scene.train(2, 40).wait(10.0).fail(Fault::Passing).pause();
    assert_eq!(scene.state.memory.restarts[0].seconds, Some(11.0), "a failure on the way ends the account");
    scene.train(3, 60).wait(20.0);
    scene.record(100);
    assert_eq!(scene.done, [Action::Note(Note::Recovered { step: 100, seconds: 22.0 })]);
    assert_eq!(scene.state.memory.seconds_lost, 33.0);
}

/// A coordinator in a job of Slurm.
fn in_job(memory: Memory) -> Scene {
    let mut settings = Settings::new(&RunConfig::default(), Room::Here, 1e9);
    (settings.ranks, settings.job) = (2, Some(JobSettings { id: "12".to_owned(), lead: 60.0 }));
    let (state, done) = State::begin(settings, memory);
    Scene { at: 0.0, state, done }
}

#[test]
fn in_a_job_slurm_says_what_a_signal_means() {
    for (standing, reason, forgets) in [
        (Standing::Cancelled, StopReason::Person, true),
        (Standing::Preempted, StopReason::Preempted, false),
        (Standing::Running, StopReason::TimeLimit, false),
    ] {
        let mut scene = in_job(Memory::default());
        scene.train(1, 5).give(Event::Signal(Signal::Other));
        let stop = [Action::Note(Note::Stopping), Action::Order(Directive::CheckpointAndStop)];
        assert_eq!(scene.done, [&[Action::AskSlurm][..], &stop].concat());
        scene.give(Event::Job(JobView { standing, seconds_left: Some(100.0) }));
        assert_eq!(scene.give(Event::Signal(Signal::Other)).done, [], "SIGTERM comes twice, and ends nothing");
        scene.says(EventKind::Finished { step: 6, stopped: true }).exit(0);
        assert_eq!(scene.state.verdict(), Some(&Verdict::Stopped(reason)));
        assert_eq!(scene.done.contains(&Action::ForgetStop), forgets, "a request may have come meanwhile");
        let end = &scene.state.memory.job_ends[0];
        assert_eq!((end.job.as_str(), end.step, end.cause.as_str()), ("12", Some(5), reason.to_string().as_str()));
        assert_eq!(scene.state.memory.job, None);
    }
}

#[test]
fn a_job_that_is_too_short_for_a_checkpoint_is_known() {
    let memory = Memory { last_save_seconds: Some(90.0), ..Memory::default() };
    let mut scene = in_job(memory);
    assert_eq!(scene.done[0], Action::Note(Note::ShortLead { save: 90.0, lead: 60.0 }));
    scene.train(1, 5).give(Event::Signal(Signal::Other));
    scene.give(Event::Job(JobView { standing: Standing::Preempted, seconds_left: Some(20.0) }));
    assert_eq!(scene.done, [Action::Note(Note::ShortOfTime { left: 20.0, save: 90.0 })]);
    assert_eq!(in_job(Memory { last_save_seconds: Some(59.0), ..Memory::default() }).done.len(), 1);
}

/// A coordinator that was killed in its job has said nothing; the next one knows.
#[test]
fn a_coordinator_that_vanished_is_remembered_by_the_next() {
    let mut scene = in_job(Memory::default());
    scene.train(1, 5);
    let next = in_job(scene.state.memory.clone());
    let end = &next.state.memory.job_ends[0];
    assert_eq!((end.step, end.cause.as_str()), (None, "the coordinator was killed, or its node failed"));
}
