//! The coordinator: one attempt after the other until the run is done, stopped or given up.

use std::time::{Duration, Instant};

use lambert_config::control::{Directive, Event, EventKind, Progress, StepRecord};
use lambert_config::run::RunConfig;
use lambert_config::{exit, plan};
use lambert_store::run::checkpoint_url;
use lambert_store::{Lease, Patience, Store};

use super::decision::{self, Achieved, Ending, Ledger, Next};
use super::mpirun::{self, Line};
use super::order::Order;
use super::processes;
use super::progress::{Display, Pace, duration};
use super::requests::{Requests, SAVE_OBJECT, STOP_OBJECT, Wish};
use super::watch::{Cause, Message, Watch};
use super::workers::Workers;
use crate::console;
use crate::failure::{Failure, Outcome};
use crate::status::{Coordinator as Who, Lost, RankStatus, Reporter, State, Status, Urgency};

/// How often the main thread looks around.
const TICK: Duration = Duration::from_millis(50);
/// A worker posts at least every few seconds; one that has not for this long is taken for dead.
const SILENCE: Duration = Duration::from_secs(60);
/// A worker reports when it has read the configuration and found its peers; on a busy file system that takes a while.
const ABSENCE: Duration = Duration::from_secs(600);
/// How long the workers are told to save a checkpoint; each of them reports, and is told, every two seconds at least.
const TOLD: Duration = Duration::from_secs(6);

/// Why a run ended badly.
#[derive(Debug, thiserror::Error)]
enum RunError {
    #[error("{0}")]
    Worker(String),
    #[error("given up after {restarts} restarts that led nowhere; the last failure: {cause}")]
    GivenUp { restarts: usize, cause: String },
    #[error("the workers failed while they were to save a checkpoint and stop: {0}")]
    Stopping(String),
    #[error("ended at once by a second signal; the run goes on from {0}")]
    Killed(String),
    #[error("another `lambert run` has taken this run over; the workers of this one were ended")]
    Replaced,
}

/// How step records are given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Records {
    /// Progress on standard error only.
    Shown,
    /// A JSON line each on standard output, too.
    Printed,
}

/// Watches over a run.
pub struct Coordinator<'a> {
    order: &'a Order,
    records: Records,
    requests: Requests,
    reporter: Reporter,
    status: Status,
    display: Display,
    pace: Pace,
    ledger: Ledger,
    /// Since when, and until which step, work is being done again.
    recovering: Option<(Instant, u64)>,
    /// Since when the workers are told to save a checkpoint.
    saving: Option<Instant>,
}

impl<'a> Coordinator<'a> {
    /// Prepares to watch over `order`: from now on signals and the store are listened to.
    pub fn new(order: &'a Order, records: Records) -> Result<Self, Failure> {
        processes::adopt_orphans().map_err(Failure::failed)?;
        for old in [STOP_OBJECT, SAVE_OBJECT] {
            order.store.delete(old).map_err(Failure::failed)?;
        }
        let requests = Requests::listen(order.store.clone()).map_err(Failure::failed)?;
        let reporter = Reporter::start(order.store.clone()).map_err(Failure::failed)?;
        let status = first_status(&order.config);
        let display = Display::new(status.steps);
        let (pace, ledger) = (Pace::default(), Ledger::default());
        Ok(Self { order, records, requests, reporter, status, display, pace, ledger, recovering: None, saving: None })
    }

    /// Runs attempts until the end, whatever it is.
    pub fn run(mut self) -> Outcome {
        let outcome = self.attempts();
        self.display.end();
        match &outcome {
            Ok(exit::DONE) => self.say_end(State::Finished, "finished"),
            Ok(_) => self.say_end(State::Stopped, "stopped"),
            // The status belongs to the coordinator that has taken over.
            Err(_) if self.requests.lease_lost() => self.reporter.discard(),
            Err(failure) => {
                self.status.error = Some(failure.to_string());
                self.enter(State::Failed);
            }
        }
        outcome
    }

