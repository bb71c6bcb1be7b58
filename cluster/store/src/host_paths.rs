//! The names of the folders and files that a run has on the hosts of its ranks, outside its store.
//!
//! Others can predict them, so the folders are created by [`private_dir`](crate::private_dir).

use std::path::{Path, PathBuf};

use crate::hash::sha256;

/// A run's name is cut to this length, bytes: file systems have names of 255.
const LONGEST_NAME: usize = 200;
/// Digits of the sha256 of a run's URL.
const DIGITS: usize = 8;
/// Begins the name of the folder with an attempt's logs; the number follows.
const ATTEMPT: &str = "attempt-";

/// The folder with the logs of all runs, where the configuration names none.
pub fn logs() -> PathBuf {
    PathBuf::from(format!("/tmp/lambert-logs-{}", user()))
}

/// The folder with copies of remote datasets, where the configuration names none: /tmp may be main memory.
pub fn dataset_copies() -> PathBuf {
    PathBuf::from(format!("/var/tmp/lambert-{}", user()))
}

/// The folder with the logs of an attempt of the run at `url`: `RUN-1a2b3c4d/attempt-000002` in `logs`, the folder of all runs.
pub fn attempt_logs(logs: &Path, url: &str, attempt: u32) -> PathBuf {
    let name = Path::new(url.trim_end_matches('/')).file_name().and_then(|name| name.to_str()).unwrap_or("run");
    let name = &name[..name.floor_char_boundary(LONGEST_NAME)];
    logs.join(format!("{name}-{}", digits(url))).join(format!("{ATTEMPT}{attempt:06}"))
}

/// The attempt whose logs a folder of this name has, if it is one.
pub fn attempt_of_logs(name: &str) -> Option<u32> {
    name.strip_prefix(ATTEMPT)?.parse().ok()
}

/// Whether a folder of this name may have the logs of a run.
pub fn is_logs_of_run(name: &str) -> bool {
    let is_digits = |text: &str| text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    name.rsplit_once('-').is_some_and(|(_, digits)| is_digits(digits))
}

/// The folders around an attempt's logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogFolders<'a> {
    /// That of all runs.
    pub all: &'a Path,
    /// That of the run.
    pub run: &'a Path,
    /// That of the attempt.
    pub attempt: &'a Path,
}

impl<'a> LogFolders<'a> {
    /// Those around `attempt`, a folder from [`attempt_logs`]; `None` if it does not lie two levels deep.
    pub fn around(attempt: &'a Path) -> Option<Self> {
        let run = attempt.parent()?;
        Some(Self { all: run.parent()?, run, attempt })
    }
}

/// The log of a rank, in its attempt's folder.
pub fn rank_log(rank: usize) -> String {
    format!("rank-{rank:05}.log")
}

/// The trace of a rank, in its attempt's folder.
pub fn rank_trace(rank: usize) -> String {
    format!("rank-{rank:05}.trace.json")
}

/// The scratch folders of an attempt of the run at `url`, for the launcher's files and for the memory that the ranks of a host
/// share. /tmp has a short name: sockets lie below.
pub fn scratch(url: &str, attempt: u32) -> [PathBuf; 2] {
    ["/tmp", "/dev/shm"].map(|parent| Path::new(parent).join(scratch_name(url, attempt)))
}

/// The name of a scratch folder. It ends with `-` and the attempt's number, by which those of earlier attempts are found.
pub fn scratch_name(url: &str, attempt: u32) -> String {
    format!("lambert-mpirun-{}-{}-{attempt}", user(), digits(url))
}

/// Digits that tell runs of one name apart.
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
    fn runs_have_folders_of_their_own() {
        let (one, other) = (attempt("s3://bucket/a/run/"), attempt("/data/run"));
        assert!(one.starts_with("/var/log/lambert/run-") && one.ends_with("/attempt-000003"), "{one}");
        assert!(other.starts_with("/var/log/lambert/run-") && other != one, "{other}");
        let long = attempt(&format!("/data/{}", "ü".repeat(127)));
        assert!(long.split('/').all(|name| name.len() <= 255) && long.contains(&"ü".repeat(100)), "{long}");
    }

    #[test]
    fn folders_of_logs_are_known_by_their_names() {
        let path = attempt("s3://bucket/a/run/");
        let folders = LogFolders::around(Path::new(&path)).unwrap();
        assert_eq!(folders.all, Path::new("/var/log/lambert"));
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        assert!(is_logs_of_run(&name(folders.run)));
        assert_eq!(attempt_of_logs(&name(folders.attempt)), Some(3));
        assert!(["run", "run-0123", "run-0123abcx"].iter().all(|name| !is_logs_of_run(name)));
        assert_eq!(["letters", "attempt-x"].map(attempt_of_logs), [None; 2]);
        assert_eq!(LogFolders::around(Path::new("attempt-000003")), None);
    }

    /// Names that the folders on users' hosts have.
    #[test]
    fn names_are_those_of_the_folders_that_exist() {
        let (user, digits) = (user(), digits("/data/run"));
        assert_eq!(logs(), Path::new(&format!("/tmp/lambert-logs-{user}")));
        assert_eq!(dataset_copies(), Path::new(&format!("/var/tmp/lambert-{user}")));
        assert_eq!(attempt("/data/run"), format!("/var/log/lambert/run-{digits}/attempt-000003"));
        let name = format!("lambert-mpirun-{user}-{digits}-3");
        assert_eq!(scratch("/data/run", 3), ["/tmp", "/dev/shm"].map(|parent| Path::new(parent).join(&name)));
        assert_eq!([rank_log(1), rank_trace(12)], ["rank-00001.log", "rank-00012.trace.json"]);
    }
}
