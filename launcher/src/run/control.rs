//! Control server: receives reports from ranks over HTTP on its own thread and queues events.
//!
//! Each rank has its own inbox, so the cost of a report does not depend on the number of ranks.

pub mod address;
mod message_validator;

use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Extension, Router};
use lambert_config::run::ControlChannel;
use lambert_control::Directive;
use lambert_control::{
    CoordinatorCommand, Inbox, MAX_REPORT_BYTES, REPORT_PATH, ReportHeader, ReportReply, SIGNATURE_HEADER, SigningKey,
    UNSIGNED_REPORT_PATH, Versions, WorkerReport,
};
use subtle::ConstantTimeEq;
use tokio::runtime::Runtime;

use crate::decide::{Attempt, Event, WorkerEvent};
use crate::http::{self, TrustMark};
use message_validator::MessageValidator;

/// Time limit for reading the body of a report. The time starts at the end of the headers.
const BODY: Duration = Duration::from_secs(5);

/// The control server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The system returned no random bytes.
    #[error("cannot generate the secret of the control channel")]
    Token(#[source] getrandom::Error),
    /// There is no usable address or port.
    #[error(transparent)]
    Address(#[from] address::AddressError),
    /// The thread or the runtime cannot be started.
    #[error("cannot start the control server")]
    Runtime(#[source] std::io::Error),
}

/// Control server for the ranks of one attempt. Stops when dropped.
#[derive(Debug)]
pub struct ControlServer {
    url: String,
    shared: Arc<ServerState>,
    runtime: Option<Runtime>,
}

/// Server-side state of a rank.
#[derive(Debug, Default)]
struct RankState {
    /// Sequence number of the last accepted report.
    sequence: u64,
    inbox: Inbox,
    taken: u64,
}

#[derive(Debug)]
struct ServerState {
    secret: String,
    key: SigningKey,
    attempt: u32,
    validator: Mutex<MessageValidator>,
    rank_states: Vec<Mutex<RankState>>,
    pending_command: Mutex<Option<CoordinatorCommand>>,
    refused: AtomicU64,
    events: Sender<Event>,
}

impl ControlServer {
    /// Listens for the ranks of `attempt`. Without listed hosts and Slurm nodes, listens on the loopback interface, else
    /// as configured by `channel`.
    pub fn start(channel: &ControlChannel, attempt: &Attempt, events: Sender<Event>) -> Result<Self, ControlError> {
        let (listener, url) = address::listen(channel, &attempt.placement)?;
        let rank_states = (0..attempt.world).map(|_| Mutex::default()).collect();
        let (pending_command, refused, validator) = (Mutex::new(None), AtomicU64::new(0), Mutex::default());
        let (secret, attempt) = (secret()?, attempt.number);
        let key = SigningKey::new(&secret, attempt);
        let shared =
            Arc::new(ServerState { secret, key, attempt, validator, rank_states, pending_command, refused, events });
        let runtime = serve(listener, &shared).map_err(ControlError::Runtime)?;
        Ok(Self { url, shared, runtime: Some(runtime) })
    }

    /// Base URL, e.g. `http://127.0.0.1:41023`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Address and port of the server, e.g. `127.0.0.1:41023`.
    pub fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// True if only ranks on this host reach the server.
    pub fn is_on_loopback(&self) -> bool {
        self.address().parse::<SocketAddr>().is_ok_and(|address| address.ip().is_loopback())
    }

    /// Secret of this attempt: 256 random bits in hexadecimal.
    pub fn secret(&self) -> &str {
        &self.shared.secret
    }

    /// Sends a command to the ranks through rank 0. The server repeats it in each reply until rank 0 acknowledges it.
    pub fn send_command(&self, directive: Directive) {
        let mut pending_command = lock(&self.shared.pending_command);
        let number = pending_command.map_or(1, |last| last.number + 1);
        *pending_command = Some(CoordinatorCommand { number, directive });
    }

    /// Number of refused connections, requests and messages.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
    }
}

fn serve(listener: TcpListener, shared: &Arc<ServerState>) -> std::io::Result<Runtime> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("control").enable_all().build()?;
    let routes = Router::new()
        .route(REPORT_PATH, post(report))
        .route(UNSIGNED_REPORT_PATH, post(unsigned_report))
        .fallback(unknown)
        .method_not_allowed_fallback(unknown)
        .with_state(Arc::clone(shared));
    let guard = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    drop(guard);
    let (refusals, most) = (Arc::clone(shared), most(shared.rank_states.len()));
    runtime.spawn(http::serve("control", listener, routes, most, move || refusals.refuse()));
    Ok(runtime)
}

/// Maximum number of connections for `ranks` ranks. Each has one, and opens a second when the first stalls.
fn most(ranks: usize) -> usize {
    2 * ranks + 64
}

fn secret() -> Result<String, ControlError> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(ControlError::Token)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Refusal of a request.
struct Refusal(StatusCode, String);

impl ServerState {
    /// Logs and counts a refusal. The response closes the connection.
    fn respond(&self, Refusal(status, reason): &Refusal) -> Response {
        tracing::debug!(status = status.as_u16(), %reason, "report refused");
        self.refuse();
        (*status, [(header::CONNECTION, "close")], reason.clone()).into_response()
    }

    fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn pass_on(&self, what: WorkerEvent) -> Result<(), Refusal> {
        self.events
            .send(Event::Worker(self.attempt, what))
            .map_err(|_| Refusal(StatusCode::SERVICE_UNAVAILABLE, "the coordinator is exiting".to_owned()))
    }

    fn rank_state(&self, rank: usize) -> Result<&Mutex<RankState>, Refusal> {
        let ranks = self.rank_states.len();
        self.rank_states.get(rank).ok_or_else(|| {
            Refusal(StatusCode::BAD_REQUEST, format!("rank {rank} is out of range: the attempt has {ranks} ranks"))
        })
    }

