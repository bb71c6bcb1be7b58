//! The coordinator's end of the control channel: HTTP on a thread of its own, events out of it through a queue.
//!
//! The work of a report does not grow with the number of ranks: each has an inbox of its own, and nothing looks at the
//! others.

pub mod address;
mod listener;

use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::post;
use lambert_config::control::Directive;
use lambert_config::run::ControlChannel;
use lambert_control::{Answer, Inbox, LONGEST_REPORT, Order, REPORT_PATH, Report};
use subtle::ConstantTimeEq;
use tokio::runtime::Runtime;

use super::decide::{Attempt, Event, FromWorkers};

/// Why there is no control channel.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The system gave no random bytes.
    #[error("cannot draw a secret for the control channel")]
    Token(#[source] getrandom::Error),
    /// No address or port.
    #[error(transparent)]
    Address(#[from] address::AddressError),
    /// No thread or no runtime.
    #[error("cannot start the control server")]
    Runtime(#[source] std::io::Error),
}

/// A server for the ranks of one attempt; it ends when dropped.
#[derive(Debug)]
pub struct ControlServer {
    url: String,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

/// What the server knows of a rank.
#[derive(Debug, Default)]
struct Seat {
    inbox: Inbox,
    taken: u64,
}

#[derive(Debug)]
struct Shared {
    token: String,
    attempt: u32,
    seats: Vec<Mutex<Seat>>,
    order: Mutex<Option<Order>>,
    refused: AtomicU64,
    events: Sender<Event>,
}

impl ControlServer {
    /// Listens for the ranks of `attempt`: on the loopback interface if all are on this host, else where `channel` says.
    pub fn start(channel: &ControlChannel, attempt: &Attempt, events: Sender<Event>) -> Result<Self, ControlError> {
        let (listener, url) = address::listen(channel, &attempt.placement)?;
        let seats = (0..attempt.world).map(|_| Mutex::default()).collect();
        let (order, refused) = (Mutex::new(None), AtomicU64::new(0));
        let shared = Arc::new(Shared { token: token()?, attempt: attempt.number, seats, order, refused, events });
        let runtime = serve(listener, &shared).map_err(ControlError::Runtime)?;
        Ok(Self { url, shared, runtime: Some(runtime) })
    }

    /// Where it listens, as `http://127.0.0.1:41023`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The secret of this attempt: 256 random bits in hexadecimal.
    pub fn token(&self) -> &str {
        &self.shared.token
    }

    /// Orders the ranks, through rank 0: repeated until it has taken the order.
    pub fn order(&self, directive: Directive) {
        let mut order = lock(&self.shared.order);
        let number = order.map_or(1, |last| last.number + 1);
        *order = Some(Order { number, directive });
    }

    /// How many connections and requests were refused.
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

fn serve(listener: TcpListener, shared: &Arc<Shared>) -> std::io::Result<Runtime> {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).thread_name("control").enable_all().build()?;
    let routes = Router::new()
        .route(REPORT_PATH, post(report))
        .layer(DefaultBodyLimit::max(LONGEST_REPORT))
        .layer(middleware::from_fn_with_state(Arc::clone(shared), admit))
        .with_state(Arc::clone(shared));
    let guard = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    drop(guard);
    let (refusals, most) = (Arc::clone(shared), listener::most(shared.seats.len()));
    runtime.spawn(listener::serve(listener, routes, most, move || refusals.refuse()));
    Ok(runtime)
}

fn token() -> Result<String, ControlError> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(ControlError::Token)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

type Refusal = (StatusCode, String);

/// Lets in who has the secret, before a byte of the body is read. Compares in constant time, so that the time of an answer
/// tells nothing about the secret.
async fn admit(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Result<Response, Refusal> {
    let given = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes());
    let given = given.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
    if !bool::from(given.ct_eq(shared.token.as_bytes())) {
        shared.refuse();
        return Err((StatusCode::UNAUTHORIZED, "this attempt has another secret".to_owned()));
    }
    Ok(next.run(request).await)
}

impl Shared {
    fn refuse(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn pass_on(&self, what: FromWorkers) -> Result<(), Refusal> {
        self.events
            .send(Event::Worker(self.attempt, what))
            .map_err(|_| (StatusCode::SERVICE_UNAVAILABLE, "the coordinator is leaving".to_owned()))
    }

    /// Takes in a report: what is new of it becomes events, in order.
    fn take(&self, mut report: Report) -> Result<Answer, Refusal> {
        let (rank, ranks) = (report.rank, self.seats.len());
        let seat = self.seats.get(rank);
        let seat = seat.ok_or_else(|| (StatusCode::BAD_REQUEST, format!("rank {rank} of {ranks} ranks")))?;
        let mut seat = lock(seat);
        seat.taken = seat.taken.max(report.taken);
        let said = std::mem::take(&mut report.said);
        self.pass_on(FromWorkers::Report(report))?;
        for saying in seat.inbox.take(said) {
            self.pass_on(FromWorkers::Message(rank, saying))?;
        }
        let order = lock(&self.order).filter(|order| rank == 0 && order.number > seat.taken);
        Ok(Answer { acknowledged: seat.inbox.acknowledged(), order })
    }
}

async fn report(State(shared): State<Arc<Shared>>, body: Bytes) -> Result<axum::Json<Answer>, Refusal> {
    let report = serde_json::from_slice(&body).map_err(|error| {
        tracing::warn!("a rank sent what cannot be read: {error}");
        (StatusCode::BAD_REQUEST, error.to_string())
    });
    let answer = report.and_then(|report| shared.take(report));
    answer.map(axum::Json).inspect_err(|_| shared.refuse())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::decide::Placement;
    use lambert_config::control::EventKind;
    use lambert_control::{Outbox, Saying};
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Instant;

    fn server() -> (ControlServer, Receiver<Event>) {
        let (events, inbox) = channel();
        let attempt = Attempt { number: 3, world: 2, placement: Placement::Here };
        (ControlServer::start(&ControlChannel::default(), &attempt, events).unwrap(), inbox)
    }

    fn post(server: &ControlServer, token: &str, body: &str) -> (u16, String) {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build().into();
        let request = agent.post(format!("{}{REPORT_PATH}", server.url()));
        let mut answer = request.header("authorization", format!("Bearer {token}")).send(body).unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    }

    fn answer(server: &ControlServer, report: &Report) -> Answer {
        let (code, body) = post(server, server.token(), &serde_json::to_string(report).unwrap());
        assert_eq!(code, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    fn from(rank: usize) -> Report {
        Report { rank, pid: 7, host: "h".into(), step: 3, ..Report::default() }
    }

    #[test]
    fn what_a_rank_says_arrives_once_and_is_acknowledged() {
        let (server, inbox) = server();
        let mut outbox = Outbox::default();
        let finished = Saying::Event(EventKind::Finished { step: 9, stopped: true });
        outbox.push(finished.clone());
        for _ in 0..3 {
            let report = Report { said: outbox.batch(), ..from(1) };
            assert_eq!(answer(&server, &report), Answer { acknowledged: 1, order: None });
        }
        let events: Vec<_> = inbox.try_iter().collect();
        let report = Event::Worker(3, FromWorkers::Report(from(1)));
        let said = Event::Worker(3, FromWorkers::Message(1, finished));
        assert_eq!(events, [report.clone(), said, report.clone(), report]);
    }

    #[test]
    fn an_order_is_repeated_until_rank_0_has_taken_it() {
        let (server, _inbox) = server();
        server.order(Directive::Checkpoint);
        let order = Some(Order { number: 1, directive: Directive::Checkpoint });
        assert_eq!(answer(&server, &from(1)).order, None, "rank 0 passes it on");
        for _ in 0..2 {
            assert_eq!(answer(&server, &from(0)).order, order);
        }
        assert_eq!(answer(&server, &Report { taken: 1, ..from(0) }).order, None);
        server.order(Directive::CheckpointAndStop);
        assert_eq!(answer(&server, &Report { taken: 1, ..from(0) }).order.unwrap().number, 2);
    }

    #[test]
    fn strangers_and_nonsense_are_refused_and_counted() {
        let (server, inbox) = server();
        let longer = format!("{}0", server.token());
        let good = serde_json::to_string(&from(1)).unwrap();
        for token in ["", "wrong", &server.token()[1..], &longer] {
            assert_eq!(post(&server, token, &good).0, 401);
        }
        assert_eq!(post(&server, server.token(), "{").0, 400);
        let stranger = good.replace("\"rank\":1", "\"rank\":2");
        assert_eq!(post(&server, server.token(), &stranger), (400, "rank 2 of 2 ranks".to_owned()));
        let large = "x".repeat(LONGEST_REPORT + 1);
        assert_eq!(post(&server, server.token(), &large).0, 413);
        assert_eq!(server.refused(), 6);
        assert!(inbox.try_recv().is_err());
    }

    /// Neither the body nor the end of the head of a stranger is waited for.
    #[test]
    fn the_secret_is_asked_for_before_anything_is_read() {
        let (server, _inbox) = server();
        let address = server.url().strip_prefix("http://").unwrap();
        let mut stranger = TcpStream::connect(address).unwrap();
        let head = format!("POST {REPORT_PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n");
        stranger.write_all(head.as_bytes()).unwrap();
        let mut said = [0; 12];
        stranger.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"HTTP/1.1 401");
    }

    #[test]
    fn a_hundred_idle_connections_hold_up_nobody_and_are_closed() {
        let (server, _inbox) = server();
        let address = server.url().strip_prefix("http://").unwrap();
        let idle: Vec<_> = (0..listener::most(2) + 50).map(|_| TcpStream::connect(address).unwrap()).collect();
        let start = Instant::now();
        // Those beyond the limit are refused at once; a rank tries again until there is room.
        let reported = || {
            let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
            let request = agent.post(format!("{}{REPORT_PATH}", server.url()));
            request.header("authorization", format!("Bearer {}", server.token())).send_json(from(1)).is_ok()
        };
        while !reported() {
            assert!(start.elapsed() < Duration::from_secs(15), "idle connections keep a rank out");
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("a rank got through {:.1} s after {} idle connections", start.elapsed().as_secs_f64(), idle.len());
        assert!(server.refused() >= 50, "{}", server.refused());
    }

    #[test]
    fn each_attempt_has_its_own_secret() {
        let (one, other) = (server().0, server().0);
        assert_eq!(one.token().len(), 64);
        assert_ne!(one.token(), other.token());
    }
}
