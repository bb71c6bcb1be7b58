//! Reads the logs of an attempt's ranks on this host, also while they grow.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use lambert_store::host_paths;

/// Logs of an attempt on this host.
#[derive(Debug)]
pub struct AttemptLogs {
    folder: PathBuf,
    rank: Option<usize>,
    logs: BTreeMap<usize, RankLog>,
}

/// Open log of a rank.
#[derive(Debug)]
struct RankLog {
    file: BufReader<File>,
    /// Bytes of a line without an end yet.
    line: Vec<u8>,
}

impl AttemptLogs {
    /// Logs in `folder`, the log directory of an attempt; `rank` selects one.
    pub fn new(folder: PathBuf, rank: Option<usize>) -> Self {
        Self { folder, rank, logs: BTreeMap::new() }
    }

    /// Log directory of the attempt.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// True if no rank was selected.
    pub fn shows_all(&self) -> bool {
        self.rank.is_none()
    }

    /// Ranks with a log on this host that was read.
    pub fn ranks(&self) -> impl Iterator<Item = usize> {
        self.logs.keys().copied()
    }

    /// Passes new complete lines, without their ends, to `take`, rank after rank; with `is_over` also last lines
    /// without an end.
    ///
    /// # Errors
    /// A log cannot be read, or an error of `take`.
    pub fn read(&mut self, is_over: bool, mut take: impl FnMut(usize, &[u8]) -> io::Result<()>) -> io::Result<()> {
        self.open()?;
        for (rank, log) in &mut self.logs {
            while log.file.read_until(b'\n', &mut log.line)? > 0 {
                if let Some(line) = log.line.strip_suffix(b"\n") {
                    take(*rank, line)?;
                    log.line.clear();
                }
            }
            if is_over && !log.line.is_empty() {
                take(*rank, &std::mem::take(&mut log.line))?;
            }
        }
        Ok(())
    }

    /// Opens logs that have appeared.
    fn open(&mut self) -> io::Result<()> {
        let entries = match std::fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        for entry in entries {
            let entry = entry?;
            let rank = entry.file_name().to_str().and_then(host_paths::rank_of_log);
            if let Some(rank) = rank.filter(|rank| self.rank.is_none_or(|wanted| wanted == *rank))
                && !self.logs.contains_key(&rank)
            {
                let file = BufReader::new(File::open(entry.path())?);
                self.logs.insert(rank, RankLog { file, line: Vec::new() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn read(logs: &mut AttemptLogs, is_over: bool) -> Vec<String> {
        let mut lines = Vec::new();
        let take = |rank: usize, line: &[u8]| {
            lines.push(format!("{rank} {}", String::from_utf8_lossy(line)));
            Ok(())
        };
        logs.read(is_over, take).unwrap();
        lines
    }

    #[test]
    fn logs_are_read_while_they_grow() {
        let folder = tempfile::tempdir().unwrap();
        let mut logs = AttemptLogs::new(folder.path().join("attempt"), None);
        assert!(read(&mut logs, false).is_empty(), "the attempt has not started");
        std::fs::create_dir(logs.folder()).unwrap();
        let log = |rank| File::create(logs.folder().join(host_paths::rank_log(rank))).unwrap();
        let (mut second, mut first) = (log(1), log(0));
        File::create(logs.folder().join("rank-00000.trace.json")).unwrap();
        first.write_all(b"a\nb").unwrap();
        second.write_all(b"x\n").unwrap();
        assert_eq!(read(&mut logs, false), ["0 a", "1 x"]);
        first.write_all(b"c\n").unwrap();
        second.write_all(b"killed here").unwrap();
        assert_eq!(read(&mut logs, false), ["0 bc"]);
        assert_eq!(read(&mut logs, true), ["1 killed here"]);
        assert_eq!(logs.ranks().collect::<Vec<_>>(), [0, 1]);
        let mut one = AttemptLogs::new(logs.folder().to_owned(), Some(1));
        assert_eq!(read(&mut one, true), ["1 x", "1 killed here"]);
    }
}
