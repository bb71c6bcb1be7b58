//! Object stores behind blocking calls, and what a run keeps in them.
//!
//! A [`Store`] is a folder or a bucket prefix. On it stand two things: a [`lease`] says which attempt holds a
//! run, and a [`checkpoint`] is a set of objects that exists from the moment its manifest does.

mod aws_profile;
mod batch;
/// Checkpoints: written in parts, committed manifest last, verified before use.
pub mod checkpoint;
/// [`Error`]: operation + URL + cause, free of credentials.
pub mod error;
mod folder;
/// SHA-256 as hexadecimal digits.
pub mod hash;
pub mod host;
/// Folders and files of a run on the hosts of its ranks.
pub mod host_paths;
/// Which attempt holds a run.
pub mod lease;
mod leftovers;
mod listing;
mod local_read;
/// Which names objects may have.
pub mod names;
mod open;
/// Directories of one user at paths that others can predict.
pub mod private_dir;
/// The step records of a run: of all attempts, and as its history stands.
pub mod records;
mod retry;
/// The names of a run's objects, and the URLs of its checkpoints.
pub mod run;
mod runtime;
mod store;

pub use error::{Cause, Error, Result};
pub use lease::Lease;
pub use listing::Object;
pub use open::Settings;
pub use retry::Patience;
pub use store::{Store, Upload};
