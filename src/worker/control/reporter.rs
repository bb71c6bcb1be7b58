//! Thread that reports to the coordinator and notices when the coordinator is lost.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError};
use lambert_config::exit;
use lambert_control::{
    MAX_REPORT_BYTES, REPORT_PATH, ReportReply, ReportSigner, SIGNATURE_HEADER, Versions, WorkerReport,
};

use super::{SharedControl, sigterm};
use crate::worker::leave;

/// Interval of heartbeats.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Delay before an unanswered report is resent.
const RESEND_DELAY: Duration = Duration::from_millis(200);
/// Timeout of one report, from connection to reply.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which the coordinator counts as lost if all connections are refused. (A broken network link causes
/// timeouts, not refused connections.)
const REFUSED_TIMEOUT: Duration = Duration::from_secs(5);

/// Sender of the reports of one rank.
pub(super) struct Reporter {
    agent: ureq::Agent,
    url: String,
    signer: ReportSigner,
    rank: usize,
    host: String,
    shared: Arc<SharedControl>,
    /// Versions of this rank; `None` after the coordinator has received the versions.
    versions: Option<Versions>,
    /// Time of the last reply.
    pub(super) heard: Instant,
    /// Time without a reply after which the coordinator counts as lost.
    coordinator_timeout: Duration,
    /// Start of the current period of refused connections.
    pub(super) refused: Option<Instant>,
    /// True if SIGTERM was received. Reports include this flag.
    terminated: Arc<AtomicBool>,
}

impl Reporter {
    /// `coordinator_timeout`: time without a reply after which the coordinator counts as lost.
    pub(super) fn new(
        rank: usize,
        url: &str,
        signer: ReportSigner,
        shared: Arc<SharedControl>,
        versions: Versions,
        coordinator_timeout: Duration,
    ) -> Self {
        // Ignore the proxies of the environment, which are for external hosts.
        let agent = ureq::Agent::config_builder().timeout_global(Some(REQUEST_TIMEOUT)).proxy(None).build().new_agent();
        let host = lambert_store::host::name();
        let url = format!("{url}{REPORT_PATH}");
        let (versions, heard) = (Some(versions), Instant::now());
        let terminated = sigterm::flag();
        Self { agent, url, signer, rank, host, shared, versions, heard, coordinator_timeout, refused: None, terminated }
    }

    /// Sends reports until the channel is closed and all messages are acknowledged.
    pub(super) fn serve(&mut self, woken: &Receiver<()>) {
        loop {
            let answered = self.report();
            let (pause, begun) = (if answered { HEARTBEAT } else { RESEND_DELAY }, Instant::now());
            let ended = matches!(woken.recv_timeout(pause), Err(RecvTimeoutError::Disconnected));
            self.exclude_suspension(pause, begun.elapsed());
            if ended && self.shared.state().outbox.is_empty() {
                return;
            }
            if ended && !answered {
                std::thread::sleep(RESEND_DELAY);
            }
        }
    }

    /// Excludes the time for which this process was suspended, for example by Slurm, during a pause of `planned` that
    /// lasted `actual`. This time is neither silence of the coordinator nor part of the phase. The server may have
    /// closed the connection meanwhile, so that the next report fails although the coordinator is there.
    pub(super) fn exclude_suspension(&mut self, planned: Duration, actual: Duration) {
        let late = actual.saturating_sub(planned);
        self.heard += late;
        self.refused = self.refused.map(|since| since + late);
        let mut state = self.shared.state();
        state.since = (state.since + late).min(Instant::now());
    }

    /// Sends a report. Returns true if it was answered.
    pub(super) fn report(&mut self) -> bool {
        let (report, begun) = (self.next_report(), Instant::now());
        match self.send(&report) {
            Ok(answer) => self.take(answer),
            Err(error) => {
                // This process was suspended during the request (for example by Slurm), so the
                // missing reply does not count.
                if begun.elapsed() > 2 * REQUEST_TIMEOUT {
                    (self.heard, self.refused) = (Instant::now(), None);
                }
                self.handle_silence(&error);
                return false;
            }
        }
        true
    }

    /// Sends a report and verifies the signature of the reply. A reply without a valid signature counts as no reply.
    fn send(&mut self, report: &WorkerReport) -> Result<ReportReply, ureq::Error> {
        let body = serde_json::to_vec(report).map_err(ureq::Error::Json)?;
        let request = self.agent.post(&self.url).header("Authorization", self.signer.sign(&body));
        let mut answer = request.content_type("application/json").send(&body)?;
        let text = answer.body_mut().with_config().limit(MAX_REPORT_BYTES as u64).read_to_vec()?;
        let signature =
            answer.headers().get(SIGNATURE_HEADER).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if !self.signer.verify_reply(&text, signature) {
            return Err(ureq::Error::Other("the reply is not signed with the secret of this attempt".into()));
        }
        serde_json::from_slice(&text).map_err(ureq::Error::Json)
    }

    /// Handles an unanswered report. Exits if the coordinator counts as lost.
    fn handle_silence(&mut self, error: &ureq::Error) {
        let is_refused = matches!(error, ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused);
        // True if the server rejects the path or the signature of reports, and has never given a valid reply.
        let is_foreign = matches!(error, ureq::Error::StatusCode(401 | 404)) && self.versions.is_some();
        self.refused = (is_refused || is_foreign).then(|| self.refused.unwrap_or_else(Instant::now));
        let is_over = self.refused.is_some_and(|since| since.elapsed() > REFUSED_TIMEOUT);
        if is_foreign && is_over {
            let url = &self.url;
            tracing::error!(
                "{url} rejects this rank's reports ({error}): the coordinator has another version; exiting"
            );
            leave::exit_now(exit::USAGE);
        }
        let silent = self.heard.elapsed();
        if silent > self.coordinator_timeout || is_over {
            tracing::error!("no reply from the coordinator for {} s ({error}); exiting", silent.as_secs());
            // Do not join the other threads. They compute, or they wait in MPI for ranks that exit in the same way.
            leave::exit_now(exit::UNSUPERVISED);
        }
        tracing::debug!(url = %self.url, rank = self.rank, "the coordinator does not answer: {error}");
    }

    fn next_report(&self) -> WorkerReport {
        let state = self.shared.state();
        WorkerReport {
            rank: self.rank,
            pid: std::process::id(),
            host: self.host.clone(),
            step: state.step,
            phase: state.phase,
            seconds_in_phase: state.since.elapsed().as_secs_f64(),
            has_received_sigterm: self.terminated.load(Ordering::Relaxed),
            acknowledged_command: state.commands.acknowledged(),
            gpu: state.gpu.clone().map(Box::new),
            versions: self.versions.clone(),
            messages: state.outbox.batch(),
        }
    }

    fn take(&mut self, answer: ReportReply) {
        if self.versions.is_some() {
            tracing::debug!(url = %self.url, rank = self.rank, "the coordinator answers");
        }
        (self.heard, self.refused, self.versions) = (Instant::now(), None, None);
        let mut state = self.shared.state();
        state.outbox.acknowledge(answer.acknowledged);
        self.shared.acknowledged.notify_all();
        answer.command.into_iter().for_each(|command| state.commands.receive(command));
    }
}
