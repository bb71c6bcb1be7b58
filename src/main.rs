//! lambert-worker: one rank of a training run, and commands that need a model in memory.

mod arguments;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use arguments::{Arguments, WorkerCommand};
use clap::Parser;
use lambert_config::run::{Backend, Device, Limits};
use lambert_config::{Layers, RunConfig, duration, exit};
use lambert_control::Versions;
use lambert_progress::terminal::{self, LOG_FILTER, LOG_FORMAT, LogWriter};
use lambert_progress::{Progress, Unit};
use lambert_store::{Store, host_paths, private_dir};
use lambert_worker::bench::{self, BenchOptions};
use lambert_worker::error::{self, Error};
use lambert_worker::gpu::ComputeDevice;
use lambert_worker::inference::embed::{self, EmbedOptions};
use lambert_worker::inference::loaded_model::{InferencePrecision, LoadedModel};
use lambert_worker::inference::{eval, fill_mask, score};
use lambert_worker::torch;
use lambert_worker::train;
use lambert_worker::train::TrainOutcome;
use lambert_worker::worker::cleanup;
use lambert_worker::worker::control::{Control, WorkerPhase};
use lambert_worker::worker::environment;
use lambert_worker::worker::session::{self, Session};
use lambert_worker::worker::trace;
use lambert_worker::worker::{leave, logs, open_files, output, rank_devices};
use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let set = environment::prepare(is_deterministic(&arguments.command));
    torch::quiet_panics();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    terminal::begin(!arguments.progress);
    // The coordinator reads the lines of a rank, which have no colors.
    let colors = std::io::stderr().is_terminal() && terminal::has_colors();
    let lines = tracing_subscriber::fmt::layer().with_writer(|| LogWriter).with_target(false);
    // Without `log_internal_errors(false)`, tracing reports its write errors on standard error. If
    // standard error is closed, tracing panics.
    let lines = lines.log_internal_errors(false);
    let lines = match std::env::var_os(LOG_FORMAT).is_some_and(|format| format == "json") {
        true => lines.json().with_filter(filter).boxed(),
        false => lines.with_ansi(colors).with_filter(filter).boxed(),
    };
    let trace = trace(&arguments.command);
    let failed = trace.as_ref().err().map(ToString::to_string);
    tracing_subscriber::registry().with(lines).with(trace.ok().flatten()).init();
    failed.iter().for_each(|failed| tracing::warn!("cannot write a trace: {failed}"));
    set.iter().for_each(|(name, value)| tracing::debug!("set {name}={value}"));
    let is_training = matches!(arguments.command, WorkerCommand::Train { .. });
    let code = match torch::guard(|| run(arguments.command)) {
        Ok(Ok(code)) => code,
        Ok(Err(failed)) if failed.is_closed_output() => exit::DONE,
        Ok(Err(failed)) => {
            tracing::error!("{}", error::chain(&failed));
            failed.exit_code()
        }
        Err(panic) => {
            tracing::error!("internal error; please report it: {}", error::chain(&panic));
            exit::FAILED
        }
    };
    trace::finish();
    if is_training {
        // Threads of MPI, of the store and of NVML may still run.
        leave::exit_now(code);
    }
    ExitCode::from(code as u8)
}

/// Tracing layer that writes a trace of the steps given by `--trace`. `None` without `--trace`.
fn trace<S>(command: &WorkerCommand) -> std::io::Result<Option<impl Layer<S> + use<S>>>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let WorkerCommand::Train { logs, trace: Some(steps), .. } = command else { return Ok(None) };
    let rank = lambert_collective::world::detect().map_or(0, |world| world.rank);
    let folder = logs.as_deref().unwrap_or(Path::new("."));
    if logs.is_some() {
        logs::create(folder).map_err(std::io::Error::other)?;
    }
    trace::layer(&folder.join(host_paths::rank_trace(rank)), steps.clone()).map(Some)
}

