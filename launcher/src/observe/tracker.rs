//! Run status, derived from events and actions.

use lambert_config::RunConfig;
use lambert_config::run::Cluster;
use lambert_control::Message;
use lambert_control::{EventKind, StepRecord};
use lambert_plan::timeline;

use super::goodput::GoodputAccount;
use super::{StepCosts, Throughput};
use crate::decide::history::Restart;
use crate::decide::{Action, CoordinatorState, Event, Note, RestartHistory, Seconds, Verdict, WorkerEvent};
use crate::logs;
use crate::status::{CoordinatorProcess, Downtime, FailedSaves, RankStatus, RunProgress, RunState, Status};
use crate::store_writer::Urgency;

/// Interval between full status updates, seconds. An urgent event causes an additional update. The cost of an update is
/// proportional to the number of ranks, so the status is not updated on every report.
const PERIOD: Seconds = 1.0;

/// Maintains the status and throughput of a run.
#[derive(Debug)]
pub struct StatusTracker {
    status: Status,
    throughput: Throughput,
    goodput: GoodputAccount,
    cluster: Cluster,
    url: String,
    /// Time of the last full update.
    refreshed: Seconds,
    /// History from which the list of failures in the status was built.
    history: RestartHistory,
}

impl StatusTracker {
    /// Creates a tracker for the run at `url`. Until the ranks report, the status keeps values from `before`.
    pub fn new(config: &RunConfig, url: &str, before: Status, coordinator: CoordinatorProcess) -> Self {
        let status = Status {
            name: config.run.name.clone(),
            progress: RunProgress {
                step: before.progress.step,
                steps: timeline::total_steps(config, &timeline::EarlyStops::new()),
                ..RunProgress::default()
            },
            checkpoint: before.checkpoint,
            failed_saves: before.failed_saves,
            latest: before.latest,
            goodput: before.goodput.clone(),
            coordinator,
            ..Status::default()
        };
        let (cluster, url) = (config.cluster.clone(), url.to_owned());
        Self {
            status,
            throughput: Throughput::default(),
            goodput: GoodputAccount::new(before.goodput),
            cluster,
            url,
            refreshed: 0.0,
            history: RestartHistory::default(),
        }
    }

    /// Status after the last event.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Throughput over recent steps.
    pub fn throughput(&self) -> &Throughput {
        &self.throughput
    }

    /// Sets the costs of the steps. Call this function before the first step.
    pub fn set_step_costs(&mut self, costs: StepCosts) {
        self.throughput = Throughput::new(costs);
    }

    /// Records the number of requests that the control server refused in the current attempt.
    pub fn set_refused(&mut self, times: u64) {
        self.status.workers.refused = times;
    }

    /// Applies an event. Returns the urgency of showing the status. `None`: a later event will show the status.
    pub fn observe(
        &mut self,
        at: Seconds,
        event: &Event,
        actions: &[Action],
        state: &CoordinatorState,
    ) -> Option<Urgency> {
        self.goodput.observe(at, event, actions, state);
        let mut urgent = false;
        if let Event::Worker(_, WorkerEvent::Message(_, message)) = event {
            match message {
                Message::Record(record) => self.record(record),
                Message::Event(event) => {
                    self.event(event, state.settings.unix + at);
                    urgent = true;
                }
            }
        }
        for action in actions {
            urgent |= self.action(action, state);
        }
        if !urgent && at - self.refreshed < PERIOD {
            return None;
        }
        self.refreshed = at;
        self.refresh(state);
        Some(if urgent { Urgency::Change } else { Urgency::Routine })
    }

    /// Applies the end of the run under this coordinator.
    pub fn end(&mut self, verdict: &Verdict, state: &CoordinatorState) {
        let status = &mut self.status;
        status.state = match verdict {
            Verdict::Finished => RunState::Finished,
            Verdict::Stopped(_) => RunState::Stopped,
            Verdict::Failed(_, why) => {
                status.error = Some(why.clone());
                RunState::Failed
            }
            // The status belongs to the coordinator that took over the run.
            Verdict::Replaced(_) => return,
        };
        self.goodput.end();
        self.refresh(state);
    }

