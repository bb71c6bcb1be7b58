//! Accounts of simulated runs. Step records come with the time that they state.

use std::collections::BTreeMap;

use lambert_config::RunConfig;
use lambert_control::{Evaluation, Scores, StepTimes, WorkerReport};

use super::*;
use crate::decide::{Attempt, HostPool, LastKnown, Placement, RestartHistory, RestartKind, Settings};

use TimeCategory::{
    DataLoading, InfrastructureRecoveryFromDisruption, Initialization, Other, ProductiveStep, ProgramStartup,
    TrainingPrep, UnproductiveCheckpointRestoreTime, UnproductiveCheckpointSaveTime, WastedProgressFromDisruption,
};

/// A coordinator that started at `unix`.
fn coordinator(unix: f64) -> CoordinatorState {
    CoordinatorState::begin(
        Settings::new(&RunConfig::default(), HostPool::Here, unix),
        RestartHistory::default(),
        LastKnown::default(),
    )
    .0
}

fn message(event: EventKind) -> Event {
    Event::Worker(1, WorkerEvent::Message(0, Message::Event(event)))
}

fn started(step: u64, checkpoint: Option<&str>) -> Event {
    let checkpoint = checkpoint.map(str::to_owned);
    message(EventKind::Started { step, steps: 9, checkpoint, skipped_checkpoints: Vec::new() })
}

/// A step of 10 s, 1 s of which it waited for samples.
fn record(step: u64) -> Event {
    let times = StepTimes { seconds: 10.0, data_wait: 1.0, ..StepTimes::default() };
    let record = StepRecord { step, times, ..StepRecord::default() };
    Event::Worker(1, WorkerEvent::Message(0, Message::Record(Box::new(record))))
}

fn report(phase: WorkerPhase) -> Event {
    Event::Worker(1, WorkerEvent::Report(WorkerReport { phase, ..WorkerReport::default() }))
}

fn restart() -> Action {
    Action::Note(Note::Restart { cause: "killed".to_owned(), pause: 1.0, kind: RestartKind::Resume })
}

fn start() -> Action {
    Action::Start(Attempt { number: 1, world: 1, placement: Placement::Here })
}

/// Three steps from 6 s on; a checkpoint after the first of them; a failure is noticed at 40 s.
fn until_failure(account: &mut GoodputAccount, state: &CoordinatorState) {
    let saved = EventKind::Checkpoint { name: "step-1".to_owned(), step: 1, seconds: 0.0, written: 0.0 };
    account.observe(1.0, &Event::LeaseTaken(1), &[start()], state);
    account.observe(3.0, &report(WorkerPhase::Load), &[], state);
    account.observe(5.0, &started(0, None), &[], state);
    account.observe(16.0, &record(1), &[], state);
    account.observe(16.5, &message(saved), &[], state);
    account.observe(26.0, &record(2), &[], state);
    account.observe(36.0, &record(3), &[], state);
    account.observe(40.0, &Event::Tick, &[restart()], state);
}

fn assert_account(account: &GoodputAccount, expected: &[(TimeCategory, f64)]) {
    let goodput = account.goodput();
    for category in TimeCategory::ALL {
        let wanted = expected.iter().find(|(other, _)| *other == category).map_or(0.0, |(_, seconds)| *seconds);
        let found = goodput.of(category);
        assert!((found - wanted).abs() < 1e-6, "{}: {found} s, expected {wanted}", category.name());
    }
    assert!((goodput.total() - (goodput.until - goodput.started)).abs() < 1e-6, "{goodput:?}");
}

