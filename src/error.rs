//! Errors of a worker, their exit codes and failure kinds.

use std::path::PathBuf;

use lambert_config::{ConfigError, ConfigIssue, exit};
use lambert_control as control;
use lambert_dataset::DatasetError;
pub use lambert_store::error::chain;

use crate::gpu::DeviceError;
use crate::recovery::replicas::ReplicaMismatch;
use crate::torch::{self, TorchError};

/// Error of a worker. A message does not repeat the message of its source. The program
/// prints the whole chain once, before it exits.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Invalid configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Invalid request. The message says what is wrong and what was expected.
    #[error("{0}")]
    Usage(String),
    /// A dataset cannot be read.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// Samples cannot be read.
    #[error("{}; {advice}", chain(error))]
    Unreadable {
        error: Box<DatasetError>,
        /// What to do.
        advice: &'static str,
    },
    /// The store of the run cannot be read or written.
    #[error(transparent)]
    Store(#[from] lambert_store::Error),
    /// A collective operation failed.
    #[error(transparent)]
    Collective(#[from] lambert_collective::Error),
    /// A tensor operation failed.
    #[error(transparent)]
    Torch(#[from] TorchError),
    /// A GPU cannot be used.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A GPU failed while in use.
    #[error("GPU {gpu} failed: {message}")]
    GpuLost {
        /// Index, name and PCI address.
        gpu: String,
        /// CUDA error message.
        message: String,
    },
    /// Out of memory in a step.
    #[error(
        "out of memory: cannot allocate {requested} in a step; reduce stage.{stage}.micro_batch_tokens ({tokens} now) or \
         objective.max_predictions ({predictions} now, 0: no limit), or set stage.{stage}.recompute = true ({recompute} now)"
    )]
    Memory {
        /// Size of the failed allocation.
        requested: String,
        /// Stage index.
        stage: usize,
        /// Maximum tokens per micro-batch.
        tokens: usize,
        /// True if activations are already recomputed.
        recompute: bool,
        /// Maximum masked tokens per sample; 0: no limit.
        predictions: usize,
    },
    /// A checkpoint does not match its manifest or the run.
    #[error("checkpoint {name}: {message}")]
    Checkpoint {
        /// Name of the checkpoint.
        name: String,
        /// Found and expected values.
        message: String,
    },
    /// A checkpoint could not be written or committed. Ends the attempt.
    #[error("cannot save checkpoint {name}: {message}")]
    Save {
        /// Name of the checkpoint.
        name: String,
        /// Error of the rank that failed.
        message: String,
    },
    /// The weights of the ranks differ.
    #[error("{mismatch} after step {step}: no checkpoint was saved; if a host fails again, test its memory")]
    Replicas {
        /// Step of the checkpoint.
        step: u64,
        /// Ranks that differ.
        mismatch: ReplicaMismatch,
        /// True if a majority shows that this rank is wrong.
        blamed: bool,
    },
    /// The training state has non-finite values. No attempt could load a checkpoint with these values.
    #[error(
        "{what}, after step {step}: no checkpoint was saved; if this step fails again, lower the learning rate or \
         optimizer.clip_norm"
    )]
    NotFinite {
        /// Step of the checkpoint.
        step: u64,
        /// Element, tensor and rank.
        what: String,
    },
    /// A background thread panicked.
    #[error("internal error in {thread}; please report it: {message}")]
    Panic {
        thread: &'static str,
        /// Panic message.
        message: String,
    },
    /// The checkpoints of the run could not be listed or read.
    #[error("cannot read checkpoints of {url}: {message}")]
    Resume {
        /// URL of the run.
        url: String,
        /// Error of rank 0.
        message: String,
    },
    /// The run has checkpoints, but none is usable.
    #[error(
        "no usable checkpoint in {url}; refusing to start from scratch: {problems}. Restore the missing objects, or use \
         another --run"
    )]
    NoUsableCheckpoint {
        /// URL of the run.
        url: String,
        /// Skipped checkpoints, each with the reason.
        problems: String,
    },
    /// The run has checkpoints, but none is intact.
    #[error(
        "{url} has {count} checkpoint{plural}, but none that verifies; `lambert checkpoint verify {url}` shows the damage",
        plural = if *count == 1 { "" } else { "s" }
    )]
    NoIntactCheckpoint {
        /// URL of the run.
        url: String,
        /// Number of checkpoints.
        count: usize,
    },
    /// The run has saved checkpoints, but its store has none.
    #[error(
        "no checkpoint in {url}, but {url}/{history} records one of step {step}; refusing to start from scratch. Restore \
         or mount {url}/{checkpoints}. To start at step 0, use another --run, or delete {url}/{history}",
        history = lambert_store::run::COORDINATOR,
        checkpoints = lambert_store::run::CHECKPOINTS
    )]
    CheckpointsGone {
        /// URL of the run.
        url: String,
        /// Steps of the furthest checkpoint that the run had.
        step: u64,
    },
    /// Another rank failed and reports the cause.
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
    /// A text file cannot be read.
    #[error("cannot read {}", path.display())]
    Input {
        /// The file.
        path: PathBuf,
        /// System error.
        source: std::io::Error,
    },
    /// A result file cannot be created.
    #[error("cannot create {}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// System error.
        source: std::io::Error,
    },
    /// A Parquet file cannot be written.
    #[error("cannot write {}", path.display())]
    Parquet {
        /// The file.
        path: PathBuf,
        /// Cause.
        source: parquet::errors::ParquetError,
    },
    /// A folder on this host, for files of the launcher or of MPI, cannot be used.
    #[error("cannot use folder {} for files of the launcher and MPI", path.display())]
    Directory {
        /// The folder.
        path: PathBuf,
        /// Cause.
        source: std::io::Error,
    },
    /// The operating system could not start a thread.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
    /// The sample loader ended before the end of the stage.
    #[error("the sample loader ended early, after {0} steps")]
    NoMoreSamples(u64),
}