    fn refresh(&mut self, state: &CoordinatorState) {
        self.status.goodput = self.goodput.goodput();
        if let Some(running) = state.running() {
            let ranks = running.monitor.ranks.iter().map(|(number, rank)| RankStatus {
                rank: *number,
                host: rank.host.clone(),
                pid: rank.pid,
                step: rank.step,
                phase: rank.phase.to_string(),
                seconds_since_heartbeat: self.refreshed - rank.last_report,
                gpu: rank.gpu.clone(),
            });
            self.status.workers.ranks = ranks.collect();
        }
        if state.history != self.history {
            self.history = state.history.clone();
            self.status.restarts.failures = state.history.restarts.iter().map(lost).collect();
        }
    }

    fn record(&mut self, record: &StepRecord) {
        let (status, throughput) = (&mut self.status, &mut self.throughput);
        throughput.add(record);
        let steps = status.progress.steps;
        status.progress = RunProgress {
            step: record.step,
            steps,
            samples_per_second: throughput.samples_per_second(),
            seconds_left: throughput.seconds_after(record, steps),
        };
        if let Some(noise) = record.update.noise {
            status.latest.noise.get_or_insert_default().add(noise);
        }
        status.latest.record = Some(record.clone());
    }

    /// Applies an event at time `unix`, seconds since the Unix epoch.
    fn event(&mut self, event: &EventKind, unix: f64) {
        let status = &mut self.status;
        match event {
            EventKind::Started { step, steps, checkpoint, .. } => {
                (status.progress.step, status.progress.steps) = (*step, *steps);
                status.checkpoint = checkpoint.clone();
                if status.state != RunState::Stopping {
                    status.state = RunState::Training;
                }
            }
            EventKind::Checkpoint { name, .. } => {
                (status.checkpoint, status.failed_saves) = (Some(name.clone()), None);
            }
            EventKind::SaveFailed { error, .. } => {
                let first = FailedSaves { since: unix, count: 0, error: String::new() };
                let failed = status.failed_saves.get_or_insert(first);
                (failed.count, failed.error) = (failed.count.saturating_add(1), error.clone());
            }
            EventKind::Evaluation(evaluation) => status.latest.evaluation = Some(evaluation.clone()),
            EventKind::Plateau { steps, .. } => status.progress.steps = *steps,
            EventKind::Finished { step, .. } => status.progress.step = *step,
            EventKind::Grown { .. }
            | EventKind::MicroBatch { .. }
            | EventKind::Warning { .. }
            | EventKind::Failed { .. }
            | EventKind::RolledBack { .. } => {}
        }
    }

    /// Applies an action. Returns true if the status changes.
    fn action(&mut self, action: &Action, state: &CoordinatorState) -> bool {
        let status = &mut self.status;
        match action {
            Action::Start(attempt) => {
                status.state = RunState::Starting;
                status.attempt = attempt.number;
                status.workers.logs = logs::folder(&self.cluster, &self.url, attempt.number)
                    .map(|folder| folder.to_string_lossy().into_owned());
                status.workers.ranks.clear();
            }
            Action::Note(Note::Stopping | Note::NothingToSave | Note::OutOfTime) => status.state = RunState::Stopping,
            Action::Note(Note::Restart { cause, .. }) => {
                status.state = RunState::Restarting;
                status.restarts.count += 1;
                status.error = Some(cause.clone());
            }
            Action::Note(Note::Waiting { cause, .. }) => {
                (status.state, status.error) = (RunState::Restarting, Some(cause.clone()));
            }
            Action::Note(Note::Recovered { .. }) | Action::TakeLease(_) => return state.history != self.history,
            _ => return false,
        }
        true
    }
}

fn lost(restart: &Restart) -> Downtime {
    let Restart { attempt, step, seconds, cause, .. } = restart;
    Downtime { attempt: *attempt, step: *step, seconds: *seconds, cause: cause.clone() }
}
