//! Names of the directories and files that a run has on each host, outside its store.
//!
//! Other users can predict these paths. Therefore [`private_dir`](crate::private_dir) creates the directories.

use std::path::{Path, PathBuf};

use crate::hash::sha256;

/// Maximum length of a run name in a path, bytes. (A file name can have 255 bytes.)
const MAX_NAME_BYTES: usize = 200;
/// Number of hexadecimal digits in a directory name. They are the first digits of the SHA-256 of the run URL.
const DIGITS: usize = 8;
/// Prefix of the log directory of an attempt. The attempt number follows.
const ATTEMPT: &str = "attempt-";

/// Default log directory of all runs.
pub fn logs() -> PathBuf {
    PathBuf::from(format!("/tmp/lambert-logs-{}", user()))
}

/// Default cache directory of remote datasets. It is not below /tmp, because /tmp may be a tmpfs.
pub fn dataset_copies() -> PathBuf {
    PathBuf::from(format!("/var/tmp/lambert-{}", user()))
}

/// Log directory of an attempt of the run at `url`, for example `RUN-1a2b3c4d/attempt-000002` below `logs`. `logs` is
/// the log directory of all runs.
pub fn attempt_logs(logs: &Path, url: &str, attempt: u32) -> PathBuf {
    let name = Path::new(url.trim_end_matches('/')).file_name().and_then(|name| name.to_str()).unwrap_or("run");
    let name = &name[..name.floor_char_boundary(MAX_NAME_BYTES)];
    in_logs_of_run(&logs.join(format!("{name}-{}", digits(url))), attempt)
}

/// Log directory of an attempt below the log directory of its run.
pub fn in_logs_of_run(run: &Path, attempt: u32) -> PathBuf {
    run.join(format!("{ATTEMPT}{attempt:06}"))
}

/// Parses the attempt number from the name of an attempt log directory.
pub fn attempt_of_logs(name: &str) -> Option<u32> {
    name.strip_prefix(ATTEMPT)?.parse().ok()
}

/// True if `name` has the form of a run log directory.
pub fn is_logs_of_run(name: &str) -> bool {
    let is_digits = |text: &str| text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    name.rsplit_once('-').is_some_and(|(_, digits)| is_digits(digits))
}

/// Log directory of an attempt, and its two parent directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFolders<'a> {
    /// Log directory of all runs.
    pub all: &'a Path,
    /// Log directory of the run.
    pub run: &'a Path,
    /// Log directory of the attempt.
    pub attempt: &'a Path,
}

impl<'a> LogFolders<'a> {
    /// Derives the parents of `attempt`, which is a directory from [`attempt_logs`]. Returns `None` if `attempt` has
    /// fewer than two parents.
    pub fn from_attempt(attempt: &'a Path) -> Option<Self> {
        let run = attempt.parent()?;
        Some(Self { all: run.parent()?, run, attempt })
    }
}

/// File name of the log of a rank.
pub fn rank_log(rank: usize) -> String {
    format!("rank-{rank:05}.log")
}

/// Parses the rank from the file name of its log.
pub fn rank_of_log(name: &str) -> Option<usize> {
    let rank = name.strip_prefix("rank-")?.strip_suffix(".log")?.parse().ok()?;
    (rank_log(rank) == name).then_some(rank)
}

/// File name of the trace of a rank.
pub fn rank_trace(rank: usize) -> String {
    format!("rank-{rank:05}.trace.json")
}

/// Scratch directories of an attempt of the run at `url`. The directory below /tmp has the files of the launcher. The
/// directory below /dev/shm has the memory that the ranks of a host share. The paths are short, because the directories
/// contain sockets, and the path of a socket has a length limit.
pub fn scratch(url: &str, attempt: u32) -> [PathBuf; 2] {
    ["/tmp", "/dev/shm"].map(|parent| Path::new(parent).join(scratch_name(url, attempt)))
}

/// Name of a scratch directory. The name ends with `-` and the attempt number, so that cleanup finds the directories of
/// earlier attempts.
pub fn scratch_name(url: &str, attempt: u32) -> String {
    format!("lambert-mpirun-{}-{}-{attempt}", user(), digits(url))
}

/// First digits of the SHA-256 of a URL. They distinguish runs of the same name.
fn digits(url: &str) -> String {
    sha256(url.as_bytes())[..DIGITS].to_owned()
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(url: &str) -> String {
        attempt_logs(Path::new("/var/log/lambert"), url, 3).to_str().unwrap().to_owned()
    }

    #[test]
    fn each_run_has_its_own_folder() {
        let (one, other) = (attempt("s3://bucket/a/run/"), attempt("/data/run"));
        assert!(one.starts_with("/var/log/lambert/run-") && one.ends_with("/attempt-000003"), "{one}");
        assert!(other.starts_with("/var/log/lambert/run-") && other != one, "{other}");
        let long = attempt(&format!("/data/{}", "ü".repeat(127)));
        assert!(long.split('/').all(|name| name.len() <= 255) && long.contains(&"ü".repeat(100)), "{long}");
    }

    #[test]
    fn log_folders_are_recognized_by_name() {
        let path = attempt("s3://bucket/a/run/");
        let folders = LogFolders::from_attempt(Path::new(&path)).unwrap();
        assert_eq!(folders.all, Path::new("/var/log/lambert"));
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(is_logs_of_run(&name(folders.run)));
        assert_eq!(attempt_of_logs(&name(folders.attempt)), Some(3));
        assert!(["run", "run-0123", "run-0123abcx"].iter().all(|name| !is_logs_of_run(name)));
        assert_eq!(["letters", "attempt-x"].map(attempt_of_logs), [None; 2]);
        assert_eq!(LogFolders::from_attempt(Path::new("attempt-000003")), None);
        assert_eq!(in_logs_of_run(folders.run, 3), folders.attempt);
        assert_eq!(rank_of_log(&rank_log(123_456)), Some(123_456));
        assert_eq!(["rank-1.log", "rank-00001.trace.json", "rank-x.log"].map(rank_of_log), [None; 3]);
    }

    /// Directories with these names exist on the hosts of users, so the names must not change.
    #[test]
    fn names_match_existing_folders() {
        let (user, digits) = (user(), digits("/data/run"));
        assert_eq!(logs(), Path::new(&format!("/tmp/lambert-logs-{user}")));
        assert_eq!(dataset_copies(), Path::new(&format!("/var/tmp/lambert-{user}")));
        assert_eq!(attempt("/data/run"), format!("/var/log/lambert/run-{digits}/attempt-000003"));
        let name = format!("lambert-mpirun-{user}-{digits}-3");
        assert_eq!(scratch("/data/run", 3), ["/tmp", "/dev/shm"].map(|parent| Path::new(parent).join(&name)));
        assert_eq!([rank_log(1), rank_trace(12)], ["rank-00001.log", "rank-00012.trace.json"]);
    }
}
