//! Blocking object-store client, and the objects of a training run: lease, checkpoints, step records.
//!
//! A [`Store`] is a local directory or a bucket prefix. A [`lease`] names the attempt that may write to a run. A
//! [`checkpoint`] is a set of objects. The checkpoint exists if and only if its manifest exists.

mod aws_profile;
mod batch;
/// Checkpoints. All ranks write objects, rank 0 writes the manifest last, and objects are verified before use.
pub mod checkpoint;
/// [`Error`]: operation, URL and cause, without credentials.
pub mod error;
mod folder;
/// SHA-256 and XXH3.
pub mod hash;
pub mod host;
/// Per-host directories and files of a run.
pub mod host_paths;
/// Lease: the attempt that may write to a run.
pub mod lease;
mod listing;
mod local_listing;
mod local_read;
/// Validation of object names.
pub mod names;
mod object;
mod open;
/// Files that a command writes for the user.
pub mod output_file;
/// Directories with mode 0700 at predictable paths.
pub mod private_dir;
/// Step records of a run, per attempt and as the effective history.
pub mod records;
mod retry;
/// Object names of a run and checkpoint URLs.
pub mod run;
mod runtime;
mod shown;
mod slots;
mod store;
mod temp_files;
mod vocabulary;

pub use error::{Cause, Error, Result};
pub use lease::Lease;
pub use object::Object;
pub use open::StoreSettings;
pub use retry::RetryPolicy;
pub use shown::shown;
pub use store::{Store, TransferObserver, Upload};
pub use vocabulary::StoredVocabulary;