    /// Verifies the signature and the sequence number in the headers of a report. The body is read only afterwards.
    fn verify(&self, headers: &HeaderMap) -> Result<ReportHeader, Refusal> {
        let given = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
        let head = self.key.verify_report(given);
        let head = head.ok_or_else(|| unauthorized("the report is not signed with the secret of this attempt"))?;
        let last = lock(self.rank_state(head.rank)?).sequence;
        if head.sequence > last { Ok(head) } else { Err(replayed(&head, last)) }
    }

    /// Processes a report with verified headers. New messages become events, in order.
    fn take(&self, head: &ReportHeader, body: &[u8]) -> Result<ReportReply, Refusal> {
        if !head.matches_body(body) {
            return Err(unauthorized("the body of the report does not match its signature"));
        }
        let mut rank_state = lock(self.rank_state(head.rank)?);
        // The server may have accepted a duplicate of this report after it had verified these headers.
        if head.sequence <= rank_state.sequence {
            return Err(replayed(head, rank_state.sequence));
        }
        let is_first = rank_state.sequence == 0;
        rank_state.sequence = head.sequence;
        let mut report = parse(body)?;
        if report.rank != head.rank {
            let text = format!("the report of rank {} is signed by rank {}", report.rank, head.rank);
            return Err(Refusal(StatusCode::BAD_REQUEST, text));
        }
        if is_first {
            tracing::debug!(rank = report.rank, host = %report.host, pid = report.pid, "first report of a rank");
        }
        rank_state.taken = rank_state.taken.max(report.acknowledged_command);
        let messages = std::mem::take(&mut report.messages);
        self.pass_on(WorkerEvent::Report(report))?;
        for message in rank_state.inbox.accept(messages) {
            match lock(&self.validator).rejection(head.rank, &message) {
                None => self.pass_on(WorkerEvent::Message(head.rank, message))?,
                Some(rejection) => {
                    tracing::warn!("ignored a message: {rejection}");
                    self.refuse();
                }
            }
        }
        let command = lock(&self.pending_command).filter(|command| head.rank == 0 && command.number > rank_state.taken);
        Ok(ReportReply { acknowledged: rank_state.inbox.acknowledged(), command })
    }

    async fn answer(&self, request: Request) -> Result<Response, Refusal> {
        let (parts, body) = request.into_parts();
        let head = self.verify(&parts.headers)?;
        let answer = self.take(&head, &read(&parts.headers, body).await?)?;
        let text = serde_json::to_vec(&answer)
            .map_err(|error| Refusal(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
        let signature = self.key.sign_reply(head.rank, head.sequence, &text);
        let headers = [(header::CONTENT_TYPE.as_str(), "application/json"), (SIGNATURE_HEADER, &signature)];
        Ok((headers, text).into_response())
    }

    /// Extracts the versions from an unsigned report. They become the error with which the attempt ends.
    async fn note_versions(&self, request: Request) -> Result<(), Refusal> {
        let (parts, body) = request.into_parts();
        let given = parts.headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let given = given.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
        if !bool::from(given.ct_eq(self.secret.as_bytes())) {
            return Err(unauthorized("not the secret of this attempt"));
        }
        let mut report = parse(&read(&parts.headers, body).await?)?;
        self.rank_state(report.rank)?;
        report.versions.get_or_insert_with(Versions::unknown);
        report.messages.clear();
        self.pass_on(WorkerEvent::Report(report))
    }
}

fn unauthorized(why: &str) -> Refusal {
    Refusal(StatusCode::UNAUTHORIZED, why.to_owned())
}

fn replayed(head: &ReportHeader, last: u64) -> Refusal {
    let text =
        format!("report {} of rank {} is repeated or out of order: the last was {last}", head.sequence, head.rank);
    Refusal(StatusCode::CONFLICT, text)
}

fn parse(body: &[u8]) -> Result<WorkerReport, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        tracing::warn!("ignored an invalid report from a rank: {error}");
        Refusal(StatusCode::BAD_REQUEST, error.to_string())
    })
}

/// Reads the body of a report, with limits on size and time.
async fn read(headers: &HeaderMap, body: Body) -> Result<Bytes, Refusal> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let too_long = || Refusal(StatusCode::PAYLOAD_TOO_LARGE, format!("the report exceeds {MAX_REPORT_BYTES} bytes"));
    if length.is_some_and(|length| length > MAX_REPORT_BYTES) {
        return Err(too_long());
    }
    match tokio::time::timeout(BODY, axum::body::to_bytes(body, MAX_REPORT_BYTES)).await {
        Ok(read) => read.map_err(|_| too_long()),
        Err(_) => Err(Refusal(StatusCode::REQUEST_TIMEOUT, "timeout while reading the body of the report".to_owned())),
    }
}

async fn report(
    State(shared): State<Arc<ServerState>>,
    Extension(mark): Extension<TrustMark>,
    request: Request,
) -> Response {
    shared.answer(request).await.inspect(|_| mark.set()).unwrap_or_else(|refusal| shared.respond(&refusal))
}

async fn unknown(State(shared): State<Arc<ServerState>>) -> Response {
    shared.respond(&Refusal(StatusCode::NOT_FOUND, "there is nothing here".to_owned()))
}

async fn unsigned_report(State(shared): State<Arc<ServerState>>, request: Request) -> Response {
    let ours = lambert_control::PROTOCOL;
    let refusal = shared.note_versions(request).await.err().unwrap_or_else(|| {
        Refusal(StatusCode::UPGRADE_REQUIRED, format!("the coordinator has version {ours} of the control protocol"))
    });
    shared.respond(&refusal)
}

#[cfg(test)]
mod tests;
