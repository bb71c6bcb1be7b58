//! Coordinator state.

use lambert_config::{RunConfig, exit};
use lambert_control::Versions;

use super::event::{Action, LeaseRequest, Note, Verdict};
use super::history::RestartHistory;
use super::limits::PhaseTimeouts;
use super::monitor::{AttemptFailure, AttemptMonitor};
use super::placement::{Attempt, AttemptNodes, HostPool};
use super::restart::RestartCounters;
use super::stop::{JobSettings, Requests};
use super::{Seconds, Turn};

/// Settings that are fixed while a coordinator runs, except `unix`.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Ranks per attempt.
    pub ranks: usize,
    /// Hosts available to the ranks.
    pub host_pool: HostPool,
    /// Phase timeouts.
    pub timeouts: PhaseTimeouts,
    /// Maximum number of failures within the window. Also the maximum number of consecutive attempts without progress.
    /// With one more, the coordinator gives up.
    pub restarts: usize,
    /// Window in which failures are counted, seconds.
    pub window: Seconds,
    /// Timeout for consecutive starts without a report from any rank, seconds.
    pub start_timeout: Seconds,
    /// Maximum number of consecutive rollbacks without progress.
    pub rollbacks: usize,
    /// Time of day minus the seconds since the start of the coordinator, seconds since the Unix epoch. It changes when
    /// the coordinator or the machine was suspended, or the system clock was set; see
    /// [`set_unix`](CoordinatorState::set_unix).
    pub unix: f64,
    /// Versions of the components of the coordinator.
    pub versions: Versions,
    /// Slurm job of the coordinator, if any.
    pub job: Option<JobSettings>,
}

impl Settings {
    /// Creates the settings of a coordinator started at `unix` (seconds since the Unix epoch).
    pub fn new(config: &RunConfig, host_pool: HostPool, unix: f64) -> Self {
        let cluster = &config.cluster;
        Self {
            ranks: cluster.ranks,
            host_pool,
            timeouts: PhaseTimeouts::new(config),
            restarts: cluster.restart.limit,
            window: 60.0 * cluster.restart.window_minutes,
            start_timeout: 60.0 * cluster.restart.start_timeout_minutes,
            rollbacks: config.guard.rollbacks,
            unix,
            versions: Versions::current(),
            job: None,
        }
    }

    /// Returns the nodes of the Slurm job on which an attempt runs.
    pub(super) fn nodes(&self, attempt: &Attempt) -> AttemptNodes {
        match (&self.host_pool, &self.job) {
            (HostPool::Here, Some(job)) => {
                AttemptNodes { names: job.node.iter().cloned().collect(), all_have_ranks: true }
            }
            (pool, _) => pool.nodes(&attempt.placement, attempt.world),
        }
    }
}

/// A running attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    pub attempt: Attempt,
    /// Start time.
    pub begun: Seconds,
    /// Monitoring state.
    pub monitor: AttemptMonitor,
    /// True if the user was notified of a slow rank.
    pub(super) has_warned_slow: bool,
    /// True if the ranks were told to stop.
    pub stopping: bool,
}

/// Reason for ending the processes of an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum EndReason {
    /// The launcher or a rank exited. The remaining processes are terminated.
    Exited,
    /// A second signal requested an immediate end.
    Killed,
    /// Another coordinator took the run over.
    Replaced(String),
    /// A stop was requested and no checkpoint is needed.
    Stopped,
    /// A failure detected by the coordinator.
    Failed(AttemptFailure),
}

/// Phase of the coordinator.
#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// Waiting for a lease.
    Leasing(LeaseRequest),
    /// An attempt is running.
    Running(Box<Running>),
    /// The processes of an attempt are being terminated.
    Ending(Box<Running>, EndReason),
    /// Waiting before the next attempt.
    Pausing {
        /// Previous attempt.
        last: u32,
        /// Time of the next attempt.
        until: Seconds,
    },
    /// This coordinator is done with the run.
    Over(Verdict),
}

