//! The best checkpoint that a run has recorded.

use super::Rollbacks;
use super::objects::read_manifest;
use super::select::{ListedCheckpoint, list};
use crate::error::Result;
use crate::store::Store;

/// Returns the name of the best checkpoint by held-out loss. The newest intact manifest names the best of all earlier
/// checkpoints. Reads the manifest of a checkpoint that a rollback invalidated only if no valid checkpoint has an intact
/// one.
///
/// # Errors
/// A store error. A manifest that cannot be read for now must not cause the deletion of the best checkpoint.
pub fn recorded_best(run: &Store) -> Result<Option<String>> {
    let listed = list(run)?;
    let positions: Vec<_> = listed.iter().map(|listed| listed.position).collect();
    let rollbacks = Rollbacks::of(run, &positions)?;
    let is_valid = |listed: &ListedCheckpoint| !rollbacks.invalidate(listed.position);
    let (valid, invalidated): (Vec<_>, Vec<_>) = listed.into_iter().partition(is_valid);
    for ListedCheckpoint { name, .. } in valid.into_iter().chain(invalidated) {
        match read_manifest(run, &name) {
            Ok(manifest) => return Ok(manifest.best.map(|best| best.checkpoint)),
            Err(error) if error.is_damaged() || error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}
