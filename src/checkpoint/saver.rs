//! Saves that training does not wait for.
//!
//! 1. After the same step on all ranks the state is copied ([`Snapshot`]), out of a card's memory while training goes on; the
//!    store's tasks write and hash the copy.
//! 2. Every step's all-reduce carries how many ranks have written theirs. When all have, the entries of the objects are
//!    gathered, and a thread of rank 0 checks the lease and commits ([`Commit`]); then old checkpoints are removed (pruner).
//! 3. A later all-reduce carries what came of it, so that all ranks know after the same step.
//!
//! No thread but the training loop's uses the collective, and a save begins only when the one before has ended: none
//! overtakes another. One that does not end in time ends the attempt, by rank 0's clock ([`TimeLimit`]).

use std::time::{Duration, Instant};

use lambert_collective::Group;
use lambert_control::{Evaluation, EventKind, StepRecord};
use lambert_store::checkpoint::{self as stored, Best, Manifest, Writer};

use super::commit::{Commit, Outcome, Part, retention};
use super::pruner::Pruner;
use super::records::{self, Records};
use super::retry_state::RetryState;
use super::save::{Progress, Save};
use super::snapshot::Snapshot;
use super::time_limit::{self, Standing, TimeLimit};
use super::{Facts, Origin};
use crate::error::Error;
use crate::recovery::replicas::Apart;
use crate::state::TrainState;
use crate::torch;
use crate::worker::agreement::{self, Agreement, Decision, SaveVote, Vote};
use crate::worker::control::WorkerPhase;
use crate::worker::session::{Datasets, Session};
use crate::worker::stopwatch::Stopwatch;
use crate::worker::trace::span;

/// Pauses between two looks at a save that is waited for.
const SHORTEST_POLL: Duration = Duration::from_millis(1);
const LONGEST_POLL: Duration = Duration::from_millis(50);

/// Decides when to save, saves, and keeps the records that belong to each checkpoint.
pub struct Saver<'a> {
    session: &'a Session,
    vocabulary: (usize, bool),
    snapshot: Snapshot,
    records: Records,
    save: Option<Save>,
    /// A save is wanted as soon as none is under way.
    due: bool,
    /// The newest checkpoint, and its step.
    newest: Option<(String, u64)>,
    /// The state has changed since then without a step.
    stale: bool,
    /// The best checkpoint by held-out loss.
    best: Option<Best>,
    /// The last evaluation's step and loss.
    evaluated: Option<(u64, f64)>,
    last_save: Instant,
    retry_state: RetryState,
    /// Removes old checkpoints, on rank 0.
    pruner: Pruner,
    limit: TimeLimit,
    /// Since when a stop is requested.
    stopping: Option<Instant>,
    /// Seconds that training paused for checkpoints since the last record.
    stall: f64,
}

impl<'a> Saver<'a> {
    /// For an attempt that goes on with `state`, which came from `origin`.
    ///
    /// # Errors
    /// More weights than a file can hold.
    pub fn new(session: &'a Session, datasets: &Datasets, state: &TrainState, origin: Origin) -> Result<Self, Error> {
        let dataset = datasets.first().manifest();
        Ok(Self {
            session,
            vocabulary: (dataset.vocabulary.size, dataset.lowercase),
            snapshot: Snapshot::new(&state.parameters, session.rank, session.world)?,
            records: Records::new(session.lease.attempt(), state.step),
            save: None,
            due: false,
            newest: origin.checkpoint.map(|name| (name, state.step)),
            stale: false,
            best: origin.best,
            evaluated: None,
            last_save: Instant::now(),
            retry_state: RetryState::default(),
            pruner: Pruner::default(),
            limit: TimeLimit::new(&session.config),
            stopping: None,
            stall: 0.0,
        })
    }

    /// Takes a step's record in, and tells it what saving cost before it.
    pub fn push(&mut self, record: &mut StepRecord) -> Result<(), Error> {
        record.checkpoint = std::mem::take(&mut self.stall);
        records::add_pause(record, record.checkpoint);
        self.records.push(record)
    }

    /// Takes an evaluation in, as a line among the records of the steps. Returns whether its checkpoint is the best so
    /// far and is to be kept for that; all ranks are told rank 0's word.
    pub fn push_evaluation(&mut self, collective: &mut dyn Group, evaluation: &Evaluation) -> Result<bool, Error> {
        self.records.push(&EventKind::Evaluation(evaluation.clone()))?;
        let loss = evaluation.scores.loss();
        self.evaluated = loss.is_finite().then_some((evaluation.step, loss));
        if !self.session.config.checkpoint.keep_best {
            return Ok(false);
        }
        let best = loss.is_finite() && self.best.as_ref().is_none_or(|best| loss < best.loss);
        let mut word = vec![u8::from(best)];
        collective.broadcast_bytes(&mut word, 0)?;
        Ok(word == [1])
    }

