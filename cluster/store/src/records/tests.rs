//! Tests of the step records.

use super::*;

#[derive(Debug, PartialEq, Deserialize)]
struct Record {
    step: u64,
    loss: f64,
}

fn store(name: &str) -> Store {
    Store::open(&format!("memory://records/{name}")).unwrap()
}

fn put(store: &Store, attempt: u32, from: u64, text: &str) {
    store.put(&run::records(attempt, from), text.to_owned().into()).unwrap();
}

fn line(step: u64, loss: f64) -> String {
    format!("{{\"step\":{step},\"loss\":{loss}}}\n")
}

fn read(store: &Store) -> StepRecords<Record> {
    StepRecords::read(store).unwrap()
}

fn losses(records: &[&RecordedStep<Record>]) -> Vec<(u64, f64)> {
    records.iter().map(|recorded| (recorded.record.step, recorded.record.loss)).collect()
}

#[test]
fn a_run_without_records_has_none() {
    let records = read(&store("none"));
    assert_eq!((records.all.len(), records.damaged.len(), records.effective().len()), (0, 0, 0));
}

#[test]
fn the_last_attempt_takes_precedence() {
    let store = store("attempts");
    // In the order of names, attempt 10000 precedes attempt 9999.
    put(&store, 10_000, 2, &line(3, 0.5));
    put(&store, 2, 0, &(line(1, 5.0) + &line(2, 4.0) + &line(3, 3.0)));
    put(&store, 2, 3, "{\"event\":\"evaluation\",\"step\":3}\n");
    put(&store, 9999, 1, &(line(2, 1.0) + &line(3, 2.0)));
    store.put("metrics/notes.txt", "not ours".into()).unwrap();
    let records = read(&store);
    let attempts: Vec<u32> = records.all.iter().map(|recorded| recorded.position.attempt).collect();
    assert_eq!((attempts, records.damaged.len()), (vec![2, 2, 2, 9999, 9999, 10_000], 0));
    assert_eq!(losses(&records.latest()), [(1, 5.0), (2, 1.0), (3, 0.5)]);
    assert_eq!(records.latest(), records.effective());
    let events: Vec<_> = records.events.iter().map(|event| (event.position.step, event.records_before)).collect();
    assert_eq!((events, records.effective_events().len()), (vec![(3, 3)], 1));
}

#[test]
fn a_refresh_reads_what_is_new() {
    let store = store("refresh");
    put(&store, 1, 0, &(line(1, 5.0) + &line(2, 4.0) + "{\"event\":\"evaluation\",\"step\":2}\n"));
    let mut records = read(&store);
    put(&store, 1, 2, &line(3, 3.0));
    store.put(&run::rollback(1), "{\"attempt\":1,\"steps\":1}".into()).unwrap();
    assert!(records.refresh(&store).unwrap() && !records.refresh(&store).unwrap());
    assert_eq!(records, read(&store));
    assert_eq!((records.all.len(), losses(&records.effective())), (3, vec![(1, 5.0)]));
    assert_eq!((records.events.len(), records.effective_events().len()), (1, 0));
    // A longer object replaces the object of a failed save.
    put(&store, 1, 2, &(line(3, 3.0) + &line(4, 2.0)));
    put(&store, 2, 1, &line(2, 1.0));
    records.refresh(&store).unwrap();
    assert_eq!(records, read(&store));
    assert_eq!((records.all.len(), losses(&records.effective())), (5, vec![(1, 5.0), (2, 1.0)]));
}

#[test]
fn records_can_be_taken_out_part_by_part() {
    let store = store("parts");
    (0..40).for_each(|step| put(&store, 1, step, &line(step + 1, 5.0)));
    put(&store, 3, 20, &line(21, 4.0));
    put(&store, 4, 30, &(line(31, 3.0) + &line(32, 2.0)));
    store.put(&run::rollback(3), "{\"attempt\":3,\"steps\":25}".into()).unwrap();
    let (mut records, mut parts) = (StepRecords::<Record>::default(), Vec::new());
    let read = records.refresh_in_parts(&store, |records, part| parts.push((part, records.all.drain(..).count())));
    assert!(read.unwrap());
    assert_eq!((parts, records.all.len()), (vec![(RefreshReason::New, 32), (RefreshReason::New, 11)], 0));
    assert_eq!(records.last_valid_steps(), [(1, 20), (3, 25), (4, u64::MAX)].into());
    let saves = records.saves();
    let last = |attempt, step| AttemptStep { attempt, step };
    assert_eq!((saves.len(), &saves[39..]), (42, &[last(1, 40), last(3, 21), last(4, 32)][..]));
    // A replaced object.
    put(&store, 1, 39, &(line(40, 5.0) + &line(41, 5.0)));
    let mut first = None;
    records.refresh_in_parts(&store, |_, part| first = first.or(Some(part))).unwrap();
    assert_eq!((first, records.all.len()), (Some(RefreshReason::Reread), 44));
}

