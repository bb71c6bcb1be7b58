//! Tests of the control server over real connections: accepted and refused reports.

use super::*;
use crate::decide::Placement;
use lambert_control::EventKind;
use lambert_control::{Message, Outbox};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

const ATTEMPT: u32 = 3;

fn server() -> (ControlServer, Receiver<Event>) {
    let (events, inbox) = channel();
    let attempt = Attempt { number: ATTEMPT, world: 2, placement: Placement::Here };
    (ControlServer::start(&ControlChannel::default(), &attempt, events).unwrap(), inbox)
}

fn key(server: &ControlServer) -> SigningKey {
    SigningKey::new(server.secret(), ATTEMPT)
}

/// Raw HTTP request.
fn request(path: &str, authorization: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: {authorization}\r\n");
    format!("{head}connection: close\r\ncontent-length: {length}\r\n\r\n{body}").into_bytes()
}

fn signed(server: &ControlServer, sequence: u64, report: &WorkerReport) -> Vec<u8> {
    let body = serde_json::to_string(report).unwrap();
    request(REPORT_PATH, &key(server).sign_report(report.rank, sequence, body.as_bytes()), &body)
}

/// Sends a request on a new connection. Returns the status (0: none) and the response, once the server has closed the
/// connection.
fn send(server: &ControlServer, request: &[u8]) -> (u16, String) {
    exchange(server, request, |_| {})
}

/// Sends a truncated request and shuts down the sending side.
fn send_cut(server: &ControlServer, request: &[u8]) -> (u16, String) {
    exchange(server, request, |stream| stream.shutdown(Shutdown::Write).unwrap_or_default())
}

fn exchange(server: &ControlServer, request: &[u8], end: impl Fn(&TcpStream)) -> (u16, String) {
    let mut stream = TcpStream::connect(server.url().strip_prefix("http://").unwrap()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
    // The server may close the connection before the request is complete.
    let _ = stream.write_all(request);
    end(&stream);
    let mut output = Vec::new();
    if let Err(error) = stream.read_to_end(&mut output) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "the connection stays open");
    }
    let output = String::from_utf8_lossy(&output).into_owned();
    (output.strip_prefix("HTTP/1.1 ").and_then(|rest| rest[..3].parse().ok()).unwrap_or(0), output)
}

/// Sends report `sequence`, verifies the signature of the reply, and returns the reply.
fn answer(server: &ControlServer, sequence: u64, report: &WorkerReport) -> ReportReply {
    let (code, output) = send(server, &signed(server, sequence, report));
    assert_eq!(code, 200, "{output}");
    let (head, body) = output.split_once("\r\n\r\n").unwrap();
    let signature = head.lines().find_map(|line| line.strip_prefix(&format!("{SIGNATURE_HEADER}: "))).unwrap();
    assert!(key(server).verify_reply(report.rank, sequence, body.as_bytes(), signature), "{output}");
    serde_json::from_str(body).unwrap()
}

fn from(rank: usize) -> WorkerReport {
    WorkerReport { rank, pid: 7, host: "h".into(), step: 3, ..WorkerReport::default() }
}

fn warning(text: &str) -> Message {
    Message::Event(EventKind::Warning { message: text.into() })
}

#[test]
fn messages_of_a_rank_arrive_once_and_are_acknowledged() {
    let (server, inbox) = server();
    let mut outbox = Outbox::default();
    outbox.push(warning("slow"));
    for sequence in 1..4 {
        let report = WorkerReport { messages: outbox.batch(), ..from(1) };
        assert_eq!(answer(&server, sequence, &report), ReportReply { acknowledged: 1, command: None });
    }
    let events: Vec<_> = inbox.try_iter().collect();
    let report = Event::Worker(3, WorkerEvent::Report(from(1)));
    let output = Event::Worker(3, WorkerEvent::Message(1, warning("slow")));
    assert_eq!(events, [report.clone(), output, report.clone(), report]);
}