    /// Whether a checkpoint is due after `step`: by the number of steps, because one was `wanted`, or because one that
    /// was due had to wait. The same on all ranks.
    pub fn is_due(&mut self, step: u64, wanted: bool) -> bool {
        let every = self.session.config.checkpoint.every_steps;
        self.due |= wanted || every > 0 && step.is_multiple_of(every) && !self.retry_state.is_there();
        self.due && self.save.is_none()
    }

    /// Whether one is due by the clock: the interval, or the pause after a failure, is over. Ranks' clocks differ: only
    /// rank 0's word counts.
    pub fn is_overdue(&self) -> bool {
        let minutes = self.session.config.checkpoint.every_minutes;
        let interval = minutes > 0.0 && self.last_save.elapsed() >= Duration::from_secs_f64(60.0 * minutes);
        self.save.is_none() && if self.retry_state.is_there() { self.retry_state.is_due() } else { interval }
    }

    /// A stop is requested: saves have `cluster.limits.stop_seconds` from the first call on.
    pub fn stop(&mut self) {
        self.stopping.get_or_insert_with(Instant::now);
    }

    /// What this rank says of the save under way.
    pub fn vote(&mut self) -> SaveVote {
        let Some(save) = &mut self.save else { return SaveVote::Nothing };
        let stopping = self.stopping.map(|since| since.elapsed());
        let over = self.limit.stop_is_over(stopping);
        save.decide(&self.retry_state, self.session.config.checkpoint.give_up_minutes, over);
        save.vote(self.session.is_first().then(|| self.limit.judge(save.began.elapsed(), stopping)))
    }

    /// Moves the save under way along, by what the ranks have agreed on. Call it after each step.
    pub fn poll_save(&mut self, collective: &mut dyn Group, agreement: &Agreement) -> Result<(), Error> {
        self.write_what_is_copied(false)?;
        self.advance(collective, agreement)
    }

    fn advance(&mut self, collective: &mut dyn Group, agreement: &Agreement) -> Result<(), Error> {
        let Some(save) = &self.save else { return Ok(()) };
        if agreement.slow {
            self.tell_slow(collective)?;
            return Ok(());
        }
        match (&save.progress, agreement.decided) {
            (_, Some(Decision::Stuck)) => Err(self.stuck(collective)?),
            (Progress::Writing(..), _) if agreement.written >= self.session.world => self.hand_in(collective),
            (Progress::Copying(..) | Progress::Writing(..), _) | (_, None) => Ok(()),
            (_, Some(decision)) => self.conclude(collective, decision),
        }
    }

    /// Tells people which ranks have not written what, long before that ends the run.
    fn tell_slow(&mut self, collective: &mut dyn Group) -> Result<(), Error> {
        let Some(save) = &mut self.save else { return Ok(()) };
        let (name, seconds) = (save.writer.name(), save.began.elapsed().as_secs_f64());
        let beginning = format!("checkpoint {name} is not saved after {seconds:.1} s");
        let waits = time_limit::gather(collective, &save.waits_for(), beginning)?;
        if self.session.is_first() {
            self.session.warn(format!("{waits}; {}", self.limit.warning()));
        }
        Ok(())
    }

    /// The error that ends all ranks, because a write has not ended within the limit. Nothing is tried again in this process:
    /// the write still reads the copy of the state.
    fn stuck(&mut self, collective: &mut dyn Group) -> Result<Error, Error> {
        let Some(save) = &mut self.save else { return Ok(Error::Peer("rank 0 waits for a save that is not there")) };
        let limit = if let Standing::Over(limit) = &save.standing { limit.clone() } else { String::new() };
        let message = time_limit::gather(collective, &save.waits_for(), format!("not saved {limit}"))?;
        Ok(Error::Save { name: save.writer.name().to_owned(), message })
    }

