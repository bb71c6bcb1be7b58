//! The command line as it is typed: everything a user can touch, declared once. Nothing here is checked beyond its form.

#![allow(rustdoc::broken_intra_doc_links, reason = "these comments are the help texts too, where [MASK] is no link")]

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use lambert_config::run::DeviceKind;

/// Pre-trains BERT-family encoders: text to dataset, dataset to model, on one machine or many.
#[derive(Debug, Parser)]
#[command(name = "lambert", version, max_term_width = 110, after_help = EXIT_CODES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How log lines on standard error look.
    #[arg(long, global = true, value_enum, default_value_t)]
    pub log: LogFormat,
}

/// Memory of a preparation unless it is told otherwise.
const PREP_MEMORY: &str = "2G";

const EXIT_CODES: &str = "Exit codes: 0 done; 1 failed; 2 the command or the configuration is wrong; \
65 diverged and given up; 70 failed, and the same command would fail again; \
75 stopped with a checkpoint, the same command goes on from it; 76 the same, by a person (`lambert stop`, Ctrl-C, scancel); 77 another `lambert run` has taken the run over.";

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Turn text into a dataset: shuffled Parquet shards of token ids with a manifest
    Prep(Prep),
    /// Train a WordPiece vocabulary
    Vocab(Vocab),
    /// Write a synthetic corpus, drawn from a small grammar in which words far apart agree
    Generate(Generate),
    /// Show a dataset: its manifest, decoded samples, whether it is whole
    Inspect(Inspect),
    /// Start a run, or go on with the one that is there
    Run(Run),
    /// Queue a run, or with --prep a preparation, with Slurm, as [slurm] of its configuration says; prints the job's number
    Submit(Submit),
    /// Make runs that differ in some keys, side by side, and compare their held-out losses
    Tune(Tune),
    /// Show where a run is
    Status(Status),
    /// Ask a run to save a checkpoint and stop
    Stop(Stop),
    /// Look after a run's checkpoints
    Checkpoint(Checkpoint),
    /// Measure loss and accuracy of a model on a held-out dataset
    Eval(Eval),
    /// Let a model guess the pieces at [MASK]
    FillMask(FillMask),
    /// Write a model as a folder that Hugging Face transformers loads
    Export(Export),
}

