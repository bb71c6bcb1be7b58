//! lambert-worker: one rank of a training run, and what else needs a model in memory.

use std::io::IsTerminal;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, Subcommand};
use lambert_collective::local;
use lambert_config::run::{DeviceKind, Limits};
use lambert_config::{Layers, RunConfig, exit};
use lambert_control::EventKind;
use lambert_control::Versions;
use lambert_plan::objectives::{self, Targets};
use lambert_store::{Store, host_paths, private_dir};
use lambert_worker::bench::{self, Request};
use lambert_worker::error::{self, Error};
use lambert_worker::gpu::ComputeDevice;
use lambert_worker::inference::fill_mask;
use lambert_worker::inference::loaded_model::Saved;
use lambert_worker::torch;
use lambert_worker::train;
use lambert_worker::train::Outcome;
use lambert_worker::train::evaluate;
use lambert_worker::train::evaluate::Evaluated;
use lambert_worker::worker::cleanup;
use lambert_worker::worker::control::{Control, WorkerPhase};
use lambert_worker::worker::environment;
use lambert_worker::worker::leave;
use lambert_worker::worker::logs;
use lambert_worker::worker::output;
use lambert_worker::worker::session::{self, Session};
use lambert_worker::worker::trace;
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

#[derive(Parser)]
#[command(name = "lambert-worker", version, about = "One rank of a lambert run; started by `lambert`")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Train as one rank of a run that `lambert run` has laid down
    Train {
        /// The run's folder or URL
        #[arg(long)]
        run: String,
        /// Number of the attempt, whose lease the coordinator took
        #[arg(long)]
        attempt: u32,
        /// Ranks of the attempt; as many as were started together if absent
        #[arg(long)]
        world: Option<usize>,
        /// A folder for a file of what this rank prints; none without it
        #[arg(long)]
        logs: Option<PathBuf>,
        /// Steps to write a trace of, beside that file, as 10..15
        #[arg(long, value_parser = steps)]
        trace: Option<Range<u64>>,
        /// A folder that the launcher or MPI has on this host, removed when the launcher is gone; can be given several times
        #[arg(long)]
        session: Vec<PathBuf>,
    },
    /// Held-out loss and accuracy
    Eval {
        /// A run, or one of its checkpoints
        model: String,
        /// The dataset to look at
        #[arg(long)]
        data: String,
        /// Samples at most; all without it
        #[arg(long, default_value_t = 0)]
        samples: u64,
        /// What computes
        #[arg(long, default_value = "auto", value_parser = device)]
        device: DeviceKind,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// What a stage of a configuration takes on this device, as one rank alone; nothing is saved
    Bench {
        /// The configuration of a run
        #[arg(long)]
        config: PathBuf,
        /// KEY=VALUE over the configuration, as device.kind="cuda"; can be given several times
        #[arg(long = "set", value_name = "KEY=VALUE")]
        sets: Vec<String>,
        /// The stage, from 0
        #[arg(long, default_value_t = 0)]
        stage: usize,
        /// Samples of a step; the stage's global batch without it
        #[arg(long)]
        samples: Option<usize>,
        /// Steps that are timed as a whole; as many more are timed by phase
        #[arg(long, default_value_t = 10)]
        steps: usize,
        /// Steps before that
        #[arg(long, default_value_t = 3)]
        warmup: usize,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Write the global batches of `--steps` steps to this file as JSON, and measure nothing
        #[arg(long)]
        batches: Option<PathBuf>,
    },
    /// The most probable pieces for each masked place of a text
    FillMask {
        /// A run, or one of its checkpoints
        model: String,
        /// A text with MASK in brackets where pieces are hidden
        text: String,
        /// Pieces to name for each
        #[arg(long, default_value_t = 5)]
        top: usize,
        /// What computes
        #[arg(long, default_value = "auto", value_parser = device)]
        device: DeviceKind,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let set = environment::prepare(is_deterministic(&arguments.command));
    torch::quiet_panics();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    // tracing would report a closed standard error there, and panic.
    let lines = lines.with_ansi(colours).log_internal_errors(false).with_filter(filter);
    let trace = trace(&arguments.command);
    let failed = trace.as_ref().err().map(ToString::to_string);
    tracing_subscriber::registry().with(lines).with(trace.ok().flatten()).init();
    failed.iter().for_each(|failed| tracing::warn!("no trace is written: {failed}"));
    set.iter().for_each(|(name, value)| tracing::debug!("set {name}={value}"));
    let code = match torch::guard(|| run(arguments.command)) {
        Ok(Ok(code)) => code,
        Ok(Err(failed)) => {
            tracing::error!("{}", error::chain(&failed));
            failed.exit_code()
        }
        Err(panic) => {
            tracing::error!("a mistake in lambert itself: {}", error::chain(&panic));
            exit::FAILED
        }
    };
    trace::finish();
    ExitCode::from(code as u8)
}

/// What writes a trace of the steps that a command names, if it names any.
fn trace<S>(command: &Command) -> std::io::Result<Option<impl Layer<S> + use<S>>>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let Command::Train { logs, trace: Some(steps), .. } = command else { return Ok(None) };
    let rank = lambert_collective::world::detect().map_or(0, |world| world.rank);
    let folder = logs.as_deref().unwrap_or(Path::new("."));
    if logs.is_some() {
        logs::create(folder).map_err(std::io::Error::other)?;
    }
    trace::layer(&folder.join(host_paths::rank_trace(rank)), steps.clone()).map(Some)
}

