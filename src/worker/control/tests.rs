//! Tests of lost reports, forged replies, and SIGTERM.

use super::*;
use lambert_collective::launchers::{LAUNCHERS, MPIRUN, SRUN};
use lambert_config::run::LauncherKind;
use lambert_control::{CoordinatorCommand, Inbox, REPORT_PATH, ReportReply, SIGNATURE_HEADER, WorkerReport};
use rustix::process::Pid;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

const SECRET: &str = "secret";

/// A rank at the end of training, and the listener of its coordinator.
fn rank() -> (Control, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let shared = SharedControl::new(WorkerPhase::Stop);
    let (wake, woken) = crossbeam_channel::bounded(1);
    let signer = ReportSigner::new(SigningKey::new(SECRET, 1), 0);
    let mut reporter =
        Reporter::new(0, &url, signer, Arc::clone(&shared), Versions::default(), Duration::from_secs(45));
    let thread = std::thread::spawn(move || reporter.serve(&woken));
    shared.state().wake = Some(wake);
    (Control { shared, thread: Some(thread) }, listener)
}

/// Returns the next complete report, with its sequence number and verified signature.
fn next(listener: &TcpListener) -> (TcpStream, u64, WorkerReport) {
    loop {
        let (stream, _) = listener.accept().unwrap();
        if let Some((sequence, report)) = read(&stream) {
            return (stream, sequence, report);
        }
    }
}

/// Reads a report; `None` if the connection was closed.
fn read(stream: &TcpStream) -> Option<(u64, WorkerReport)> {
    let mut lines = BufReader::new(stream);
    let (mut length, mut head) = (0, None);
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let (name, value) = line.trim_end().split_once(": ").unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().unwrap(),
            "authorization" => head = SigningKey::new(SECRET, 1).verify_report(value.as_bytes()),
            _ => {}
        }
        if line == "\r\n" {
            let mut body = vec![0; length];
            lines.read_exact(&mut body).ok()?;
            let head = head.expect("the report is not signed");
            assert!(head.matches_body(&body));
            return Some((head.sequence, serde_json::from_slice(&body).unwrap()));
        }
    }
}

/// A signed HTTP reply to report `sequence` of rank 0.
fn signed(secret: &str, sequence: u64, answer: &ReportReply) -> String {
    let body = serde_json::to_string(answer).unwrap();
    let signature = SigningKey::new(secret, 1).sign_reply(0, sequence, body.as_bytes());
    let head = format!("HTTP/1.1 200 OK\r\n{SIGNATURE_HEADER}: {signature}\r\ncontent-length: {}\r\n", body.len());
    head + "connection: close\r\n\r\n" + &body
}

/// Although replies are lost and connections break, the last message arrives, and
/// the rank waits for the acknowledgement.
#[test]
fn the_last_message_arrives_after_lost_replies() {
    let (mut control, listener) = rank();
    control.report_event(EventKind::Finished { step: 9, stopped: true });
    let coordinator = std::thread::spawn(move || {
        let (mut lost, mut inbox) = (0, Inbox::default());
        loop {
            let (mut stream, sequence, report) = next(&listener);
            if !report.messages.is_empty() && lost < 3 {
                // The report has arrived, but the reply is lost.
                lost += 1;
                continue;
            }
            let text = inbox.accept(report.messages);
            let answer = ReportReply { acknowledged: inbox.acknowledged(), command: None };
            stream.write_all(signed(SECRET, sequence, &answer).as_bytes()).unwrap();
            if !text.is_empty() {
                return text;
            }
        }
    });
    control.flush();
    assert!(
        control.shared.state().outbox.is_empty(),
        "the message left the outbox before the coordinator acknowledged it"
    );
    control.finish();
    assert_eq!(coordinator.join().unwrap(), [Message::Event(EventKind::Finished { step: 9, stopped: true })]);
}

/// Any host on the network can answer a report. A reply has no effect unless it was signed for exactly this report.
#[test]
fn forged_and_replayed_replies_have_no_effect() {
    let (mut control, listener) = rank();
    let stop = ReportReply {
        acknowledged: 1,
        command: Some(CoordinatorCommand { number: 1, directive: Directive::CheckpointAndStop }),
    };
    let (mut stream, first, _) = next(&listener);
    let genuine = signed(SECRET, first, &ReportReply { acknowledged: 0, command: None });
    stream.write_all(genuine.as_bytes()).unwrap();
    control.report_event(EventKind::Warning { message: "slow".into() });
    let forgeries: [&dyn Fn(u64) -> String; 5] = [
        &|sequence| signed("another secret", sequence, &stop),
        &|sequence| signed(SECRET, sequence - 1, &stop),
        &|sequence| signed(SECRET, sequence, &stop).replace("\"acknowledged\":1", "\"acknowledged\":9"),
        &|sequence| signed(SECRET, sequence, &stop).replace(SIGNATURE_HEADER, "other-header"),
        &|_| genuine.clone(),
    ];
    let mut last = first;
    for forge in forgeries {
        let (mut stream, sequence, report) = next(&listener);
        assert!(sequence > last, "a sequence number was used again");
        assert_eq!(
            (report.messages.len(), report.acknowledged_command),
            (1, 0),
            "a reply to an earlier request was accepted"
        );
        stream.write_all(forge(sequence).as_bytes()).unwrap();
        last = sequence;
    }
    let (mut stream, sequence, report) = next(&listener);
    assert_eq!((report.messages.len(), report.acknowledged_command), (1, 0));
    assert_eq!(control.take_directive(), Directive::Continue);
    stream.write_all(signed(SECRET, sequence, &stop).as_bytes()).unwrap();
    control.finish();
    assert_eq!(control.take_directive(), Directive::CheckpointAndStop, "the reply of the coordinator was not accepted");
}

