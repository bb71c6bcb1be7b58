//! Everything that can go wrong in a worker, and what the program exits with.

use lambert_config::{ConfigError, Fault, exit};
use lambert_data_prep::dataset::DatasetError;

use crate::torch::TorchError;

/// A worker's failure. Messages do not repeat their source; the chain is printed once, at the end of the program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The run's configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// What was asked for cannot be done: the text says what is wrong and what was expected.
    #[error("{0}")]
    Usage(String),
    /// A dataset cannot be read.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// The run's store cannot be read or written.
    #[error(transparent)]
    Store(#[from] lambert_store::Error),
    /// Ranks could not exchange numbers.
    #[error(transparent)]
    Collective(#[from] lambert_collective::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Torch(#[from] TorchError),
    /// A step needs more memory than there is.
    #[error(
        "out of memory: {asked} more could not be had in a step; what lowers it: a smaller stage.{stage}.micro_batch_tokens \
         ({tokens} now), stage.{stage}.recompute = true ({recompute} now), a smaller objective.max_predictions \
         ({predictions} now, 0 is no limit)"
    )]
    Memory {
        /// How much.
        asked: String,
        /// The stage's number.
        stage: usize,
        /// Tokens of a micro-batch at most.
        tokens: usize,
        /// Whether activations are computed again already.
        recompute: bool,
        /// Masked tokens of a sample at most.
        predictions: usize,
    },
    /// A checkpoint's contents are not what its manifest and the run say.
    #[error("checkpoint {name}: {message}")]
    Checkpoint {
        /// The checkpoint.
        name: String,
        /// What was found and expected.
        message: String,
    },
    /// A checkpoint could not be written or committed, and training without is of no use.
    #[error("cannot save checkpoint {name}: {message}")]
    Save {
        /// The checkpoint.
        name: String,
        /// What went wrong, on whichever rank.
        message: String,
    },
    /// The run's store could not be searched for a checkpoint.
    #[error("cannot look for checkpoints in {url}: {message}")]
    Resume {
        /// The run.
        url: String,
        /// What rank 0 met.
        message: String,
    },
    /// A record of going back cannot be read.
    #[error("{url} is not a record of a rollback")]
    Rollback {
        /// Where it lies.
        url: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Another rank cannot go on, and says why itself.
    #[error("{0}")]
    Peer(&'static str),
    /// A vocabulary cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] lambert_data_prep::tokenizer::TokenizerError),
    /// A record or message cannot be written as JSON.
    #[error("cannot write JSON")]
    Json(#[source] serde_json::Error),
    /// Results cannot be printed.
    #[error("cannot write to standard output")]
    Output(#[source] std::io::Error),
    /// The operating system gives no thread.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// The reader of samples ended before the stage did.
    #[error("the reader of samples ended early, after {0} steps")]
    NoMoreSamples(u64),
}

impl Error {
    /// Several faults of what a configuration asks for, found only with its datasets at hand.
    pub fn faults(origin: &str, faults: Vec<Fault>) -> Self {
        Self::Config(ConfigError::Faults { origin: origin.to_owned(), faults })
    }

    /// What the program exits with.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Config(_) | Self::Usage(_) | Self::Tokenizer(_) | Self::Dataset(DatasetError::NoManifest { .. }) => {
                exit::USAGE
            }
            _ => exit::FAILED,
        }
    }

    /// Whether a new attempt may succeed where this one failed.
    pub fn may_pass(&self) -> bool {
        match self {
            // Somebody else runs this run now: a new attempt would only take it back.
            Self::Store(error) => !matches!(error, lambert_store::Error::LeaseLost { .. }),
            Self::Resume { .. } | Self::Collective(_) | Self::Torch(_) | Self::Thread(_) | Self::Peer(_) => true,
            Self::Dataset(error) => matches!(error, DatasetError::Store { .. }),
            _ => false,
        }
    }
}

/// An error and all its causes, on one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
