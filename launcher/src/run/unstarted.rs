//! Distinguishes a folder with a configuration, as `lambert init` creates it, from a run.

use std::path::{Path, PathBuf};

use lambert_config::{Layers, RunConfig};
use lambert_store::run::CONFIG;
use lambert_store::{Lease, Store, run as names};

use crate::failure::Failure;
use crate::stored_config;

/// The folder of a configuration is not a run.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} holds a configuration, not a run; use --config {} and another --run, for example --run {}",
    folder.display(), folder.join(CONFIG).display(), folder.join("run").display()
)]
struct ConfigurationOnly {
    folder: PathBuf,
}

/// Rejects a folder whose configuration `text` a user wrote and no start of a run has stored. Such a folder has no lease
/// and no checkpoint. The text also differs from what a start writes, so that a start which was interrupted before its
/// lease can be repeated.
///
/// # Errors
/// Also if the store cannot be listed.
pub fn reject_configuration(store: &Store, text: &str) -> Result<(), Failure> {
    let file = store.local_path(CONFIG).map_err(Failure::failed)?;
    let Some(folder) = file.as_deref().and_then(Path::parent) else { return Ok(()) };
    if is_written_by_start(text) || started_by(store)?.is_some() {
        return Ok(());
    }
    Err(Failure::usage(ConfigurationOnly { folder: folder.to_owned() }))
}

/// True if `text` is a configuration as a start writes it. Also true if it is invalid: that is reported elsewhere.
fn is_written_by_start(text: &str) -> bool {
    let parsed = Layers::from_sets(&[]).parse::<RunConfig>(text, CONFIG).ok();
    let written = parsed.and_then(|config| config.to_toml().ok());
    written.is_none_or(|written| written == text)
}

/// Returns the name of an object that only a run has: its newest lease, or the prefix of its checkpoints.
///
/// # Errors
/// The store cannot be listed.
pub fn started_by(store: &Store) -> Result<Option<String>, Failure> {
    let lease = Lease::newest(store).map_err(Failure::failed)?.map(names::lease);
    Ok(lease.or_else(|| stored_config::has_checkpoints(store).then(|| names::CHECKPOINTS.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITTEN: &str =
        "# A comment.\n[[stage]]\nname = 'a'\ndata = 'data/128/train'\nsteps = 3\nlearning_rate = 1e-3\n";

    #[test]
    fn a_written_configuration_is_no_run_until_a_start_takes_a_lease() {
        let folder = tempfile::tempdir().unwrap();
        let url = folder.path().to_str().unwrap();
        let store = Store::open(url).unwrap();
        let refused = |text: &str| reject_configuration(&store, text).err().map(|failure| failure.to_string());
        let message = refused(WRITTEN).unwrap();
        assert!(
            message.contains(&format!("holds a configuration, not a run; use --config {url}/run.toml")),
            "{message}"
        );
        // A start that was killed before it had a lease, and an invalid file.
        let config: RunConfig = Layers::from_sets(&[]).parse(WRITTEN, "test").unwrap();
        assert_eq!(refused(&config.to_toml().unwrap()), None);
        assert_eq!(refused("[other]"), None);
        // Stopped before its first checkpoint, with a configuration that an earlier version stored.
        Lease::take(&store).unwrap();
        assert_eq!((refused(WRITTEN), started_by(&store).unwrap().as_deref()), (None, Some("lease-000001")));
    }
}
