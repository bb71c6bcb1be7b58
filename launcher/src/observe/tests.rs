//! Tests of an additional observer and of the built-in observers on a simulated run.

use std::cell::RefCell;

use lambert_config::RunConfig;
use lambert_control::{BatchStats, EventKind, StepRecord, StepTimes};
use lambert_control::{Message, WorkerReport};
use lambert_store::Store;
use lambert_store::run::COORDINATOR;

use super::tracker::StatusTracker;
use super::*;
use crate::decide::{HostPool, LastKnown, ProcessExit, RestartHistory, Settings, StopReason, WorkerEvent, decide};
use crate::status::{FailedSaves, OBJECT, RunState};

/// An event with its time, the resulting actions, and the state after the event.
type Shown = (Seconds, Event, Vec<Action>, CoordinatorState);

/// Calls that an observer has received.
#[derive(Debug, Clone, PartialEq)]
enum Seen {
    Begin(Vec<Action>),
    Event(Box<(Shown, Status, Option<Urgency>)>),
    End(Verdict, RunState),
}

thread_local! {
    static SEEN: RefCell<Vec<Seen>> = const { RefCell::new(Vec::new()) };
}

/// Records all calls.
struct Recorder;

fn make_recorder(_: &ObserverSetup<'_>) -> Option<Box<dyn Observer>> {
    Some(Box::new(Recorder))
}

impl Recorder {
    fn keep(seen: Seen) {
        SEEN.with_borrow_mut(|all| all.push(seen));
    }
}

impl Observer for Recorder {
    fn begin(&mut self, begin: &RunBegin<'_>) {
        Self::keep(Seen::Begin(begin.actions.to_vec()));
    }

    fn observe(&mut self, observation: &Observation<'_>) {
        let Observation { at, event, actions, state, status, urgency, .. } = *observation;
        let shown = (at, event.clone(), actions.to_vec(), state.clone());
        Self::keep(Seen::Event(Box::new((shown, status.clone(), urgency))));
    }

    fn end(&mut self, end: &RunEnd<'_>) {
        Self::keep(Seen::End(end.verdict.clone(), end.status.state));
    }
}

/// Returns `None`, like an observer that the run does not need.
fn make_none(_: &ObserverSetup<'_>) -> Option<Box<dyn Observer>> {
    None
}

fn from_rank_0(what: Message) -> Event {
    Event::Worker(1, WorkerEvent::Message(0, what))
}

/// Events with their times. In this run, one rank completes two steps and is then stopped.
fn events() -> Vec<(Seconds, Event)> {
    let batch = BatchStats { samples: 8, ..BatchStats::default() };
    let times = StepTimes { seconds: 2.0, ..StepTimes::default() };
    let record = |step| StepRecord { step, batch, times, ..StepRecord::default() };
    let report = WorkerReport {
        rank: 0,
        pid: 7,
        host: "a".into(),
        phase: lambert_control::WorkerPhase::Step,
        ..WorkerReport::default()
    };
    let started = EventKind::Started { step: 0, steps: 9, checkpoint: None, skipped_checkpoints: Vec::new() };
    let saved = EventKind::Checkpoint { name: "step-2".into(), step: 2, seconds: 0.1, written: 0.2 };
    vec![
        (0.25, Event::LeaseTaken(1)),
        (1.5, Event::Worker(1, WorkerEvent::Report(report))),
        (1.75, from_rank_0(Message::Event(started))),
        (2.0, from_rank_0(Message::Record(Box::new(record(1))))),
        (2.25, Event::Worker(1, WorkerEvent::Line(0, "hello".into()))),
        (3.5, from_rank_0(Message::Record(Box::new(record(2))))),
        (3.75, Event::StopRequested),
        (3.75, Event::Tick),
        (4.0, from_rank_0(Message::Event(saved))),
        (4.25, from_rank_0(Message::Event(EventKind::Finished { step: 2, stopped: true }))),
        (4.5, Event::Worker(1, WorkerEvent::Exited(ProcessExit::Code(0)))),
        (4.75, Event::Worker(1, WorkerEvent::Gone(Vec::new()))),
    ]
}