    /// Begins to save the state as a checkpoint, once the save before has ended.
    pub fn save(&mut self, collective: &mut dyn Group, state: &TrainState) -> Result<(), Error> {
        self.settle(collective)?;
        if self.has(state) {
            return Ok(());
        }
        self.session.control.phase(WorkerPhase::Save);
        let _save = span!("save", step = state.step);
        let mut watch = Stopwatch::start();
        (self.due, self.last_save) = (false, Instant::now());
        let writer = Writer::new(&self.session.store, state.step, self.session.lease.attempt());
        let copying = torch::guard(|| self.snapshot.begin(state))?;
        let compares = self.session.world > 1;
        let digest = compares.then(|| torch::guard(|| state.digest())).transpose()?;
        let manifest = self.manifest(state, writer.name())?;
        let progress = Progress::Copying(copying, self.records.cut(state.step));
        let stall = watch.lap();
        self.save = Some(Save {
            writer,
            manifest,
            digest,
            began: self.last_save,
            stall,
            standing: Standing::InTime,
            told_slow: false,
            progress,
        });
        self.stall += stall;
        self.write_what_is_copied(false)
    }

    /// Lets the store write the copy of the state when it is there, or waits for it.
    fn write_what_is_copied(&mut self, wait: bool) -> Result<(), Error> {
        let Some(save) = &mut self.save else { return Ok(()) };
        if !matches!(&save.progress, Progress::Copying(copying, _) if wait || copying.is_done()) {
            return Ok(());
        }
        self.session.control.phase(WorkerPhase::Save);
        let mut watch = Stopwatch::start();
        let Progress::Copying(copying, records) = std::mem::replace(&mut save.progress, Progress::Committing(None))
        else {
            return Ok(());
        };
        let objects = torch::guard(|| self.snapshot.finish(copying))?.into_iter().map(|object| {
            let _upload = span!("start upload", object = %object.name);
            let pending = save.writer.start_object(&object.name, object.bytes)?;
            Ok((pending, object.slices))
        });
        save.progress = Progress::Writing(objects.collect::<Result<_, Error>>()?, records);
        let seconds = watch.lap();
        save.stall += seconds;
        self.stall += seconds;
        Ok(())
    }

    /// Makes room for the copy of a state that has grown. No save may be under way.
    ///
    /// # Errors
    /// More weights than a file can hold.
    pub fn resize(&mut self, state: &TrainState) -> Result<(), Error> {
        self.snapshot = Snapshot::new(&state.parameters, self.session.rank, self.session.world)?;
        Ok(())
    }

    /// Returns when the state is saved as a checkpoint, however often that has to be tried.
    pub fn complete(&mut self, collective: &mut dyn Group, state: &TrainState) -> Result<(), Error> {
        self.session.control.phase(WorkerPhase::Save);
        loop {
            self.save(collective, state)?;
            self.settle(collective)?;
            if self.has(state) {
                return Ok(());
            }
            std::thread::sleep(self.retry_state.pause());
        }
    }

    /// Saves the state of the newest checkpoint's step anew, because it has changed without a step: this attempt's checkpoint of the step
    /// goes before that of an earlier one.
    pub fn renew(&mut self, collective: &mut dyn Group, state: &TrainState) -> Result<(), Error> {
        self.stale = true;
        self.complete(collective, state)
    }

    /// Whether the state is the newest checkpoint's.
    fn has(&self, state: &TrainState) -> bool {
        !self.stale && self.newest.as_ref().is_some_and(|(_, step)| *step == state.step)
    }

    /// Writes the records since the last checkpoint, for an attempt that ends without another.
    pub fn write_records(&mut self) -> Result<(), Error> {
        let step = self.newest.as_ref().map_or(0, |(_, step)| *step);
        Ok(self.records.cut(step).write(&self.session.store)?)
    }

    /// Waits a little for the removal of old checkpoints, before an attempt ends.
    pub fn finish(&self) {
        self.pruner.finish();
    }

    /// Waits for the end of the save under way, if one is: as long as its time limit says.
    pub fn settle(&mut self, collective: &mut dyn Group) -> Result<(), Error> {
        let (mut watch, before) = (Stopwatch::start(), self.stall);
        self.write_what_is_copied(true)?;
        let mut pause = SHORTEST_POLL;
        while self.save.is_some() {
            self.session.control.phase(WorkerPhase::Save);
            if self.session.control.stop_is_requested() {
                self.stop();
            }
            let vote = Vote { save: self.vote(), ..Vote::default() };
            let (agreement, _) = agreement::exchange(collective, &mut [], vote, 0.0)?;
            self.advance(collective, &agreement)?;
            if self.save.is_some() {
                std::thread::sleep(pause);
                pause = (2 * pause).min(LONGEST_POLL);
            }
        }
        self.stall = before + watch.lap();
        Ok(())
    }

