//! Copies the output of a rank to a log file on its host. The file contains log lines and the output of libraries. If
//! the rank crashes, the file is complete up to the crash. The file helps if the coordinator is unreachable or if the
//! output of the coordinator is discarded.

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

/// Number of attempts of a run for which a host keeps logs.
const KEPT_ATTEMPTS: u32 = 20;
/// Time without a write after which the logs of a run are removed from a host.
const STALE_AGE: Duration = Duration::from_secs(30 * 24 * 3600);

/// Shell script that copies standard input to the file `$0` and to standard output.
const TEE: &str = r#"trap "" TERM; exec tee --append --ignore-interrupts --output-error=warn-nopipe -- "$0""#;

/// Failure to open the log of a rank.
#[derive(Debug, thiserror::Error)]
pub enum RankLogError {
    /// The directory or file cannot be created.
    #[error("cannot write {}", path.display())]
    Write {
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// Another user owns the directory and could replace the file.
    #[error("{} belongs to user {owner}, expected this user or root", path.display())]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// Uid of its owner.
        owner: u32,
    },
    /// The copying program cannot be started.
    #[error("cannot start tee (coreutils)")]
    Tee(#[source] io::Error),
}

/// Sends standard output and standard error of this process to the log of this rank, and also to the previous standard
/// error. The log is in `folder`, which is the directory of an attempt. A separate process copies the output, so that
/// nothing is lost in a crash. The copying process exits together with this process. Also removes the logs of old
/// attempts, and of runs that ended long ago.
///
/// # Errors
/// The file cannot be written. In that case, the output is not redirected.
pub fn begin(folder: &Path, rank: usize) -> Result<(), RankLogError> {
    let file = folder.join(host_paths::rank_log(rank));
    let failed = |path: &Path| {
        let path = path.to_owned();
        |source| RankLogError::Write { path, source }
    };
    create(folder)?;
    // Open the file here, so that this function reports the error instead of tee.
    fs::File::options().create(true).append(true).open(&file).map_err(failed(&file))?;
    if let Some(folders) = LogFolders::from_attempt(folder) {
        remove_old_attempts(folders);
        remove_stale_runs(folders.all, SystemTime::now());
    }
    let system = |error: rustix::io::Errno| RankLogError::Tee(error.into());
    let (out, into) = pipe_with(PipeFlags::CLOEXEC).map_err(system)?;
    let on = rustix::io::fcntl_dupfd_cloexec(io::stderr(), 3).map_err(system)?;
    let mut tee = Command::new("sh");
    // tee continues if nothing reads the previous standard error any more. tee ignores signals that are sent to a
    // process group or to all processes. tee exits at the end of its input.
    tee.args(["-c", TEE]).arg(&file).process_group(0);
    tee.stdin(out).stdout(on).stderr(Stdio::null()).spawn().map_err(RankLogError::Tee)?;
    rustix::stdio::dup2_stdout(&into).map_err(system)?;
    rustix::stdio::dup2_stderr(&into).map_err(system)
}

/// Creates the log directories of an attempt, of its run, and of all runs.
///
/// # Errors
/// A directory cannot be created or belongs to another user.
pub fn create(folder: &Path) -> Result<(), RankLogError> {
    if let Some(LogFolders { all, run, attempt }) = LogFolders::from_attempt(folder) {
        prepare_all(all)?;
        for path in [run, attempt] {
            let failed = |source| RankLogError::Write { path: path.to_owned(), source };
            private_dir::create(path).map_err(failed)?;
        }
    }
    Ok(())
}

/// Creates the log directory of all runs. If others can write to its parent, such as /tmp, the directory must be
/// private. Elsewhere, an administrator may have created the directory for several users.
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

/// Removes the logs of attempts that are at least [`KEPT_ATTEMPTS`] attempts older than this attempt.
fn remove_old_attempts(folders: LogFolders<'_>) {
    let number = |path: &Path| host_paths::attempt_of_logs(path.file_name()?.to_str()?);
    let Some(own) = number(folders.attempt) else { return };
    let entries = fs::read_dir(folders.run).into_iter().flatten().flatten();
    for path in
        entries.map(|entry| entry.path()).filter(|path| number(path).is_some_and(|old| old + KEPT_ATTEMPTS <= own))
    {
        // Another rank of this host may remove the directory concurrently.
        let _ = fs::remove_dir_all(path);
    }
}

/// Removes the logs of runs to whose logs nothing was written for [`STALE_AGE`]. Other entries of `all` are kept.
fn remove_stale_runs(all: &Path, now: SystemTime) {
    let within = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned).unwrap_or_default();
    let is_run = |path: &Path| {
        host_paths::is_logs_of_run(&name(path))
            && path.symlink_metadata().is_ok_and(|facts| facts.is_dir())
            && within(path).all(|attempt| host_paths::attempt_of_logs(&name(&attempt)).is_some())
    };
    let is_old = |path: &Path| {
        let written = path.symlink_metadata().and_then(|facts| facts.modified());
        written.is_ok_and(|written| now.duration_since(written).is_ok_and(|ago| ago > STALE_AGE))
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
    fn logs_of_stale_runs_are_removed() {
        let all = tempfile::tempdir().unwrap();
        let folder = |name: &str| all.path().join(name);
        for name in ["run-0123abcd/attempt-000001", "mine-0123abcd/letters", "run/attempt-000001"] {
            fs::create_dir_all(folder(name)).unwrap();
            fs::write(folder(name).join("rank-00000.log"), "words").unwrap();
        }
        let left = || ["run-0123abcd", "mine-0123abcd", "run"].map(|name| folder(name).exists());
        let now = SystemTime::now();
        remove_stale_runs(all.path(), now + STALE_AGE / 2);
        assert_eq!(left(), [true; 3], "somebody may still want to read it");
        let log = fs::File::open(folder("run-0123abcd/attempt-000001/rank-00000.log")).unwrap();
        log.set_modified(now + STALE_AGE).unwrap();
        remove_stale_runs(all.path(), now + STALE_AGE * 3 / 2);
        assert_eq!(left(), [true; 3], "a rank still writes there");
        remove_stale_runs(all.path(), now + STALE_AGE * 3);
        assert_eq!(left(), [false, true, true], "what is not ours stays");
    }

    /// The permissions of the parent decide which owner and permissions the directory must have.
    #[test]
    fn folders_of_other_users_are_rejected() {
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
        // The folder is owned by root and world-writable, so others may have created directories in it.
        let roots = place.path().join("open");
        fs::create_dir(&roots).unwrap();
        mode(&roots, 0o777);
        let error = crate::error::chain(&begin(&roots.join("run-1/attempt-000001"), 0).unwrap_err());
        assert!(error.contains("other users may write to it (mode 0777)"), "{error}");
    }

    /// Creates the directory `path` as the user nobody. For this, makes `parent` world-writable for a moment.
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
        remove_old_attempts(LogFolders::from_attempt(&folder(25)).unwrap());
        let left: Vec<u32> = [1, 5, 6, 24].into_iter().filter(|number| folder(*number).exists()).collect();
        assert_eq!(left, [6, 24]);
        assert!(other.exists());
    }
}
