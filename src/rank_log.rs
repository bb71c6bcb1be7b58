//! What a rank prints goes to a file on its host, too: the lines of the log, and what libraries print, to the last word of
//! one that crashes. The coordinator may be cut off, or have an output that nobody keeps.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::geteuid;

/// Attempts of a run whose files are kept on a host.
const KEPT: u32 = 20;
/// What folders of attempts are named; the number follows.
const ATTEMPT: &str = "attempt-";

/// Why there is no such file.
#[derive(Debug, thiserror::Error)]
pub enum RankLogError {
    /// The folder or the file cannot be made.
    #[error("cannot write {}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Somebody else could put another file in its place.
    #[error("{} belongs to another user", path.display())]
    NotOurs {
        /// The folder.
        path: PathBuf,
    },
    /// There is no program that copies.
    #[error("cannot start tee (coreutils)")]
    Tee(#[source] io::Error),
}

/// From here on standard output and standard error go to `rank-NNNNN.log` in `folder`, the folder of an attempt in the run's
/// own, and on to where standard error went. A process of its own copies them, so that nothing is lost when this one
/// crashes; it ends with this one. Old attempts' folders are removed.
///
/// # Errors
/// The file cannot be written; everything goes where it went.
pub fn begin(folder: &Path, rank: usize) -> Result<(), RankLogError> {
    let file = folder.join(format!("rank-{rank:05}.log"));
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| RankLogError::Write { path, source }
    };
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed(folder))?;
    // The attempt's, the run's, and the one of all runs.
    for folder in folder.ancestors().take(3) {
        let owner = fs::symlink_metadata(folder).map_err(failed(folder))?.uid();
        if owner != geteuid().as_raw() && owner != 0 {
            return Err(RankLogError::NotOurs { path: folder.to_owned() });
        }
    }
    // Told here rather than by tee.
    fs::File::options().create(true).append(true).open(&file).map_err(failed(&file))?;
    forget_old(folder);
    let system = |error: rustix::io::Errno| RankLogError::Tee(error.into());
    let (out, into) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
    let on = rustix::io::fcntl_dupfd_cloexec(io::stderr(), 3).map_err(system)?;
    let mut tee = Command::new("tee");
    // It goes on if nobody reads any more, and is in no group that a signal ends: the end of the pipe ends it.
    tee.args(["--append", "--ignore-interrupts", "--output-error=warn-nopipe"]).arg(&file).process_group(0);
    tee.stdin(out).stdout(on).stderr(Stdio::null()).spawn().map_err(RankLogError::Tee)?;
    rustix::stdio::dup2_stdout(&into).map_err(system)?;
    rustix::stdio::dup2_stderr(&into).map_err(system)
}

/// Removes the folders of attempts long before the one of `folder`.
fn forget_old(folder: &Path) {
    let number = |path: &Path| path.file_name()?.to_str()?.strip_prefix(ATTEMPT)?.parse::<u32>().ok();
    let (Some(own), Some(run)) = (number(folder), folder.parent()) else { return };
    let entries = fs::read_dir(run).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()).filter(|path| number(path).is_some_and(|old| old + KEPT <= own)) {
        // Another rank of this host may be at it, too.
        let _ = fs::remove_dir_all(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_attempts_are_kept() {
        let run = tempfile::tempdir().unwrap();
        let folder = |number: u32| run.path().join(format!("{ATTEMPT}{number:06}"));
        for number in [1, 5, 6, 24] {
            fs::create_dir(folder(number)).unwrap();
        }
        fs::create_dir(run.path().join("other")).unwrap();
        forget_old(&folder(25));
        let left: Vec<u32> = [1, 5, 6, 24].into_iter().filter(|number| folder(*number).exists()).collect();
        assert_eq!(left, [6, 24]);
        assert!(run.path().join("other").exists());
    }
}