    fn attempts(&mut self) -> Outcome {
        loop {
            let (end, achieved) = self.attempt()?;
            let (ending, cause) = match end {
                Ok(ending) => (ending, None),
                Err(cause) => (cause.ending, Some(cause.message)),
            };
            let config = &self.order.config;
            let limit = if ending == Ending::RolledBack { config.guard.rollbacks } else { config.cluster.restarts };
            let (next, ledger) = decision::next(self.ledger, &ending, achieved, limit);
            self.ledger = ledger;
            let cause = cause.unwrap_or_default();
            match next {
                // What it goes back to is in the store: there is nothing to save.
                Next::Restart(_) if ending == Ending::RolledBack && self.requests.wish() == Wish::Stop => {
                    self.honour_stop()?;
                    return Ok(exit::STOPPED);
                }
                Next::Leave(code @ (exit::DONE | exit::STOPPED)) => {
                    self.honour_stop()?;
                    return Ok(code);
                }
                _ if self.requests.wish() != Wish::None => return Err(Failure::failed(RunError::Stopping(cause))),
                Next::Leave(exit::USAGE) => return Err(Failure::usage(RunError::Worker(cause))),
                Next::Leave(_) => return Err(Failure::failed(RunError::Worker(cause))),
                Next::GiveUp(restarts) => return Err(Failure::failed(RunError::GivenUp { restarts, cause })),
                Next::Restart(pause) => {
                    let from = match ending {
                        Ending::RolledBack => String::new(),
                        _ => format!(", from {}", self.resumes_from()),
                    };
                    self.say_restart(&cause, pause, &from);
                    if self.pause(pause) != Wish::None {
                        self.honour_stop()?;
                        return Ok(exit::STOPPED);
                    }
                }
            }
        }
    }

    /// One attempt, from its lease to its last process.
    fn attempt(&mut self) -> Result<(Result<Ending, Cause>, Achieved), Failure> {
        let lease = Lease::take(&patient(self.order)).map_err(Failure::failed)?;
        self.requests.hold(lease.attempt());
        self.status.attempt = lease.attempt();
        self.status.ranks.clear();
        self.enter(State::Starting);
        let ranks = self.order.config.cluster.ranks;
        tracing::info!("attempt {}: starting {ranks} rank(s)", lease.attempt());
        let mut workers = Workers::start(self.order, lease.attempt()).map_err(Failure::failed)?;
        let mut watch = Watch::default();
        let (end, last) = self.follow(&mut workers, &mut watch)?;
        last.into_iter().for_each(|message| self.take(message, &mut watch));
        watch.told.finish();
        let end = match end {
            End::Status(status) => watch.end(status, ranks),
            End::Silence(message) => Err(Cause::passing(message)),
        };
        if end.is_err() {
            self.note_failure(&watch);
        }
        Ok((end, watch.achieved))
    }

    /// Follows the workers until they have ended, or have to be ended.
    fn follow(&mut self, workers: &mut Workers, watch: &mut Watch) -> Result<(End, Vec<Message>), Failure> {
        let ranks = self.order.config.cluster.ranks;
        let mut looked = Instant::now();
        let end = loop {
            if let Some(message) = workers.next(TICK) {
                self.take(message, watch);
                // Ranks that report without a pause must not keep requests waiting.
                if looked.elapsed() < TICK {
                    continue;
                }
            }
            looked = Instant::now();
            if let Some(status) = workers.ended().map_err(Failure::failed)? {
                break End::Status(status);
            }
            self.heed(workers)?;
            let silence = watch.silence(looked, SILENCE);
            if let Some(message) = silence.or_else(|| watch.absence(workers.started, looked, ABSENCE, ranks)) {
                break End::Silence(message);
            }
        };
        watch.trouble.get_or_insert_with(Instant::now);
        Ok((end, workers.end().map_err(Failure::failed)?))
    }

    /// Does what signals, the store and the lease ask for.
    fn heed(&mut self, workers: &mut Workers) -> Result<(), Failure> {
        let end = |workers: &mut Workers| workers.end().map(drop).map_err(Failure::failed);
        if self.requests.lease_lost() {
            end(workers)?;
            return Err(Failure::failed(RunError::Replaced));
        }
        match self.requests.wish() {
            Wish::None => self.pass_on_save(workers),
            Wish::Stop if self.status.state == State::Stopping => {}
            Wish::Stop => {
                tracing::info!("stopping: the workers save a checkpoint after the next step");
                workers.direct(Directive::CheckpointAndStop);
                self.enter(State::Stopping);
            }
            Wish::Kill => {
                end(workers)?;
                return Err(Failure::failed(RunError::Killed(self.resumes_from())));
            }
        }
        Ok(())
    }

