//! Client of the RAS service of NCCL, which knows the operations that each rank has started. Each process with NCCL listens at
//! `NCCL_RAS_ADDR`, and the one to which the kernel connects a client asks all others. Client and service exchange
//! lines of text (protocol of `ncclras`). The answer is JSON, which NCCL can write since 2.28.7.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use serde::Deserialize;

/// Address that NCCL listens at if `NCCL_RAS_ADDR` is unset.
const DEFAULT_ADDRESS: &str = "localhost:28028";
/// Maximum size of an answer, bytes. A rank takes less than a kilobyte.
const MAX_ANSWER: usize = 64 << 20;
/// Maximum number of ranks in a report.
const MAX_RANKS: usize = 8;
/// Maximum time that the service takes in addition to its wait for other processes.
const EXTRA_SECONDS: u64 = 6;
/// Maximum number of connections that are opened to reach a service that knows the rank.
const CONNECTIONS: usize = 10;
/// `ncclSuccess` and `ncclInProgress`.
const NO_ERROR: [i32; 2] = [0, 7];

/// Returns the address of the service of this host. `variable` reads an environment variable. `None`: the service is turned off.
pub fn address(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let is_off = variable("NCCL_RAS_ENABLE").is_some_and(|value| value == "0");
    (!is_off).then(|| variable("NCCL_RAS_ADDR").unwrap_or_else(|| DEFAULT_ADDRESS.to_owned()))
}

/// Rank whose communicator is looked for.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    pub rank: usize,
    pub world_size: usize,
    /// Process ID.
    pub process: u32,
}

/// Report of the service on a communicator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RasReport {
    /// Ranks that do not respond, have failed, or have started fewer operations than others. Ranks without the communicator are not
    /// among them: the first rank that aborts has none.
    pub suspects: Vec<usize>,
    /// Description for the user.
    pub text: String,
}

#[derive(Debug, thiserror::Error)]
pub enum RasError {
    #[error("{0}")]
    Io(std::io::Error),
    #[error("it did not answer within {:.1} s", .0.as_secs_f64())]
    Timeout(Duration),
    #[error("it closed the connection in the middle of an answer")]
    Closed,
    #[error("it answered {answer:?} to {request:?}; expected NCCL 2.28.7 or later")]
    Refused { request: String, answer: String },
    #[error("its answer is not the JSON of NCCL: {0}")]
    Json(serde_json::Error),
    #[error("it does not know this rank: it may be the service of another job")]
    UnknownRank,
}

/// Asks the service at `address` about the communicator of `member`. Takes at most `timeout`.
pub fn ask(address: &str, member: Member, timeout: Duration) -> Result<RasReport, RasError> {
    let deadline = Instant::now() + timeout;
    let mut asked = ask_once(address, member, timeout);
    // If two jobs listen at the same port, the kernel selects one of them for each connection.
    for _ in 1..CONNECTIONS {
        let (Err(RasError::UnknownRank), Some(left)) = (&asked, left(deadline)) else { break };
        asked = match ask_once(address, member, left) {
            Err(RasError::Timeout(_)) => break,
            next => next,
        };
    }
    asked
}

fn ask_once(address: &str, member: Member, timeout: Duration) -> Result<RasReport, RasError> {
    let text = status(address, timeout)?;
    let parsed = Answer::parse(&text);
    let answer = parsed.map_err(|error| if error.is_eof() { RasError::Closed } else { RasError::Json(error) })?;
    let own = answer.communicators.iter().find(|communicator| communicator.has(member));
    own.map(Communicator::report).ok_or(RasError::UnknownRank)
}