#[test]
fn a_command_is_repeated_until_rank_0_acknowledges_it() {
    let (server, _inbox) = server();
    server.send_command(Directive::Checkpoint);
    let command = Some(CoordinatorCommand { number: 1, directive: Directive::Checkpoint });
    assert_eq!(answer(&server, 1, &from(1)).command, None, "rank 0 passes it on");
    for sequence in 1..3 {
        assert_eq!(answer(&server, sequence, &from(0)).command, command);
    }
    assert_eq!(answer(&server, 3, &WorkerReport { acknowledged_command: 1, ..from(0) }).command, None);
    server.send_command(Directive::CheckpointAndStop);
    assert_eq!(answer(&server, 4, &WorkerReport { acknowledged_command: 1, ..from(0) }).command.unwrap().number, 2);
}

#[test]
fn foreign_and_invalid_requests_are_rejected_and_counted() {
    let (server, inbox) = server();
    let good = serde_json::to_string(&from(1)).unwrap();
    let with = |key: &SigningKey, rank, sequence, body: &str| {
        send(&server, &request(REPORT_PATH, &key.sign_report(rank, sequence, body.as_bytes()), body)).0
    };
    let own = key(&server);
    let secret = server.secret();
    for stranger in
        [SigningKey::new("", ATTEMPT), SigningKey::new(&secret[1..], ATTEMPT), SigningKey::new(secret, ATTEMPT + 1)]
    {
        assert_eq!(with(&stranger, 1, 1, &good), 401);
    }
    // The server does not accept the secret itself, so that ranks never send it.
    assert_eq!(send(&server, &request(REPORT_PATH, &format!("Bearer {secret}"), &good)).0, 401);
    assert_eq!(with(&own, 2, 1, &good), 400, "there is no rank 2");
    assert_eq!(with(&own, 0, 1, &good), 400, "rank 0 signs a report of rank 1");
    assert_eq!(with(&own, 1, 1, "{"), 400);
    assert_eq!(with(&own, 1, 2, &"x".repeat(MAX_REPORT_BYTES + 1)), 413);
    assert_eq!(server.refused(), 8);
    assert!(inbox.try_recv().is_err());
}

/// Subscriber that writes log lines to a file, including debug level.
fn debug_lines(log: &tempfile::NamedTempFile) -> impl tracing::Subscriber + Send + Sync + use<> {
    // Without a global subscriber, a log call that another test reaches first would stay disabled.
    let discard = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_writer(std::io::sink);
    let _ = tracing::subscriber::set_global_default(discard.finish());
    let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
    lines.with_writer(log.reopen().unwrap()).finish()
}

/// The thread of the server has no subscriber in this test, so the handler runs on the thread of the test.
#[test]
fn first_reports_and_rejections_are_logged_at_debug_level() {
    let (server, _inbox) = server();
    let body = serde_json::to_string(&from(1)).unwrap();
    let authorization = key(&server).sign_report(1, 1, body.as_bytes());
    let post = || {
        let request = Request::post(REPORT_PATH).header(header::AUTHORIZATION, &authorization);
        report(
            State(Arc::clone(&server.shared)),
            Extension(TrustMark::default()),
            request.body(Body::from(body.clone())).unwrap(),
        )
    };
    let log = tempfile::NamedTempFile::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tracing::subscriber::with_default(debug_lines(&log), || {
        let codes = [(); 2].map(|()| runtime.block_on(post()).status().as_u16());
        assert_eq!(codes, [200, 409]);
    });
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert_eq!(log.matches("first report of a rank rank=1 host=h pid=7").count(), 1, "{log}");
    assert_eq!(
        log.matches("report refused status=409 reason=report 1 of rank 1 is repeated or out of order").count(),
        1,
        "{log}"
    );
    assert!(!log.contains(server.secret()) && !log.contains(&authorization), "{log}");
}

/// The connections are served on a runtime of the thread of the test, which has the subscriber.
#[test]
fn connections_are_logged_at_debug_level() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let reported = || std::fs::read_to_string(log.path()).unwrap();
    let until = async |words: &str| {
        while !reported().contains(words) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let serve = async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let one = tokio::spawn(http::serve("control", listener, Router::new(), 1, || {}));
        let first = TcpStream::connect(address).unwrap();
        until("control connection accepted").await;
        let second = TcpStream::connect(address).unwrap();
        until("too many open control connections").await;
        drop((first, second));
        until("control connection closed").await;
        one.abort();
    };
    tracing::subscriber::with_default(debug_lines(&log), || {
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), serve).await }).unwrap();
    });
    assert!(reported().contains("control connection accepted peer=127.0.0.1:"), "{}", reported());
}

