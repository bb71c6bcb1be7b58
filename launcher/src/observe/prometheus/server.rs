//! HTTP server of `/metrics`. Requests need the bearer token; nothing can be changed through it.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use subtle::ConstantTimeEq;
use tokio::runtime::Runtime;

use super::{Shared, metrics};
use crate::host;
use crate::http;

/// Content type of OpenMetrics 1.0.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Maximum number of connections.
const CONNECTIONS: usize = 16;

/// Metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("no home folder for the token: set prometheus.token_file")]
    NoHome,
    #[error("cannot use the token file {}", path.display())]
    Token { path: PathBuf, source: std::io::Error },
    #[error("cannot listen on {address}")]
    Listen { address: String, source: std::io::Error },
    #[error("cannot start the server")]
    Runtime(#[source] std::io::Error),
}

impl ServerError {
    /// True if another process listens on the address.
    pub fn is_address_in_use(&self) -> bool {
        matches!(self, Self::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse)
    }
}

/// The server; stops when dropped.
#[derive(Debug)]
pub struct MetricsServer {
    target: String,
    runtime: Option<Runtime>,
}

#[derive(Debug)]
struct ServerState {
    token: String,
    shared: Shared,
}

impl MetricsServer {
    /// Listens at `address`.
    pub fn start(address: &str, token: String, shared: Shared) -> Result<Self, ServerError> {
        let failed = |source| ServerError::Listen { address: address.to_owned(), source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let target = target(listener.local_addr().map_err(failed)?);
        let state = Arc::new(ServerState { token, shared });
        let runtime = serve(listener, state).map_err(ServerError::Runtime)?;
        Ok(Self { target, runtime: Some(runtime) })
    }

    /// Host and port by which Prometheus reaches the server.
    pub fn target(&self) -> &str {
        &self.target
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_millis(200));
        }
    }
}

/// A server that listens on all interfaces is reached by the host's name.
fn target(address: SocketAddr) -> String {
    match address.ip().is_unspecified() {
        true => format!("{}:{}", host::name(), address.port()),
        false => address.to_string(),
    }
}

fn serve(listener: TcpListener, state: Arc<ServerState>) -> std::io::Result<Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("prometheus-http")
        .enable_all()
        .build()?;
    let routes = Router::new().route("/metrics", get(answer)).with_state(state);
    let guard = runtime.enter();
    let listener = tokio::net::TcpListener::from_std(listener)?;
    drop(guard);
    runtime.spawn(http::serve("Prometheus", listener, routes, CONNECTIONS, || {}));
    Ok(runtime)
}

async fn answer(State(state): State<Arc<ServerState>>, headers: HeaderMap) -> Response {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    let is_known = given.is_some_and(|given| bool::from(given.as_bytes().ct_eq(state.token.as_bytes())));
    if !is_known {
        let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, challenge, "wrong or missing bearer token\n").into_response();
    }
    let snapshot = Arc::clone(&state.shared.lock().unwrap_or_else(PoisonError::into_inner));
    match metrics::text(&snapshot) {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