    /// All ranks hand their entries to rank 0, which begins to commit.
    fn hand_in(&mut self, collective: &mut dyn Group) -> Result<(), Error> {
        self.session.control.phase(WorkerPhase::Save);
        let mut watch = Stopwatch::start();
        let Some(save) = &mut self.save else { return Ok(()) };
        let Progress::Writing(objects, records) = std::mem::replace(&mut save.progress, Progress::Committing(None))
        else {
            return Ok(());
        };
        let entries = objects.into_iter().map(|(object, slices)| {
            let mut entry = object.wait()?;
            entry.slices = slices;
            Ok(entry)
        });
        let mut digest = [0; size_of::<u64>()];
        if let Some(made) = &save.digest {
            torch::guard(|| self.session.kernels.read(made, 0, &mut digest))?;
        }
        let part = Part::encode(u64::from_ne_bytes(digest), entries.collect(), self.snapshot.slices())?;
        let Some(parts) = collective.gather_bytes(&part, 0)? else { return Ok(()) };
        let (writer, manifest, session) = (save.writer.clone(), save.manifest.clone(), self.session);
        let (store, lease, retention) = (session.store.clone(), session.lease.clone(), retention(session, &manifest));
        let pruner = self.pruner.clone();
        let commit = Commit { writer, manifest, parts, records, store, lease, retention, pruner };
        let thread = std::thread::Builder::new().name("commit".to_owned()).spawn(move || commit.run());
        (save.progress, save.standing) = (Progress::Committing(Some(thread.map_err(Error::Thread)?)), Standing::InTime);
        let seconds = watch.lap();
        save.stall += seconds;
        self.stall += seconds;
        Ok(())
    }

    /// All ranks act on what came of the save.
    fn conclude(&mut self, collective: &mut dyn Group, decision: Decision) -> Result<(), Error> {
        let Some(Save { writer, manifest, began, stall, progress, .. }) = self.save.take() else { return Ok(()) };
        let name = writer.name().to_owned();
        let decided = if let Progress::Decided(outcome, records) = progress { Some((outcome, records)) } else { None };
        if decision == Decision::Committed {
            self.retry_state.clear();
            self.best = manifest.best;
            self.newest = Some((name.clone(), manifest.step));
            self.stale = false;
            if decided.is_some() {
                let written = began.elapsed().as_secs_f64();
                self.session.control.event(EventKind::Checkpoint {
                    name,
                    step: manifest.step,
                    seconds: stall,
                    written,
                });
            }
            return Ok(());
        }
        self.retry_state.add(began);
        let mut message = Vec::new();
        if let Some((outcome, records)) = decided {
            self.records.restore(records);
            message = match outcome {
                Outcome::Committed => Vec::new(),
                Outcome::Failed(why) | Outcome::Lost(why) | Outcome::NotFinite(why) => why.into_bytes(),
                Outcome::Apart(apart) => serde_json::to_vec(&apart).map_err(Error::Json)?,
            };
        }
        if decision == Decision::Failed {
            if self.session.is_first() {
                self.warn(&name, &String::from_utf8_lossy(&message));
            }
            return Ok(());
        }
        collective.broadcast_bytes(&mut message, 0)?;
        if decision == Decision::Apart {
            let apart: Apart = serde_json::from_slice(&message).map_err(Error::Json)?;
            let blamed = apart.blames(self.session.rank);
            return Err(Error::Replicas { step: manifest.step, apart, blamed });
        }
        let message = String::from_utf8_lossy(&message).into_owned();
        match decision {
            Decision::NotFinite => Err(Error::NotFinite { step: manifest.step, what: message }),
            _ => Err(Error::Save { name, message }),
        }
    }

    fn warn(&self, name: &str, why: &str) {
        let seconds = self.retry_state.pause().as_secs();
        self.session.warn(format!(
            "checkpoint {name} was not saved, training goes on and another is tried in {seconds} s: {why}"
        ));
    }

    fn manifest(&self, state: &TrainState, name: &str) -> Result<Manifest, Error> {
        let session = self.session;
        let loss = self.evaluated.filter(|(step, _)| *step == state.step).map(|(_, loss)| loss);
        let better = loss.filter(|loss| self.best.as_ref().is_none_or(|best| *loss < best.loss));
        let best = better.map(|loss| Best { checkpoint: name.to_owned(), loss }).or_else(|| self.best.clone());
        let facts = Facts::of(state, self.vocabulary);
        Ok(Manifest {
            format: stored::FORMAT,
            step: state.step,
            attempt: session.lease.attempt(),
            parent: self.newest.as_ref().map(|(name, _)| name.clone()),
            stage: state.entered.unwrap_or(0),
            cursor: state.cursors.clone(),
            config_sha256: session.config_sha256.clone(),
            world: session.world,
            held_out_loss: loss,
            best,
            state: serde_json::to_value(facts).map_err(Error::Json)?,
            objects: Vec::new(),
        })
    }
}
