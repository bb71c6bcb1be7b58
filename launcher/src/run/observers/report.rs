//! `status.json` and `coordinator.json`, kept up to date in the run's store.

use lambert_config::RunConfig;
use lambert_config::control::{EventKind, StepRecord};
use lambert_config::plan;
use lambert_config::run::Cluster;
use lambert_control::Saying;

use super::Scene;
use crate::run::decide::memory::Restart;
use crate::run::decide::{Action, Event, FromWorkers, Memory, Note, Seconds, State as Decided, Verdict};
use crate::run::launch::{logs, processes};
use crate::status::{Coordinator, Lost, RankStatus, Reporter, State, Status, Urgency};

/// How often the status of all ranks is put together while nothing else changes, seconds. It does not follow each report:
/// that would make a report's work grow with the ranks.
const PERIOD: Seconds = 1.0;

/// Keeps the status.
#[derive(Debug)]
pub struct Report {
    status: Status,
    cluster: Cluster,
    url: String,
    reporter: Reporter,
    written: Seconds,
    memory: Memory,
}

impl Report {
    /// Of the run at `url`, which begins, or goes on: what is known from `before` holds until the ranks say otherwise.
    pub fn new(config: &RunConfig, url: &str, before: Status, reporter: Reporter) -> Self {
        let status = Status {
            step: before.step,
            checkpoint: before.checkpoint,
            record: before.record,
            evaluation: before.evaluation,
            noise: before.noise,
            name: config.run.name.clone(),
            steps: plan::total_steps(config, &plan::Ended::new()),
            coordinator: Coordinator {
                host: processes::host(),
                pid: std::process::id(),
                since: processes::since(std::process::id()).unwrap_or_default(),
            },
            ..Status::default()
        };
        let (cluster, url) = (config.cluster.clone(), url.to_owned());
        Self { status, cluster, url, reporter, written: 0.0, memory: Memory::default() }
    }

    /// Steps of all stages.
    pub fn steps(&self) -> u64 {
        self.status.steps
    }

    /// What is known.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// So many requests were refused on the control channel.
    pub fn refused(&mut self, times: u64) {
        self.status.refused = times;
    }

    /// The request to stop has been followed: it leaves the store.
    pub fn forget_stop(&self) {
        self.reporter.forget_stop();
    }

    /// Something happened.
    pub fn see(&mut self, scene: &Scene<'_>) {
        let mut urgent = false;
        if let Event::Worker(_, FromWorkers::Message(_, saying)) = scene.event {
            match saying {
                Saying::Record(record) => self.record(record, scene),
                Saying::Event(event) => {
                    self.event(event);
                    urgent = true;
                }
            }
        }
        for action in scene.actions {
            urgent |= self.action(action, scene.state);
        }
        if urgent || scene.at - self.written >= PERIOD {
            self.written = scene.at;
            self.publish(scene.at, scene.state, if urgent { Urgency::Change } else { Urgency::Routine });
        }
    }

    fn publish(&mut self, at: Seconds, state: &Decided, urgency: Urgency) {
        if let Some(running) = state.running() {
            let ranks = running.watch.ranks.iter().map(|(number, rank)| RankStatus {
                rank: *number,
                host: rank.host.clone(),
                pid: rank.pid,
                step: rank.step,
                phase: rank.phase.to_string(),
                silent: at - rank.heard,
            });
            self.status.ranks = ranks.collect();
        }
        if state.memory != self.memory {
            self.memory = state.memory.clone();
            self.status.lost = state.memory.restarts.iter().map(lost).collect();
            self.reporter.remember(self.memory.clone());
        }
        self.reporter.publish(self.status.clone(), urgency);
    }

    fn record(&mut self, record: &StepRecord, scene: &Scene<'_>) {
        let status = &mut self.status;
        status.step = record.step;
        status.samples_per_second = scene.pace.samples_per_second();
        status.seconds_left = scene.pace.seconds_for(status.steps.saturating_sub(record.step));
        if let Some(noise) = record.noise {
            status.noise.get_or_insert_default().add(noise);
        }
        status.record = Some(record.clone());
    }

    fn event(&mut self, event: &EventKind) {
        let status = &mut self.status;
        match event {
            EventKind::Started { step, steps, checkpoint, .. } => {
                (status.step, status.steps, status.checkpoint) = (*step, *steps, checkpoint.clone());
                if status.state != State::Stopping {
                    status.state = State::Training;
                }
            }
            EventKind::Checkpoint { name, .. } => status.checkpoint = Some(name.clone()),
            EventKind::Evaluation(evaluation) => status.evaluation = Some(evaluation.clone()),
            EventKind::Plateau { steps, .. } => status.steps = *steps,
            EventKind::Finished { step, .. } => status.step = *step,
            EventKind::Grown { .. }
            | EventKind::MicroBatch { .. }
            | EventKind::Warning { .. }
            | EventKind::Failed { .. }
            | EventKind::RolledBack { .. } => {}
        }
    }

    /// Whether the state changes.
    fn action(&mut self, action: &Action, state: &Decided) -> bool {
        let status = &mut self.status;
        match action {
            Action::Start(attempt) => {
                status.state = State::Starting;
                status.attempt = attempt.number;
                status.logs = logs::folder(&self.cluster, &self.url, attempt.number)
                    .map(|folder| folder.to_string_lossy().into_owned());
                status.ranks.clear();
            }
            Action::Note(Note::Stopping | Note::NothingToSave | Note::OutOfTime) => status.state = State::Stopping,
            Action::Note(Note::Restart { cause, .. }) => {
                status.state = State::Restarting;
                (status.restarts, status.error) = (status.restarts + 1, Some(cause.clone()));
            }
            Action::Note(Note::Waiting { cause, .. }) => {
                (status.state, status.error) = (State::Restarting, Some(cause.clone()));
            }
            Action::Note(Note::Recovered { .. }) | Action::TakeLease(_) => return state.memory != self.memory,
            _ => return false,
        }
        true
    }

    /// The run is over under this coordinator.
    pub fn end(&mut self, verdict: &Verdict, state: &Decided) {
        let status = &mut self.status;
        status.state = match verdict {
            Verdict::Finished => State::Finished,
            Verdict::Stopped(_) => State::Stopped,
            Verdict::Failed(_, why) => {
                status.error = Some(why.clone());
                State::Failed
            }
            // The status belongs to the coordinator that has taken over.
            Verdict::Replaced(_) => return self.reporter.discard(),
        };
        self.publish(self.written, state, Urgency::Change);
    }
}

fn lost(restart: &Restart) -> Lost {
    let Restart { attempt, step, seconds, cause, .. } = restart;
    Lost { attempt: *attempt, step: *step, seconds: *seconds, cause: cause.clone() }
}
