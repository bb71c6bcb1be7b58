//! What a rank prints goes to a file on its host, too: the lines of the log, and what libraries print, to the last word of
//! one that crashes. The coordinator may be cut off, or have an output that nobody keeps.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::geteuid;

/// Attempts of a run whose files are kept on a host.
const KEPT: u32 = 20;
/// A run's files are removed from a host when nothing was written there for so long.
const FORGOTTEN: Duration = Duration::from_secs(30 * 24 * 3600);
/// What folders of attempts are named; the number follows.
const ATTEMPT: &str = "attempt-";

/// Copies to the file `$0` and on.
const TEE: &str = r#"trap "" TERM; exec tee --append --ignore-interrupts --output-error=warn-nopipe -- "$0""#;

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
/// crashes; it ends with this one. The folders of old attempts, and of runs that are long over, are removed.
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
    if let Some(all) = folder.ancestors().nth(2) {
        forget_runs(all, SystemTime::now());
    }
    let system = |error: rustix::io::Errno| RankLogError::Tee(error.into());
    let (out, into) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
    let on = rustix::io::fcntl_dupfd_cloexec(io::stderr(), 3).map_err(system)?;
    let mut tee = Command::new("sh");
    // It goes on if nobody reads any more, and no signal to a group or to all processes ends it: the end of the pipe does.
    tee.args(["-c", TEE]).arg(&file).process_group(0);
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

/// Removes the folders of runs, among whatever else is in `all`, in which nothing was written for long.
fn forget_runs(all: &Path, now: SystemTime) {
    let within = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned).unwrap_or_default();
    let is_run = |path: &Path| {
        let is_hash = |hash: &str| hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        name(path).rsplit_once('-').is_some_and(|(_, hash)| is_hash(hash))
            && path.symlink_metadata().is_ok_and(|facts| facts.is_dir())
            && within(path).all(|attempt| name(&attempt).starts_with(ATTEMPT))
    };
    let is_old = |path: &Path| {
        let written = path.symlink_metadata().and_then(|facts| facts.modified());
        written.is_ok_and(|written| now.duration_since(written).is_ok_and(|ago| ago > FORGOTTEN))
    };
    let is_over = |run: &Path| {
        is_old(run) && within(run).all(|attempt| is_old(&attempt) && within(&attempt).all(|file| is_old(&file)))
    };
    for run in within(all).filter(|path| is_run(path) && is_over(path)) {
        let _ = fs::remove_dir_all(run);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_are_long_over_are_forgotten() {
        let all = tempfile::tempdir().unwrap();
        let folder = |name: &str| all.path().join(name);
        for name in ["run-0123abcd/attempt-000001", "mine-0123abcd/letters", "run/attempt-000001"] {
            fs::create_dir_all(folder(name)).unwrap();
            fs::write(folder(name).join("rank-00000.log"), "words").unwrap();
        }
        let left = || ["run-0123abcd", "mine-0123abcd", "run"].map(|name| folder(name).exists());
        let now = SystemTime::now();
        forget_runs(all.path(), now + FORGOTTEN / 2);
        assert_eq!(left(), [true; 3], "somebody may still want to read it");
        let log = fs::File::open(folder("run-0123abcd/attempt-000001/rank-00000.log")).unwrap();
        log.set_modified(now + FORGOTTEN).unwrap();
        forget_runs(all.path(), now + FORGOTTEN * 3 / 2);
        assert_eq!(left(), [true; 3], "a rank still writes there");
        forget_runs(all.path(), now + FORGOTTEN * 3);
        assert_eq!(left(), [false, true, true], "what is not ours stays");
    }

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
