//! One rank, started by the coordinator itself.

use super::{CommandLine, Launcher, Prose, Start};
use crate::decide::FromWorkers;

/// Starts the only rank as a child.
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

/// Every line is the rank's.
struct Plain;

impl Prose for Plain {
    fn line(&mut self, text: &str) -> Vec<FromWorkers> {
        vec![FromWorkers::Line(0, text.to_owned())]
    }

    fn end(&mut self) -> Vec<FromWorkers> {
        Vec::new()
    }
}
