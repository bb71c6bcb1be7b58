//! Checkpoints of a run. Each one is a set of objects below a prefix such as `checkpoints/step-000012000-a0003/`.
//!
//! A checkpoint exists if and only if its manifest exists. The checkpoint is intact if every object has the size and
//! the checksum that the manifest records. All ranks write objects. Rank 0 writes the manifest last, which commits the
//! checkpoint. `newest_verified` selects the checkpoint to resume from, and `prune` removes old checkpoints.

mod average;
mod best;
mod block_hashes;
mod copy;
mod manifest;
mod objects;
mod prune;
mod rollback;
mod select;
mod tensors;
mod writer;

pub use crate::run::AttemptStep;
pub use average::{average, newest};
pub use best::recorded_best;
pub use block_hashes::BLOCK_BYTES;
pub use copy::{copy, copy_weights, write_single};
pub use manifest::{Best, FORMAT, Manifest, ObjectEntry, Slice};
pub use objects::{
    ObjectSink, VerifiedCheckpoint, check_blocks, read_blocks, read_manifest, read_object, stream_object, verify,
    verify_weights,
};
pub use prune::{Pruned, Retention, prune, retain, retain_under};
pub use rollback::{RollbackPoint, RollbackRecord, Rollbacks};
pub use select::{
    CheckpointSelection, ListedCheckpoint, SkippedCheckpoint, is_committed, list, newest_fitting, newest_verified,
    newest_with_warnings, positions, read_unless_pruned,
};
pub use tensors::{HEADER_LENGTH_BYTES, MAX_HEADER_BYTES};
pub use writer::{CheckpointWriter, PendingObject};
