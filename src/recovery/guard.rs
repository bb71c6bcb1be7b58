//! What keeps a run on its way: whether a step may change the weights, and when to go back and around what derailed it.
//!
//! Everything here is a pure function of numbers that all ranks have after the all-reduce, so that they decide alike
//! without another word.

use std::collections::VecDeque;
use std::ops::Range;

use lambert_config::run::Guard;
use serde::{Deserialize, Serialize};

/// The half-width of the band around the mean is never less than this share of the mean: a long smooth stretch must not
/// make it so narrow that an ordinary batch leaves it.
const NARROWEST: f64 = 0.1;

/// What the steps of a stage so far have shown; part of the training state. The statistics are f32, which pass through
/// JSON unchanged.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Finite losses seen in this stage.
    losses: u64,
    /// Their running mean, nats.
    mean: f32,
    /// Their running variance, nats squared.
    variance: f32,
    /// The last steps of this stage, oldest first: as many as going back may have to go around.
    recent: VecDeque<Drawn>,
}

/// What a step drew.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drawn {
    /// Steps finished before it.
    pub before: u64,
    /// The samples that it took, as numbers of the stage's dataset counted over all epochs.
    pub samples: Range<u64>,
    /// Whether loss and gradient were finite.
    pub sound: bool,
}

/// What becomes of a step.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// It changes the weights.
    Sound,
    /// It changes nothing: loss or gradient are not finite.
    Skip,
    /// It changes nothing, and the run goes back.
    GoBack(Retreat),
}

/// Where to go back to, and what to go around.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retreat {
    /// The step that was judged.
    pub at: u64,
    /// The state before the step after so many is good.
    pub steps: u64,
    /// Samples that are not to be drawn again.
    pub samples: Range<u64>,
    /// What happened, in words.
    pub why: String,
}

impl History {
    /// Judges the step after `before` finished ones, which drew `samples`, had `loss` (nats) and a gradient of norm
    /// `norm`, over all ranks.
    pub fn judge(&self, guard: &Guard, before: u64, samples: Range<u64>, loss: f64, norm: f64) -> Verdict {
        let go_back = |bad: usize, why| Verdict::GoBack(self.retreat(guard, before, samples.clone(), bad, why));
        if !loss.is_finite() || !norm.is_finite() {
            let row = self.recent.iter().rev().take_while(|drawn| !drawn.sound).count();
            let limit = guard.nonfinite_steps as usize;
            if limit > 0 && row + 1 >= limit {
                return go_back(row, format!("{} step(s) in a row without a finite loss and gradient", row + 1));
            }
            return Verdict::Skip;
        }
        match self.edge(guard).filter(|edge| loss > *edge) {
            Some(edge) => go_back(0, format!("the loss of {loss:.4} is above its band, which ends at {edge:.4}")),
            None => Verdict::Sound,
        }
    }

    /// The greatest loss within the band; `None` as long as there are too few losses to tell.
    fn edge(&self, guard: &Guard) -> Option<f64> {
        let (mean, deviation) = (f64::from(self.mean), f64::from(self.variance).sqrt());
        let known = guard.loss_band > 0.0 && self.losses >= guard.loss_window;
        known.then(|| mean + (guard.loss_band * deviation).max(NARROWEST * mean))
    }

    /// From the first of `bad` steps before this one, and some before that: the update that derails a run shows in the
    /// loss of the batch after it.
    fn retreat(&self, guard: &Guard, before: u64, samples: Range<u64>, bad: usize, why: String) -> Retreat {
        let back = (bad + guard.batches_before as usize).min(self.recent.len());
        let first = back.checked_sub(1).map(|last| &self.recent[self.recent.len() - 1 - last]);
        let (steps, start) = first.map_or((before, samples.start), |drawn| (drawn.before, drawn.samples.start));
        let at = before + 1;
        Retreat { at, steps, samples: start..samples.end, why: format!("step {at}: {why}") }
    }

