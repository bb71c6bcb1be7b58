//! What is known of an attempt while it runs, put together from what ranks and mpirun say.

use std::collections::BTreeMap;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use lambert_config::control::{Event, EventKind, Progress};
use lambert_config::exit;

use super::decision::{Achieved, Ending};
use super::mpirun::{Abort, Told};
use super::processes;

/// What reaches the coordinator's main thread.
#[derive(Debug)]
pub enum Message {
    /// A rank's report.
    Progress(Progress),
    /// Something that happened once.
    Event(Event),
    /// A line that mpirun or the worker wrote.
    Line(String),
}

/// A rank, as last heard of.
#[derive(Debug, Clone, PartialEq)]
pub struct Rank {
    /// Process id on `host`.
    pub pid: u32,
    /// Host name.
    pub host: String,
    /// Steps it has finished.
    pub step: u64,
    /// When it last reported.
    pub heard: Instant,
}

/// A failure that a rank told of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Said {
    rank: usize,
    message: String,
    retry: bool,
}

/// An attempt, as far as it is known.
#[derive(Debug, Default)]
pub struct Watch {
    /// The ranks that have reported, by number.
    pub ranks: BTreeMap<usize, Rank>,
    /// Where training started, once it has.
    pub started: Option<u64>,
    /// What the attempt has achieved.
    pub achieved: Achieved,
    /// What mpirun said.
    pub told: Told,
    /// When it was first known that something is wrong.
    pub trouble: Option<Instant>,
    finished: Option<Order>,
    /// Why the run goes back, if that is how the attempt ends.
    retreat: String,
    failures: Vec<Said>,
}

/// Why a worker left in good order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Complete,
    Stopped,
    RolledBack,
}

/// Why an attempt failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// Which rank and how, for people.
    pub message: String,
    /// What it means for the decision.
    pub ending: Ending,
}

impl Cause {
    /// Something that a new attempt may be spared.
    pub fn passing(message: String) -> Self {
        Self { message, ending: Ending::Failed { code: exit::FAILED, retry: true } }
    }
}

impl Watch {
    /// Takes in a rank's report.
    pub fn progress(&mut self, progress: &Progress, now: Instant) {
        let Progress { rank, pid, host, step, .. } = progress;
        self.ranks.insert(*rank, Rank { pid: *pid, host: host.clone(), step: *step, heard: now });
        self.achieved.step = self.achieved.step.max(*step);
    }

    /// Takes in an event.
    pub fn event(&mut self, event: &Event) {
        match &event.kind {
            EventKind::Started { step, .. } => self.started = Some(*step),
            EventKind::Checkpoint { .. } => self.achieved.committed = true,
            EventKind::Finished { stopped, .. } => {
                self.finished = Some(if *stopped { Order::Stopped } else { Order::Complete });
            }
            EventKind::RolledBack { message } => {
                self.trouble.get_or_insert_with(Instant::now);
                (self.finished, self.retreat) = (Some(Order::RolledBack), message.clone());
            }
            EventKind::Failed { message, retry } => {
                self.trouble.get_or_insert_with(Instant::now);
                self.failures.push(Said { rank: event.rank, message: message.clone(), retry: *retry });
            }
            EventKind::Evaluation(_)
            | EventKind::Plateau { .. }
            | EventKind::Grown { .. }
            | EventKind::Warning { .. } => {}
        }
    }

    /// Takes in a line of mpirun's own.
    pub fn mpirun(&mut self, line: &str) {
        self.told.add(line);
        if self.told.abort.is_some() {
            self.trouble.get_or_insert_with(Instant::now);
        }
    }

    /// Says so if a rank has been silent for longer than `limit`.
    pub fn silence(&self, now: Instant, limit: Duration) -> Option<String> {
        let (rank, _) = self.ranks.iter().find(|(_, rank)| now.duration_since(rank.heard) > limit)?;
        Some(format!("{} has been silent for {} s", self.who(*rank), limit.as_secs()))
    }

