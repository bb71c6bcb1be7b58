//! A single rank, started as a child process.

use super::{CommandLine, LaunchParams, Launcher, OutputParser};
use crate::decide::WorkerEvent;

/// Starts the only rank as a child process.
#[derive(Debug)]
pub struct Direct;

impl Launcher for Direct {
    fn name(&self) -> String {
        "direct".to_owned()
    }

    fn command(&self, start: &LaunchParams<'_>) -> CommandLine {
        start.worker_line()
    }

    fn parser(&self) -> Box<dyn OutputParser> {
        Box::new(DirectParser)
    }
}

/// Treats every line as output of rank 0.
struct DirectParser;

impl OutputParser for DirectParser {
    fn line(&mut self, text: &str) -> Vec<WorkerEvent> {
        vec![WorkerEvent::Line(0, text.to_owned())]
    }

    fn continuation(&mut self, text: &str) -> Vec<WorkerEvent> {
        self.line(text)
    }

    fn end(&mut self) -> Vec<WorkerEvent> {
        Vec::new()
    }
}
