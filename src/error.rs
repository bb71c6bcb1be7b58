//! Everything that can go wrong in a worker, and what the program exits with.

use lambert_config::{ConfigError, Fault, exit};
use lambert_control as control;
use lambert_dataset::DatasetError;
pub use lambert_store::error::chain;

use crate::gpu::DeviceError;
use crate::recovery::replicas::Apart;
use crate::torch::{self, TorchError};

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
    /// A card cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A card has failed while it was used.
    #[error("card {card} is lost to this process: {said}")]
    Card {
        /// Its number, name and place on the bus.
        card: String,
        /// What CUDA says.
        said: String,
    },
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
    /// The ranks do not have the same weights.
    #[error("{apart} after step {step}: no checkpoint was saved")]
    Replicas {
        /// The step whose checkpoint was to be saved.
        step: u64,
        /// Which ranks.
        apart: Apart,
        /// Whether it is known that this rank is wrong.
        blamed: bool,
    },
    /// The training state has numbers that are not finite, and no start would load such a checkpoint.
    #[error("{what}, after step {step}: no checkpoint was saved")]
    NotFinite {
        /// The step whose checkpoint was to be saved.
        step: u64,
        /// Which element of which tensor, and on which rank.
        what: String,
    },
    /// A thread of lambert's own ended by a mistake in it.
    #[error("a mistake in lambert itself, in {thread}: {message}")]
    Panic {
        /// What the thread does.
        thread: &'static str,
        /// What it said.
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
    /// The run has checkpoints, and none that can be gone on from.
    #[error(
        "no checkpoint of {url} is sound, and it is not begun anew over them: {found}. Bring back what is missing, or give \
         another --run"
    )]
    NoneSound {
        /// The run.
        url: String,
        /// Each with what is wrong with it.
        found: String,
    },
    /// Another rank cannot go on, and says why itself.
    #[error("{0}")]
    Peer(&'static str),
    /// A vocabulary cannot be used.
    #[error(transparent)]
    Tokenizer(#[from] lambert_dataset::tokenizer::TokenizerError),
    /// A record or message cannot be written as JSON.
    #[error("cannot write JSON")]
    Json(#[source] serde_json::Error),
    /// Results cannot be printed.
    #[error("cannot write to standard output")]
    Output(#[source] std::io::Error),
    /// A directory on this host for what the launcher or MPI keeps there is not this user's.
    #[error("cannot use {}, where the launcher and MPI keep files of this attempt", path.display())]
    Directory {
        /// The directory.
        path: std::path::PathBuf,
        /// Why not.
        source: std::io::Error,
    },
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

    /// What CUDA says of a card that is lost to this process, whether a tensor operation, a sum over ranks or the driver met it.
    pub fn lost_gpu(&self) -> Option<&str> {
        use lambert_collective::Error as Sum;
        match self {
            Self::Torch(failed) => failed.lost_gpu(),
            Self::Collective(Sum::Device { text, .. }) => torch::lost_gpu(text),
            Self::Collective(Sum::Nccl { text, last, .. }) => torch::lost_gpu(last).or_else(|| torch::lost_gpu(text)),
            _ => None,
        }
    }

    /// What the program exits with.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Config(_) | Self::Usage(_) | Self::Tokenizer(_) | Self::Dataset(DatasetError::NoManifest { .. }) => {
                exit::USAGE
            }
            Self::Device(error) if error.is_setup_error() => exit::USAGE,
            Self::Card { .. } => exit::CARD,
            _ => exit::FAILED,
        }
    }

    /// What a new attempt may hope for.
    pub fn fault(&self) -> control::FailureKind {
        use control::FailureKind as F;
        match self {
            Self::Store(error) if error.is_lease_lost() => F::LeaseLost,
            // The coordinator has seen it: what is missing is a mount of this host.
            Self::Dataset(DatasetError::NoManifest { .. }) => F::Host,
            // The folder of this host's copies: its disk is full, or nobody may write there.
            Self::Dataset(DatasetError::Cache { .. }) => F::Host,
            Self::Dataset(error) if is_of_host(error) => F::Host,
            Self::Dataset(DatasetError::Store { .. }) | Self::Device(DeviceError::InsufficientFreeMemory(_)) => {
                F::Transient
            }
            Self::Replicas { blamed: true, .. } | Self::Card { .. } | Self::Directory { .. } => F::Host,
            // A card that fails at a rank's start; what a machine lacks is for people to bring.
            Self::Device(error) if !error.is_setup_error() => F::Host,
            Self::Store(_) | Self::Resume { .. } | Self::Collective(_) | Self::Torch(_) | Self::Thread(_) => {
                F::Transient
            }
            Self::Save { .. } => F::RetryLater,
            Self::Peer(_) | Self::Replicas { .. } | Self::NotFinite { .. } => F::Transient,
            _ if self.exit_code() == exit::USAGE => F::Usage,
            _ => F::Permanent,
        }
    }
}

