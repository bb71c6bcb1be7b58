//! Accounts for the wall-clock time of a run: each second belongs to one category of [`Goodput`].

use std::collections::BTreeMap;

use lambert_control::{EventKind, Message, StepRecord, WorkerPhase};

use crate::decide::{Action, CoordinatorState, Event, Note, Seconds, WorkerEvent};
use crate::status::goodput::{Goodput, TimeCategory};

/// Steps whose productive seconds are remembered until they have a checkpoint.
const RECENT: usize = 10_000;

/// The account of a run, continued from the previous coordinator's.
#[derive(Debug)]
pub struct GoodputAccount {
    goodput: Goodput,
    mode: Mode,
    /// Time of day minus the seconds since the start of the coordinator, which changes when it was suspended or the
    /// system clock was set. `None` before the first event.
    unix: Option<f64>,
    /// Seconds of the current attempt before training starts, in [`TimeCategory::TrainingPrep`].
    loading: f64,
    /// Seconds of training that no step has claimed yet. Negative if records claimed more, by rounding or late arrival.
    unattributed: f64,
    /// Time of the last record or evaluation.
    last_attributed_at: f64,
    /// Stage of the attempt's last record.
    stage: Option<String>,
    /// Productive seconds up to recent steps.
    productive_after: BTreeMap<u64, f64>,
}

/// Category of passing time.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    /// Known at once.
    Category(TimeCategory),
    /// Datasets and checkpoint are loaded; the category is known when training starts.
    Loading,
    /// Step records and evaluations say it.
    Training,
}

impl GoodputAccount {
    /// Continues the account of the previous coordinator.
    pub fn new(before: Goodput) -> Self {
        Self {
            goodput: before,
            mode: Mode::Category(TimeCategory::Initialization),
            unix: None,
            loading: 0.0,
            unattributed: 0.0,
            last_attributed_at: 0.0,
            stage: None,
            productive_after: BTreeMap::new(),
        }
    }

    /// The account up to the last event.
    pub fn goodput(&self) -> Goodput {
        let mut goodput = self.goodput.clone();
        let category = if self.unattributed < 0.0 { TimeCategory::ProductiveStep } else { TimeCategory::Other };
        goodput.add(category, self.unattributed);
        goodput
    }

    /// Applies an event.
    pub fn observe(&mut self, at: Seconds, event: &Event, actions: &[Action], state: &CoordinatorState) {
        self.advance_to(at, state.settings.unix);
        match event {
            Event::Worker(_, WorkerEvent::Report(report)) if report.rank == 0 => self.report(report.phase),
            Event::Worker(_, WorkerEvent::Message(_, Message::Record(record))) => self.record(record),
            Event::Worker(_, WorkerEvent::Message(0, Message::Event(event))) => self.event(event),
            _ => {}
        }
        for action in actions {
            match action {
                Action::Start(_) => {
                    self.end_training(TimeCategory::Other, Mode::Category(TimeCategory::Initialization));
                }
                Action::Note(Note::Restart { .. } | Note::Waiting { .. }) => {
                    let recovery = TimeCategory::InfrastructureRecoveryFromDisruption;
                    self.end_training(recovery, Mode::Category(recovery));
                }
                _ => {}
            }
        }
    }

    /// Applies the end of the coordinator.
    pub fn end(&mut self) {
        let recovery = TimeCategory::InfrastructureRecoveryFromDisruption;
        self.end_training(recovery, Mode::Category(recovery));
    }

    /// Accounts for the time since the last event.
    fn advance_to(&mut self, at: Seconds, unix: f64) {
        let recovery = TimeCategory::InfrastructureRecoveryFromDisruption;
        let goodput = &mut self.goodput;
        let before = match self.unix {
            Some(before) => before,
            None if goodput.is_empty() => {
                (goodput.started, goodput.until) = (unix, unix);
                unix
            }
            // Since the previous coordinator's last status.
            None => {
                goodput.add(recovery, (unix - goodput.until).max(0.0));
                unix
            }
        };
        let moved = unix - before;
        // A suspended process or machine. If the clock was set back, no time has passed, and the start of the run moves.
        goodput.add(recovery, moved.max(0.0));
        self.last_attributed_at += moved;
        let passed = match self.unix {
            Some(_) => unix + at - goodput.until - moved,
            None => at,
        };
        self.unix = Some(unix);
        match self.mode {
            Mode::Category(category) => goodput.add(category, passed),
            Mode::Loading => {
                goodput.add(TimeCategory::TrainingPrep, passed);
                self.loading += passed;
            }
            Mode::Training => self.unattributed += passed,
        }
        goodput.until = unix + at;
        // The clock may have been set back.
        goodput.started = goodput.until - goodput.total() - self.unattributed;
    }