/// Steps as `10..15`.
fn steps(text: &str) -> Result<Range<u64>, String> {
    let parse = || {
        let (start, end) = text.split_once("..")?;
        Some(start.parse().ok()?..end.parse().ok()?)
    };
    parse().ok_or_else(|| "expected steps as 10..15".to_owned())
}

/// Whether a command without a coordinator computes with `device.deterministic`; true where the configuration is in a run's
/// store, which is read later.
fn is_deterministic(command: &Command) -> bool {
    let Command::Bench { config, sets, .. } = command else { return true };
    Layers::from_process(sets).load::<RunConfig>(config).map_or(true, |config| config.device.deterministic)
}

fn run(command: Command) -> Result<i32, Error> {
    match command {
        Command::Train { run, attempt, world, logs, session, .. } => {
            keep_logs(logs.as_deref());
            train(&run, attempt, world, &session)
        }
        Command::Eval { model, data, samples, device, json } => {
            eval(&Saved::open(&model, device)?, &data, samples, json)
        }
        Command::Bench { config, sets, stage, samples, steps, warmup, json, batches } => {
            let config: RunConfig =
                Layers::from_process(&sets).warn_with(|warning| tracing::warn!("{warning}")).load(&config)?;
            bench::run(&config, &Request { stage, samples, steps, warmup, json, batches })
        }
        Command::FillMask { model, text, top, device, json } => fill(&Saved::open(&model, device)?, &text, top, json),
    }
}

/// Keeps what this rank prints on its host, too.
fn keep_logs(logs: Option<&Path>) {
    let rank = lambert_collective::world::detect().map_or(0, |world| world.rank);
    if let Some(Err(error)) = logs.map(|folder| logs::begin(folder, rank)) {
        tracing::warn!("what this rank prints is not kept here: {}", error::chain(&error));
    }
}

/// Creates the directories of the launcher and MPI on this host, and lets them be removed when the launcher is gone.
fn prepare(session: &[PathBuf]) -> Result<(), Error> {
    for path in session {
        private_dir::create(path).map_err(|source| Error::Directory { path: path.clone(), source })?;
    }
    let local = lambert_collective::world::detect().map_or(0, |world| world.local_rank);
    if local == 0
        && !session.is_empty()
        && let Err(error) = cleanup::remove_after_launcher(session)
    {
        tracing::warn!("what the launcher leaves here will not be removed: {error}");
    }
    Ok(())
}

/// Trains, and tells the coordinator if that fails. Under a coordinator a stop that it asked for is success; by hand it
/// has an exit code of its own.
fn train(url: &str, attempt: u32, world: Option<usize>, session: &[PathBuf]) -> Result<i32, Error> {
    let rank = lambert_collective::world::detect().map_or(0, |world| world.rank);
    let prepared = prepare(session);
    let config = Store::open(url).map_err(Error::from).and_then(|store| session::read_config(&store));
    let limits = config.as_ref().map_or_else(|_| Limits::default(), |(config, _)| config.cluster.limits.clone());
    // Before anything asks libtorch, the version of the one that is loaded among it.
    let device = prepared
        .and(config)
        .and_then(|(config, _)| Ok(ComputeDevice::load(&config.device, config.cluster.all_reduce.backend)?));
    let control = Arc::new(Control::connect(rank, attempt, versions(), patience(&limits)));
    let attend = || attend(url, attempt, world, device?, &control);
    let outcome = torch::guard(attend).map_err(Error::from).flatten();
    match outcome {
        Ok(outcome) => {
            let by_hand = !control.is_connected();
            Ok(if outcome != Outcome::Done && by_hand { exit::STOPPED } else { exit::DONE })
        }
        Err(failed) => {
            let message = error::chain(&failed);
            control.event(EventKind::Failed { message, kind: failed.fault() });
            leave(control, &failed)
        }
    }
}

