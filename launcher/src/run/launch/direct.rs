//! A single rank, started as a child process.

use super::{CommandLine, Launcher, Prose, Start};
use crate::decide::WorkerEvent;

/// Starts the only rank as a child process.
#[derive(Debug)]
pub struct Direct;

impl Launcher for Direct {
    fn name(&self) -> String {
        "direct".to_owned()
    }

    fn command(&self, start: &Start<'_>) -> CommandLine {
        start.worker_line()
    }

    fn prose(&self) -> Box<dyn Prose> {
        Box::new(Plain)
    }
}

/// Treats every line as output of rank 0.
struct Plain;

impl Prose for Plain {
    fn line(&mut self, text: &str) -> Vec<WorkerEvent> {
        vec![WorkerEvent::Line(0, text.to_owned())]
    }

    fn end(&mut self) -> Vec<WorkerEvent> {
        Vec::new()
    }
}