/// Returns the status of all communicators as JSON.
fn status(address: &str, timeout: Duration) -> Result<String, RasError> {
    let mut connection = Connection::open(address, timeout)?;
    connection.request("CLIENT PROTOCOL 2", "SERVER PROTOCOL ")?;
    // The service waits this long for the other processes.
    let seconds = timeout.as_secs().saturating_sub(EXTRA_SECONDS).max(1);
    connection.request(&format!("TIMEOUT {seconds}"), "OK")?;
    connection.request("SET FORMAT json", "OK")?;
    connection.send("STATUS")?;
    let mut text = Vec::new();
    while connection.read(&mut text)? && text.len() < MAX_ANSWER {}
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Connection to the service, with a deadline.
struct Connection {
    stream: TcpStream,
    timeout: Duration,
    deadline: Instant,
}

impl Connection {
    fn open(address: &str, timeout: Duration) -> Result<Self, RasError> {
        let deadline = Instant::now() + timeout;
        let mut last = std::io::Error::other("it has no address");
        for address in address.to_socket_addrs().map_err(RasError::Io)? {
            let left = left(deadline).ok_or(RasError::Timeout(timeout))?;
            match TcpStream::connect_timeout(&address, left) {
                Ok(stream) => return Ok(Self { stream, timeout, deadline }),
                Err(error) => last = error,
            }
        }
        Err(RasError::Io(last))
    }

    /// Sends a line. The answer must start with `expected`.
    fn request(&mut self, line: &str, expected: &str) -> Result<(), RasError> {
        self.send(line)?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"\n") {
            if !self.read(&mut answer)? {
                return Err(RasError::Closed);
            }
        }
        let answer = String::from_utf8_lossy(&answer);
        if answer.starts_with(expected) {
            return Ok(());
        }
        Err(RasError::Refused { request: line.to_owned(), answer: answer.trim_end().to_owned() })
    }

    fn send(&mut self, line: &str) -> Result<(), RasError> {
        let left = left(self.deadline).ok_or(RasError::Timeout(self.timeout))?;
        let sent = self.stream.set_write_timeout(Some(left));
        sent.and_then(|()| self.stream.write_all(format!("{line}\n").as_bytes())).map_err(|error| self.failed(error))
    }

    /// Appends what arrives next to `bytes`. Returns false at the end of the connection.
    fn read(&mut self, bytes: &mut Vec<u8>) -> Result<bool, RasError> {
        let left = left(self.deadline).ok_or(RasError::Timeout(self.timeout))?;
        let mut buffer = [0; 1 << 14];
        let count = self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(&mut buffer));
        let count = count.map_err(|error| self.failed(error))?;
        bytes.extend_from_slice(&buffer[..count]);
        Ok(count > 0)
    }

    fn failed(&self, error: std::io::Error) -> RasError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => RasError::Timeout(self.timeout),
            ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => RasError::Closed,
            _ => RasError::Io(error),
        }
    }
}

/// Returns the time until `deadline`, unless it is over.
fn left(deadline: Instant) -> Option<Duration> {
    Some(deadline.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
}

#[derive(Debug, Deserialize)]
struct Answer {
    communicators: Vec<Communicator>,
}

impl Answer {
    /// Parses an answer. NCCL 2.28.7 to 2.28.9 write no comma after the `nvml_dev` of a missing rank.
    fn parse(text: &str) -> serde_json::Result<Self> {
        let with_comma = |line: &str| match line.trim_start().starts_with("\"nvml_dev\":") && !line.ends_with(',') {
            true => format!("{line},\n"),
            false => format!("{line}\n"),
        };
        serde_json::from_str(&text.lines().map(with_comma).collect::<String>())
    }
}

#[derive(Debug, Deserialize)]
struct Communicator {
    size: usize,
    ranks: Vec<Rank>,
    #[serde(default)]
    missing_ranks: Vec<MissingRank>,
}

#[derive(Debug, Deserialize)]
struct Rank {
    #[serde(flatten)]
    place: Place,
    status: RankStatus,
    /// Number of operations of each kind that the rank has started.
    #[serde(default)]
    collective_counts: BTreeMap<String, u64>,
}

/// Rank, its host, its process and its GPU.
#[derive(Debug, Deserialize)]
struct Place {
    rank: usize,
    host: String,
    /// -1 if unknown.
    pid: i64,
    cuda_dev: i64,
}

#[derive(Debug, Deserialize)]
struct RankStatus {
    async_error: i32,
}

#[derive(Debug, Deserialize)]
struct MissingRank {
    #[serde(flatten)]
    place: Place,
    status: MissingStatus,
}

#[derive(Debug, Deserialize)]
struct MissingStatus {
    unresponsive: bool,
    considered_dead: bool,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} (host {}, process {}, GPU {})", self.rank, self.host, self.pid, self.cuda_dev)
    }
}

impl Communicator {
    fn has(&self, member: Member) -> bool {
        let is_own = |place: &Place| place.rank == member.rank && place.pid == i64::from(member.process);
        self.size == member.world_size && self.ranks.iter().any(|rank| is_own(&rank.place))
    }

