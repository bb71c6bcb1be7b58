//! All that a coordinator knows, and where it is.

use lambert_config::{RunConfig, exit};
use lambert_control::Versions;

use super::Seconds;
use super::event::{Action, Note, Verdict, Wanted};
use super::limits::Patience;
use super::memory::Memory;
use super::placement::{Attempt, Room};
use super::restart::{self, Tries};
use super::stop::{JobSettings, Requests};
use super::watch::{Failure, Watch};

/// What does not change while a coordinator lives.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Ranks of an attempt.
    pub ranks: usize,
    /// Where they may be.
    pub room: Room,
    /// How long phases may take.
    pub patience: Patience,
    /// Failures within the window, and attempts in a row without progress, that are followed by a restart.
    pub restarts: usize,
    /// The window, seconds.
    pub window: Seconds,
    /// How long starts that no rank reports from are tried again, seconds.
    pub absence: Seconds,
    /// Rollbacks in a row without progress.
    pub rollbacks: usize,
    /// When the coordinator began, seconds since 1970; later by the time that it was stopped since.
    pub unix: f64,
    /// What the coordinator is made of.
    pub versions: Versions,
    /// The Slurm job that it is part of.
    pub job: Option<JobSettings>,
}

impl Settings {
    /// Of a run whose ranks may be in `room`, for a coordinator that begins at `unix`.
    pub fn new(config: &RunConfig, room: Room, unix: f64) -> Self {
        let cluster = &config.cluster;
        Self {
            ranks: cluster.ranks,
            room,
            patience: Patience::new(config),
            restarts: cluster.restart.limit,
            window: 60.0 * cluster.restart.window_minutes,
            absence: 60.0 * cluster.restart.start_timeout_minutes,
            rollbacks: config.guard.rollbacks,
            unix,
            versions: Versions::current(),
            job: None,
        }
    }
}

/// An attempt under way.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    /// Which.
    pub attempt: Attempt,
    /// When it was started.
    pub begun: Seconds,
    /// What is known of it.
    pub watch: Watch,
    /// Whether it was said that it is slow.
    pub(super) slow: bool,
    /// Whether the ranks have been ordered to stop.
    pub stopping: bool,
}

/// Why the processes of an attempt are ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Why {
    /// They have ended by themselves; what is left of them goes, too.
    Left,
    /// A second signal.
    Killed,
    /// Another coordinator has the run.
    Replaced(String),
    /// A stop was asked for, and no checkpoint is waited for.
    Stopped,
    /// They failed in a way that only the coordinator sees.
    Failed(Failure),
}

/// Where a coordinator is.
#[derive(Debug, Clone, PartialEq)]
pub enum Phase {
    /// It waits for a lease.
    Leasing(Wanted),
    /// Ranks run.
    Running(Box<Running>),
    /// Their processes are being ended.
    Ending(Box<Running>, Why),
    /// It waits before the next attempt.
    Pausing {
        /// The attempt before.
        last: u32,
        /// Until when.
        until: Seconds,
    },
    /// It is over.
    Over(Verdict),
}

/// All that a coordinator knows.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// What does not change.
    pub settings: Settings,
    /// What a later start needs to know.
    pub memory: Memory,
    /// Where it is.
    pub phase: Phase,
    /// What people and Slurm have asked for.
    pub requests: Requests,
    /// Steps finished, as far as this coordinator has heard.
    pub step: u64,
    /// The newest committed checkpoint, if one is known.
    pub checkpoint: Option<String>,
    pub(super) tries: Tries,
}

impl State {
    /// A coordinator that begins, and the first thing it wants done.
    pub fn begin(settings: Settings, memory: Memory) -> (Self, Vec<Action>) {
        let memory = memory.sanitized(settings.unix);
        let (phase, requests) = (Phase::Leasing(Wanted::Next), Requests::default());
        let mut state = Self { settings, memory, phase, requests, step: 0, checkpoint: None, tries: Tries::default() };
        let mut actions = Vec::new();
        if let Some(job) = state.settings.job.clone() {
            state.begin_in(&job, &mut actions);
        } else {
            // A person who starts the run has seen to what ended the last attempt.
            state.memory.progress.end(false);
        }
        if state.verdict().is_none() {
            actions.push(Action::TakeLease(Wanted::Next));
        }
        (state, actions)
    }

    /// Begins in a job, perhaps after a coordinator that was killed in one: then the attempt that was under way counts.
    fn begin_in(&mut self, job: &JobSettings, actions: &mut Vec<Action>) {
        let memory = &mut self.memory;
        memory.progress.end(memory.job.is_some());
        memory.begin_job(self.settings.unix, &job.id);
        if let Some(save) = memory.last_save_seconds.filter(|save| *save > job.lead) {
            actions.push(Action::Note(Note::ShortLead { save, lead: job.lead }));
        }
        let last = memory.job_ends.last().map_or(String::new(), |end| end.cause.clone());
        if let Some(message) = restart::fruitless(self, &last) {
            let verdict = restart::give_up(self, 0.0, exit::FINAL, message);
            self.phase = restart::conclude(self, 0.0, verdict, actions);
        }
    }

    /// How it ended, if it has.
    pub fn verdict(&self) -> Option<&Verdict> {
        match &self.phase {
            Phase::Over(verdict) => Some(verdict),
            _ => None,
        }
    }

    /// The attempt under way, if there is one.
    pub fn running(&self) -> Option<&Running> {
        match &self.phase {
            Phase::Running(running) | Phase::Ending(running, _) => Some(running),
            _ => None,
        }
    }

    pub(super) fn unix(&self, at: Seconds) -> f64 {
        self.settings.unix + at
    }
}