/// The process was suspended between two reports, and the coordinator has closed the connection meanwhile.
#[test]
fn time_between_reports_while_the_process_is_suspended_is_not_counted() {
    let suspended = Duration::from_secs(60);
    let (pause, shared) = (Duration::from_secs(2), SharedControl::new(WorkerPhase::Step));
    let signer = ReportSigner::new(SigningKey::new(SECRET, 1), 0);
    let (url, limit) = ("http://127.0.0.1:1", Duration::from_secs(10));
    let mut reporter = Reporter::new(0, url, signer, Arc::clone(&shared), Versions::default(), limit);
    let Some(before) = Instant::now().checked_sub(pause + suspended) else { return };
    (reporter.heard, reporter.refused, shared.state().since) = (before, Some(before), before);
    reporter.exclude_suspension(pause, pause + suspended);
    let since = shared.state().since;
    for counted in [reporter.heard, reporter.refused.unwrap(), since].map(|since| since.elapsed()) {
        assert!(counted >= pause && counted < pause + Duration::from_secs(2), "{counted:?}");
    }
    // A step that has ended since is not moved into the future.
    shared.state().since = Instant::now();
    reporter.exclude_suspension(pause, pause + suspended);
    assert!(shared.state().since <= Instant::now());
    // A punctual pause counts.
    let heard = reporter.heard;
    reporter.exclude_suspension(pause, pause);
    assert_eq!(reporter.heard, heard);
}

#[test]
fn a_launcher_ends_its_ranks_unless_it_forwards_the_signals_of_the_batch_system() {
    let own = i32::try_from(std::process::id()).unwrap();
    let parent = rustix::process::getppid().map_or(0, Pid::as_raw_pid);
    assert!(
        sigterm::ends_process(None, parent, parent) && !sigterm::ends_process(None, own, parent),
        "the coordinator is the parent"
    );
    assert!(sigterm::ends_process(Some(&MPIRUN), parent, parent) && !sigterm::ends_process(Some(&MPIRUN), own, parent));
    assert!(!sigterm::ends_process(Some(&SRUN), parent, parent));
    // A launcher daemon that is not the parent.
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("orted");
    std::os::unix::fs::symlink("/bin/sh", &program).unwrap();
    let mut daemon = Command::new(program);
    let daemon = daemon.args(["-c", "echo; read line"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut daemon = daemon.spawn().unwrap();
    // The name of the process is set before the process writes.
    daemon.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let sender = i32::try_from(daemon.id()).unwrap();
    let reported = [&MPIRUN, &SRUN].map(|launcher| sigterm::ends_process(Some(launcher), sender, parent));
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert_eq!((reported, sigterm::ends_process(None, sender, parent)), ([true, false], false));
}

#[test]
fn every_launcher_of_ranks_can_be_configured_by_its_name() {
    for launcher in LAUNCHERS {
        let kind = serde_json::from_value::<LauncherKind>(launcher.name.into());
        assert!(kind.is_ok_and(|kind| kind != LauncherKind::Auto && kind != LauncherKind::Direct), "{}", launcher.name);
    }
}

#[test]
fn the_first_and_lost_responses_are_logged_at_debug_level() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let signer = ReportSigner::new(SigningKey::new(SECRET, 1), 0);
    let mut reporter = Reporter::new(
        0,
        &url,
        signer,
        SharedControl::new(WorkerPhase::Stop),
        Versions::default(),
        Duration::from_secs(45),
    );
    let coordinator = std::thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, sequence, _) = next(&listener);
            let answer = ReportReply { acknowledged: 0, command: None };
            stream.write_all(signed(SECRET, sequence, &answer).as_bytes()).unwrap();
        }
    });
    // If another test reached the event first, without a subscriber, tracing would disable the event permanently.
    let discard = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_writer(std::io::sink);
    let _ = tracing::subscriber::set_global_default(discard.finish());
    let log = tempfile::NamedTempFile::new().unwrap();
    let lines = tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
    let lines = lines.with_writer(log.reopen().unwrap()).finish();
    tracing::subscriber::with_default(lines, || {
        assert!(reporter.report() && reporter.report());
        coordinator.join().unwrap();
        assert!(!reporter.report(), "nobody listens there any more");
    });
    let log = std::fs::read_to_string(log.path()).unwrap();
    let fields = format!("url={url}{REPORT_PATH} rank=0");
    assert_eq!(log.matches(&format!("the coordinator answers {fields}")).count(), 1, "{log}");
    assert!(log.contains("the coordinator does not answer: ") && log.contains(&fields), "{log}");
}