/// Progress of the run at the start of a coordinator.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LastKnown {
    /// Completed steps.
    pub step: u64,
    /// Newest checkpoint, if any.
    pub checkpoint: Option<String>,
}

/// Coordinator state.
#[derive(Debug, Clone, PartialEq)]
pub struct CoordinatorState {
    /// Settings.
    pub settings: Settings,
    /// History kept in the store.
    pub history: RestartHistory,
    /// Current phase.
    pub phase: Phase,
    /// Requests from users and Slurm.
    pub requests: Requests,
    /// Latest completed step known to this coordinator.
    pub step: u64,
    /// Newest committed checkpoint, if known.
    pub checkpoint: Option<String>,
    /// Nodes that the next start of the Slurm job excludes. Set once the run is over.
    pub excluded: Vec<String>,
    pub(super) counters: RestartCounters,
}

impl CoordinatorState {
    /// Returns the initial state and actions.
    pub fn begin(settings: Settings, history: RestartHistory, last: LastKnown) -> (Self, Vec<Action>) {
        let history = history.sanitized(settings.unix);
        let (phase, requests) = (Phase::Leasing(LeaseRequest::Next), Requests::default());
        let mut state = Self {
            settings,
            history,
            phase,
            requests,
            step: last.step,
            checkpoint: last.checkpoint,
            excluded: Vec::new(),
            counters: RestartCounters::default(),
        };
        let mut actions = match state.settings.job.clone() {
            Some(job) => state.begin_in(&job),
            None => {
                // Outside Slurm a user starts the run. This user has dealt with the failure of the last attempt.
                state.history.progress.end(false);
                Vec::new()
            }
        };
        if state.verdict().is_none() {
            actions.push(Action::TakeLease(LeaseRequest::Next));
        }
        (state, actions)
    }

    /// Begins in a Slurm job. If the previous coordinator was killed in a job, its last attempt counts as an attempt
    /// without progress. Returns the actions.
    fn begin_in(&mut self, job: &JobSettings) -> Vec<Action> {
        let (history, mut actions) = (&mut self.history, Vec::new());
        history.progress.end(history.job.is_some());
        history.begin_job(self.settings.unix, &job.id);
        if let Some(save) = history.last_save_seconds.filter(|save| *save > job.lead) {
            actions.push(Action::Note(Note::ShortLead { save, lead: job.lead }));
        }
        let last = history.job_ends.last().map_or(String::new(), |end| end.cause.clone());
        let mut turn = Turn { state: self, at: 0.0, actions };
        if let Some(message) = turn.exceeded_progress_limit(&last) {
            let verdict = turn.give_up(exit::PERMANENT_FAILURE, message);
            turn.state.phase = turn.conclude(verdict);
        }
        turn.actions
    }

    /// The outcome, once the run is over.
    pub fn verdict(&self) -> Option<&Verdict> {
        match &self.phase {
            Phase::Over(verdict) => Some(verdict),
            _ => None,
        }
    }

    /// The running attempt, if any.
    pub fn running(&self) -> Option<&Running> {
        match &self.phase {
            Phase::Running(running) | Phase::Ending(running, _) => Some(running),
            _ => None,
        }
    }

    /// Registers a suspension of the coordinator in the monitor of the running attempt.
    pub(super) fn suspended(&mut self, seconds: Seconds) {
        let is_long = self.settings.timeouts.explains_missing_replies(seconds);
        if let Phase::Running(running) | Phase::Ending(running, _) = &mut self.phase
            && is_long
        {
            running.monitor.suspended(seconds);
        }
    }

    /// Sets [`Settings::unix`] at time `at`. If it was set back, failures are no later than now.
    pub fn set_unix(&mut self, at: Seconds, unix: f64) {
        if unix < self.settings.unix {
            self.history.set_back(unix + at);
        }
        self.settings.unix = unix;
    }

    pub(super) fn unix(&self, at: Seconds) -> f64 {
        self.settings.unix + at
    }
}
