//! Checkpoints of a run: sets of objects below `checkpoints/step-000012000-a0003/`.
//!
//! A checkpoint exists if and only if its manifest exists. It is intact if every object has the size and checksum in
//! the manifest. All ranks write objects; rank 0 commits the manifest last. `newest_verified` selects the checkpoint
//! to resume from; `prune` removes old ones.

mod copy;
mod manifest;
mod prune;
mod rollback;
mod select;
mod tensors;
mod writer;

pub use crate::run::AttemptStep;
pub use copy::copy;
pub use manifest::{Best, FORMAT, Manifest, ObjectEntry, Slice};
pub use prune::{Pruned, Retention, prune, retain, retain_under};
pub use rollback::{RollbackPoint, RollbackRecord};
pub use select::{
    CheckpointSelection, ListedCheckpoint, ObjectSink, SkippedCheckpoint, VerifiedCheckpoint, is_committed, list,
    newest_fitting, newest_verified, read_manifest, read_object, stream_object, verify,
};
pub use writer::{CheckpointWriter, PendingObject};