/// Runs the events of [`events`] with `observers`. Returns the calls that an observer should receive, without status
/// and urgency, and the verdict.
fn monitor(observers: &mut Observers) -> (Vec<Shown>, Verdict) {
    let settings = Settings::new(&RunConfig::default(), HostPool::Here, 1e9);
    let (mut state, actions) = CoordinatorState::begin(settings, RestartHistory::default(), LastKnown::default());
    observers.begin(&actions, &state);
    let mut shown = Vec::new();
    for (at, event) in events() {
        let (next, actions) = decide(state, at, event.clone());
        observers.observe(at, &event, &actions, &next);
        shown.push((at, event, actions, next.clone()));
        state = next;
    }
    let verdict = state.verdict().unwrap().clone();
    observers.end(&verdict, &state);
    (shown, verdict)
}

fn tracker() -> StatusTracker {
    StatusTracker::new(&RunConfig::default(), "memory://observe/run", Status::default(), CoordinatorProcess::default())
}

/// Returns the calls that an additional observer received. This observer is between two others in the list.
fn seen_by_a_new_observer(store: &str) -> (Vec<Seen>, Vec<Shown>, Verdict) {
    let writer = StoreWriter::start(Store::open(store).unwrap(), || Ok(())).unwrap();
    let config = RunConfig::default();
    let setup = ObserverSetup { config: &config, url: store, steps: 9, records: RecordOutput::Shown, writer: &writer };
    let list: &[MakeObserver] = &[make_none, status_file::make, make_recorder, status_file::make];
    let mut observers = Observers::made_by(list, tracker(), &setup);
    assert_eq!(observers.observers.len(), 3);
    SEEN.take();
    let (shown, verdict) = monitor(&mut observers);
    (SEEN.take(), shown, verdict)
}

#[test]
fn an_observer_receives_all_events_and_actions_in_order() {
    let (seen, shown, verdict) = seen_by_a_new_observer("memory://observe/new");
    let [Seen::Begin(first), between @ .., Seen::End(end, last)] = &seen[..] else { panic!("{seen:?}") };
    assert!(matches!(first[..], [Action::TakeLease(_)]), "{first:?}");
    let events = between.iter().map(|seen| match seen {
        Seen::Event(event) => event.0.clone(),
        other => panic!("{other:?}"),
    });
    assert_eq!(events.collect::<Vec<_>>(), shown);
    // The events cover a start, a stop by a command, and the end.
    let actions: Vec<&Action> = shown.iter().flat_map(|(_, _, actions, _)| actions).collect();
    assert!(actions.iter().any(|action| matches!(action, Action::Start(_))), "{actions:?}");
    assert!(actions.iter().any(|action| matches!(action, Action::Command(_))), "{actions:?}");
    assert_eq!(actions.last(), Some(&&Action::ForgetStop));
    assert_eq!((end, last), (&verdict, &RunState::Stopped));
    assert_eq!(verdict, Verdict::Stopped(StopReason::User));
}

#[test]
fn the_status_follows_each_event_before_observers_see_it() {
    let (seen, ..) = seen_by_a_new_observer("memory://observe/follows");
    let statuses: Vec<(&Status, Option<Urgency>)> = seen
        .iter()
        .filter_map(|seen| match seen {
            Seen::Event(event) => Some((&event.1, event.2)),
            _ => None,
        })
        .collect();
    let facts = |(status, urgency): &(&Status, Option<Urgency>)| (status.state, status.progress.step, *urgency);
    use RunState::{Starting, Stopping, Training};
    let (now, soon) = (Some(Urgency::Change), Some(Urgency::Routine));
    assert_eq!(
        statuses.iter().map(facts).collect::<Vec<_>>(),
        [
            (Starting, 0, now),
            (Starting, 0, soon),
            (Training, 0, now),
            (Training, 1, None),
            (Training, 1, None),
            (Training, 2, soon),
            (Stopping, 2, now),
            (Stopping, 2, None),
            (Stopping, 2, now),
            (Stopping, 2, now),
            (Stopping, 2, None),
            (Stopping, 2, None),
        ]
    );
    let (last, _) = statuses[statuses.len() - 1];
    assert_eq!((last.progress.steps, last.progress.samples_per_second), (9, 4.0));
    assert_eq!(last.checkpoint.as_deref(), Some("step-2"));
    assert_eq!(last.workers.ranks.iter().map(|rank| rank.host.as_str()).collect::<Vec<_>>(), ["a"]);
}

#[test]
fn the_status_is_a_function_of_the_events() {
    let [first, second] = ["memory://observe/one", "memory://observe/other"].map(seen_by_a_new_observer);
    assert_eq!(first.0, second.0);
}

