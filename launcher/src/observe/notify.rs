//! Runs `notify.command` at the events of `notify.events`.
//!
//! - `command`: a running command

mod command;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use lambert_config::duration;
use lambert_config::run::{Notify, NotifyEvent};
use serde_json::Value;

use super::{Observation, Observer, ObserverSetup, RunEnd, json_lines};
use command::NotifyCommand;

/// Maximum number of concurrent commands; later events wait.
const MAX_COMMANDS: usize = 8;
/// Interval between checks of running commands.
const POLL: Duration = Duration::from_millis(50);
/// Maximum time to wait at the end of the run, seconds.
const LAST: f64 = 10.0;
/// Upper limit of `notify.timeout_seconds`.
const MAX_TIMEOUT_SECONDS: f64 = 86_400.0;

/// Observer that hands events to a thread, which runs the commands.
#[derive(Debug)]
pub struct Notifier {
    name: String,
    url: String,
    /// Events that are notified.
    notified: Vec<NotifyEvent>,
    /// Events of the thread; `None` at the end.
    events: Option<Sender<String>>,
    /// Disconnected when the thread has ended.
    thread: Receiver<()>,
    last: Duration,
    /// True after a `wait` until the next start: repeated ones are not notified.
    waiting: bool,
}

/// Creates the observer if there is a command.
pub fn make(setup: &ObserverSetup<'_>) -> Option<Box<dyn Observer>> {
    let notify = &setup.config.notify;
    if notify.command.is_empty() {
        return None;
    }
    match Notifier::start(notify, &setup.config.run.name, setup.url) {
        Ok(notifier) => Some(Box::new(notifier)),
        Err(error) => {
            tracing::warn!("notify.command is not run: cannot start a thread: {error}");
            None
        }
    }
}

impl Notifier {
    fn start(notify: &Notify, name: &str, url: &str) -> std::io::Result<Self> {
        let ((events, inbox), (alive, thread)) = (channel(), channel::<()>());
        let seconds = notify.timeout_seconds.min(MAX_TIMEOUT_SECONDS);
        let last = duration::seconds(seconds.min(LAST));
        let mut runner = NotifyRunner {
            command: notify.command.clone(),
            timeout: duration::seconds(seconds),
            running: Vec::new(),
            has_warned: false,
        };
        let run = move || {
            let _alive = alive;
            runner.run(&inbox, last);
        };
        std::thread::Builder::new().name("notify".into()).spawn(run)?;
        let (name, url, notified) = (name.to_owned(), url.to_owned(), notify.events.clone());
        Ok(Self { name, url, notified, events: Some(events), thread, last, waiting: false })
    }

    /// Hands over a line of `lambert run --json` if its event is notified.
    fn notify(&mut self, mut line: Value) {
        let event = line["event"].as_str().unwrap_or_default().to_owned();
        if event == "start" {
            self.waiting = false;
        }
        if !self.notified.iter().any(|notified| notified.name() == event) || (event == "wait" && self.waiting) {
            return;
        }
        self.waiting |= event == "wait";
        if event == "checkpoint" {
            line["checkpoint"] = line["name"].take();
        }
        (line["name"], line["run"]) = (self.name.clone().into(), self.url.clone().into());
        if let Some(events) = &self.events {
            let _ = events.send(line.to_string());
        }
    }
}

impl Observer for Notifier {
    fn observe(&mut self, observation: &Observation<'_>) {
        json_lines::events(observation).into_iter().for_each(|line| self.notify(line));
    }

    /// Waits for the commands, for a limited time.
    fn end(&mut self, end: &RunEnd<'_>) {
        self.notify(json_lines::end_line(end));
        self.events = None;
        let _ = self.thread.recv_timeout(self.last + 10 * POLL);
    }
}

/// Runs the commands, on a thread of its own.
struct NotifyRunner {
    command: Vec<String>,
    timeout: Duration,
    running: Vec<NotifyCommand>,
    has_warned: bool,
}

impl NotifyRunner {
    /// Runs a command for each event until the sender is gone, and then for at most `last`.
    fn run(&mut self, events: &Receiver<String>, last: Duration) {
        let mut until: Option<Instant> = None;
        while until.is_none() || !self.running.is_empty() {
            if until.is_some() || self.running.len() >= MAX_COMMANDS {
                std::thread::sleep(POLL);
            } else {
                let wait = if self.running.is_empty() { Duration::from_secs(3600) } else { POLL };
                match events.recv_timeout(wait) {
                    Ok(line) => self.start(&line),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => {
                        let deadline = Instant::now() + last;
                        self.running.iter_mut().for_each(|command| command.limit(deadline));
                        until = Some(deadline);
                    }
                }
            }
            self.poll();
        }
    }

    fn start(&mut self, line: &str) {
        match NotifyCommand::start(&self.command, line, self.timeout) {
            Ok(command) => self.running.push(command),
            Err(error) => self.warn(&format!("cannot be started: {error}")),
        }
    }

    fn poll(&mut self) {
        let mut failures = Vec::new();
        self.running.retain_mut(|command| match command.poll() {
            Some(ended) => {
                failures.extend(ended.err());
                false
            }
            None => true,
        });
        failures.iter().for_each(|failure| self.warn(failure));
    }

    /// Logs the first failure.
    fn warn(&mut self, failure: &str) {
        if !self.has_warned {
            let program = &self.command[0];
            tracing::warn!("notify.command {program} {failure}; later failures of this command are not logged");
        }
        self.has_warned = true;
    }
}
