//! `lambert status` of a folder of runs: a table, or JSON lines.

use lambert_store::Store;
use lambert_store::run::CONFIG;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::host;
use crate::status::Status;
use crate::status::stored::{self, Liveness, liveness};
use crate::text::{age, align, clock, rate};

/// Titles of the columns.
const TITLES: [&str; 7] = ["run", "state", "step", "samples/s", "loss", "time left", "updated"];

/// A run of a folder.
#[derive(Debug)]
pub struct ListedRun {
    /// Name of its folder.
    name: String,
    url: String,
    /// `None` if it has not started; an error message if the status cannot be read.
    status: Result<Option<Status>, String>,
}

/// Reads the runs directly below `folder`, by name. Calls `progress` with the number of folders that were read and their
/// total number.
///
/// # Errors
/// A store error.
pub fn read(folder: &Store, progress: impl Fn(usize, usize)) -> Result<Vec<ListedRun>, Failure> {
    let (mut runs, names) = (Vec::new(), folder.list_folders("").map_err(Failure::failed)?);
    let total = names.len();
    for (index, name) in names.into_iter().enumerate() {
        progress(index, total);
        let run = folder.join(&name).map_err(Failure::failed)?;
        if run.head(CONFIG).map_err(Failure::failed)?.is_some() {
            let status = stored::read(&run).map_err(|failure| failure.to_string());
            runs.push(ListedRun { name, url: run.url().to_owned(), status });
        }
    }
    Ok(runs)
}

/// Formats the table.
pub fn table(runs: &[ListedRun]) -> String {
    let titles = TITLES.map(str::to_owned).to_vec();
    let rows = runs.iter().map(|run| row(run, host::now()));
    let lines = align(&std::iter::once(titles).chain(rows).collect::<Vec<_>>());
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

/// Formats each run as a JSON line.
pub fn json_lines(runs: &[ListedRun]) -> String {
    runs.iter().map(|run| json(run).to_string()).collect::<Vec<_>>().join("\n")
}

fn row(run: &ListedRun, now: f64) -> Vec<String> {
    let none = || "-".to_owned();
    let mut row = vec![run.name.clone()];
    match &run.status {
        Ok(Some(status)) => {
            let progress = &status.progress;
            let is_moving = !status.state.is_over() && liveness(status) != Liveness::Gone;
            let left = progress.seconds_left.filter(|_| is_moving);
            let loss = status.latest.record.as_ref().map(|record| format!("{:.4}", record.loss));
            row.push(state(status));
            row.push(format!("{}/{}", progress.step, progress.steps));
            let speed = Some(progress.samples_per_second).filter(|speed| is_moving && *speed > 0.0);
            row.push(speed.map_or_else(none, rate));
            row.push(loss.unwrap_or_else(none));
            row.push(left.map_or_else(none, clock));
            row.push(format!("{} ago", age(now - status.updated)));
        }
        Ok(None) => row.push("not started".to_owned()),
        Err(_) => row.push("unreadable".to_owned()),
    }
    row.resize_with(TITLES.len(), none);
    row
}

fn state(status: &Status) -> String {
    match liveness(status) {
        Liveness::Alive | Liveness::Over => status.state.to_string(),
        Liveness::Gone => format!("{}, coordinator gone", status.state),
        Liveness::Unknown => format!("{}, no update", status.state),
    }
}

fn json(run: &ListedRun) -> Value {
    let (name, url) = (&run.name, &run.url);
    match &run.status {
        Ok(Some(status)) => json!({
            "name": name,
            "run": url,
            "state": status.state,
            "coordinator": liveness(status).name(),
            "step": status.progress.step,
            "steps": status.progress.steps,
            "samples_per_second": status.progress.samples_per_second,
            "loss": status.latest.record.as_ref().map(|record| record.loss),
            "seconds_left": status.progress.seconds_left,
            "updated": status.updated,
        }),
        Ok(None) => json!({ "name": name, "run": url, "state": null }),
        Err(error) => json!({ "name": name, "run": url, "state": null, "error": error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{RunProgress, RunState};

    fn listed(name: &str, status: Option<Status>) -> ListedRun {
        ListedRun { name: name.to_owned(), url: format!("/runs/{name}"), status: Ok(status) }
    }

    #[test]
    fn runs_have_a_row_each() {
        let progress = RunProgress { step: 51, steps: 1200, samples_per_second: 87.4, seconds_left: Some(843.0) };
        let updated = host::now() - 65.0;
        let running = Status { state: RunState::Training, progress, updated, ..Status::default() };
        let finished = Status { state: RunState::Finished, ..running.clone() };
        let runs = [listed("a", Some(running)), listed("new", None), listed("old", Some(finished))];
        let expected = "\
run                state     step  samples/s  loss  time left    updated
a    training, no update  51/1200         87     -      14:03  1 min ago
new          not started        -          -     -          -          -
old             finished  51/1200          -     -          -  1 min ago";
        assert_eq!(table(&runs), expected);
        let lines: Vec<Value> = json_lines(&runs).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((lines.len(), &lines[0]["coordinator"], &lines[1]["state"]), (3, &json!("unknown"), &Value::Null));
    }
}