#[test]
fn rolled_back_steps_are_not_effective() {
    let store = store("rollback");
    put(&store, 1, 0, &(line(1, 5.0) + &line(2, 900.0) + &line(3, 901.0)));
    store.put(&run::rollback(1), "{\"attempt\":1,\"steps\":1}".into()).unwrap();
    put(&store, 2, 1, &line(2, 4.0));
    let records = read(&store);
    assert_eq!(losses(&records.effective()), [(1, 5.0), (2, 4.0)]);
    assert_eq!(losses(&records.latest()), [(1, 5.0), (2, 4.0), (3, 901.0)]);
    store.put(&run::rollback(2), "{".into()).unwrap();
    let error = StepRecords::<Record>::read(&store).unwrap_err().to_string();
    assert!(error.contains("rollbacks/attempt-0002.json"), "{error}");
}

#[test]
fn damaged_lines_are_reported_and_omitted() {
    let store = store("damaged");
    put(&store, 1, 0, &(line(1, 5.0) + "{\"step\":2,\"lo\n" + "{\"step\":2}\n" + "{\"loss\":2.0}\n" + &line(3, 3.0)));
    let records = read(&store);
    assert_eq!(losses(&records.latest()), [(1, 5.0), (3, 3.0)]);
    let damaged: Vec<String> = records.damaged.iter().map(ToString::to_string).collect();
    let position = "memory://records/damaged/metrics/attempt-0001-from-000000000.jsonl, line";
    for (text, (line, cause)) in
        damaged.iter().zip([(2, "EOF"), (3, "missing field `loss`"), (4, "missing field `step`")])
    {
        assert!(text.starts_with(&format!("{position} {line}: not a step record: ")) && text.contains(cause), "{text}");
    }
    assert_eq!(damaged.len(), 3);
}

#[test]
fn records_are_read_again_in_any_order() {
    let store = store("again");
    let text = |steps: std::ops::RangeInclusive<u64>, loss: f64| steps.map(|step| line(step, loss)).collect::<String>();
    (0..40).for_each(|object| put(&store, 1, 2 * object, &text(2 * object + 1..=2 * object + 2, 1.0)));
    put(
        &store,
        3,
        10,
        &(text(11..=12, 3.0) + "{\"event\":\"evaluation\",\"step\":12}\n{\"step\":13}\n" + &text(13..=13, 3.5)),
    );
    let mut records = StepRecords::<Record>::default();
    records.refresh_in_parts(&store, |records, _| records.all.clear()).unwrap();
    let again = |positions: &[(u32, u64)]| {
        let positions = positions.iter().map(|(attempt, step)| AttemptStep { attempt: *attempt, step: *step });
        let mut found = Vec::new();
        let read = records.reread(&store, positions, |record: Record| {
            found.push((record.step, record.loss));
            Ok::<(), crate::Error>(())
        });
        read.map(|()| found)
    };
    let all: Vec<(u32, u64)> = (1..=80).map(|step| (1, step)).chain((11..=13).map(|step| (3, step))).collect();
    let found = again(&all).unwrap();
    assert_eq!(found.len(), 83);
    assert_eq!(found[79..], [(80, 1.0), (11, 3.0), (12, 3.0), (13, 3.5)]);
    assert_eq!(again(&[(3, 13), (1, 14), (3, 11)]).unwrap(), [(13, 3.5), (14, 1.0), (11, 3.0)]);
    let error = again(&[(1, 81)]).unwrap_err().to_string();
    assert!(error.contains("from-000000078.jsonl is damaged: step records: expected a record of step 81"), "{error}");
    assert!(again(&[(2, 1)]).is_err());
}