    /// Says so if one of `ranks` ranks has not reported at all within `limit` since `start`.
    pub fn absence(&self, start: Instant, now: Instant, limit: Duration, ranks: usize) -> Option<String> {
        let missing = (0..ranks).find(|rank| !self.ranks.contains_key(rank))?;
        (now.duration_since(start) > limit)
            .then(|| format!("rank {missing} has not reported within {} s of its start", limit.as_secs()))
    }

    /// How the attempt ended: `Ok` in good order, else why not. `status` is mpirun's, or the only worker's.
    pub fn end(&self, status: ExitStatus, ranks: usize) -> Result<Ending, Cause> {
        let left = matches!(status.code(), Some(exit::DONE | exit::STOPPED));
        match self.finished {
            Some(Order::Complete) if left => Ok(Ending::Finished),
            Some(Order::Stopped) if left => Ok(Ending::Stopped),
            Some(Order::RolledBack) if left => Err(Cause { message: self.retreat.clone(), ending: Ending::RolledBack }),
            _ => Err(self.cause(status, ranks)),
        }
    }

    /// The first of these that is known: a fault that a rank says is lasting, a signal, what the dead rank said, what
    /// any rank said, how the process ended.
    fn cause(&self, status: ExitStatus, ranks: usize) -> Cause {
        let by = |rank: usize| self.failures.iter().find(|failure| failure.rank == rank);
        let lasting = self.failures.iter().find(|failure| !failure.retry);
        match (lasting, self.told.abort) {
            (None, Some(Abort::Signal { rank, signal })) => {
                Cause::passing(format!("{} was killed by signal {signal}", self.who(rank)))
            }
            (None, Some(Abort::Exit { rank, code })) => match by(rank) {
                Some(failure) => self.failure(failure, status),
                None => self.coded(format!("{} exited with code {code}", self.who(rank)), code),
            },
            (lasting, _) => match lasting.or(self.failures.first()) {
                Some(failure) => self.failure(failure, status),
                None => self.unexplained(status, ranks),
            },
        }
    }

    fn failure(&self, failure: &Said, status: ExitStatus) -> Cause {
        let message = format!("{} failed: {}", self.who(failure.rank), failure.message);
        let code = if status.code() == Some(exit::USAGE) { exit::USAGE } else { exit::FAILED };
        let retry = failure.retry && code != exit::USAGE;
        Cause { message, ending: Ending::Failed { code, retry } }
    }

    /// Nobody said anything: the process's own end is all there is to tell.
    fn unexplained(&self, status: ExitStatus, ranks: usize) -> Cause {
        let subject = if ranks == 1 { self.who(0) } else { "mpirun".to_owned() };
        let mut message = format!("{subject} {}", processes::words(status));
        if status.success() {
            message.push_str(" before the workers had said that they were done");
        }
        self.told.remarks.iter().for_each(|remark| message.push_str(&format!(": {remark}")));
        self.coded(message, status.code().unwrap_or(exit::FAILED))
    }

    fn coded(&self, message: String, code: i32) -> Cause {
        match code {
            exit::USAGE => Cause { message, ending: Ending::Failed { code, retry: false } },
            _ => Cause::passing(message),
        }
    }