#[test]
fn each_second_of_an_attempt_has_a_category() {
    let (mut account, state) = (GoodputAccount::new(Goodput::default()), coordinator(1000.0));
    until_failure(&mut account, &state);
    let before = [
        (Initialization, 3.0),
        (TrainingPrep, 2.0),
        (ProgramStartup, 1.0),
        (DataLoading, 3.0),
        (ProductiveStep, 27.0),
        (InfrastructureRecoveryFromDisruption, 4.0),
    ];
    assert_account(&account, &before);
    // The restart resumes from step 1.
    account.observe(41.0, &Event::Tick, &[start()], &state);
    account.observe(43.0, &report(WorkerPhase::Load), &[], &state);
    account.observe(46.0, &started(1, Some("step-1")), &[], &state);
    account.observe(56.0, &record(2), &[], &state);
    account.observe(58.0, &message(evaluation()), &[], &state);
    account.observe(61.0, &message(EventKind::Finished { step: 2, stopped: false }), &[], &state);
    account.observe(61.5, &Event::Tick, &[], &state);
    account.end();
    let after = [
        (Initialization, 5.0),
        (TrainingPrep, 2.0),
        (ProgramStartup, 1.0),
        (UnproductiveCheckpointRestoreTime, 3.0),
        (DataLoading, 4.0),
        (ProductiveStep, 18.0),
        (WastedProgressFromDisruption, 18.0),
        (InfrastructureRecoveryFromDisruption, 5.0),
        (TimeCategory::Evaluation, 2.0),
        (UnproductiveCheckpointSaveTime, 3.0),
        (Other, 0.5),
    ];
    assert_account(&account, &after);
}

fn evaluation() -> EventKind {
    let scores = Scores::default();
    EventKind::Evaluation(Evaluation {
        step: 2,
        samples: 8,
        masked_tokens: 9,
        loss: None,
        scores,
        unigram_entropy: 3.5,
        extra: BTreeMap::new(),
    })
}

#[test]
fn the_time_between_coordinators_is_recovery() {
    let (mut account, state) = (GoodputAccount::new(Goodput::default()), coordinator(1000.0));
    until_failure(&mut account, &state);
    let mut next = GoodputAccount::new(account.goodput());
    let later = coordinator(1100.0);
    next.observe(0.5, &Event::LeaseTaken(2), &[start()], &later);
    next.observe(1.5, &report(WorkerPhase::Load), &[], &later);
    next.observe(2.5, &started(0, None), &[], &later);
    let expected = [
        (Initialization, 4.5),
        (TrainingPrep, 3.0),
        (ProgramStartup, 1.0),
        (DataLoading, 3.0),
        (WastedProgressFromDisruption, 27.0),
        (InfrastructureRecoveryFromDisruption, 64.0),
    ];
    assert_account(&next, &expected);
    assert!((next.goodput().started - 1000.0).abs() < 1e-6 && (next.goodput().until - 1102.5).abs() < 1e-6);
    // The coordinator is suspended for 50 s.
    next.observe(12.5, &record(1), &[], &coordinator(1150.0));
    let suspended = [(ProductiveStep, 9.0), (DataLoading, 4.0), (InfrastructureRecoveryFromDisruption, 114.0)];
    assert_account(&next, &[&suspended[..], &expected[..3], &expected[4..5]].concat());
}

#[test]
fn a_clock_that_is_set_back_moves_the_start() {
    let (mut account, state) = (GoodputAccount::new(Goodput::default()), coordinator(1000.0));
    account.observe(0.0, &Event::LeaseTaken(1), &[start()], &state);
    account.observe(0.0, &report(WorkerPhase::Load), &[], &state);
    account.observe(0.0, &started(0, None), &[], &state);
    account.observe(10.0, &record(1), &[], &state);
    account.observe(20.5, &record(2), &[], &coordinator(400.0));
    assert_account(&account, &[(DataLoading, 2.0), (ProductiveStep, 18.0), (Other, 0.5)]);
    let goodput = account.goodput();
    assert_eq!((goodput.started, goodput.until), (400.0, 420.5));
}

#[test]
fn records_that_arrive_late_claim_their_time() {
    let (mut account, state) = (GoodputAccount::new(Goodput::default()), coordinator(1000.0));
    account.observe(0.0, &Event::LeaseTaken(1), &[start()], &state);
    account.observe(0.0, &report(WorkerPhase::Load), &[], &state);
    account.observe(0.0, &started(0, None), &[], &state);
    account.observe(10.0, &record(1), &[], &state);
    for step in 2..=4 {
        account.observe(40.5, &record(step), &[], &state);
    }
    assert_account(&account, &[(DataLoading, 4.0), (ProductiveStep, 36.0), (Other, 0.5)]);
}
