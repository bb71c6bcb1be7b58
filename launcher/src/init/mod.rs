//! `lambert init`: a preparation file and a run file for the situation of a user.
//!
//! The values come from the shipped configurations, the comments from the JSON schemas of the configuration.
//!
//! - `corpus`: text sources; `layout`: ranks and threads
//! - `prep_file`, `run_file`: the two files; `document`: editing and rendering; `schema`: comments
//! - `steps`: next commands

mod corpus;
mod document;
mod layout;
mod prep_file;
mod run_file;
mod schema;
mod steps;

use lambert_config::{ConfigError, Layers, PrepConfig, RunConfig};
use lambert_data_prep::source::SourceError;

use crate::cli::{self, InitTarget, Size, SourceKind};
use document::Document;
use layout::Layout;
use schema::Schema;

/// Name of the preparation file.
pub const PREP: &str = "prep.toml";
/// Name of the run file; a run keeps its configuration under the same name.
pub const RUN: &str = lambert_store::run::CONFIG;

/// Files of a first run.
#[derive(Debug)]
pub struct Files {
    /// Name and content of each file. The configurations come first, then their schemas.
    pub files: Vec<(&'static str, String)>,
    /// Next commands, in order.
    pub steps: Vec<String>,
}

/// The options do not fit together, or an input is missing.
#[derive(Debug, thiserror::Error)]
pub enum InitError {
    /// An option needs another option.
    #[error("{option} needs {needs}")]
    Unused {
        /// Option that has no effect.
        option: &'static str,
        /// Option with which it has an effect.
        needs: &'static str,
    },
    /// A path has no files.
    #[error("{option} {path}: {reason}")]
    NoFiles {
        /// Option.
        option: &'static str,
        /// Path, glob or URL.
        path: String,
        /// Reason.
        reason: String,
    },
    /// An input cannot be read.
    #[error("{option}")]
    Input {
        /// Option.
        option: &'static str,
        /// Error with the path.
        source: Box<SourceError>,
    },
    /// A step has fewer samples than the run has ranks.
    #[error("{ranks} ranks, but only {batch} samples per step: use fewer nodes or GPUs, or a larger --size")]
    TooManyRanks {
        /// Number of ranks.
        ranks: usize,
        /// Smallest global batch of the run, samples.
        batch: usize,
    },
    /// The options give an invalid configuration.
    #[error("the options give an invalid configuration")]
    Config(#[from] ConfigError),
}

/// Builds the files. Nothing is written.
///
/// # Errors
/// An input does not exist, or the options do not fit together.
pub fn build(arguments: &cli::Init) -> Result<Files, InitError> {
    check_options(arguments)?;
    let sources = corpus::sources(arguments, &mut prep_file::shipped(Size::Base))?;
    let layout = Layout::new(arguments);
    let mut run = run_file::build(arguments, &layout);
    let shortest = run.lengths.first().copied().unwrap_or(128);
    let mut prep = prep_file::build(arguments.size, &sources, shortest, &layout);
    prep.title = vec!["Preparation of the training data, for `lambert prep`. Written by `lambert init`.".to_owned()];
    if let [_, longer] = run.lengths[..] {
        let folder = run_file::dataset(longer);
        prep.title.push(format!("The dataset of {longer} tokens needs the same file with two other values:"));
        prep.title.push(format!("--set samples.sequence_length={longer} --set output.url={folder}"));
    }
    run.document.title.insert(0, "Training run, for `lambert run`. Written by `lambert init`.".to_owned());
    let steps = steps::steps(arguments, &sources, &run, &layout);
    let (prep, run) = (rendered(&prep, &Schema::prep()), rendered(&run.document, &Schema::run()));
    Layers::default().parse::<PrepConfig>(&prep, PREP)?;
    let config: RunConfig = Layers::default().parse(&run, RUN)?;
    check_ranks(&config)?;
    let schemas = [Schema::prep(), Schema::run()].map(|schema| (schema.name, schema.text.to_owned()));
    Ok(Files { files: [(PREP, prep), (RUN, run)].into_iter().chain(schemas).collect(), steps })
}

fn rendered(document: &Document, schema: &Schema) -> String {
    document.render(schema.name, schema)
}

/// Refuses ranks without samples.
fn check_ranks(config: &RunConfig) -> Result<(), InitError> {
    let (ranks, batch) = (config.cluster.ranks, config.stage.iter().map(|stage| stage.global_batch).min());
    match batch {
        Some(batch) if ranks > batch => Err(InitError::TooManyRanks { ranks, batch }),
        _ => Ok(()),
    }
}

/// Refuses options without effect.
fn check_options(arguments: &cli::Init) -> Result<(), InitError> {
    let has = |kind| arguments.source.contains(&kind);
    let unused = [
        ("--input", "--source text", !arguments.input.is_empty() && !has(SourceKind::Text)),
        ("--books", "--source books", arguments.books.is_some() && !has(SourceKind::Books)),
        ("--wikipedia", "--source wikipedia", arguments.wikipedia.is_some() && !has(SourceKind::Wikipedia)),
        ("--recipe", "--size base or --size large", arguments.recipe.is_some() && arguments.size == Size::Small),
        ("--nodes", "--place slurm", arguments.nodes.is_some() && arguments.place != InitTarget::Slurm),
    ];
    match unused.into_iter().find(|(_, _, is_unused)| *is_unused) {
        Some((option, needs, _)) => Err(InitError::Unused { option, needs }),
        None => Ok(()),
    }
}
