//! HTTP server of the page: every request needs the token, and answers come from memory.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use flate2::Compression;
use flate2::write::GzEncoder;

use super::assets::{ASSETS, Asset};
use super::board::Board;
use super::token::Token;
use crate::{host, http, panics};

/// Query parameter of the first request.
const PARAMETER: &str = "token";

/// Headers of each answer. The page loads nothing from elsewhere and runs no inline code.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error("port {port} of 127.0.0.1 is in use: choose another port, or 0 for a free one")]
    PortInUse { port: u16 },
    #[error("cannot listen on port {port} of 127.0.0.1")]
    Listen { port: u16, source: std::io::Error },
    #[error("cannot generate an access token")]
    Token(#[from] getrandom::Error),
    #[error("cannot start the server")]
    Start(#[source] std::io::Error),
}

/// Server that answers until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    token: Token,
    _runtime: tokio::runtime::Runtime,
}

#[derive(Debug)]
struct Access {
    token: Token,
    /// Browsers send cookies of a host to all its ports.
    cookie: String,
}

impl Server {
    /// Serves the page on a port of the loopback interface; 0: a free one. Closes connections beyond `connections`,
    /// and idle connections after a few seconds, because a connection needs no token.
    ///
    /// # Errors
    /// See [`ServerError`].
    pub fn start(port: u16, board: Arc<Board>, connections: usize) -> Result<Self, ServerError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|source| match source.kind() {
            std::io::ErrorKind::AddrInUse => ServerError::PortInUse { port },
            _ => ServerError::Listen { port, source },
        })?;
        let address = listener.local_addr().map_err(ServerError::Start)?;
        listener.set_nonblocking(true).map_err(ServerError::Start)?;
        let token = Token::random()?;
        let access = Access { token: token.clone(), cookie: format!("lambert-watch-{}", address.port()) };
        let routes = routes(board, Arc::new(access));
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().on_thread_start(panics::mark_optional).build();
        let runtime = runtime.map_err(ServerError::Start)?;
        let listener = runtime.block_on(async { tokio::net::TcpListener::from_std(listener) });
        let listener = listener.map_err(ServerError::Start)?;
        runtime.spawn(http::serve("page", listener, routes, connections, || {}));
        Ok(Self { address, token, _runtime: runtime })
    }

    /// Port of the server.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// URL of the page, with the token.
    pub fn url(&self) -> String {
        format!("http://{}/?{PARAMETER}={}", self.address, self.token.as_str())
    }

    /// The URL, and how to open it from another machine; two lines.
    pub fn access(&self) -> String {
        let (url, port, host) = (self.url(), self.port(), host::name());
        format!("{url}\nfrom another machine: ssh -L {port}:127.0.0.1:{port} {host}, then open this URL there")
    }
}

fn routes(board: Arc<Board>, access: Arc<Access>) -> Router {
    let data = |State(board): State<Arc<Board>>, request: Request| async move {
        let since = parameter(request.uri().query(), "since").and_then(|since| since.parse().ok());
        let text = board.since(since.unwrap_or(0)).to_string();
        content("application/json", text.as_bytes(), request.headers())
    };
    let mut routes = Router::new().route("/data", get(data)).with_state(board);
    for Asset { path, content_type, text } in ASSETS {
        let answer = move |headers: HeaderMap| async move { content(content_type, text.as_bytes(), &headers) };
        routes = routes.route(path, get(answer));
    }
    routes.fallback(|| async { StatusCode::NOT_FOUND }).layer(middleware::from_fn_with_state(access, guard))
}

/// Rejects requests without the token, and adds the headers. A token in the URL becomes a cookie.
async fn guard(State(access): State<Arc<Access>>, request: Request, next: Next) -> Response {
    let in_url = parameter(request.uri().query(), PARAMETER).is_some_and(|presented| access.token.matches(presented));
    let mut response = if in_url || access.has_cookie(request.headers()) {
        next.run(request).await
    } else {
        let text = "403: the access token is missing or wrong. Open the URL that `lambert watch` printed or that is in watch.url_file.\n";
        (StatusCode::FORBIDDEN, text).into_response()
    };
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if in_url {
        let cookie = format!("{}={}; HttpOnly; SameSite=Strict; Path=/", access.cookie, access.token.as_str());
        headers.extend(HeaderValue::try_from(cookie).ok().map(|cookie| (header::SET_COOKIE, cookie)));
    }
    response
}

impl Access {
    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let cookies = headers.get_all(header::COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
        let mut pairs = cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(name, value)| name == self.cookie && self.token.matches(value))
    }
}

/// Value of a query parameter. Tokens and numbers have no escapes.
fn parameter<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    query?.split('&').filter_map(|pair| pair.split_once('=')).find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// An answer, compressed if the browser takes gzip.
fn content(content_type: &'static str, bytes: &[u8], headers: &HeaderMap) -> Response {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let compressed = accepted.contains("gzip").then(|| compress(bytes).ok()).flatten();
    let is_compressed = compressed.is_some();
    let mut response = Response::new(Body::from(compressed.unwrap_or_else(|| bytes.to_vec())));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    if is_compressed {
        response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    }
    response
}

fn compress(bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes)?;
    encoder.finish()
}