/// Arguments of `lambert prep`.
#[derive(Debug, Args)]
pub struct Prep {
    /// The preparation, as TOML
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Change a value of the configuration: samples.seed=7, source.0.path=books
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Threads that tokenize; as many as there are processors if absent
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Memory for all threads together, as 512M or 4G; changes nothing of the result
    #[arg(long, value_name = "BYTES", default_value = PREP_MEMORY, value_parser = bytes)]
    pub memory: u64,
    /// Do only part I (from 0) of N; the same command without this joins all parts
    #[arg(long, value_name = "I/N", value_parser = part)]
    pub part: Option<(usize, usize)>,
    /// Print the manifests of the finished datasets as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lambert vocab`.
#[derive(Debug, Args)]
pub struct Vocab {
    /// Text: files, folders, globs or URLs
    #[arg(long, required = true, num_args = 1.., value_name = "URL")]
    pub input: Vec<String>,
    /// Pieces of the vocabulary, the special ones included
    #[arg(long, default_value_t = 30522, value_name = "N")]
    pub size: usize,
    /// Where the vocabulary goes: a piece a line
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Keep upper case and accents
    #[arg(long)]
    pub cased: bool,
    /// Pieces must occur this often
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub min_frequency: u64,
}

/// Arguments of `lambert generate`.
#[derive(Debug, Args)]
pub struct Generate {
    /// Documents to write
    #[arg(long, value_name = "N")]
    pub documents: u64,
    /// Seed: the same seed gives the same text
    #[arg(long, default_value_t = 1, value_name = "S")]
    pub seed: u64,
    /// The text file: a sentence a line, a blank line between documents
    #[arg(long, value_name = "FILE")]
    pub output: PathBuf,
    /// Print the figures as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lambert inspect`.
#[derive(Debug, Args)]
pub struct Inspect {
    /// The dataset's folder or URL
    pub dataset: String,
    /// Decode and show this many samples
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub samples: usize,
    /// Read every shard and compare its checksum
    #[arg(long)]
    pub verify: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lambert run`.
#[derive(Debug, Args)]
pub struct Run {
    /// The run, as TOML; may be left out where the run exists already
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Where the run lives: a folder or an object-store URL
    #[arg(long, value_name = "URL")]
    pub run: String,
    /// Worker processes: the same as --set cluster.ranks=N
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Change a value of the configuration: stage.0.steps=100
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Start a new run with the weights of another's checkpoint, RUN/checkpoints/step-...
    #[arg(long, value_name = "CHECKPOINT")]
    pub from: Option<String>,
    /// Take its optimizer's moments and count of updates, too
    #[arg(long, requires = "from")]
    pub with_optimizer: bool,
    /// Let this key, or the section of this name, differ from what the run was started with: it trains something else
    /// from here on
    #[arg(long = "allow-change", value_name = "KEY")]
    pub allow_change: Vec<String>,
    /// Print each step's record, and what else happens, on standard output, a JSON object a line
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lambert submit`.
#[derive(Debug, Args)]
pub struct Submit {
    /// The run, or with --prep the preparation, as TOML; may be left out where the run exists already
    #[arg(long, value_name = "FILE", required_if_eq("prep", "true"))]
    pub config: Option<PathBuf>,
    /// Where the run lives: a folder or an object-store URL
    #[arg(long, value_name = "URL", required_unless_present = "prep", conflicts_with = "prep")]
    pub run: Option<String>,
    /// Worker processes: the same as --set cluster.ranks=N
    #[arg(long, value_name = "N", conflicts_with = "prep")]
    pub ranks: Option<usize>,
    /// Change a value of the configuration: stage.0.steps=100
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Start a new run with the weights of another's checkpoint, RUN/checkpoints/step-...
    #[arg(long, value_name = "CHECKPOINT", conflicts_with = "prep")]
    pub from: Option<String>,
    /// Take its optimizer's moments and count of updates, too
    #[arg(long, requires = "from")]
    pub with_optimizer: bool,
    /// Let this key, or the section of this name, differ from what the run was started with
    #[arg(long = "allow-change", value_name = "KEY", conflicts_with = "prep")]
    pub allow_change: Vec<String>,
    /// Queue a preparation: an array of tasks that do a part each, and a job that joins the parts
    #[arg(long)]
    pub prep: bool,
    /// With --prep: parts that the preparation is divided into
    #[arg(long, value_name = "N", requires = "prep", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub parts: u16,
    /// With --prep: only these parts (from 0), as 1,3: those that have failed
    #[arg(long, value_name = "LIST", requires = "prep", value_delimiter = ',')]
    pub tasks: Vec<usize>,
    /// With --prep: threads of a task
    #[arg(long, value_name = "N", requires = "prep", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: u16,
    /// With --prep: memory of a task for all threads together, as 512M or 4G
    #[arg(long, value_name = "BYTES", requires = "prep", default_value = PREP_MEMORY, value_parser = bytes)]
    pub memory: u64,
    /// Show what would be queued, and queue nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Print the numbers of the jobs as JSON
    #[arg(long)]
    pub json: bool,
}

impl Submit {
    /// The same for `lambert run`, at `run`.
    pub fn to_run(&self, run: &str) -> Run {
        Run {
            config: self.config.clone(),
            run: run.to_owned(),
            ranks: self.ranks,
            sets: self.sets.clone(),
            from: self.from.clone(),
            with_optimizer: self.with_optimizer,
            allow_change: self.allow_change.clone(),
            json: false,
        }
    }
}

/// Arguments of `lambert tune`.
#[derive(Debug, Args)]
pub struct Tune {
    /// What all runs have in common, as TOML; evaluation.data names the held-out dataset
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// A folder or an object-store URL for the runs, and for tune.csv, tune.svg and best.toml beside them
    #[arg(long, value_name = "URL")]
    pub runs: String,
    /// A key and its values: stage.0.learning_rate=1e-3,2e-3; given several times, all combinations are made
    #[arg(long, value_name = "KEY=VALUE,VALUE")]
    pub grid: Vec<String>,
    /// One more run: "stage.0.learning_rate=5e-3 optimizer.kind=adamw"
    #[arg(long, value_name = "SETTINGS")]
    pub trial: Vec<String>,
    /// Change a value of the configuration for all runs: stage.0.steps=100
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Runs at a time; as many as processors or cards are enough for if absent
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub parallel: Option<u16>,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lambert status`.
#[derive(Debug, Args)]
pub struct Status {
    /// The run's folder or URL
    pub run: String,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lambert stop`.
#[derive(Debug, Args)]
pub struct Stop {
    /// The run's folder or URL
    pub run: String,
}

/// Arguments of `lambert checkpoint`.
#[derive(Debug, Args)]
pub struct Checkpoint {
    /// What to do with the checkpoints.
    #[command(subcommand)]
    pub action: CheckpointAction,
}

/// What to do with a run's checkpoints.
#[derive(Debug, Subcommand)]
pub enum CheckpointAction {
    /// List them, newest first
    List {
        /// The run's folder or URL
        run: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Read every object of every checkpoint and compare its checksum; exit code 1 if one is damaged
    Verify {
        /// The run's folder or URL
        run: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Delete all but the newest and those that the run's configuration keeps, and objects that belong to none; the
    /// newest good one always stays
    Prune {
        /// The run's folder or URL
        run: String,
        /// How many of the newest to keep; checkpoint.keep of the run if absent
        #[arg(long, value_name = "N")]
        keep: Option<usize>,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy a checkpoint, each object checked on the way, to another folder or bucket, which becomes a run like this one
    Copy {
        /// RUN/checkpoints/step-...
        checkpoint: String,
        /// The folder or URL that it goes to
        to: String,
    },
    /// Ask a run to save a checkpoint now and go on
    Save {
        /// The run's folder or URL
        run: String,
    },
}

/// Arguments of `lambert eval`, which are lambert-worker's.
#[derive(Debug, Args)]
pub struct Eval {
    /// A run (its newest good checkpoint), or RUN/checkpoints/step-...
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    pub model: String,
    /// The held-out dataset
    #[arg(long, value_name = "DATASET")]
    pub data: String,
    /// Samples at most; 0 for all
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub samples: u64,
    /// What computes, whatever the run was trained on
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceKind::NAMES)]
    pub device: String,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lambert fill-mask`, which are lambert-worker's.
#[derive(Debug, Args)]
pub struct FillMask {
    /// A run (its newest good checkpoint), or RUN/checkpoints/step-...
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    pub model: String,
    /// Text with one or more [MASK]
    pub text: String,
    /// Guesses at each [MASK]
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub top: usize,
    /// What computes, whatever the run was trained on
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = DeviceKind::NAMES)]
    pub device: String,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `lambert export`.
#[derive(Debug, Args)]
pub struct Export {
    /// A run (its newest good checkpoint), or RUN/checkpoints/step-...
    #[arg(value_name = "RUN_OR_CHECKPOINT")]
    pub model: String,
    /// The folder to write; must not hold anything yet
    #[arg(long, value_name = "DIR")]
    pub output: PathBuf,
}

/// Bytes, written as a number with K, M, G or T (of 1024) behind it.
fn bytes(text: &str) -> Result<u64, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let shift = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "K" | "k" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err("expected bytes as 512M or 4G".to_owned()),
    };
    let number = number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    number.ok_or_else(|| "expected bytes as 512M or 4G".to_owned())
}

/// A part and the number of parts, written `I/N`.
fn part(text: &str) -> Result<(usize, usize), String> {
    let numbers = text.split_once('/').and_then(|(part, parts)| Some((part.parse().ok()?, parts.parse().ok()?)));
    numbers.filter(|(part, parts)| part < parts).ok_or_else(|| "expected I/N with I from 0 to N - 1".to_owned())
}

impl Eval {
    /// The same for lambert-worker.
    pub fn to_worker(&self) -> Vec<String> {
        let mut line = vec!["eval".to_owned(), "--data".to_owned(), self.data.clone()];
        line.extend(["--samples".to_owned(), self.samples.to_string(), "--device".to_owned(), self.device.clone()]);
        line.extend(self.json.then(|| "--json".to_owned()));
        line.extend(["--".to_owned(), self.model.clone()]);
        line
    }
}

impl FillMask {
    /// The same for lambert-worker.
    pub fn to_worker(&self) -> Vec<String> {
        let mut line = vec!["fill-mask".to_owned(), "--top".to_owned(), self.top.to_string()];
        line.extend(["--device".to_owned(), self.device.clone()]);
        line.extend(self.json.then(|| "--json".to_owned()));
        line.extend(["--".to_owned(), self.model.clone(), self.text.clone()]);
        line
    }
}