#[test]
fn the_status_of_a_replaced_run_is_kept() {
    let mut tracker = tracker();
    let (state, _) = CoordinatorState::begin(
        Settings::new(&RunConfig::default(), HostPool::Here, 1e9),
        RestartHistory::default(),
        LastKnown::default(),
    );
    tracker.observe(2.0, &Event::Tick, &[], &state);
    let before = tracker.status().clone();
    tracker.end(&Verdict::Replaced("so".into()), &state);
    assert_eq!(tracker.status(), &before);
    tracker.end(&Verdict::Failed(1, "so".into()), &state);
    assert_eq!((tracker.status().state, tracker.status().error.as_deref()), (RunState::Failed, Some("so")));
}

#[test]
fn listed_observers_are_created_and_the_status_is_stored() {
    let store = Store::open("memory://observe/list").unwrap();
    let writer = StoreWriter::start(store.clone(), || Ok(())).unwrap();
    let config = RunConfig::default();
    let make = |records| Observers::make(&config, store.url(), records, Status::default(), &writer);
    assert_eq!(make(RecordOutput::Printed).observers.len(), make(RecordOutput::Shown).observers.len() + 1);
    let mut observers = make(RecordOutput::Shown);
    observers.set_refused(3);
    let (shown, _) = monitor(&mut observers);
    drop((observers, writer));
    let status: Status = serde_json::from_slice(&store.get(OBJECT).unwrap()).unwrap();
    assert_eq!((status.state, status.progress.step, status.workers.refused), (RunState::Stopped, 2, 3));
    assert!((crate::host::now() - status.updated).abs() < 60.0);
    assert_eq!(status.coordinator, CoordinatorProcess::of_process());
    let history: RestartHistory = serde_json::from_slice(&store.get(COORDINATOR).unwrap()).unwrap();
    assert_eq!(Some(&history), shown.last().map(|(.., state)| &state.history));
}

#[test]
fn a_replaced_coordinator_does_not_write_the_status() {
    let store = Store::open("memory://observe/replaced").unwrap();
    let writer = StoreWriter::start(store.clone(), || Ok(())).unwrap();
    let mut observers =
        Observers::make(&RunConfig::default(), store.url(), RecordOutput::Shown, Status::default(), &writer);
    let (state, actions) = CoordinatorState::begin(
        Settings::new(&RunConfig::default(), HostPool::Here, 1e9),
        RestartHistory::default(),
        LastKnown::default(),
    );
    observers.begin(&actions, &state);
    observers.end(&Verdict::Replaced("so".into()), &state);
    drop((observers, writer));
    assert_eq!(store.head(OBJECT).unwrap(), None);
}

#[test]
fn failed_saves_are_in_the_status_until_a_save_succeeds() {
    let settings = Settings::new(&RunConfig::default(), HostPool::Here, 1e9);
    let (mut state, _) = CoordinatorState::begin(settings, RestartHistory::default(), LastKnown::default());
    let mut tracker = tracker();
    let mut give = |at, event: EventKind| {
        let event = from_rank_0(Message::Event(event));
        let (next, actions) = decide(state.clone(), at, event.clone());
        state = next;
        assert_eq!(tracker.observe(at, &event, &actions, &state), Some(Urgency::Change));
        tracker.status().failed_saves.clone()
    };
    let failed = |error: &str| EventKind::SaveFailed { message: "m".into(), error: error.into() };
    let expected = |count, error: &str| Some(FailedSaves { since: 1e9 + 5.0, count, error: error.into() });
    assert_eq!(give(5.0, failed("read-only")), expected(1, "read-only"));
    assert_eq!(give(9.0, failed("disk full")), expected(2, "disk full"));
    let saved = EventKind::Checkpoint { name: "step-2".into(), step: 2, seconds: 0.1, written: 0.2 };
    assert_eq!(give(12.0, saved), None);
}

/// A later coordinator has not saved either.
#[test]
fn failed_saves_outlive_a_coordinator() {
    let failed = Some(FailedSaves { since: 1e9, count: 2, error: "disk full".into() });
    let before = Status { failed_saves: failed.clone(), ..Status::default() };
    let tracker =
        StatusTracker::new(&RunConfig::default(), "memory://observe/run", before, CoordinatorProcess::default());
    assert_eq!(tracker.status().failed_saves, failed);
}