/// Returns `device.deterministic` for `bench`. Returns true for every other command, because
/// the configuration of the run is read later.
fn is_deterministic(command: &WorkerCommand) -> bool {
    let WorkerCommand::Bench { config, sets, .. } = command else { return true };
    Layers::from_process(sets).load::<RunConfig>(config).map_or(true, |config| config.device.deterministic)
}

fn run(command: WorkerCommand) -> Result<i32, Error> {
    match command {
        WorkerCommand::Train { run, attempt, world, logs, scratch, .. } => {
            keep_logs(logs.as_deref());
            train(&run, attempt, world, &scratch)
        }
        WorkerCommand::Eval { model, data, samples, average, device, json } => {
            let progress = Progress::start("reading the model");
            let model = match average {
                0 | 1 => LoadedModel::open(&model, device, InferencePrecision::OfRun, &progress)?,
                count => LoadedModel::open_average(&model, count, device, &progress)?,
            };
            eval::eval(&model, &data, samples, json, progress).map(|()| exit::DONE)
        }
        WorkerCommand::Bench { config, sets, stage, samples, steps, warmup, teacher, json, batches } => {
            let config: RunConfig =
                Layers::from_process(&sets).warn_with(|warning| tracing::warn!("{warning}")).load(&config)?;
            bench::run(config, &BenchOptions { stage, samples, steps, warmup, teacher, json, batches })
        }
        WorkerCommand::Device { kind, libtorch, nccl } => {
            let backend = if nccl { Backend::Nccl } else { Backend::Local };
            let device = ComputeDevice::load(&Device { kind, libtorch, ..Device::default() }, backend)?;
            output::line(&device.describe()?).map(|()| exit::DONE)
        }
        WorkerCommand::Embed { model, input, output, pooling, layer, device } => {
            let options = EmbedOptions { input, output, pooling, layer };
            options.check()?;
            let progress = Progress::start("reading the model");
            let model = LoadedModel::open(&model, device, InferencePrecision::Fp32, &progress)?;
            progress.phase("embedding", Unit::Count("texts"));
            let summary = embed::embed(&model, &options, &progress)?;
            drop(progress);
            output::line(&summary.to_string()).map(|()| exit::DONE)
        }
        WorkerCommand::Score { model, input, device, json } => {
            let progress = Progress::start("reading the model");
            let model = LoadedModel::open(&model, device, InferencePrecision::Fp32, &progress)?;
            progress.phase("scoring", Unit::Count("texts"));
            score::score_lines(&model, &input, json, &progress).map(|()| exit::DONE)
        }
        WorkerCommand::FillMask { model, text, top, device, json } => {
            let progress = Progress::start("reading the model");
            let model = LoadedModel::open(&model, device, InferencePrecision::Fp32, &progress)?;
            drop(progress);
            fill_mask::print(&model, &text, top, json).map(|()| exit::DONE)
        }
    }
}

/// Copies the output of this rank to a log file on this host.
fn keep_logs(logs: Option<&Path>) {
    let rank = lambert_collective::world::detect().map_or(0, |world| world.rank);
    if let Some(Err(error)) = logs.map(|folder| logs::begin(folder, rank)) {
        tracing::warn!("cannot write the log file of this rank: {}", error::chain(&error));
    }
}

/// Creates the directories of the launcher and of MPI on this host. The directories
/// are removed when the launcher has ended.
fn prepare(scratch: &[PathBuf]) -> Result<(), Error> {
    for path in scratch {
        private_dir::create(path).map_err(|source| Error::Directory { path: path.clone(), source })?;
    }
    let local = lambert_collective::world::detect().map_or(0, |world| world.local_rank);
    if local == 0
        && !scratch.is_empty()
        && let Err(error) = cleanup::remove_after_launcher(scratch)
    {
        tracing::warn!("cannot start the cleanup of the launcher's directories on this host: {error}");
    }
    Ok(())
}