    /// Takes in a step that was judged and counted; `loss` if it was sound.
    pub fn add(&mut self, guard: &Guard, before: u64, samples: Range<u64>, loss: Option<f64>) {
        self.recent.push_back(Drawn { before, samples, sound: loss.is_some() });
        let most = (guard.nonfinite_steps + guard.batches_before) as usize;
        self.recent.drain(..self.recent.len().saturating_sub(most));
        let Some(loss) = loss else { return };
        self.losses += 1;
        let share = 1.0 / self.losses.min(guard.loss_window) as f64;
        let away = loss - f64::from(self.mean);
        self.mean = (f64::from(self.mean) + share * away) as f32;
        self.variance = ((1.0 - share) * (f64::from(self.variance) + share * away * away)) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard() -> Guard {
        Guard { nonfinite_steps: 3, loss_band: 8.0, loss_window: 50, batches_before: 1, ..Guard::default() }
    }

    /// After `steps` steps of 4 samples with losses around 5.
    fn history(steps: u64) -> History {
        let mut history = History::default();
        for step in 0..steps {
            history.add(&guard(), step, 4 * step..4 * step + 4, Some(5.0 + 0.1 * (step as f64).sin()));
        }
        history
    }

    fn back(history: &History, before: u64, loss: f64) -> Option<Retreat> {
        match history.judge(&guard(), before, 4 * before..4 * before + 4, loss, 1.0) {
            Verdict::GoBack(retreat) => Some(retreat),
            _ => None,
        }
    }

    #[test]
    fn a_loss_above_the_band_goes_back_behind_the_batch_before() {
        let history = history(60);
        assert_eq!(back(&history, 60, 5.5), None);
        let retreat = back(&history, 60, 5.7).unwrap();
        assert_eq!((retreat.at, retreat.steps, retreat.samples), (61, 59, 236..244));
        assert!(retreat.why.starts_with("step 61: the loss of 5.7000 is above its band"), "{}", retreat.why);
        assert_eq!(back(&history, 60, 0.1), None, "a falling loss is no fault");
    }

    #[test]
    fn without_enough_losses_there_is_no_band() {
        assert_eq!(back(&history(49), 49, 1e9), None);
        assert!(back(&history(50), 50, 1e9).is_some());
        let off = Guard { loss_band: 0.0, ..guard() };
        assert_eq!(history(60).judge(&off, 60, 0..4, 1e9, 1.0), Verdict::Sound);
    }

    #[test]
    fn what_is_not_finite_is_skipped_until_there_are_several_in_a_row() {
        let mut history = history(60);
        for step in 60..62 {
            let samples = 4 * step..4 * step + 4;
            let [loss, norm] = if step == 60 { [f64::NAN, 1.0] } else { [5.0, f64::INFINITY] };
            assert_eq!(history.judge(&guard(), step, samples.clone(), loss, norm), Verdict::Skip);
            history.add(&guard(), step, samples, None);
        }
        let retreat = back(&history, 62, f64::NAN).unwrap();
        assert_eq!((retreat.steps, retreat.samples), (59, 236..252));
        history.add(&guard(), 62, 248..252, Some(5.0));
        assert_eq!(back(&history, 63, f64::NAN), None, "a sound step ends the row");
    }

    #[test]
    fn the_first_steps_of_a_stage_go_back_to_its_beginning_at_most() {
        let always = Guard { nonfinite_steps: 1, ..guard() };
        let verdict = History::default().judge(&always, 7, 30..34, f64::NAN, 1.0);
        let Verdict::GoBack(retreat) = verdict else { panic!("{verdict:?}") };
        assert_eq!((retreat.steps, retreat.samples), (7, 30..34));
    }

    #[test]
    fn it_passes_through_json_unchanged() {
        let mut history = History::default();
        for step in 0..500 {
            history.add(&guard(), step, 0..4, Some(10.0 / (1.0 + step as f64).ln_1p()));
            let text = serde_json::to_string(&history).unwrap();
            assert_eq!(serde_json::from_str::<History>(&text).unwrap(), history, "{text}");
        }
    }
}
