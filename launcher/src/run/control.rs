//! The coordinator's end of the control channel: HTTP on a thread of its own, messages out of it through a queue.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::routing::post;
use lambert_config::control::{Answer, Directive, EVENT_PATH, Event, PROGRESS_PATH, Progress};
use subtle::ConstantTimeEq;
use tokio::runtime::Runtime;

use super::mpirun::Hosts;
use super::watch::Message;

/// Why there is no control channel.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The system gave no random bytes.
    #[error("cannot draw a secret for the control channel")]
    Token(#[source] getrandom::Error),
    /// No port.
    #[error("cannot listen on {address} for the workers")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
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

#[derive(Debug)]
struct Shared {
    token: String,
    ranks: usize,
    directive: AtomicU8,
    messages: Sender<Message>,
}

const DIRECTIVES: [Directive; 3] = [Directive::Continue, Directive::Checkpoint, Directive::CheckpointAndStop];

impl ControlServer {
    /// Listens for `ranks` ranks on a port that is free, on the loopback interface if all are on this host. What they
    /// post, checked, goes to `messages`.
    pub fn start(hosts: Hosts, host: &str, ranks: usize, messages: Sender<Message>) -> Result<Self, ControlError> {
        let (ip, name) = match hosts {
            Hosts::This => (Ipv4Addr::LOCALHOST, "127.0.0.1"),
            Hosts::Several => (Ipv4Addr::UNSPECIFIED, host),
        };
        let address = SocketAddr::new(IpAddr::V4(ip), 0);
        let listen = |source| ControlError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let url = format!("http://{name}:{}", listener.local_addr().map_err(listen)?.port());
        let shared = Arc::new(Shared { token: token()?, ranks, directive: AtomicU8::new(0), messages });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("control")
            .enable_all()
            .build()
            .map_err(ControlError::Runtime)?;
        let routes = Router::new()
            .route(PROGRESS_PATH, post(progress))
            .route(EVENT_PATH, post(event))
            .with_state(Arc::clone(&shared));
        let guard = runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener).map_err(listen)?;
        drop(guard);
        runtime.spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                tracing::error!("the control server ended: {error}");
            }
        });
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

    /// What the ranks are told from now on.
    pub fn direct(&self, directive: Directive) {
        let number = DIRECTIVES.iter().position(|known| *known == directive).unwrap_or(0);
        self.shared.directive.store(number as u8, Ordering::SeqCst);
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
    }
}

fn token() -> Result<String, ControlError> {
    let mut bytes = [0u8; 32];
    getrandom::fill(&mut bytes).map_err(ControlError::Token)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

type Refusal = (StatusCode, String);

impl Shared {
    /// Compares in constant time, so that the time of an answer tells nothing about the secret.
    fn admit(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let given = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
        let given = given.and_then(|value| value.strip_prefix(b"Bearer ")).unwrap_or_default();
        match bool::from(given.ct_eq(self.token.as_bytes())) {
            true => Ok(()),
            false => Err((StatusCode::UNAUTHORIZED, "this attempt has another secret".to_owned())),
        }
    }

    fn rank(&self, rank: usize) -> Result<(), Refusal> {
        match rank < self.ranks {
            true => Ok(()),
            false => Err((StatusCode::BAD_REQUEST, format!("rank {rank} of {} ranks", self.ranks))),
        }
    }

    fn pass_on(&self, message: Message) -> Result<(), Refusal> {
        self.messages
            .send(message)
            .map_err(|_| (StatusCode::SERVICE_UNAVAILABLE, "the coordinator is leaving".to_owned()))
    }
}

fn read<T: serde::de::DeserializeOwned>(body: &Bytes) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        tracing::warn!("a rank sent what cannot be read: {error}");
        (StatusCode::BAD_REQUEST, error.to_string())
    })
}

async fn progress(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<axum::Json<Answer>, Refusal> {
    shared.admit(&headers)?;
    let progress: Progress = read(&body)?;
    shared.rank(progress.rank)?;
    shared.pass_on(Message::Progress(progress))?;
    let number = shared.directive.load(Ordering::SeqCst);
    Ok(axum::Json(Answer { directive: DIRECTIVES[usize::from(number)] }))
}

async fn event(State(shared): State<Arc<Shared>>, headers: HeaderMap, body: Bytes) -> Result<StatusCode, Refusal> {
    shared.admit(&headers)?;
    let event: Event = read(&body)?;
    shared.rank(event.rank)?;
    shared.pass_on(Message::Event(event))?;
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_config::control::EventKind;
    use std::sync::mpsc::{Receiver, channel};

    fn server() -> (ControlServer, Receiver<Message>) {
        let (messages, inbox) = channel();
        (ControlServer::start(Hosts::This, "here", 2, messages).unwrap(), inbox)
    }

    fn post(server: &ControlServer, path: &str, token: &str, body: &str) -> (u16, String) {
        let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        let request = agent.post(format!("{}{path}", server.url())).header("authorization", format!("Bearer {token}"));
        let mut answer = request.send(body).unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    }

    const PROGRESS: &str = r#"{"rank": 1, "pid": 7, "host": "h", "step": 3}"#;

    #[test]
    fn progress_is_passed_on_and_answered_with_the_directive() {
        let (server, inbox) = server();
        let (code, body) = post(&server, PROGRESS_PATH, server.token(), PROGRESS);
        assert_eq!((code, body.as_str()), (200, r#"{"directive":"continue"}"#));
        let Message::Progress(progress) = inbox.recv().unwrap() else { panic!("not a progress") };
        assert_eq!((progress.rank, progress.pid, progress.step), (1, 7, 3));
        server.direct(Directive::CheckpointAndStop);
        assert_eq!(post(&server, PROGRESS_PATH, server.token(), PROGRESS).1, r#"{"directive":"checkpoint-and-stop"}"#);
    }

    #[test]
    fn events_are_passed_on() {
        let (server, inbox) = server();
        let body = r#"{"rank": 0, "event": "finished", "step": 9, "stopped": true}"#;
        assert_eq!(post(&server, EVENT_PATH, server.token(), body), (204, String::new()));
        let Message::Event(event) = inbox.recv().unwrap() else { panic!("not an event") };
        assert_eq!(event.kind, EventKind::Finished { step: 9, stopped: true });
    }

    #[test]
    fn strangers_and_nonsense_are_refused() {
        let (server, inbox) = server();
        let longer = format!("{}0", server.token());
        for token in ["", "wrong", &server.token()[1..], &longer] {
            assert_eq!(post(&server, PROGRESS_PATH, token, PROGRESS).0, 401);
        }
        assert_eq!(post(&server, PROGRESS_PATH, server.token(), "{").0, 400);
        assert_eq!(post(&server, EVENT_PATH, server.token(), r#"{"rank": 0, "event": "other"}"#).0, 400);
        let stranger = PROGRESS.replace("\"rank\": 1", "\"rank\": 2");
        assert_eq!(post(&server, PROGRESS_PATH, server.token(), &stranger), (400, "rank 2 of 2 ranks".to_owned()));
        assert!(inbox.try_recv().is_err());
    }

    #[test]
    fn each_attempt_has_its_own_secret() {
        let (one, other) = (server().0, server().0);
        assert_eq!(one.token().len(), 64);
        assert_ne!(one.token(), other.token());
    }
}
