//! The control channel with an attacker on the network between the ranks and their coordinator.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::support::{Running, TestDir, done, with_worker};

/// Proxy between the ranks and the coordinator. It reads every message. It replays every report, sends a modified copy
/// of every report, and forges every fourth response.
struct Attacker {
    port: u16,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Default)]
struct Seen {
    messages: Vec<Vec<u8>>,
    /// HTTP status codes of the responses to replayed reports. `changed` contains those of the responses to modified
    /// reports.
    repeated: Vec<u16>,
    changed: Vec<u16>,
    answered: usize,
}

impl Attacker {
    /// Starts the proxy. It forwards to the URL that is in `file` at the time of a request.
    fn start(file: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, seen) = (listener.local_addr().unwrap().port(), Arc::new(Mutex::new(Seen::default())));
        let own = Arc::clone(&seen);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (file, seen) = (file.clone(), Arc::clone(&own));
                std::thread::spawn(move || pass_on(&client, &file, &seen));
            }
        });
        Self { port, seen }
    }
}

/// Serves one connection of a rank until either end closes it.
fn pass_on(mut client: &TcpStream, file: &Path, seen: &Mutex<Seen>) -> Option<()> {
    loop {
        let request = message(client)?;
        let address = std::fs::read_to_string(file).ok()?;
        let genuine = exchange(&address, &request)?;
        let repeated = code(&exchange(&address, &request)?);
        let changed = String::from_utf8_lossy(&request).replace("\"pid\":", "\"pid\":1");
        let head = changed.split("\r\n").map(|line| match line.to_ascii_lowercase().strip_prefix("content-length: ") {
            Some(length) => format!("content-length: {}", length.parse::<usize>().unwrap() + 1),
            None => line.to_owned(),
        });
        let changed = code(&exchange(&address, head.collect::<Vec<_>>().join("\r\n").as_bytes())?);
        let mut seen = seen.lock().unwrap();
        seen.messages.extend([request, genuine.clone()]);
        seen.repeated.push(repeated);
        seen.changed.push(changed);
        let is_ours = seen.repeated.len().is_multiple_of(4);
        seen.answered += usize::from(is_ours);
        drop(seen);
        client.write_all(&if is_ours { forged_response(&genuine) } else { genuine }).ok()?;
    }
}