/// How long a coordinator may be silent.
fn patience(limits: &Limits) -> Duration {
    let seconds = limits.coordinator_seconds;
    Some(seconds).filter(|seconds| *seconds > 0.0).map_or(Duration::MAX, Duration::from_secs_f64)
}

/// Takes part in an attempt to its end.
fn attend(
    url: &str,
    attempt: u32,
    world: Option<usize>,
    device: ComputeDevice,
    control: &Arc<Control>,
) -> Result<Outcome, Error> {
    let (session, mut ranks) = Session::open(url, attempt, world, device, Arc::clone(control))?;
    let outcome = train::run(&session, &mut ranks).map_err(|error| session.explain(error))?;
    control.phase(WorkerPhase::Stop);
    // The result stands once the coordinator has heard of it, whatever happens to a rank from here on.
    control.flush();
    ranks.finish()?;
    Ok(outcome)
}

fn versions() -> Versions {
    Versions { libtorch: torch::version(), mpi: lambert_collective::mpi::version(), ..Versions::current() }
}

/// Ends this process without waiting for the other ranks, which may hang in a collective that this rank has left; the
/// coordinator ends them.
fn leave(control: Arc<Control>, failed: &Error) -> ! {
    control.phase(WorkerPhase::Stop);
    // The last of its owners, the session being gone: what it has to tell is told.
    drop(control);
    tracing::error!("{}", error::chain(failed));
    leave::exit_now(failed.exit_code());
}

/// The device of a name.
fn device(name: &str) -> Result<DeviceKind, String> {
    DeviceKind::named(name).ok_or_else(|| format!("expected one of {}", DeviceKind::NAMES.join(", ")))
}

fn eval(saved: &Saved, data: &str, samples: u64, json: bool) -> Result<i32, Error> {
    let question = saved.question(data, samples)?;
    let evaluated =
        evaluate::evaluate(&saved.objective(), &mut *local::single().group, &question, saved.step, || false)?;
    let result = match evaluated {
        Evaluated::Whole(evaluation) => evaluation,
        // Alone, it is this rank that could not read.
        Evaluated::Unread(Some(unread)) => return Err(Error::Dataset(unread)),
        Evaluated::Unread(None) | Evaluated::Stopped => return Err(Error::NoMoreSamples(saved.step)),
    };
    if json {
        output::line(&serde_json::to_string(&result).map_err(Error::Json)?)?;
        return Ok(exit::DONE);
    }
    let mut lines = vec![
        format!("step             {}", result.step),
        format!("samples          {}", result.samples),
        format!("masked tokens    {}", result.masked_tokens),
    ];
    for loss in objectives::losses(&saved.config.objective) {
        let (title, Some(score)) = (loss.title, result.scores.get(loss.name)) else { continue };
        lines.push(format!("{:<17}{:.4} nats", format!("{title} loss"), score.loss));
        if loss.targets == Targets::MaskedTokens {
            let entropy = result.unigram_entropy;
            lines.push(format!("  context-free   {entropy:.4} nats (unigram entropy of the dataset)"));
        }
        let accuracy = |share| format!("{:<17}{:.2} %", format!("{title} accuracy"), 100.0 * share);
        lines.extend(score.accuracy.map(accuracy));
    }
    output::line(&lines.join("\n"))?;
    Ok(exit::DONE)
}

fn fill(saved: &Saved, text: &str, top: usize, json: bool) -> Result<i32, Error> {
    let answers = fill_mask::fill(saved, text, top)?;
    if json {
        output::line(&serde_json::to_string(&answers).map_err(Error::Json)?)?;
        return Ok(exit::DONE);
    }
    for (number, guesses) in answers.iter().enumerate() {
        let guesses: Vec<String> =
            guesses.iter().map(|guess| format!("{} {:.1} %", guess.piece, 100.0 * guess.probability)).collect();
        output::line(&format!("[MASK] {}: {}", number + 1, guesses.join(", ")))?;
    }
    Ok(exit::DONE)
}