impl Error {
    /// Creates an error for invalid configuration values that are found only by reading the datasets.
    pub fn invalid_config(origin: &str, issues: Vec<ConfigIssue>) -> Self {
        Self::Config(ConfigError::Invalid { origin: origin.to_owned(), issues })
    }

    /// CUDA message, if a GPU failed in a tensor operation, an all-reduce or a driver call.
    pub fn gpu_failure(&self) -> Option<&str> {
        use lambert_collective::Error as Sum;
        match self {
            Self::Torch(failed) => failed.lost_gpu(),
            Self::Collective(Sum::Device { text, .. }) => torch::lost_gpu(text),
            Self::Collective(Sum::Nccl { text, last, .. }) => torch::lost_gpu(last).or_else(|| torch::lost_gpu(text)),
            _ => None,
        }
    }

    /// Ranks that did not take part in a failed collective operation, if known.
    pub fn missing_ranks(&self) -> Vec<usize> {
        match self {
            Self::Collective(lambert_collective::Error::Deadline { missing, .. }) => missing.clone(),
            _ => Vec::new(),
        }
    }

    /// True if cuBLAS, cuDNN or NCCL failed, which may be the first to notice that a GPU has failed. The next operation on the GPU
    /// then reports the CUDA error.
    pub fn hides_gpu_failure(&self) -> bool {
        let names = ["CUBLAS_STATUS_", "CUDNN_STATUS_"];
        match self {
            Self::Torch(failed) => names.iter().any(|name| failed.to_string().contains(name)),
            // ncclUnhandledCudaError.
            Self::Collective(lambert_collective::Error::Nccl { code, .. }) => *code == 1,
            _ => false,
        }
    }

