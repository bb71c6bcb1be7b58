//! Console output: log lines and progress on stderr.

use lambert_control::Message;
use lambert_control::Score;
use lambert_control::{Evaluation, EventKind};
use lambert_store::run::checkpoint_url;

use super::display::ProgressDisplay;
use super::repeats::RepeatedLines;
use super::{Observation, Observer, ObserverSetup, RunBegin, RunEnd};
use crate::console;
use crate::decide::{Action, CoordinatorState, Event, Note, RestartKind, Verdict, WorkerEvent};
use crate::status::{RunProgress, Status};
use crate::text::{counted, duration, percent};

/// Observer that reports a run on stderr.
#[derive(Debug)]
pub struct ConsoleObserver {
    display: ProgressDisplay,
    url: String,
    lines: RepeatedLines,
}

/// Creates the observer.
pub fn make(setup: &ObserverSetup<'_>) -> Option<Box<dyn Observer>> {
    let (display, url) = (ProgressDisplay::new(setup.steps), setup.url.to_owned());
    Some(Box::new(ConsoleObserver { display, url, lines: RepeatedLines::default() }))
}

impl Observer for ConsoleObserver {
    fn begin(&mut self, begin: &RunBegin<'_>) {
        begin.actions.iter().for_each(|action| say_action(action, begin.state));
    }

    fn observe(&mut self, observation: &Observation<'_>) {
        if let Event::Worker(_, what) = observation.event {
            self.worker(what, observation);
        }
        observation.actions.iter().for_each(|action| say_action(action, observation.state));
    }

    fn end(&mut self, end: &RunEnd<'_>) {
        self.lines.end().iter().for_each(|line| console::line(line));
        self.display.end();
        let status = end.status;
        match end.verdict {
            Verdict::Finished => {
                let evaluation = status.latest.evaluation.iter();
                evaluation.filter_map(above_baseline).for_each(|warning| tracing::warn!("{warning}"));
                self.say_end("finished", "", status);
            }
            Verdict::Stopped(reason) => {
                let left = status.progress.seconds_left.map(duration);
                let left =
                    left.map_or(String::new(), |left| format!("; rerun the same command to resume, {left} remaining"));
                self.say_end("stopped", &format!(" ({reason}){left}"), status);
            }
            Verdict::Replaced(_) | Verdict::Failed(..) => {}
        }
    }
}

impl ConsoleObserver {
    fn worker(&mut self, what: &WorkerEvent, observation: &Observation<'_>) {
        match what {
            WorkerEvent::Message(_, Message::Record(record)) => self.display.step(record, observation.throughput),
            WorkerEvent::Message(rank, Message::Event(event)) => self.event(*rank, event),
            WorkerEvent::Line(rank, text) if self.lines.is_shown(*rank, text) => {
                let running = observation.state.running();
                let host = running.and_then(|running| running.monitor.ranks.host(*rank));
                console::rank_line(*rank, host.as_deref(), text, &named(*rank, text, observation.state));
            }
            WorkerEvent::Gone(_) => self.lines.end().iter().for_each(|line| console::line(line)),
            _ => {}
        }
    }

    fn event(&mut self, rank: usize, event: &EventKind) {
        match event {
            EventKind::Started { step, steps, checkpoint, skipped_checkpoints } => {
                skipped_checkpoints.iter().for_each(|why| tracing::warn!("skipped checkpoint {why}"));
                match checkpoint {
                    Some(name) => tracing::info!("resuming from {name} (step {step} of {steps})"),
                    None => tracing::info!("starting at step 0 of {steps}"),
                }
                if step > steps {
                    tracing::warn!(
                        "the checkpoint is at step {step}, beyond the {steps} steps of the configuration: nothing left to train"
                    );
                }
                self.display.set_steps(*steps);
            }
            EventKind::Checkpoint { name, seconds, written, .. } => {
                tracing::info!(
                    "saved checkpoint {name} in {written:.2} s (training paused {:.0} ms)",
                    1000.0 * seconds
                );
            }
            EventKind::Evaluation(evaluation) => {
                let Score { name, loss, accuracy, .. } = evaluation.scores.main();
                let accuracy = accuracy.map_or(String::new(), |accuracy| format!(", acc {}", percent(accuracy)));
                tracing::info!(
                    "evaluation at step {}: {name} {loss:.4}{accuracy} (unigram baseline {:.4})",
                    evaluation.step,
                    evaluation.unigram_entropy
                );
                for (dataset, extra) in &evaluation.extra {
                    let Score { name, loss, accuracy, .. } = extra.scores.main();
                    let accuracy = accuracy.map_or(String::new(), |accuracy| format!(", acc {}", percent(accuracy)));
                    let step = evaluation.step;
                    tracing::info!("evaluation at step {step} on {dataset}: {name} {loss:.4}{accuracy}");
                }
            }
            EventKind::Plateau { step, stage, done, steps } => {
                tracing::info!(
                    "held-out loss plateau: stage {stage} ends after {done} steps, at step {step} (total now {steps})"
                );
                self.display.set_steps(*steps);
            }
            EventKind::Grown { step, from, to, stage } => {
                tracing::info!("growing the model from {from} to {to} layers after step {step}: stage {stage} begins");
            }
            EventKind::MicroBatch { stage, tokens } => {
                tracing::info!("stage {stage}: micro-batches of {tokens} tokens in this attempt");
            }
            EventKind::Warning { message } | EventKind::SaveFailed { message, .. } => {
                tracing::warn!("rank {rank}: {message}");
            }
            // The coordinator reports these events once, with the full cause, after the attempt has ended.
            EventKind::Finished { .. } | EventKind::Failed { .. } | EventKind::RolledBack { .. } => {}
        }
    }