    fn pass_on_save(&mut self, workers: &Workers) {
        if self.requests.take_save() {
            tracing::info!("a checkpoint was asked for");
            workers.direct(Directive::Checkpoint);
            self.saving = Some(Instant::now());
        } else if self.saving.take_if(|since| since.elapsed() > TOLD).is_some() {
            workers.direct(Directive::Continue);
        }
    }

    fn take(&mut self, message: Message, watch: &mut Watch) {
        match message {
            Message::Progress(progress) => self.progress(progress, watch),
            Message::Event(event) => self.event(event, watch),
            Message::Line(text) if mpirun::is_direct(&self.order.config.cluster) => console::line(&text),
            Message::Line(text) => match mpirun::line(&text) {
                Line::Rank(rank, text) => console::line(&format!("rank {rank}: {text}")),
                Line::Own(text) => watch.mpirun(text),
            },
        }
    }

    fn progress(&mut self, progress: Progress, watch: &mut Watch) {
        watch.progress(&progress, Instant::now());
        progress.records.into_iter().for_each(|record| self.record(record));
        self.recovered(watch);
        self.status.ranks = rank_statuses(watch);
        self.publish(Urgency::Routine);
    }

    fn record(&mut self, record: StepRecord) {
        self.pace.add(&record);
        self.status.step = record.step;
        self.status.samples_per_second = self.pace.samples_per_second();
        self.status.seconds_left = self.pace.seconds_for(self.status.steps.saturating_sub(record.step));
        self.display.step(&record, &self.pace);
        if self.records == Records::Printed
            && let Ok(line) = serde_json::to_string(&record)
            && let Err(error) = console::result(&line)
        {
            tracing::warn!("cannot print records any longer, the run goes on: {error}");
            self.records = Records::Shown;
        }
        self.status.record = Some(record);
    }

    fn event(&mut self, event: Event, watch: &mut Watch) {
        watch.event(&event);
        match event.kind {
            EventKind::Started { step, steps, checkpoint, passed_over } => {
                passed_over.iter().for_each(|why| tracing::warn!("passed over a checkpoint: {why}"));
                match &checkpoint {
                    Some(name) => tracing::info!("training goes on from {name}, step {step} of {steps}"),
                    None => tracing::info!("training starts from nothing: {steps} steps"),
                }
                (self.status.step, self.status.steps, self.status.checkpoint) = (step, steps, checkpoint);
                self.display.set_steps(steps);
                if self.status.state != State::Stopping {
                    self.enter(State::Training);
                }
            }
            EventKind::Checkpoint { name, seconds, written, .. } => {
                tracing::info!("saved checkpoint {name} in {written:.2} s; training stood still for {seconds:.3} s");
                self.status.checkpoint = Some(name);
            }
            EventKind::Evaluation(evaluation) => {
                tracing::info!(
                    "held-out loss after step {}: mlm {:.4} (accuracy {:.4}; without context {:.4})",
                    evaluation.step,
                    evaluation.mlm_loss,
                    evaluation.mlm_accuracy,
                    evaluation.unigram_entropy
                );
                self.status.evaluation = Some(evaluation);
            }
            EventKind::Plateau { step, stage, done, steps } => {
                tracing::info!(
                    "the held-out loss is flat: stage {stage} ends after {done} steps, at step {step} of now {steps}"
                );
                self.status.steps = steps;
                self.display.set_steps(steps);
            }
            EventKind::Grown { step, from, to, stage } => {
                tracing::info!("the model grows from {from} to {to} layers after step {step}: stage {stage} begins");
            }
            EventKind::Warning { message } => tracing::warn!("rank {}: {message}", event.rank),
            EventKind::Finished { step, .. } => self.status.step = step,
            // Told once, with all that is known, when the attempt has ended.
            EventKind::Failed { .. } | EventKind::RolledBack { .. } => {}
        }
        self.publish(Urgency::Change);
    }

