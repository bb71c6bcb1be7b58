//! Data of all runs in memory, and what is new since a revision.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::run::Snapshot;
use crate::host;

/// Data of all runs.
#[derive(Debug)]
pub struct Board {
    /// Seconds between two reads.
    period: f64,
    content: Mutex<Content>,
    requests: Mutex<Requests>,
    requested: Condvar,
}

/// Requests for data.
#[derive(Debug)]
struct Requests {
    count: u64,
    last: Instant,
}

#[derive(Debug)]
struct Content {
    /// Increases with each change of a run.
    revision: u64,
    runs: Vec<Shown>,
}

/// A run, and the revisions at which its parts changed.
#[derive(Debug, Default)]
struct Shown {
    snapshot: Snapshot,
    info: u64,
    undone: u64,
    evaluations: u64,
    stages: u64,
    marks: u64,
    /// Revisions of the series with the first bucket that changed, both ascending.
    series: Vec<(u64, usize)>,
}

impl Board {
    /// Holds the first data of the runs, which are read again every `period` seconds.
    pub fn new(first: Vec<Snapshot>, period: f64) -> Self {
        let runs = first.into_iter().map(|snapshot| {
            let mut shown = Shown::default();
            shown.update(&snapshot, 1);
            // The page names all runs from the start.
            shown.info = 1;
            shown
        });
        let content = Mutex::new(Content { revision: 1, runs: runs.collect() });
        let requests = Mutex::new(Requests { count: 0, last: Instant::now() });
        Self { period, content, requests, requested: Condvar::new() }
    }

    /// Replaces the data of run `index`.
    pub fn update(&self, index: usize, snapshot: &Snapshot) {
        let mut content = self.lock();
        let Content { revision, runs } = &mut *content;
        if let Some(shown) = runs.get_mut(index)
            && shown.snapshot != *snapshot
        {
            *revision += 1;
            shown.update(snapshot, *revision);
        }
    }

    /// Returns at once if there was a request for data within `idle`. Otherwise waits for the next one.
    pub fn wait_for_viewer(&self, idle: Duration) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = requests.count;
        while requests.count == seen && requests.last.elapsed() > idle {
            requests = self.requested.wait(requests).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Returns what has changed since `revision` as JSON; everything for 0.
    pub fn since(&self, revision: u64) -> Value {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        (requests.count, requests.last) = (requests.count + 1, Instant::now());
        drop(requests);
        self.requested.notify_all();
        let content = self.lock();
        // A revision of an earlier server.
        let since = if revision > content.revision { 0 } else { revision };
        let runs: Vec<Value> = content.runs.iter().map(|shown| shown.since(since)).collect();
        json!({ "revision": content.revision, "period": self.period, "now": host::now(), "runs": runs })
    }

    fn lock(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shown {
    fn update(&mut self, new: &Snapshot, revision: u64) {
        let (now, then) = (&new.curves, &self.snapshot.curves);
        if let Some(from) = then.series.first_difference(&now.series) {
            // A change from an earlier bucket on includes this one.
            self.series.retain(|(_, earlier)| *earlier < from);
            self.series.push((revision, from));
        }
        let mark = |has_changed: bool, last: &mut u64| {
            if has_changed {
                *last = revision;
            }
        };
        mark(new.info != self.snapshot.info, &mut self.info);
        mark(now.undone != then.undone, &mut self.undone);
        mark(now.evaluations != then.evaluations, &mut self.evaluations);
        mark(now.stages != then.stages, &mut self.stages);
        mark(now.marks != then.marks, &mut self.marks);
        self.snapshot = new.clone();
    }

    fn since(&self, since: u64) -> Value {
        let (Snapshot { info, curves }, mut parts) = (&self.snapshot, Map::new());
        let first = self.series.iter().filter(|(revision, _)| *revision > since).map(|(_, from)| *from).min();
        if let Some(from) = first {
            parts.insert("series".to_owned(), curves.series.columns(from));
        }
        let mut add = |name: &str, changed: u64, part: Value| {
            if changed > since {
                parts.insert(name.to_owned(), part);
            }
        };
        add("info", self.info, json(info));
        add("undone", self.undone, curves.undone.clone());
        add("evaluations", self.evaluations, curves.evaluations.clone());
        add("stages", self.stages, json(&curves.stages));
        add("marks", self.marks, json(&curves.marks));
        parts.into()
    }
}

fn json(part: &impl Serialize) -> Value {
    serde_json::to_value(part).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::run::WatchedRun;
    use super::*;
    use crate::metrics::history::tests::{evaluation, line, put, store};

    #[test]
    fn without_requests_a_reader_waits() {
        let board = Board::new(Vec::new(), 3.0);
        board.wait_for_viewer(Duration::from_secs(600));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| board.wait_for_viewer(Duration::ZERO));
            std::thread::sleep(Duration::from_millis(100));
            assert!(!reader.is_finished());
            board.since(0);
            reader.join().unwrap();
        });
    }

    #[test]
    fn only_new_buckets_are_sent() {
        let store = store("board");
        put(&store, 1, 0, [line(1, 5.0), line(2, 4.0), evaluation(2, 4.5)].concat());
        let mut run = WatchedRun::new(store.clone());
        let board = Board::new(vec![run.last().clone()], 3.0);
        let first = board.since(0);
        assert_eq!((&first["revision"], first["runs"][0].get("series")), (&json!(1), None));
        assert_eq!(first["runs"][0]["info"]["notes"], json!(["reading the run"]));
        board.update(0, run.refresh());
        board.update(0, run.refresh());
        let whole = board.since(1);
        assert_eq!((&whole["revision"], &whole["runs"][0]["series"]["columns"]["step"]), (&json!(2), &json!([1, 2])));
        assert_eq!(board.since(2)["runs"], json!([{}]));
        put(&store, 1, 2, line(3, 3.0));
        board.update(0, run.refresh());
        let new = &board.since(2)["runs"][0];
        assert_eq!((&new["series"]["from"], &new["series"]["columns"]["total"]), (&json!(2), &json!([3])));
        assert!(new.get("evaluations").is_none() && new.get("marks").is_some());
        // Everything for a page that has nothing, or the revision of an earlier server.
        for since in [0, 99] {
            let all = &board.since(since)["runs"][0];
            assert_eq!((&all["series"]["from"], all.as_object().unwrap().len()), (&json!(0), 6), "{since}");
        }
    }
}