/// Trains, and reports a failure to the coordinator. If the run stopped early, returns `exit::DONE` under a
/// coordinator and `exit::INTERRUPTED` without one.
fn train(url: &str, attempt: u32, world: Option<usize>, scratch: &[PathBuf]) -> Result<i32, Error> {
    open_files::raise_limit();
    let rank = lambert_collective::world::detect().map_or(0, |world| world.rank);
    let prepared = prepare(scratch);
    let config = Store::open(url).map_err(Error::from).and_then(|store| session::read_config(&store));
    let limits = config.as_ref().map_or_else(|_| Limits::default(), |(config, _)| config.cluster.limits.clone());
    // Load libtorch before any other use of it, including the version query.
    let device = prepared.and(config).and_then(|(config, _)| rank_devices::load(url, attempt, &config));
    let control = Arc::new(Control::connect(rank, attempt, versions(), coordinator_timeout(&limits)));
    let run = || run_attempt(url, attempt, world, device?, &control);
    let outcome = torch::guard(run).map_err(Error::from).flatten();
    match outcome {
        Ok(outcome) => {
            let by_hand = !control.is_connected();
            Ok(if outcome != TrainOutcome::Done && by_hand { exit::INTERRUPTED } else { exit::DONE })
        }
        Err(failed) => {
            control.fail(error::chain(&failed), failed.failure_kind(), failed.missing_ranks());
            leave(control, &failed)
        }
    }
}

/// Time without a message from the coordinator after which the coordinator counts as lost.
/// Unlimited if `coordinator_seconds` is 0.
fn coordinator_timeout(limits: &Limits) -> Duration {
    let seconds = limits.coordinator_seconds;
    Some(seconds).filter(|seconds| *seconds > 0.0).map_or(Duration::MAX, duration::seconds)
}

/// Runs an attempt to its end.
fn run_attempt(
    url: &str,
    attempt: u32,
    world: Option<usize>,
    device: ComputeDevice,
    control: &Arc<Control>,
) -> Result<TrainOutcome, Error> {
    let (session, mut ranks) = Session::open(url, attempt, world, device, Arc::clone(control))?;
    let trained = torch::guard(|| train::run(&session, &mut ranks)).map_err(Error::from).flatten();
    let outcome = match trained.map_err(|error| session.report_failure(error)) {
        Err(error) if session.gpu.is_some() => {
            // The release of memory of a failed GPU can end the process before it has reported the failure, or block forever.
            std::mem::forget((session, ranks));
            return Err(error);
        }
        outcome => outcome?,
    };
    control.set_phase(WorkerPhase::Stop);
    // Report the result before the ranks disconnect. A rank that fails later does not change the result.
    control.flush();
    ranks.finish()?;
    Ok(outcome)
}

/// Returns the text of `--version`, which includes the libtorch version at build time.
fn version_text() -> &'static str {
    static TEXT: LazyLock<String> =
        LazyLock::new(|| format!("{}, libtorch {}", lambert_control::version_text(), torch::BUILT_WITH));
    &TEXT
}

fn versions() -> Versions {
    Versions { libtorch: torch::version(), mpi: lambert_collective::mpi::version(), ..Versions::current() }
}

/// Maximum time for which a failed rank delivers its messages.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Exits without waiting for the other ranks. The other ranks may hang in a collective that this rank
/// has left, and the coordinator ends them.
fn leave(control: Arc<Control>, failed: &Error) -> ! {
    // A coordinator that does not answer must not keep this rank alive.
    leave::exit_after(LEAVE_TIMEOUT, failed.exit_code());
    control.set_phase(WorkerPhase::Stop);
    // Dropping the last reference delivers pending messages, too. After the failure of a GPU, the session still has one.
    control.flush();
    drop(control);
    tracing::error!("{}", error::chain(failed));
    trace::finish();
    leave::exit_now(failed.exit_code());
}