    /// True if the reader of the standard output closed it. Results after that would be unread.
    pub fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(source) if source.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// Exit code of the program.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Config(_)
            | Self::Usage(_)
            | Self::Tokenizer(_)
            | Self::Input { .. }
            | Self::Dataset(DatasetError::NoManifest { .. }) => exit::USAGE,
            Self::Device(error) if error.is_setup_error() => exit::USAGE,
            Self::GpuLost { .. } => exit::GPU_FAILED,
            _ => exit::FAILED,
        }
    }

    /// Failure kind. Based on it, the coordinator decides about a restart.
    pub fn failure_kind(&self) -> control::FailureKind {
        use control::FailureKind as F;
        match self {
            Self::Store(error) if error.is_lease_lost() => F::LeaseLost,
            // The coordinator has read the manifest, so a mount is missing on this host.
            Self::Dataset(DatasetError::NoManifest { .. }) => F::Host,
            // The dataset cache of this host failed, because the disk is full or permission is denied.
            Self::Dataset(DatasetError::Cache { .. }) => F::Host,
            Self::Dataset(error) if is_host_error(error) => F::Host,
            Self::Dataset(DatasetError::Store { .. }) | Self::Device(DeviceError::InsufficientFreeMemory(_)) => {
                F::Transient
            }
            Self::Replicas { blamed: true, .. } | Self::GpuLost { .. } | Self::Directory { .. } => F::Host,
            // A GPU failed at start. Setup errors are excluded, because another host does not help. They need an
            // administrator.
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

/// True for I/O errors caused by this host or its connection to a file server: EIO, ESTALE and similar.
fn is_host_error(error: &(dyn std::error::Error + 'static)) -> bool {
    const HOST_ERRORS: [i32; 6] =
        [libc::EIO, libc::ESTALE, libc::ENOTCONN, libc::ETIMEDOUT, libc::EHOSTDOWN, libc::EREMOTEIO];
    // A store may be unreachable from all hosts. Only errors of a disk or a mount show that this host is the cause.
    const MOUNT_ERRORS: [i32; 2] = [libc::EIO, libc::ESTALE];
    let own = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    let reported = error.downcast_ref::<lambert_store::Cause>().and_then(lambert_store::Cause::os_error);
    let is_own = own.is_some_and(|code| HOST_ERRORS.contains(&code))
        || reported.is_some_and(|code| MOUNT_ERRORS.contains(&code));
    is_own || error.source().is_some_and(is_host_error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::DriverError;

    #[test]
    fn gpu_failure_is_recognized_in_tensor_and_collective_errors() {
        let met = "an illegal memory access was encountered";
        let event =
            lambert_collective::Error::Device { operation: "the sum of a bucket", ordinal: 1, text: met.into() };
        assert_eq!(Error::Collective(event).gpu_failure(), Some(met));
        let sum = |text: &str, last: &str| {
            let (text, last) = (text.to_owned(), last.to_owned());
            Error::Collective(lambert_collective::Error::Nccl { operation: "ncclAllReduce", code: 1, text, last })
        };
        let last = format!("Cuda failure 700 '{met}'");
        assert_eq!(sum("unhandled cuda error", &last).gpu_failure(), Some(&*last));
        let unnamed = sum("unhandled cuda error", "");
        assert!(unnamed.gpu_failure().is_none() && unnamed.hides_gpu_failure());
        assert_eq!(sum("remote process exited or there was a network error", "").gpu_failure(), None);
    }

    #[test]
    fn host_failures_are_distinguished_from_permanent_ones() {
        let io = |code: i32| {
            let source = std::io::Error::from_raw_os_error(code);
            Error::Dataset(DatasetError::Io { operation: "read", path: "shard".into(), source })
        };
        for (code, fault) in [
            (libc::EIO, control::FailureKind::Host),
            (libc::ESTALE, control::FailureKind::Host),
            (libc::ENOENT, control::FailureKind::Permanent),
        ] {
            assert_eq!(io(code).failure_kind(), fault, "{code}");
        }
        let source = std::io::Error::from_raw_os_error(libc::ENOSPC);
        let full = DatasetError::Cache { operation: "write to", folder: "/var/tmp/lambert-0".into(), source };
        assert_eq!(Error::Dataset(full).failure_kind(), control::FailureKind::Host);
        let missing = Error::Dataset(DatasetError::NoManifest { url: "/data".into() });
        assert_eq!(missing.failure_kind(), control::FailureKind::Host);
        let occupied = Error::Device(DeviceError::InsufficientFreeMemory("short".into()));
        assert_eq!((occupied.failure_kind(), occupied.exit_code()), (control::FailureKind::Transient, exit::FAILED));
        let failed = DriverError::Call { call: "cuInit", code: 802, message: "CUDA_ERROR_SYSTEM_NOT_READY".into() };
        let failed = Error::Device(DeviceError::Driver(failed));
        assert_eq!((failed.failure_kind(), failed.exit_code()), (control::FailureKind::Host, exit::FAILED));
        assert_eq!(Error::Usage("wrong".into()).failure_kind(), control::FailureKind::Usage);
        let lost = lambert_store::Error::LeaseLost { url: "/run".into(), attempt: 1, newest: 2 };
        assert_eq!(Error::Store(lost).failure_kind(), control::FailureKind::LeaseLost);
    }
}