/// The server ignores an end of the run that another rank reports or that comes before the end of the schedule.
#[test]
fn an_impossible_end_is_ignored_and_counted() {
    let (server, inbox) = server();
    let mut outboxes = [Outbox::default(), Outbox::default()];
    let mut believed = |rank: usize, kind: EventKind| {
        outboxes[rank].push(Message::Event(kind));
        let output = outboxes[rank].batch();
        let number = output[0].number;
        assert_eq!(
            answer(&server, number, &WorkerReport { messages: output, ..from(rank) }).acknowledged,
            number,
            "it is not repeated"
        );
        outboxes[rank].acknowledge(number);
        inbox.try_iter().filter(|event| matches!(event, Event::Worker(_, WorkerEvent::Message(..)))).count() == 1
    };
    let end = |step| EventKind::Finished { step, stopped: false };
    assert!(!believed(0, end(9)), "before the start");
    assert!(believed(0, EventKind::Started { step: 0, steps: 9, checkpoint: None, skipped_checkpoints: Vec::new() }));
    assert!(!believed(0, end(8)) && !believed(1, end(9)));
    assert!(believed(0, end(9)));
    assert_eq!(server.refused(), 3);
}

/// Protocol 2 sends the secret with each report. The server records the versions in such a report and ignores the rest.
#[test]
fn a_rank_with_the_previous_protocol_is_recognized_by_its_version() {
    let (server, inbox) = server();
    let secret = format!("Bearer {}", server.secret());
    let versions = r#""versions":{"program":"0.1.0","git":"abc","libtorch":"2.11.0","mpi":""}"#;
    let output = r#""messages":[{"number":1,"event":{"event":"finished","step":9,"stopped":false}}]"#;
    for more in [String::new(), format!(",{versions},{output}")] {
        let body = format!(r#"{{"rank":1,"pid":7,"host":"h","step":0,"phase":"join","seconds_in_phase":0.0{more}}}"#);
        assert_eq!(send(&server, &request(UNSIGNED_REPORT_PATH, "Bearer wrong", &body)).0, 401);
        assert!(inbox.try_recv().is_err());
        assert_eq!(send(&server, &request(UNSIGNED_REPORT_PATH, &secret, &body)).0, 426);
        let Ok(Event::Worker(3, WorkerEvent::Report(report))) = inbox.try_recv() else { panic!("no report") };
        assert_eq!(report.versions.unwrap().protocol, "2");
        assert!(inbox.try_recv().is_err(), "what it says is not believed");
    }
}

/// The test modifies, truncates, replays and reorders genuine reports, and sends them as another rank. The server
/// accepts none of them and closes each connection. The genuine reports of the rank still pass.
#[test]
fn forged_replayed_reordered_and_truncated_reports_are_rejected() {
    let (server, inbox) = server();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = |below: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % below
    };
    let mut outboxes = [Outbox::default(), Outbox::default()];
    let (mut recorded, mut forgeries) = (vec![request("/", "", "")], 0);
    let place = |request: &[u8], word: &[u8]| request.windows(word.len()).position(|part| part == word).unwrap();
    for turn in 1..=40_u64 {
        let rank = draw(2);
        outboxes[rank].push(warning(&turn.to_string()));
        let genuine = signed(&server, turn, &WorkerReport { messages: outboxes[rank].batch(), ..from(rank) });
        outboxes[rank].acknowledge(u64::MAX);
        let (body, signature) = (place(&genuine, b"\r\n\r\n") + 4, place(&genuine, b"Lambert-HMAC ") + 13);
        for kind in 0..5 {
            let mut forged = genuine.clone();
            let older = &recorded[draw(recorded.len())];
            let (code, output) = match kind {
                0 => {
                    forged[body + draw(genuine.len() - body)] ^= 1 << draw(7);
                    send(&server, &forged)
                }
                1 => {
                    forged[signature + draw(133)] ^= 1 << draw(7);
                    send(&server, &forged)
                }
                2 => send_cut(&server, &genuine[..draw(genuine.len())]),
                3 => send(&server, older),
                _ => {
                    forged.splice(..body, older[..place(older, b"\r\n\r\n") + 4].iter().copied());
                    send(&server, &forged)
                }
            };
            assert_ne!(code, 200, "{}\n{output}", String::from_utf8_lossy(&forged));
            assert_eq!(inbox.try_iter().count(), 0, "a forged report was taken in");
            forgeries += 1;
        }
        let (code, output) = send(&server, &genuine);
        assert_eq!(code, 200, "{output}");
        let output = Event::Worker(3, WorkerEvent::Message(rank, warning(&turn.to_string())));
        assert_eq!(inbox.try_iter().collect::<Vec<_>>(), [Event::Worker(3, WorkerEvent::Report(from(rank))), output]);
        recorded.push(genuine);
    }
    assert!(recorded[1..].iter().all(|replayed| send(&server, replayed).0 == 409));
    let [late, early] = [100, 101].map(|sequence| signed(&server, sequence, &from(0)));
    assert_eq!((send(&server, &early).0, send(&server, &late).0), (200, 409));
    assert_eq!(inbox.try_iter().count(), 1);
    eprintln!("{forgeries} forged and {} replayed reports were refused, {} counted", recorded.len(), server.refused());
}

