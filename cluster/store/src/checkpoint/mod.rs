//! Checkpoints of a run: sets of objects under `checkpoints/step-000012000-a0003/`.
//!
//! A checkpoint exists if and only if its manifest exists and every object has the size and checksum that the
//! manifest says. Ranks put their objects, rank 0 commits the manifest last; `newest_verified` finds what to
//! resume from, `prune` removes what is no longer wanted.

mod copy;
mod manifest;
mod prune;
mod rollback;
mod select;
mod tensors;
mod writer;

pub use crate::run::Place;
pub use copy::copy;
pub use manifest::{Best, FORMAT, Manifest, ObjectEntry, Slice};
pub use prune::{Pruned, Retention, prune, retain, retain_under};
pub use rollback::{RollbackPoint, RollbackRecord};
pub use select::{
    Listed, PassedOver, Selection, Sink, Verified, is_committed, list, newest_fitting, newest_verified, read_manifest,
    read_object, stream_object, verify,
};
pub use writer::{PendingObject, Writer};
