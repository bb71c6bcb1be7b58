//! `lambert tune`: hyperparameter sweep. The runs are compared by their final held-out loss.
//!
//! - [`grid`]: parameter combinations; [`plan`]: validated runs; [`slots`]: concurrency and GPU assignment
//! - [`runs`]: executes each run as a `lambert run` process, so that the run can be resumed
//! - [`progress`]: progress bar; [`results`]: table of results; [`plot`]: plot of the held-out loss against a swept key

pub mod grid;
pub mod plan;
pub mod plot;
pub mod progress;
pub mod results;
pub mod runs;
pub mod slots;

use lambert_config::exit;
use lambert_store::Store;
use lambert_store::run::CONFIG;

use crate::cli;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::status::stored;
use crate::text::counted;
use grid::Setting;
use plan::SweepPlan;
use progress::SweepBar;
use results::{Results, Trial, TrialOutcome};
use runs::{FinishedRun, StopCause};
use slots::HostResources;

/// The sweep did not complete.
#[derive(Debug, thiserror::Error)]
enum TuneError {
    #[error("cannot find the path of this executable")]
    Program(#[source] std::io::Error),
    #[error("{failed} of {all} runs failed; rerun the same command to retry them")]
    Failed { failed: usize, all: usize },
    #[error("stopped; {} ended without a new checkpoint; rerun the same command to resume from the previous one", counted(*.0 as u64, "run"))]
    Unsaved(usize),
    #[error("stopped: another coordinator has taken over run {name}; check for another `lambert tune` of {url}")]
    Replaced { name: String, url: String },
}

/// Executes the runs that have no results yet, and prints all results.
pub fn tune(arguments: &cli::Tune) -> Outcome {
    console::detach().map_err(Failure::failed)?;
    let store = Store::open(&arguments.runs).map_err(Failure::usage)?;
    plan::reject_run(&store)?;
    plan::reject_own_config(&store, &arguments.config)?;
    // All runs are validated before the first run starts, so that a mistyped value is reported at once.
    let plan = SweepPlan::new(arguments, store.url())?;
    let mut results = Results::read(&store).map_err(Failure::failed)?;
    plan.check_or_store_config(&store, &results)?;
    let slots = HostResources::here().slots(&plan.need, arguments.parallel.map(usize::from));
    let missing = plan.missing(&results);
    console::line(&format!("{} runs, {} to do, {} in parallel", plan.runs.len(), missing.len(), slots.len()));
    let program = std::env::current_exe().map_err(|error| Failure::failed(TuneError::Program(error)))?;
    let started = |planned: &runs::PlannedRun| console::line(&format!("{}: started", planned.name));
    let bar = SweepBar::start(&store, &missing, &plan.steps).map_err(Failure::failed)?;
    let mut unsaved = 0;
    let ended = |ended: FinishedRun| {
        bar.end(&ended.planned.name);
        unsaved += usize::from(ended.stopping && is_failure(&ended));
        take(&store, &mut results, &ended)
    };
    let stopped = runs::execute(&program, missing, slots, started, ended)?;
    drop(bar);
    show(&store, &results, arguments)?;
    let failed = plan.runs.iter().filter(|planned| !results.has(&planned.name, &planned.settings)).count();
    match (stopped, failed) {
        (StopCause::Replaced(name), _) => {
            Err(Failure::coded(exit::TAKEN_OVER, TuneError::Replaced { name, url: store.url().to_owned() }))
        }
        (StopCause::By(_), _) if unsaved > 0 => Err(Failure::failed(TuneError::Unsaved(unsaved))),
        (StopCause::By(signal), _) => {
            console::line("stopped; rerun the same command to resume");
            Ok(if signal == signal_hook::consts::SIGINT { exit::STOPPED_BY_USER } else { exit::INTERRUPTED })
        }
        (StopCause::No, 0) => Ok(exit::DONE),
        (StopCause::No, failed) => Err(Failure::failed(TuneError::Failed { failed, all: plan.runs.len() })),
    }
}

/// True if the exit code of a run is none of those expected: done, diverged, stopped or replaced.
fn is_failure(ended: &FinishedRun) -> bool {
    use exit::{DIVERGED, DONE, INTERRUPTED, STOPPED_BY_USER, TAKEN_OVER};
    !matches!(ended.code, Some(DONE | DIVERGED | INTERRUPTED | STOPPED_BY_USER | TAKEN_OVER))
}

/// Records the end of a run.
fn take(store: &Store, results: &mut Results, ended: &FinishedRun) -> Result<(), Failure> {
    let name = &ended.planned.name;
    let end = match ended.code {
        Some(exit::DONE) => TrialOutcome::Finished,
        Some(exit::DIVERGED) => TrialOutcome::Diverged,
        // The next `lambert tune` resumes these runs.
        Some(exit::INTERRUPTED | exit::STOPPED_BY_USER | exit::TAKEN_OVER) => return Ok(()),
        _ if ended.stopping => {
            console::line(&format!("{name}: ended without a checkpoint ({})", ended.how));
            return Ok(());
        }
        _ => TrialOutcome::Failed,
    };
    let own = Store::open(&format!("{}/{name}", store.url().trim_end_matches('/'))).map_err(Failure::failed)?;
    let status = stored::read(&own)?.unwrap_or_default();
    let (step, latest) = (status.progress.step, &status.latest);
    let last = latest.evaluation.as_ref().filter(|evaluation| evaluation.step == step && end == TrialOutcome::Finished);
    // The next `lambert tune` reruns a failed run, and `lambert run` then makes the missing evaluation.
    let end = if end == TrialOutcome::Finished && last.is_none() { TrialOutcome::Failed } else { end };
    let mut trial = Trial {
        name: name.clone(),
        settings: ended.planned.settings.iter().map(Setting::to_set).collect(),
        end,
        held_out: None,
        main: None,
        training: latest.record.as_ref().map(|record| record.loss),
        steps: step,
        seconds: results::seconds(&own).map_err(Failure::failed)?,
    };
    trial.measured(last);
    let loss = trial.held_out.map_or_else(String::new, |loss| format!(", held-out loss {loss:.4}"));
    match end {
        TrialOutcome::Finished => console::line(&format!("{name}: finished after {:.0} s{loss}", trial.seconds)),
        TrialOutcome::Diverged => {
            console::line(&format!("{name}: diverged at step {step}: {}", last_line(&ended.output)));
        }
        TrialOutcome::Failed if ended.code == Some(exit::DONE) => {
            console::line(&format!("{name}: finished, but without an evaluation after the last step"));
        }
        TrialOutcome::Failed => console::error(&format!("{name}: failed ({}):\n{}", ended.how, ended.output)),
    }
    // Another `lambert tune` may have written results in the meantime.
    *results = Results::read(store).map_err(Failure::failed)?;
    results.add(trial);
    results.write(store).map_err(Failure::failed)
}

fn last_line(text: &str) -> &str {
    text.lines().last().unwrap_or_default()
}

/// Prints the table and writes the plot and the best configuration.
fn show(store: &Store, results: &Results, arguments: &cli::Tune) -> Result<(), Failure> {
    let text = match arguments.json {
        true => serde_json::to_string(results).map_err(Failure::failed)?,
        false => results.table().join("\n"),
    };
    console::result(&text).map_err(Failure::failed)?;
    if let Some(svg) = plot::svg(results) {
        store.put("tune.svg", svg.into()).map_err(Failure::failed)?;
    }
    let Some(best) = results.best() else { return Ok(()) };
    let url = format!("{}/{}", store.url().trim_end_matches('/'), best.name);
    match Store::open(&url).and_then(|own| own.get(CONFIG)) {
        Ok(config) => {
            store.put(plan::BEST, config).map_err(Failure::failed)?;
            console::line(&format!("best run: {} (configuration: {}/{})", best.name, store.url(), plan::BEST));
        }
        Err(error) if error.is_not_found() => {
            console::line(&format!("best run: {}, but {url} no longer exists", best.name));
        }
        Err(error) => return Err(Failure::failed(error)),
    }
    Ok(())
}