/// The server refuses invalid headers without waiting for the rest of the request, and closes the connection.
#[test]
fn the_signature_is_verified_before_parsing() {
    let (server, _inbox) = server();
    let head = |sequence| {
        let authorization = key(&server).sign_report(1, sequence, b"x");
        let authorization = if sequence == 0 { "Lambert-HMAC 1 1 0 0" } else { &authorization };
        format!(
            "POST {REPORT_PATH} HTTP/1.1\r\nhost: x\r\nauthorization: {authorization}\r\ncontent-length: 1000000\r\n\r\n"
        )
    };
    assert_eq!(answer(&server, 1, &from(1)).acknowledged, 0);
    // An unsigned request, and a replay of old headers.
    for (sequence, expected) in [(0, "HTTP/1.1 401"), (1, "HTTP/1.1 409")] {
        let mut stranger = TcpStream::connect(server.url().strip_prefix("http://").unwrap()).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        stranger.write_all(head(sequence).as_bytes()).unwrap();
        let mut output = String::new();
        stranger.read_to_string(&mut output).expect("the connection stays open");
        assert!(output.starts_with(expected), "{output}");
    }
}

#[test]
fn a_hundred_idle_connections_block_no_rank_and_are_closed() {
    let (server, _inbox) = server();
    let address = server.url().strip_prefix("http://").unwrap();
    let start = Instant::now();
    // A rank that is connected keeps its connection.
    let mut connected = TcpStream::connect(address).unwrap();
    connected.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
    let mut report = |sequence| {
        let report = String::from_utf8(signed(&server, sequence, &from(0))).unwrap();
        connected.write_all(report.replace("connection: close\r\n", "").as_bytes()).unwrap();
        let mut status = [0; 12];
        connected.read_exact(&mut status).unwrap();
        while connected.read(&mut [0; 4096]).unwrap() == 4096 {}
        String::from_utf8(status.to_vec()).unwrap()
    };
    assert_eq!(report(1), "HTTP/1.1 200");
    let idle: Vec<_> = (0..most(2) + 50).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert_eq!(send(&server, &signed(&server, 1, &from(1))).0, 200, "idle connections keep a rank out");
    assert_eq!(report(2), "HTTP/1.1 200");
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    assert!(server.refused() >= 50, "{}", server.refused());
    drop(idle);
}

/// Requests without a signature, on a path that does not exist, do not keep a connection open.
#[test]
fn unsigned_requests_close_their_connections() {
    let (server, _inbox) = server();
    for request in ["GET / HTTP/1.1\r\nhost: x\r\n\r\n", &format!("GET {REPORT_PATH} HTTP/1.1\r\nhost: x\r\n\r\n")] {
        let mut stranger = TcpStream::connect(server.url().strip_prefix("http://").unwrap()).unwrap();
        stranger.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        stranger.write_all(request.as_bytes()).unwrap();
        let mut output = String::new();
        stranger.read_to_string(&mut output).expect("the connection stays open");
        assert!(output.starts_with("HTTP/1.1 404") && output.contains("connection: close"), "{output}");
    }
    assert_eq!(server.refused(), 2);
}

#[test]
fn each_attempt_has_its_own_secret() {
    let (one, other) = (server().0, server().0);
    assert_eq!(one.secret().len(), 64);
    assert_ne!(one.secret(), other.secret());
}
