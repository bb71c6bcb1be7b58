use std::path::Path;

use lambert_store::Store;
use lambert_store::run;
use prost::Message;

use super::*;
use crate::metrics::history::tests::{evaluation, line, put, read, store};

fn writer(folder: &Path) -> HistoryWriter {
    let headers = vec![super::super::text::event(1.0, "note", "text")];
    HistoryWriter::begin(EventFile::create(folder, 1.0).unwrap(), 1.0, headers).unwrap()
}

/// Events of the only file in `folder`.
fn events(folder: &Path) -> Vec<Event> {
    let file = std::fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let (bytes, mut rest) = (std::fs::read(file).unwrap(), 0);
    std::iter::from_fn(|| {
        let length = u64::from_le_bytes(bytes.get(rest..rest + 8)?.try_into().unwrap()) as usize;
        let event = Event::decode(&bytes[rest + 12..rest + 12 + length]).unwrap();
        rest += 16 + length;
        Some(event)
    })
    .collect()
}

/// Describes START events as `start STEP`, and points of three tags as `TAG@STEP=VALUE`.
fn described(events: &[Event]) -> Vec<String> {
    let mut lines = Vec::new();
    for event in events {
        lines.extend(event.session_log.iter().map(|_| format!("start {}", event.step)));
        for value in event.summary.iter().flat_map(|summary| &summary.value) {
            if ["loss/total", "held-out/x", "note"].contains(&value.tag.as_str()) {
                lines.push(format!("{}@{}={}", value.tag, event.step, value.simple_value.unwrap_or(-1.0)));
            }
        }
    }
    lines
}

/// Writes the history in the store, and returns descriptions of the appended events.
fn appended(writer: &mut HistoryWriter, store: &Store, folder: &Path) -> Vec<String> {
    let before = described(&events(folder)).len();
    let history = read(store);
    writer.write(&history.entries(), Lines { history: &history, run: store }).unwrap();
    described(&events(folder)).split_off(before)
}

#[test]
fn undone_points_are_taken_back() {
    let (store, folder) = (store("taken-back"), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let mut writer = writer(folder);
    assert_eq!(described(&events(folder)), ["start 0", "note@0=-1"]);
    assert_eq!(events(folder)[0].file_version.as_deref(), Some(FILE_VERSION));
    put(&store, 1, 0, [line(1, 5.0), evaluation(1, 9.0), line(2, 4.0), line(3, 900.0), evaluation(3, 901.0)].concat());
    let first = ["loss/total@1=5", "held-out/x@1=9", "loss/total@2=4", "loss/total@3=900", "held-out/x@3=901"];
    assert_eq!(appended(&mut writer, &store, folder), first);
    assert_eq!(appended(&mut writer, &store, folder), [""; 0]);
    // The last valid point of held-out/x is at step 1, so everything from step 1 on is written again.
    store.put(&run::rollback(1), "{\"attempt\":1,\"steps\":2}".into()).unwrap();
    let again = ["start 1", "loss/total@1=5", "held-out/x@1=9", "loss/total@2=4"];
    assert_eq!(appended(&mut writer, &store, folder), again);
    put(&store, 2, 2, line(3, 3.0));
    assert_eq!(appended(&mut writer, &store, folder), ["loss/total@3=3"]);
    // A later attempt repeats step 3. No evaluation is undone, so no evaluation is written again.
    put(&store, 3, 2, [line(3, 3.5), line(4, 2.0), evaluation(4, 8.0)].concat());
    let repeated = ["start 2", "loss/total@2=4", "loss/total@3=3.5", "loss/total@4=2", "held-out/x@4=8"];
    assert_eq!(appended(&mut writer, &store, folder), repeated);
}

#[test]
fn a_whole_history_never_folds_back() {
    let (store, folder) = (store("whole"), tempfile::tempdir().unwrap());
    put(&store, 1, 0, [line(1, 5.0), line(2, 4.0), line(3, 900.0), evaluation(3, 901.0)].concat());
    store.put(&run::rollback(1), "{\"attempt\":1,\"steps\":1}".into()).unwrap();
    put(&store, 2, 1, [line(2, 3.0), evaluation(2, 8.0), line(3, 2.0)].concat());
    let lines = appended(&mut writer(folder.path()), &store, folder.path());
    assert_eq!(lines, ["loss/total@1=5", "loss/total@2=3", "held-out/x@2=8", "loss/total@3=2"]);
    let times: Vec<f64> = events(folder.path()).iter().map(|event| event.wall_time).collect();
    assert!(times.is_sorted() && times[0] < times[times.len() - 1], "{times:?}");
}

#[test]
fn an_evaluation_of_a_step_that_was_missed_is_appended() {
    let (store, folder) = (store("missed"), tempfile::tempdir().unwrap());
    let mut writer = writer(folder.path());
    put(&store, 1, 0, line(1, 5.0));
    assert_eq!(appended(&mut writer, &store, folder.path()), ["loss/total@1=5"]);
    put(&store, 2, 1, evaluation(1, 9.0) + &line(2, 4.0));
    assert_eq!(appended(&mut writer, &store, folder.path()), ["held-out/x@1=9", "loss/total@2=4"]);
}