/// Returns a response with the head of a genuine response and a forged body. The body acknowledges all messages and
/// requests a stop.
fn forged_response(genuine: &[u8]) -> Vec<u8> {
    let body = r#"{"acknowledged":1000000,"command":{"number":7,"directive":"checkpoint-and-stop"}}"#;
    let text = String::from_utf8_lossy(genuine);
    let (head, _) = text.split_once("\r\n\r\n").unwrap();
    let kept = head.lines().filter(|line| !line.to_ascii_lowercase().starts_with("content-length"));
    let head = kept.map(|line| format!("{line}\r\n")).collect::<String>();
    format!("{head}content-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

fn exchange(address: &str, request: &[u8]) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(address.trim().strip_prefix("http://")?).ok()?;
    stream.write_all(request).ok()?;
    message(&stream)
}

/// Reads a request or a response, head and body.
fn message(stream: &TcpStream) -> Option<Vec<u8>> {
    let (mut lines, mut whole, mut length) = (BufReader::new(stream), String::new(), 0);
    loop {
        let start = whole.len();
        if lines.read_line(&mut whole).ok()? == 0 {
            return None;
        }
        let line = whole[start..].to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line == "\r\n" {
            let mut body = vec![0; length];
            lines.read_exact(&mut body).ok()?;
            return Some([whole.into_bytes(), body].concat());
        }
    }
}

fn code(answer: &[u8]) -> u16 {
    String::from_utf8_lossy(answer).split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}

#[test]
fn an_attacker_learns_no_secret_and_has_no_effect() {
    const STEPS: u64 = 60;
    let dir = TestDir::new();
    let (address, secret) = (dir.path("address"), dir.path("secret"));
    let between = Attacker::start(address.clone().into());
    let script = format!(
        "echo $LAMBERT_CONTROL_URL >{address}.$$; mv {address}.$$ {address}; echo $LAMBERT_CONTROL_TOKEN >{secret}
         export LAMBERT_CONTROL_URL=http://127.0.0.1:{}; exec $WORKER \"$@\"",
        between.port
    );
    let (config, run) = (dir.config(STEPS, 2), dir.path("run"));
    let program = Command::new(with_worker(&dir, &script));
    let ended = Running::start_by(program, &config, &run, &[]).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let steps: Vec<u64> = ended.records.iter().map(|record| record.step).collect();
    assert_eq!(steps, (1..=STEPS).collect::<Vec<_>>(), "{}", ended.log);
    let (seen, secret) = (between.seen.lock().unwrap(), std::fs::read_to_string(secret).unwrap());
    let secret = secret.trim();
    assert_eq!(secret.len(), 64);
    assert!(seen.answered > 2, "{} responses were forged", seen.answered);
    assert!(seen.repeated.iter().all(|code| *code == 409), "repeated reports: {:?}", seen.repeated);
    assert!(seen.changed.iter().all(|code| *code == 401 || *code == 409), "changed reports: {:?}", seen.changed);
    let sent = seen.messages.iter().filter(|message| String::from_utf8_lossy(message).contains(secret)).count();
    assert_eq!(sent, 0, "messages with the secret, of {}", seen.messages.len());
    let status: serde_json::Value =
        serde_json::from_slice(&std::fs::read(Path::new(&run).join("status.json")).unwrap()).unwrap();
    assert!(status["refused"].as_u64().unwrap() > 0, "{status}");
    eprintln!(
        "{} messages read, {} answers forged; refused: {}",
        seen.messages.len(),
        seen.answered,
        status["refused"]
    );
}

/// A coordinator with the previous protocol asks for the secret, which a rank never sends.
#[test]
fn a_rank_exits_under_a_coordinator_with_the_previous_protocol() {
    let dir = TestDir::new();
    let (config, run) = (dir.config(3, 1), dir.path("run"));
    done(&["run", "--config", &config, "--run", &run]);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = message(&client);
            let _ = client.write_all(b"HTTP/1.1 401 Unauthorized\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let mut rank = Command::new(env!("CARGO_BIN_EXE_lambert-worker"));
    rank.args(["train", "--run", &run, "--attempt", "1"]);
    let output = rank.envs([("LAMBERT_CONTROL_URL", &*url), ("LAMBERT_CONTROL_TOKEN", "secret")]).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{log}");
    assert!(log.contains("the coordinator has another version"), "{log}");
}

/// Emulates ranks with the previous protocol.
#[test]
fn ranks_with_the_previous_protocol_are_a_version_mismatch() {
    let dir = TestDir::new();
    let script = r#"exec bash -c '
        address=${LAMBERT_CONTROL_URL#http://}
        exec 3<>/dev/tcp/${address%:*}/${address##*:}
        body="{\"rank\":$OMPI_COMM_WORLD_RANK,\"pid\":$$,\"host\":\"h\",\"step\":0,\"phase\":\"join\",\"in_phase\":0.0}"
        printf "POST /v2/report HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %s\r\ncontent-length: %s\r\n\r\n%s" \
            $LAMBERT_CONTROL_TOKEN ${#body} "$body" >&3
        cat <&3; exec sleep 60'"#;
    let arguments = ["run", "--config", &dir.config(9, 2), "--run", &dir.path("run")];
    let output = Command::new(with_worker(&dir, script)).args(arguments).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{log}");
    let why = "version mismatch: this coordinator has control protocol 4, rank ";
    assert!(log.contains(why) && log.contains(" has 2"), "{log}");
}