/// Whether a file could not be read for a reason that lies in this host, or on its way to a file server: EIO, ESTALE and
/// their like.
fn is_of_host(error: &(dyn std::error::Error + 'static)) -> bool {
    const OF_HOST: [i32; 6] =
        [libc::EIO, libc::ESTALE, libc::ENOTCONN, libc::ETIMEDOUT, libc::EHOSTDOWN, libc::EREMOTEIO];
    // A store may be away for all hosts; what only a disk or a mount says is of this one.
    const OF_MOUNT: [i32; 2] = [libc::EIO, libc::ESTALE];
    let own = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    let told = error.downcast_ref::<lambert_store::Cause>().and_then(lambert_store::Cause::os_error);
    let is_own = own.is_some_and(|code| OF_HOST.contains(&code)) || told.is_some_and(|code| OF_MOUNT.contains(&code));
    is_own || error.source().is_some_and(is_of_host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::DriverError;

    #[test]
    fn a_card_that_is_lost_is_seen_by_whoever_meets_it_first() {
        let met = "an illegal memory access was encountered";
        let event =
            lambert_collective::Error::Device { operation: "the sum of a bucket", ordinal: 1, text: met.into() };
        assert_eq!(Error::Collective(event).lost_gpu(), Some(met));
        let sum = |text: &str, last: &str| {
            let (text, last) = (text.to_owned(), last.to_owned());
            Error::Collective(lambert_collective::Error::Nccl { operation: "ncclAllReduce", code: 1, text, last })
        };
        let last = format!("Cuda failure 700 '{met}'");
        assert_eq!(sum("unhandled cuda error", &last).lost_gpu(), Some(&*last));
        assert_eq!(sum("remote process exited or there was a network error", "").lost_gpu(), None);
    }

    #[test]
    fn what_may_pass_on_another_host_is_told_from_what_lasts() {
        let io = |code: i32| {
            let source = std::io::Error::from_raw_os_error(code);
            Error::Dataset(DatasetError::Io { operation: "read", path: "shard".into(), source })
        };
        for (code, fault) in [
            (libc::EIO, control::FailureKind::Host),
            (libc::ESTALE, control::FailureKind::Host),
            (libc::ENOENT, control::FailureKind::Permanent),
        ] {
            assert_eq!(io(code).fault(), fault, "{code}");
        }
        let source = std::io::Error::from_raw_os_error(libc::ENOSPC);
        let full = DatasetError::Cache { operation: "write to", folder: "/var/tmp/lambert-0".into(), source };
        assert_eq!(Error::Dataset(full).fault(), control::FailureKind::Host);
        let missing = Error::Dataset(DatasetError::NoManifest { url: "/data".into() });
        assert_eq!(missing.fault(), control::FailureKind::Host);
        let occupied = Error::Device(DeviceError::InsufficientFreeMemory("short".into()));
        assert_eq!((occupied.fault(), occupied.exit_code()), (control::FailureKind::Transient, exit::FAILED));
        let failed = DriverError::Call { call: "cuInit", code: 802, message: "CUDA_ERROR_SYSTEM_NOT_READY".into() };
        let failed = Error::Device(DeviceError::Driver(failed));
        assert_eq!((failed.fault(), failed.exit_code()), (control::FailureKind::Host, exit::FAILED));
        assert_eq!(Error::Usage("wrong".into()).fault(), control::FailureKind::Usage);
        let lost = lambert_store::Error::LeaseLost { url: "/run".into(), attempt: 1, newest: 2 };
        assert_eq!(Error::Store(lost).fault(), control::FailureKind::LeaseLost);
    }
}
