//! Tests over HTTP, and of runs that change or vanish while they are watched.

mod runs;

use std::io::Read;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

use super::board::Board;
use super::poll;
use super::run::WatchedRun;
use super::server::{Server, ServerError};
use crate::metrics::history::tests::{line, put, store};
use crate::status::{OBJECT, Status};

/// Maximum number of connections of the servers in these tests.
const CONNECTIONS: usize = 8;

fn serve(name: &str) -> Server {
    let store = store(name);
    put(&store, 1, 0, [line(1, 5.0), line(2, 4.0)].concat());
    let status = Status { name: "<script>alert(1)</script>".into(), ..Status::default() };
    store.put(OBJECT, serde_json::to_vec(&status).unwrap().into()).unwrap();
    let mut run = WatchedRun::new(store);
    Server::start(0, Arc::new(Board::new(vec![run.refresh().clone()], 3.0)), CONNECTIONS).unwrap()
}

/// Sends a GET request to `path`, with these headers.
fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> Response<Body> {
    let agent: Agent = Agent::config_builder().http_status_as_error(false).build().into();
    let request = agent.get(format!("http://127.0.0.1:{}{path}", server.port()));
    headers.iter().fold(request, |request, (name, value)| request.header(*name, *value)).call().unwrap()
}

fn token(server: &Server) -> String {
    server.url().split_once("token=").unwrap().1.to_owned()
}

fn cookie(server: &Server) -> String {
    let answer = get(server, &format!("/?token={}", token(server)), &[]);
    let cookie = answer.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.ends_with("; HttpOnly; SameSite=Strict; Path=/"), "{cookie}");
    cookie.split(';').next().unwrap().to_owned()
}

#[test]
fn requests_without_the_token_are_forbidden() {
    let (server, other) = (serve("forbidden"), serve("another"));
    let (right, wrong) = (token(&server), token(&other));
    let refused = |path: &str, headers: &[(&str, &str)]| {
        let answer = get(&server, path, headers);
        assert_eq!(answer.status(), StatusCode::FORBIDDEN, "{path} {headers:?}");
        assert!(answer.headers().get("set-cookie").is_none());
        let text = answer.into_body().read_to_string().unwrap();
        assert!(text.starts_with("403: the access token is missing or wrong.") && !text.contains(&right), "{text}");
    };
    for path in ["/", "/data", "/app.js", "/uplot.js", "/unknown"] {
        refused(path, &[]);
        refused(&format!("{path}?token={wrong}"), &[]);
        refused(&format!("{path}?token={}", &right[..63]), &[]);
    }
    let (own, foreign) = (cookie(&server), cookie(&other));
    refused("/data", &[("Cookie", &foreign)]);
    refused("/data", &[("Cookie", &own.replace(&right, &wrong))]);
    assert_eq!(get(&server, "/data", &[("Cookie", &format!("{foreign}; {own}"))]).status(), StatusCode::OK);
    assert_eq!(get(&server, &format!("/data?since=0&token={right}"), &[]).status(), StatusCode::OK);
    assert_eq!(get(&server, "/unknown", &[("Cookie", &own)]).status(), StatusCode::NOT_FOUND);
}

#[test]
fn every_answer_has_the_headers() {
    let server = serve("headers");
    let cookie = cookie(&server);
    for (path, headers) in
        [("/", vec![("Cookie", cookie.as_str())]), ("/data", vec![]), ("/x", vec![("Cookie", &cookie)])]
    {
        let answer = get(&server, path, &headers);
        let header = |name: &str| answer.headers()[name].to_str().unwrap();
        let policy =
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; ";
        assert!(header("content-security-policy").starts_with(policy), "{path}");
        let others = ["x-content-type-options", "referrer-policy", "x-frame-options", "cache-control"].map(header);
        assert_eq!(others, ["nosniff", "no-referrer", "DENY", "no-store"], "{path}");
    }
}

#[test]
fn a_name_with_markup_is_data() {
    let server = serve("hostile");
    let mut answer = get(&server, "/data", &[("Cookie", &cookie(&server)), ("Accept-Encoding", "identity")]);
    assert_eq!(answer.headers()["content-type"], "application/json");
    let data: Value = serde_json::from_str(&answer.body_mut().read_to_string().unwrap()).unwrap();
    assert_eq!(data["runs"][0]["info"]["title"], "hostile (<script>alert(1)</script>)");
    let page = get(&server, "/", &[("Cookie", &cookie(&server))]).into_body().read_to_string().unwrap();
    assert!(page.starts_with("<!doctype html>") && !page.contains("alert"));
}

#[test]
fn a_port_in_use_is_an_error() {
    let server = serve("port");
    let error = Server::start(server.port(), poll::start(Vec::new()).unwrap(), CONNECTIONS).unwrap_err();
    assert!(matches!(error, ServerError::PortInUse { .. }));
    let expected = format!("port {} of 127.0.0.1 is in use: choose another port, or 0 for a free one", server.port());
    assert_eq!(error.to_string(), expected);
}

#[test]
fn two_watchers_have_different_tokens_and_both_answer() {
    let (one, other) = (serve("watchers"), serve("watchers"));
    assert_ne!(token(&one), token(&other));
    for server in [&one, &other] {
        assert_eq!(get(server, "/data", &[("Cookie", &cookie(server))]).status(), StatusCode::OK);
    }
}

#[test]
fn idle_connections_are_limited_and_closed() {
    let server = serve("idle");
    let start = Instant::now();
    let open = |_| {
        let connection = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        connection
    };
    let mut idle: Vec<TcpStream> = (0..2 * CONNECTIONS).map(open).collect();
    let agent: Agent = Agent::config_builder().timeout_global(Some(Duration::from_secs(5))).build().into();
    while agent.get(server.url()).call().is_err() {
        assert!(start.elapsed() < Duration::from_secs(20), "no answer");
        std::thread::sleep(Duration::from_millis(100));
    }
    // A closed connection has an end, or it was reset.
    for connection in &mut idle {
        let end = connection.read(&mut [0]);
        let is_open = end.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!is_open && start.elapsed() < Duration::from_secs(20), "{end:?}");
    }
}