    fn report(&mut self, phase: WorkerPhase) {
        if self.mode == Mode::Category(TimeCategory::Initialization) && phase != WorkerPhase::Join {
            (self.mode, self.loading) = (Mode::Loading, 0.0);
        }
    }

    fn event(&mut self, event: &EventKind) {
        let now = self.goodput.until;
        match event {
            EventKind::Started { step, checkpoint, .. } => {
                if checkpoint.is_some() {
                    let (from, to) = (TimeCategory::TrainingPrep, TimeCategory::UnproductiveCheckpointRestoreTime);
                    self.goodput.shift(from, to, self.loading);
                }
                self.lose_steps_after(*step);
                (self.mode, self.loading, self.last_attributed_at, self.stage) = (Mode::Training, 0.0, now, None);
            }
            EventKind::Checkpoint { step, .. } => {
                if let Some(productive) = self.productive_after.get(step) {
                    self.goodput.mark(*step, *productive);
                }
            }
            EventKind::Evaluation(_) => self.claim_since_last(TimeCategory::Evaluation),
            EventKind::Finished { .. } => {
                self.end_training(TimeCategory::UnproductiveCheckpointSaveTime, Mode::Category(TimeCategory::Other));
            }
            _ => {}
        }
    }

    fn record(&mut self, record: &StepRecord) {
        let times = &record.times;
        // The first step of an attempt or of a stage comes after a preparation.
        let before = match &self.stage {
            None => Some(TimeCategory::ProgramStartup),
            Some(stage) if *stage != record.stage => Some(TimeCategory::TrainingPrep),
            Some(_) => None,
        };
        if let Some(category) = before {
            let preparation =
                (self.goodput.until - self.last_attributed_at - times.seconds).clamp(0.0, self.unattributed.max(0.0));
            self.claim(category, preparation);
        }
        self.claim(TimeCategory::DataLoading, times.data_wait);
        self.claim(TimeCategory::UnproductiveCheckpointSaveTime, times.checkpoint);
        self.claim(TimeCategory::ProductiveStep, times.seconds - times.data_wait - times.checkpoint);
        (self.last_attributed_at, self.stage) = (self.goodput.until, Some(record.stage.clone()));
        self.goodput.step = record.step;
        self.productive_after.insert(record.step, self.goodput.of(TimeCategory::ProductiveStep));
        while self.productive_after.len() > RECENT {
            self.productive_after.pop_first();
        }
    }

    /// Attributes seconds of training.
    fn claim(&mut self, category: TimeCategory, seconds: f64) {
        self.goodput.add(category, seconds);
        self.unattributed -= seconds;
    }

    /// Attributes the training since the last record or evaluation.
    fn claim_since_last(&mut self, category: TimeCategory) {
        if self.mode == Mode::Training {
            self.claim(category, (self.goodput.until - self.last_attributed_at).clamp(0.0, self.unattributed.max(0.0)));
            self.last_attributed_at = self.goodput.until;
        }
    }

    /// Ends training, if active, and attributes the time since the last record to `category`.
    fn end_training(&mut self, category: TimeCategory, mode: Mode) {
        self.claim_since_last(category);
        self.goodput = self.goodput();
        (self.unattributed, self.mode) = (0.0, mode);
    }

    /// Moves the productive time of steps after `step` to wasted time, because training resumes there.
    fn lose_steps_after(&mut self, step: u64) {
        let goodput = &mut self.goodput;
        if step < goodput.step {
            let productive = goodput.of(TimeCategory::ProductiveStep);
            let known = match step {
                0 => Some(&0.0),
                _ => goodput.checkpoints.get(&step).or(self.productive_after.get(&step)),
            };
            // A checkpoint older than those remembered.
            let mean = || productive * step as f64 / goodput.step as f64;
            let kept = known.copied().unwrap_or_else(mean).clamp(0.0, productive.max(0.0));
            let (from, to) = (TimeCategory::ProductiveStep, TimeCategory::WastedProgressFromDisruption);
            goodput.shift(from, to, productive - kept);
            goodput.checkpoints.retain(|marked, _| *marked <= step);
            self.productive_after.retain(|marked, _| *marked <= step);
        }
        goodput.step = step;
    }
}

#[cfg(test)]
mod tests;
