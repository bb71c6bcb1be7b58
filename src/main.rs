//! lambert-worker: one rank of a training run, and commands that need a model in memory.

use std::io::IsTerminal;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use clap::{Parser, Subcommand};
use lambert_config::run::{Backend, Device, DeviceKind, Limits};
use lambert_config::{Layers, RunConfig, duration, exit};
use lambert_control::Versions;
use lambert_progress::terminal::{self, LOG_FILTER, LOG_FORMAT, LogWriter};
use lambert_progress::{Progress, Unit};
use lambert_store::{Store, host_paths, private_dir};
use lambert_worker::bench::{self, BenchOptions};
use lambert_worker::error::{self, Error};
use lambert_worker::gpu::ComputeDevice;
use lambert_worker::inference::embed::{self, EmbedOptions, HiddenLayer, Pooling};
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

#[derive(Parser)]
#[command(name = "lambert-worker", version = version_text(), about = "One rank of a lambert run; started by `lambert`")]
struct Arguments {
    /// Show the progress of eval and fill-mask on a terminal
    #[arg(long)]
    progress: bool,
    #[command(subcommand)]
    command: WorkerCommand,
}

#[derive(Subcommand)]
enum WorkerCommand {
    /// Train as one rank of a run that `lambert run` has created
    Train {
        /// The run's folder or URL
        #[arg(long)]
        run: String,
        /// Number of the attempt; the coordinator holds its lease
        #[arg(long)]
        attempt: u32,
        /// World size; default: the number of ranks started together
        #[arg(long)]
        world: Option<usize>,
        /// Folder for the log file of this rank; default: no log file
        #[arg(long)]
        logs: Option<PathBuf>,
        /// Steps to trace, such as 10..15; the trace is written beside the log file
        #[arg(long, value_parser = steps)]
        trace: Option<Range<u64>>,
        /// Directory of the launcher or MPI on this host, removed when the launcher has ended; repeatable
        #[arg(long = "session")]
        scratch: Vec<PathBuf>,
    },
    /// Held-out loss and accuracy
    Eval {
        /// A run, or one of its checkpoints
        model: String,
        /// Held-out dataset
        #[arg(long)]
        data: String,
        /// Maximum number of samples; 0: all
        #[arg(long, default_value_t = 0)]
        samples: u64,
        /// Average the weights of the run's newest N checkpoints
        #[arg(long, value_name = "N", default_value_t = 1)]
        average: usize,
        /// Compute device
        #[arg(long, default_value = "auto", value_parser = device)]
        device: DeviceKind,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Benchmark a stage of a configuration on this device, with a single rank; saves nothing
    Bench {
        /// Configuration of a run; later files override earlier ones; repeatable
        #[arg(long, required = true)]
        config: Vec<PathBuf>,
        /// Override a configuration key, such as device.kind="cuda"; repeatable
        #[arg(long = "set", value_name = "KEY=VALUE")]
        sets: Vec<String>,
        /// Stage index, from 0
        #[arg(long, default_value_t = 0)]
        stage: usize,
        /// Samples per step; default: the stage's global batch
        #[arg(long)]
        samples: Option<usize>,
        /// Number of measured steps
        #[arg(long, default_value_t = 10)]
        steps: usize,
        /// Number of warmup steps
        #[arg(long, default_value_t = 3)]
        warmup: usize,
        /// File `teacher.toml` of a run, for the model of the teacher of a configuration that has one
        #[arg(long, value_name = "FILE")]
        teacher: Option<PathBuf>,
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// Write the global batches of `--steps` steps to this file as JSON instead of measuring
        #[arg(long)]
        batches: Option<PathBuf>,
    },
    /// Load the libraries of the compute device and print the device
    Device {
        /// Compute device
        #[arg(long, default_value = "auto", value_parser = device)]
        kind: DeviceKind,
        /// Directory of the CUDA build of libtorch; empty: see device.libtorch
        #[arg(long, default_value = "")]
        libtorch: String,
        /// Load NCCL, too
        #[arg(long)]
        nccl: bool,
    },
    /// Embeddings of the lines of a text file
    Embed {
        /// A run, or one of its checkpoints
        model: String,
        /// Text file; `-`: standard input
        #[arg(long)]
        input: PathBuf,
        /// Parquet file
        #[arg(long)]
        output: PathBuf,
        /// Vector of a text
        #[arg(long, default_value = "mean")]
        pooling: Pooling,
        /// Hidden states to use
        #[arg(long, default_value = "last")]
        layer: HiddenLayer,
        /// Compute device
        #[arg(long, default_value = "auto", value_parser = device)]
        device: DeviceKind,
    },
    /// Pseudo-log-likelihood of the lines of a text file
    Score {
        /// A run, or one of its checkpoints
        model: String,
        /// Text file; `-`: standard input
        #[arg(long)]
        input: PathBuf,
        /// Compute device
        #[arg(long, default_value = "auto", value_parser = device)]
        device: DeviceKind,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Predict the most probable tokens at each mask of a text
    FillMask {
        /// A run, or one of its checkpoints
        model: String,
        /// Text with MASK in brackets at each token to predict
        text: String,
        /// Predictions per mask
        #[arg(long, default_value_t = 5)]
        top: usize,
        /// Compute device
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
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_FILTER));
    terminal::begin(!arguments.progress);
    // The coordinator reads the lines of a rank, which have no colours.
    let colours = std::io::stderr().is_terminal() && terminal::has_colours();
    let lines = tracing_subscriber::fmt::layer().with_writer(|| LogWriter).with_target(false);
    // Without `log_internal_errors(false)`, tracing reports its write errors on standard error. If
    // standard error is closed, tracing panics.
    let lines = lines.log_internal_errors(false);
    let lines = match std::env::var_os(LOG_FORMAT).is_some_and(|format| format == "json") {
        true => lines.json().with_filter(filter).boxed(),
        false => lines.with_ansi(colours).with_filter(filter).boxed(),
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

/// Parses steps such as `10..15`.
fn steps(text: &str) -> Result<Range<u64>, String> {
    let parse = || {
        let (start, end) = text.split_once("..")?;
        Some(start.parse().ok()?..end.parse().ok()?)
    };
    parse().ok_or_else(|| "expected a range of steps such as 10..15".to_owned())
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
        tracing::warn!("cannot start the removal of the directories of the launcher on this host: {error}");
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

/// Parses a device name.
fn device(name: &str) -> Result<DeviceKind, String> {
    DeviceKind::named(name).ok_or_else(|| format!("expected one of {}", DeviceKind::NAMES.join(", ")))
}