    fn say_end(&self, word: &str, left: &str, status: &Status) {
        let RunProgress { step, steps, .. } = status.progress;
        let checkpoint = match &status.checkpoint {
            Some(name) => format!("checkpoint {}", checkpoint_url(&self.url, name)),
            None => "no checkpoint saved".to_owned(),
        };
        console::line(&format!("{word}: step {step} of {steps}, {checkpoint}{left}"));
    }
}

/// Prefixes a line of worker output with the rank if there is more than one rank.
fn named(rank: usize, text: &str, state: &CoordinatorState) -> String {
    match state.running().map_or(state.settings.ranks, |running| running.attempt.world) {
        1 => text.to_owned(),
        _ => format!("rank {rank}: {text}"),
    }
}

fn say_action(action: &Action, state: &CoordinatorState) {
    match action {
        Action::Start(attempt) => {
            tracing::info!("attempt {}: starting {} workers", attempt.number, attempt.world);
        }
        Action::Note(note) => say_note(note, state),
        Action::TakeLease(_) | Action::Command(_) | Action::End | Action::AskSlurm | Action::ForgetStop => {}
    }
}

fn say_note(note: &Note, state: &CoordinatorState) {
    match note {
        Note::Stopping => tracing::info!("stopping: the workers save a checkpoint after the next step"),
        Note::NothingToSave => {
            tracing::info!("stopping at once: no step completed since the start, nothing to save");
        }
        Note::OutOfTime => tracing::warn!(
            "terminating the workers before the checkpoint is complete, because the job must be requeued now; steps since \
             the last checkpoint are lost"
        ),
        Note::ResultStands(message) => tracing::warn!(
            "{message}; the last checkpoint is complete, so the result is \
             valid"
        ),
        Note::StartFailed(message) => tracing::warn!("the workers could not be started: {message}"),
        Note::StopFailed(message) => tracing::warn!("{message}; steps since the last checkpoint are lost"),
        Note::Saving => tracing::info!("checkpoint requested"),
        Note::ShortLead { save, lead } => tracing::warn!(
            "the last checkpoint took {save:.0} s, longer than slurm.lead_seconds ({lead:.0} s before the time limit): \
             increase slurm.lead_seconds"
        ),
        Note::ShortOfTime { left, save } => tracing::warn!(
            "the job ends in {left:.0} s and the last checkpoint took {save:.0} s: this one may not complete, which would \
             lose the steps since the last one"
        ),
        Note::Slow(message) => tracing::warn!("{message}"),
        Note::Restart { cause, pause, kind } => {
            let from = match (kind, &state.checkpoint) {
                (RestartKind::Rollback, _) => String::new(),
                (RestartKind::Resume, Some(name)) => format!(" from {name}"),
                (RestartKind::Resume, None) => " from step 0 (no checkpoint yet)".to_owned(),
            };
            tracing::warn!("{cause}; restarting all workers{from} in {pause} s");
        }
        Note::Waiting { cause, pause, minutes_left } => tracing::warn!(
            "no rank has reported ({cause}); retrying in {pause} s, giving up in {minutes_left:.0} minutes"
        ),
        Note::Recovered { step, seconds } => {
            let (all, times) = (state.history.seconds_lost, state.history.restarts.len());
            let restarts = counted(times as u64, "restart");
            tracing::info!("recovered to step {step}: restart cost {seconds:.1} s ({restarts}, {all:.1} s total)");
        }
        Note::LeftoverProcesses(left) => {
            tracing::error!("cannot kill processes on this host: {}", left.join(", "));
        }
    }
}

/// Returns a warning if the held-out loss is above the unigram baseline.
fn above_baseline(evaluation: &Evaluation) -> Option<String> {
    let Score { name, loss, .. } = evaluation.scores.main();
    let (step, baseline) = (evaluation.step, evaluation.unigram_entropy);
    (loss > baseline).then(|| {
        format!(
            "evaluation at step {step}: {name} {loss:.4} is above the unigram baseline of {baseline:.4}: the model \
             predicts held-out text worse than token frequencies do"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_above_the_unigram_baseline_causes_a_warning() {
        let evaluation = |loss: f64| -> Evaluation {
            serde_json::from_value(serde_json::json!({"step": 1200, "samples": 9, "masked_tokens": 9, "mlm_loss": loss,
                "mlm_accuracy": 0.1, "unigram_entropy": 6.3}))
            .unwrap()
        };
        assert_eq!(above_baseline(&evaluation(6.3)), None);
        let warning = above_baseline(&evaluation(19.3)).unwrap();
        assert!(warning.contains("step 1200: mlm 19.3000 is above the unigram baseline of 6.3000"), "{warning}");
    }
}