    fn report(&self) -> RasReport {
        // Suspect, if the entry is about one, and description.
        let mut found: Vec<(Option<usize>, String)> = Vec::new();
        for MissingRank { place, status } in &self.missing_ranks {
            let (suspect, why) = match status {
                MissingStatus { considered_dead: true, .. } => (Some(place.rank), "is dead"),
                MissingStatus { unresponsive: true, .. } => (Some(place.rank), "does not respond"),
                _ => (None, "has left the communicator"),
            };
            found.push((suspect, format!("{place} {why}")));
        }
        for Rank { place, status, .. } in &self.ranks {
            if !NO_ERROR.contains(&status.async_error) {
                found.push((Some(place.rank), format!("{place} has NCCL error {}", status.async_error)));
            }
        }
        let mut most: BTreeMap<&str, u64> = BTreeMap::new();
        for (name, count) in self.ranks.iter().flat_map(|rank| &rank.collective_counts) {
            let most = most.entry(name).or_default();
            *most = (*most).max(*count);
        }
        for Rank { place, collective_counts, .. } in &self.ranks {
            for (name, count) in collective_counts {
                let most = most[name.as_str()];
                if *count < most {
                    found.push((Some(place.rank), format!("{place} has started {count} of {most} {name} operations")));
                }
            }
        }
        if found.is_empty() {
            let text = "all ranks have started the same operations".to_owned();
            return RasReport { suspects: Vec::new(), text };
        }
        let mut suspects: Vec<usize> = found.iter().filter_map(|(suspect, _)| *suspect).collect();
        suspects.sort_unstable();
        suspects.dedup();
        let mut lines: Vec<String> = found.iter().take(MAX_RANKS).map(|(_, line)| line.clone()).collect();
        if found.len() > MAX_RANKS {
            lines.push(format!("and {} more", found.len() - MAX_RANKS));
        }
        RasReport { suspects, text: lines.join("; ") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Member = Member { rank: 1, world_size: 3, process: 71 };

    /// Communicator of three ranks, without rank 2, as NCCL 2.28.9 writes it.
    fn answer(counts: [u64; 2], async_error: i32, missing: &str) -> String {
        let rank = |rank: usize| {
            format!(
                r#"{{"rank": {rank}, "host": "10.0.0.4", "pid": {}, "cuda_dev": {rank}, "nvml_dev": {rank},
                "status": {{"init_state": 0, "async_error": {}, "finalize_called": false, "destroy_flag": false, "abort_flag": false}},
                "collective_counts": {{"Broadcast": 0, "AllReduce": {}}}}}"#,
                70 + rank,
                [0, async_error][rank],
                counts[rank]
            )
        };
        format!(
            r#"{{"nccl_version": "2.28.9", "cuda_runtime_version": 13000, "communicators_count": 1, "communicators": [
            {{"hash": "0x1", "secondary_hash": "0x2:0x3", "size": 3, "ranks_count": 2, "missing_ranks_count": 1,
            "ranks": [{}, {}], "missing_ranks": [{missing}]}}], "ras": {{"collection_time_sec": 0.1, "timeouts_count": 0}}}}"#,
            rank(0),
            rank(1)
        )
    }

    /// A missing rank as NCCL 2.28.9 writes it, without a comma before `status`.
    fn missing(unresponsive: bool, dead: bool) -> String {
        format!(
            r#"
        {{
          "rank": 2,
          "host": "unknown",
          "pid": -1,
          "cuda_dev": 2,
          "nvml_dev": 2
          "status": {{
            "unresponsive": {unresponsive},
            "considered_dead": {dead}
          }}
        }}"#
        )
    }

    fn reported(text: &str) -> RasReport {
        let answer = Answer::parse(text).unwrap();
        answer.communicators.iter().find(|communicator| communicator.has(OWN)).unwrap().report()
    }

    #[test]
    fn ranks_that_are_behind_failed_or_missing_are_named() {
        let same = reported(&answer([18, 18], 7, ""));
        assert_eq!(same, RasReport { suspects: vec![], text: "all ranks have started the same operations".into() });
        let behind = reported(&answer([16, 18], 0, ""));
        let text = "rank 0 (host 10.0.0.4, process 70, GPU 0) has started 16 of 18 AllReduce operations";
        assert_eq!(behind, RasReport { suspects: vec![0], text: text.into() });
        let failed = reported(&answer([18, 18], 6, &missing(true, false)));
        let text = "rank 2 (host unknown, process -1, GPU 2) does not respond; \
                    rank 1 (host 10.0.0.4, process 71, GPU 1) has NCCL error 6";
        assert_eq!(failed, RasReport { suspects: vec![1, 2], text: text.into() });
        let dead = reported(&answer([1, 1], 0, &missing(true, true)));
        assert!(dead.suspects == [2] && dead.text.ends_with("is dead"), "{dead:?}");
        // Later versions write the comma.
        let left = missing(false, false).replace("\"nvml_dev\": 2", "\"nvml_dev\": 2,");
        let left = reported(&answer([1, 1], 0, &left));
        assert!(left.suspects.is_empty() && left.text.ends_with("has left the communicator"), "{left:?}");
    }

    #[test]
    fn other_jobs_are_not_confused() {
        let answer = Answer::parse(&answer([1, 1], 0, "")).unwrap();
        let has = |member: Member| answer.communicators[0].has(member);
        assert!(has(OWN) && !has(Member { process: 72, ..OWN }) && !has(Member { world_size: 4, ..OWN }));
    }

    #[test]
    fn the_address_is_that_of_nccl() {
        let of = |set: &[(&str, &str)]| {
            let set: Vec<(String, String)> =
                set.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
            address(|name| set.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone()))
        };
        assert_eq!(of(&[]).as_deref(), Some("localhost:28028"));
        assert_eq!(of(&[("NCCL_RAS_ADDR", "localhost:9"), ("NCCL_RAS_ENABLE", "1")]).as_deref(), Some("localhost:9"));
        assert_eq!(of(&[("NCCL_RAS_ENABLE", "0")]), None);
    }
}