    /// A rank in words.
    pub fn who(&self, rank: usize) -> String {
        match self.ranks.get(&rank) {
            Some(known) => format!("rank {rank} (pid {} on host {})", known.pid, known.host),
            None => format!("rank {rank} (which had not reported yet)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    const SIGNALLED: i32 = 137 << 8;

    fn watch() -> Watch {
        let mut watch = Watch::default();
        for rank in 0..2 {
            let progress = Progress { rank, pid: 40 + rank as u32, host: "x".into(), step: 5, records: Vec::new() };
            watch.progress(&progress, Instant::now());
        }
        watch
    }

    fn tell(watch: &mut Watch, rank: usize, kind: EventKind) {
        watch.event(&Event { rank, kind });
    }

    fn failed(message: &str, retry: bool) -> EventKind {
        EventKind::Failed { message: message.into(), retry }
    }

    fn status(raw: i32) -> ExitStatus {
        ExitStatus::from_raw(raw)
    }

    fn retry() -> Ending {
        Ending::Failed { code: exit::FAILED, retry: true }
    }

    #[test]
    fn good_order_needs_both_the_word_and_the_exit_code() {
        let mut watch = watch();
        assert!(watch.end(status(0), 2).unwrap_err().message.contains("before the workers had said"));
        tell(&mut watch, 0, EventKind::Finished { step: 9, stopped: false });
        assert_eq!(watch.end(status(0), 2), Ok(Ending::Finished));
        assert!(watch.end(status(1 << 8), 2).is_err());
        tell(&mut watch, 0, EventKind::Finished { step: 9, stopped: true });
        assert_eq!(watch.end(status(0), 2), Ok(Ending::Stopped));
        assert_eq!(watch.end(status(75 << 8), 2), Ok(Ending::Stopped));
        tell(&mut watch, 0, EventKind::RolledBack { message: "the loss".into() });
        let cause = watch.end(status(0), 2).unwrap_err();
        assert_eq!((cause.message.as_str(), cause.ending), ("the loss", Ending::RolledBack));
        watch.told.abort = Some(Abort::Signal { rank: 1, signal: 9 });
        assert_eq!(watch.end(status(SIGNALLED), 2).unwrap_err().ending, retry());
    }

    #[test]
    fn the_killed_rank_is_named_whatever_the_survivors_say() {
        let mut watch = watch();
        watch.told.abort = Some(Abort::Signal { rank: 1, signal: 9 });
        tell(&mut watch, 0, failed("the all-reduce failed", true));
        let cause = watch.end(status(SIGNALLED), 2).unwrap_err();
        assert_eq!(
            cause,
            Cause { message: "rank 1 (pid 41 on host x) was killed by signal 9".into(), ending: retry() }
        );
    }

    #[test]
    fn a_lasting_fault_comes_before_everything() {
        let mut watch = watch();
        watch.told.abort = Some(Abort::Signal { rank: 1, signal: 9 });
        tell(&mut watch, 0, failed("shard-00001 is damaged", false));
        let cause = watch.end(status(1 << 8), 2).unwrap_err();
        assert_eq!(cause.message, "rank 0 (pid 40 on host x) failed: shard-00001 is damaged");
        assert_eq!(cause.ending, Ending::Failed { code: exit::FAILED, retry: false });
    }

    #[test]
    fn what_the_dead_rank_said_is_its_cause() {
        let mut watch = watch();
        watch.told.abort = Some(Abort::Exit { rank: 1, code: 1 });
        tell(&mut watch, 0, failed("a peer left", true));
        tell(&mut watch, 1, failed("the store is away", true));
        assert!(watch.end(status(1 << 8), 2).unwrap_err().message.ends_with("failed: the store is away"));
    }

    #[test]
    fn a_wrong_configuration_is_final() {
        let mut watch = watch();
        let cause = watch.end(status(2 << 8), 2).unwrap_err();
        assert_eq!(cause.ending, Ending::Failed { code: exit::USAGE, retry: false });
        tell(&mut watch, 0, failed("no such dataset", true));
        let cause = watch.end(status(2 << 8), 2).unwrap_err();
        assert_eq!(cause.ending, Ending::Failed { code: exit::USAGE, retry: false });
    }

    #[test]
    fn one_worker_without_mpirun() {
        let mut watch = watch();
        watch.ranks.remove(&1);
        assert_eq!(watch.end(status(9), 1).unwrap_err().message, "rank 0 (pid 40 on host x) was killed by signal 9");
    }

    #[test]
    fn silence_has_a_limit() {
        let watch = watch();
        let heard = watch.ranks[&1].heard;
        let limit = Duration::from_secs(60);
        assert_eq!(watch.silence(heard, limit), None);
        let late = heard + Duration::from_secs(61);
        assert_eq!(watch.silence(late, limit).unwrap(), "rank 0 (pid 40 on host x) has been silent for 60 s");
        assert_eq!(watch.absence(heard, late, limit, 2), None);
        assert_eq!(watch.absence(heard, heard, limit, 3), None);
        assert_eq!(watch.absence(heard, late, limit, 3).unwrap(), "rank 2 has not reported within 60 s of its start");
    }
}