    /// Notes what is lost from here on: until as many steps are finished again. A failure before that ends the account
    /// of the one before, so that nothing is counted twice.
    fn note_failure(&mut self, watch: &Watch) {
        let since = watch.trouble.unwrap_or_else(Instant::now);
        let before = self.recovering.replace((since, watch.achieved.step));
        if let Some((begun, step)) = before {
            self.recovering = Some((since, step.max(watch.achieved.step)));
            self.account(since.duration_since(begun));
        }
    }

    fn recovered(&mut self, watch: &Watch) {
        let Some((since, step)) = self.recovering else { return };
        if watch.started.is_none() || watch.achieved.step < step {
            return;
        }
        self.recovering = None;
        self.account(since.elapsed());
        let seconds: f64 = self.status.lost.iter().filter_map(|lost| lost.seconds).sum();
        let times = self.status.lost.len();
        tracing::info!(
            "step {step} is reached again: the restart cost {:.1} s ({seconds:.1} s in all, {times} restart(s))",
            since.elapsed().as_secs_f64()
        );
    }

    fn account(&mut self, cost: Duration) {
        if let Some(lost) = self.status.lost.last_mut() {
            lost.seconds = Some(cost.as_secs_f64());
        }
    }

    fn say_restart(&mut self, cause: &str, pause: Duration, from: &str) {
        tracing::warn!("{cause}; the workers are started again in {} s{from}", pause.as_secs());
        let step = self.recovering.map_or(0, |(_, step)| step);
        let lost = Lost { attempt: self.status.attempt, step, seconds: None, cause: cause.to_owned() };
        self.status.lost.push(lost);
        self.status.restarts += 1;
        self.status.error = Some(cause.to_owned());
        self.enter(State::Restarting);
    }

    fn say_end(&mut self, state: State, word: &str) {
        self.enter(state);
        let (step, steps, url) = (self.status.step, self.status.steps, self.order.store.url());
        let speed = self.pace.samples_per_second();
        let left = self.status.seconds_left.filter(|_| state == State::Stopped).map(duration);
        let left = left.map_or(String::new(), |left| format!("; the same command goes on, {left} are left"));
        console::line(&format!(
            "{word} at step {step} of {steps} ({speed:.1} samples/s): {}{left}",
            match &self.status.checkpoint {
                Some(name) => format!("checkpoint {}", checkpoint_url(url, name)),
                None => "no checkpoint was saved".to_owned(),
            }
        ));
    }

    fn resumes_from(&self) -> String {
        self.status.checkpoint.clone().unwrap_or_else(|| "the beginning (no checkpoint yet)".to_owned())
    }

    /// Waits, unless something is wished in the meantime.
    fn pause(&self, pause: Duration) -> Wish {
        let deadline = Instant::now() + pause;
        while Instant::now() < deadline && self.requests.wish() == Wish::None {
            std::thread::sleep(TICK);
        }
        self.requests.wish()
    }

    /// Takes the stop request out of the store: it has been honoured.
    fn honour_stop(&self) -> Result<(), Failure> {
        self.order.store.delete(STOP_OBJECT).map_err(Failure::failed)
    }

    fn enter(&mut self, state: State) {
        self.status.state = state;
        self.publish(Urgency::Change);
    }

    fn publish(&self, urgency: Urgency) {
        self.reporter.publish(self.status.clone(), urgency);
    }
}

/// The run's store, with the patience that the workers have: one that is away is waited for.
fn patient(order: &Order) -> Store {
    let minutes = order.config.checkpoint.give_up_minutes;
    let mut patience = Patience::default();
    patience.total = patience.total.max(Duration::from_secs_f64(60.0 * minutes));
    order.store.with_patience(patience)
}

/// Why the workers are not followed any longer.
enum End {
    Status(std::process::ExitStatus),
    Silence(String),
}

fn first_status(config: &RunConfig) -> Status {
    Status {
        name: config.run.name.clone(),
        steps: plan::total_steps(config, &plan::Ended::new()),
        coordinator: Who { host: processes::host(), pid: std::process::id() },
        ..Status::default()
    }
}

fn rank_statuses(watch: &Watch) -> Vec<RankStatus> {
    let status = |(number, rank): (&usize, &super::watch::Rank)| RankStatus {
        rank: *number,
        host: rank.host.clone(),
        pid: rank.pid,
        step: rank.step,
        silent: rank.heard.elapsed().as_secs_f64(),
    };
    watch.ranks.iter().map(status).collect()
}
