//! What a rank prints goes to a file on its host, too: the lines of the log, and what libraries print, to the last word of
//! one that crashes. The coordinator may be cut off, or have an output that nobody keeps.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use lambert_store::host_paths::{self, LogFolders};
use lambert_store::private_dir;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::geteuid;

/// Attempts of a run whose files are kept on a host.
const KEPT: u32 = 20;
/// A run's files are removed from a host when nothing was written there for so long.
const FORGOTTEN: Duration = Duration::from_secs(30 * 24 * 3600);

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
    #[error("{} belongs to user {owner}, expected this user or root", path.display())]
    NotOurs {
        /// The folder.
        path: PathBuf,
        /// The number of its user.
        owner: u32,
    },
    /// There is no program that copies.
    #[error("cannot start tee (coreutils)")]
    Tee(#[source] io::Error),
}

/// From here on standard output and standard error go to this rank's log in `folder`, the folder of an attempt in the run's
/// own, and on to where standard error went. A process of its own copies them, so that nothing is lost when this one
/// crashes; it ends with this one. The folders of old attempts, and of runs that are long over, are removed.
///
/// # Errors
/// The file cannot be written; everything goes where it went.
pub fn begin(folder: &Path, rank: usize) -> Result<(), RankLogError> {
    let file = folder.join(host_paths::rank_log(rank));
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| RankLogError::Write { path, source }
    };
    create(folder)?;
    // Told here rather than by tee.
    fs::File::options().create(true).append(true).open(&file).map_err(failed(&file))?;
    if let Some(folders) = LogFolders::around(folder) {
        forget_old(folders);
        forget_runs(folders.all, SystemTime::now());
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

/// Creates the folder of an attempt, the run's and that of all runs.
///
/// # Errors
/// One of them cannot be created, or is another user's.
pub fn create(folder: &Path) -> Result<(), RankLogError> {
    if let Some(LogFolders { all, run, attempt }) = LogFolders::around(folder) {
        prepare_all(all)?;
        for path in [run, attempt] {
            let failed = |source| RankLogError::Write { path: path.to_owned(), source };
            private_dir::create(path).map_err(failed)?;
        }
    }
    Ok(())
}

/// Creates the folder of all runs. Where anybody can create it, as in /tmp, it must be this user's alone; in another place an
/// administrator may have made it for several users.
fn prepare_all(all: &Path) -> Result<(), RankLogError> {
    let failed = |source| RankLogError::Write { path: all.to_owned(), source };
    let parent = all.parent().unwrap_or(all);
    fs::create_dir_all(parent).map_err(failed)?;
    if private_dir::is_open_to_others(parent) {
        return private_dir::create(all).map_err(failed);
    }
    fs::create_dir_all(all).map_err(failed)?;
    let owner = fs::symlink_metadata(all).map_err(failed)?.uid();
    if owner != geteuid().as_raw() && owner != 0 {
        return Err(RankLogError::NotOurs { path: all.to_owned(), owner });
    }
    Ok(())
}

/// Removes the folders of attempts long before this one.
fn forget_old(folders: LogFolders<'_>) {
    let number = |path: &Path| host_paths::attempt_of_logs(path.file_name()?.to_str()?);
    let Some(own) = number(folders.attempt) else { return };
    let entries = fs::read_dir(folders.run).into_iter().flatten().flatten();
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
        host_paths::is_logs_of_run(&name(path))
            && path.symlink_metadata().is_ok_and(|facts| facts.is_dir())
            && within(path).all(|attempt| host_paths::attempt_of_logs(&name(&attempt)).is_some())
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
    use std::os::unix::fs::PermissionsExt;

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

    /// Whoever may write to a place decides what has to be true of a folder there.
    #[test]
    fn folders_that_others_made_are_refused() {
        if !geteuid().is_root() {
            eprintln!("SKIPPED: only root can act as another user");
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let nobody = |path: &Path| {
            let made = Command::new("setpriv")
                .args(["--reuid=65534", "--regid=65534", "--clear-groups", "mkdir", "-m", "0777"])
                .arg(path)
                .status();
            assert!(made.unwrap().success());
        };
        let refused = |path: &Path| {
            let error = crate::error::chain(&begin(path, 0).unwrap_err());
            assert!(error.contains("belongs to user 65534, expected"), "{error}");
        };
        mode(place.path(), 0o1777);
        let (open, run) = (place.path().join("lambert-logs-0"), place.path().join("logs/run-1"));
        nobody(&open);
        refused(&open.join("run-1/attempt-000001"));
        assert_eq!(fs::read_dir(&open).unwrap().count(), 0, "nothing is written there");
        fs::create_dir(place.path().join("logs")).unwrap();
        nobody_in(&place.path().join("logs"), &run, &nobody);
        refused(&run.join("attempt-000001"));
        assert_eq!(fs::read_dir(&run).unwrap().count(), 0);
        // Root's, and everybody may write to it: others may have put folders there.
        let roots = place.path().join("open");
        fs::create_dir(&roots).unwrap();
        mode(&roots, 0o777);
        let error = crate::error::chain(&begin(&roots.join("run-1/attempt-000001"), 0).unwrap_err());
        assert!(error.contains("other users may write to it (mode 0777)"), "{error}");
    }

    /// Lets nobody make a folder in one that is open for a moment.
    fn nobody_in(parent: &Path, path: &Path, nobody: &dyn Fn(&Path)) {
        fs::set_permissions(parent, fs::Permissions::from_mode(0o777)).unwrap();
        nobody(path);
        fs::set_permissions(parent, fs::Permissions::from_mode(0o700)).unwrap();
    }

    #[test]
    fn the_newest_attempts_are_kept() {
        let all = tempfile::tempdir().unwrap();
        let folder = |number: u32| host_paths::attempt_logs(all.path(), "/data/run", number);
        for number in [1, 5, 6, 24] {
            fs::create_dir_all(folder(number)).unwrap();
        }
        let other = folder(25).with_file_name("other");
        fs::create_dir(&other).unwrap();
        forget_old(LogFolders::around(&folder(25)).unwrap());
        let left: Vec<u32> = [1, 5, 6, 24].into_iter().filter(|number| folder(*number).exists()).collect();
        assert_eq!(left, [6, 24]);
        assert!(other.exists());
    }
}
