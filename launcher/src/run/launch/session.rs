//! Where Open MPI keeps the files of an attempt: a folder that goes with it, whoever is killed.

use std::io;
use std::path::Path;

use tempfile::TempDir;

use super::processes;
use crate::run::decide::Placement;

/// What the folders' names begin with; the coordinator's process id follows.
const PREFIX: &str = "lambert-mpirun-";

/// A folder for an attempt, where all its workers are on this host (on others it would have to be made, too). Those of
/// coordinators that were killed are removed.
pub fn folder(placement: &Placement) -> io::Result<Option<TempDir>> {
    match placement {
        Placement::Hosts(_) | Placement::Allocation => Ok(None),
        Placement::Here => {
            let place = std::env::temp_dir();
            sweep(&place)?;
            let prefix = format!("{PREFIX}{}-", std::process::id());
            tempfile::Builder::new().prefix(&prefix).tempdir_in(place).map(Some)
        }
    }
}

/// Removes the folders of processes that are no more.
fn sweep(place: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(place)?.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok());
        if owner.is_some_and(|pid| !processes::lives(pid)) {
            // Another user's cannot be removed, and is that user's business.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_folders_of_the_dead_are_swept() {
        let place = tempfile::tempdir().unwrap();
        let make = |pid: u32| {
            let path = place.path().join(format!("{PREFIX}{pid}-abc"));
            std::fs::create_dir(&path).unwrap();
            path
        };
        // Process ids end at 2^22.
        let (living, dead, other) = (make(std::process::id()), make(1 << 30), place.path().join("lambert-x"));
        std::fs::create_dir(&other).unwrap();
        sweep(place.path()).unwrap();
        assert!(living.exists() && other.exists() && !dead.exists());
    }
}
