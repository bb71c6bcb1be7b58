//! `lambert tune`: runs that differ in some keys, side by side, compared by their held-out loss at the end.
//!
//! - [`grid`]: which runs; [`slots`]: how many at a time
//! - [`runs`]: each a `lambert run` of its own, so that it resumes as any other run
//! - [`results`]: how they ended, kept beside them; [`plot`]: against one of the keys

pub mod grid;
pub mod plot;
pub mod results;
pub mod runs;
pub mod slots;

use lambert_config::exit;
use lambert_store::Store;
use lambert_store::run::CONFIG;

use crate::cli;
use crate::commands;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::run::coordinator;
use crate::run::order::Order;
use grid::Setting;
use results::{End, Results, Trial};
use runs::{Ended, Planned, Stopped};
use slots::Machine;

/// Why a tuning cannot begin.
#[derive(Debug, thiserror::Error)]
enum TuneError {
    #[error("run {name} cannot be made: {message}")]
    Refused { name: String, message: String },
    #[error("two runs would be named {0}: their settings differ in what a name leaves out")]
    SameName(String),
    #[error("evaluation.data names no dataset: runs are compared by their held-out loss")]
    NoEvaluation,
    #[error("cannot find the path of this program")]
    Program(#[source] std::io::Error),
    #[error("{failed} of {all} runs failed; the same command tries them again")]
    Failed { failed: usize, all: usize },
}

/// Makes the runs that are missing, and shows all.
pub fn tune(arguments: &cli::Tune) -> Outcome {
    let store = Store::open(&arguments.runs).map_err(Failure::usage)?;
    let all = plan(arguments, store.url())?;
    let mut results = Results::read(&store).map_err(Failure::failed)?;
    // Checked before anything runs: a mistyped value would be found after hours otherwise.
    let slots = check(arguments, &all)?;
    let missing: Vec<Planned> =
        all.iter().filter(|planned| !results.has(&planned.name, &planned.settings)).cloned().collect();
    console::line(&format!("{} runs, {} to be made, {} at a time", all.len(), missing.len(), slots.len()));
    let program = std::env::current_exe().map_err(|error| Failure::failed(TuneError::Program(error)))?;
    let started = |planned: &Planned| console::line(&format!("{}: started", planned.name));
    let stopped = runs::make(&program, missing, slots, started, |ended| take(&store, &mut results, ended))?;
    show(&store, &results, arguments)?;
    if let Stopped::By(signal) = stopped {
        console::line("stopped; the same command goes on");
        return Ok(if signal == signal_hook::consts::SIGINT { exit::ENDED } else { exit::STOPPED });
    }
    let failed = all.iter().filter(|planned| !results.has(&planned.name, &planned.settings)).count();
    match failed {
        0 => Ok(exit::DONE),
        failed => Err(Failure::failed(TuneError::Failed { failed, all: all.len() })),
    }
}

fn plan(arguments: &cli::Tune, runs: &str) -> Result<Vec<Planned>, Failure> {
    let settings = grid::settings(&arguments.grid, &arguments.trial).map_err(Failure::usage)?;
    let mut planned: Vec<Planned> = Vec::new();
    for settings in settings {
        let name = grid::name(&settings);
        if planned.iter().any(|other| other.name == name) {
            return Err(Failure::usage(TuneError::SameName(name)));
        }
        let run = format!("{}/{name}", runs.trim_end_matches('/'));
        let mut line = vec!["run".to_owned(), "--config".into(), arguments.config.to_string_lossy().into_owned()];
        line.extend(["--run".to_owned(), run]);
        let sets = arguments.sets.iter().cloned().chain(settings.iter().map(Setting::to_set));
        line.extend(sets.flat_map(|set| ["--set".to_owned(), set]));
        planned.push(Planned { name, settings, arguments: line });
    }
    Ok(planned)
}

/// Whether each of the runs can be started, as far as one can tell; and how many at a time.
fn check(arguments: &cli::Tune, all: &[Planned]) -> Result<Vec<slots::Slot>, Failure> {
    let mut slots = None;
    for planned in all {
        let sets = arguments.sets.iter().cloned().chain(planned.settings.iter().map(Setting::to_set)).collect();
        let run = planned.arguments[4].clone();
        let order = cli::Run {
            config: Some(arguments.config.clone()),
            run,
            ranks: None,
            sets,
            from: None,
            with_optimizer: false,
            allow_change: Vec::new(),
            json: false,
        };
        let refused = |failure: Failure| {
            let message = failure.to_string();
            Failure::coded(failure.code, TuneError::Refused { name: planned.name.clone(), message })
        };
        let proposed = Order::propose(&order, coordinator::room).map_err(refused)?;
        let config = proposed.config();
        if config.evaluation.data.is_empty() {
            return Err(Failure::usage(TuneError::NoEvaluation));
        }
        let here = Machine::here().slots(config, arguments.parallel.map(usize::from));
        // Runs of several sizes: as many as there is room for the largest.
        slots = slots.filter(|slots: &Vec<slots::Slot>| slots.len() <= here.len()).or(Some(here));
    }
    Ok(slots.unwrap_or_default())
}

/// Takes in the end of a run.
fn take(store: &Store, results: &mut Results, ended: Ended) -> Result<(), Failure> {
    let Ended { planned, code, said, seconds } = ended;
    let end = match code {
        Some(exit::DONE) => End::Finished,
        Some(exit::FINAL) => End::Diverged,
        // They go on next time.
        Some(exit::STOPPED | exit::ENDED) => return Ok(()),
        _ => End::Failed,
    };
    let own =
        Store::open(&format!("{}/{}", store.url().trim_end_matches('/'), planned.name)).map_err(Failure::failed)?;
    let status = commands::read_status(&own)?.unwrap_or_default();
    let settings = planned.settings.iter().map(Setting::to_set).collect();
    let training = status.record.as_ref().map(|record| record.loss);
    let name = planned.name.clone();
    let mut trial = Trial { name, settings, end, held_out: None, main: None, training, steps: status.step, seconds };
    trial.measured(status.evaluation.as_ref());
    let loss = trial.held_out.map_or_else(String::new, |loss| format!(", held-out loss {loss:.4}"));
    match end {
        End::Finished => console::line(&format!("{}: finished in {seconds:.0} s{loss}", planned.name)),
        End::Diverged => {
            console::line(&format!("{}: given up at step {}: {}", planned.name, status.step, last_line(&said)));
        }
        End::Failed => console::line(&format!("{}: failed (exit code {code:?}):\n{said}", planned.name)),
    }
    results.add(trial);
    results.write(store).map_err(Failure::failed)
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

/// The table, the plot, and the configuration of the best.
fn show(store: &Store, results: &Results, arguments: &cli::Tune) -> Result<(), Failure> {
    if let Some(svg) = plot::svg(results) {
        store.put("tune.svg", svg.into()).map_err(Failure::failed)?;
    }
    if let Some(best) = results.best() {
        let url = format!("{}/{}", store.url().trim_end_matches('/'), best.name);
        let config = Store::open(&url).and_then(|own| own.get(CONFIG)).map_err(Failure::failed)?;
        store.put("best.toml", config).map_err(Failure::failed)?;
        console::line(&format!("the best is {}: {}/best.toml", best.name, store.url()));
    }
    let text = match arguments.json {
        true => serde_json::to_string(results).map_err(Failure::failed)?,
        false => results.table().join("\n"),
    };
    console::result(&text).map_err(Failure::failed)
}
