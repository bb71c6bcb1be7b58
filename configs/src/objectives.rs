//! What is learnt, by name: the objectives, and what a step or an evaluation says of each. Records do not know them: they
//! carry `NAME_loss` and `NAME_accuracy` for every objective that was asked for answers.

use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::architecture::Part;
use crate::prep::Pair;
use crate::run;

/// What one answer is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// A hidden token.
    HiddenTokens,
    /// A whole sample.
    Samples,
}

/// An objective, as everybody but the engine knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Objective {
    /// Its name in records.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// What it asks for.
    pub asks: Asks,
    /// The parts of the model that are its head: what it reads behind the encoder.
    pub head: &'static [Part],
}

/// Masked language modelling (arXiv 1810.04805, 3.1): which piece was hidden.
pub const MASKED_LANGUAGE: Objective = Objective {
    name: "mlm",
    title: "MLM",
    asks: Asks::HiddenTokens,
    head: &[Part::Transform, Part::TransformNorm, Part::Decoder, Part::PredictionBias],
};

/// A pair objective, next sentence or sentence order: what the second segment is.
pub const PAIR: Objective =
    Objective { name: "pair", title: "pair", asks: Asks::Samples, head: &[Part::Pooler, Part::PairHead] };

/// All objectives, in the order of the records.
pub const ALL: [Objective; 2] = [MASKED_LANGUAGE, PAIR];

/// Whether a run learns it.
pub fn is_active(objective: Objective, config: &run::Objective) -> bool {
    objective != PAIR || config.pair != Pair::None
}

/// The parts of the model that none of a run's objectives reads. Nothing is learnt by them, so they are frozen, and no export
/// has them.
pub fn idle(config: &run::Objective) -> Vec<Part> {
    let (active, others): (Vec<_>, Vec<_>) = ALL.into_iter().partition(|objective| is_active(*objective, config));
    let read = |part: &Part| active.iter().any(|objective| objective.head.contains(part));
    others.iter().flat_map(|objective| objective.head).copied().filter(|part| !read(part)).collect()
}

/// The one that lines for people show, and whose held-out loss ends a stage with a plateau.
pub const MAIN: Objective = MASKED_LANGUAGE;

/// How an objective was met.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// The objective's name.
    pub objective: String,
    /// Mean cross-entropy of an answer, nats.
    pub loss: f64,
    /// Share of the answers that are right.
    pub accuracy: f64,
}

/// Those of a step or an evaluation: of every objective that was asked for answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scores(Vec<Score>);

impl Scores {
    /// That of the objective of this name, if it was asked.
    pub fn of(&self, name: &str) -> Option<&Score> {
        self.0.iter().find(|score| score.objective == name)
    }

    /// That of [`MAIN`]; not numbers if it was not asked.
    pub fn main(&self) -> Score {
        let none = || Score { objective: MAIN.name.to_owned(), loss: f64::NAN, accuracy: f64::NAN };
        self.of(MAIN.name).cloned().unwrap_or_else(none)
    }

    /// The sum of the losses, nats; not a number if nothing was asked.
    pub fn loss(&self) -> f64 {
        if self.0.is_empty() { f64::NAN } else { self.0.iter().map(|score| score.loss).sum() }
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Score> {
        self.0.iter()
    }

    fn entry(&mut self, name: &str) -> &mut Score {
        let place = self.0.iter().position(|score| score.objective == name).unwrap_or(self.0.len());
        if place == self.0.len() {
            self.0.push(Score { objective: name.to_owned(), loss: f64::NAN, accuracy: f64::NAN });
        }
        &mut self.0[place]
    }
}

impl FromIterator<Score> for Scores {
    fn from_iter<I: IntoIterator<Item = Score>>(scores: I) -> Self {
        Self(scores.into_iter().collect())
    }
}

const LOSS: &str = "_loss";
const ACCURACY: &str = "_accuracy";

/// Fields of the record that they are part of. JSON has no NaN: what is not finite is null, and read back as NaN.
impl Serialize for Scores {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let finite = |value: f64| Some(value).filter(|value| value.is_finite());
        let mut map = serializer.serialize_map(None)?;
        for Score { objective, loss, accuracy } in &self.0 {
            map.serialize_entry(&format!("{objective}{LOSS}"), &finite(*loss))?;
            map.serialize_entry(&format!("{objective}{ACCURACY}"), &finite(*accuracy))?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Scores {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Scores;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("losses and accuracies by objective")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scores, A::Error> {
                let mut scores = Scores::default();
                while let Some(key) = map.next_key::<String>()? {
                    // A record of before may say null for an objective that was not asked: both fields, then.
                    if let Some(name) = key.strip_suffix(LOSS) {
                        scores.entry(name).loss = map.next_value::<Option<f64>>()?.unwrap_or(f64::NAN);
                    } else if let Some(name) = key.strip_suffix(ACCURACY) {
                        scores.entry(name).accuracy = map.next_value::<Option<f64>>()?.unwrap_or(f64::NAN);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                scores.0.retain(|score| !(score.loss.is_nan() && score.accuracy.is_nan()));
                Ok(scores)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Evaluation, EventKind, StepRecord};

    fn score(objective: &str, loss: f64, accuracy: f64) -> Score {
        Score { objective: objective.to_owned(), loss, accuracy }
    }

    #[test]
    fn records_have_the_fields_that_they_have_always_had() {
        let scores = [score("mlm", 6.5, 0.25), score("pair", 0.5, 0.75)].into_iter().collect();
        let record = StepRecord { step: 7, scores, ..StepRecord::default() };
        let text = serde_json::to_string(&record).unwrap();
        let part =
            r#""loss":0.0,"mlm_loss":6.5,"mlm_accuracy":0.25,"pair_loss":0.5,"pair_accuracy":0.75,"learning_rate":0.0"#;
        assert!(text.contains(part), "{text}");
        assert_eq!(serde_json::from_str::<StepRecord>(&text).unwrap(), record);
        let alone = StepRecord { scores: [score("mlm", 6.5, 0.25)].into_iter().collect(), ..record };
        let text = serde_json::to_string(&alone).unwrap();
        assert!(!text.contains("pair"), "{text}");
        assert_eq!(serde_json::from_str::<StepRecord>(&text).unwrap(), alone);
    }

    #[test]
    fn a_run_without_pairs_has_two_idle_parts() {
        let config = |pair| run::Objective { pair, ..run::Objective::default() };
        assert_eq!(idle(&config(Pair::None)), [Part::Pooler, Part::PairHead]);
        assert_eq!(idle(&config(Pair::Nsp)), []);
        assert_eq!(idle(&config(Pair::Sop)), []);
    }

    #[test]
    fn a_loss_that_is_not_finite_is_null_and_comes_back() {
        let scores: Scores = [score("mlm", f64::NAN, 0.0), score("pair", f64::INFINITY, 0.5)].into_iter().collect();
        let evaluation = Evaluation { step: 3, samples: 9, masked_tokens: 9, scores, unigram_entropy: 1.0 };
        let text = serde_json::to_string(&EventKind::Evaluation(evaluation)).unwrap();
        assert!(text.contains(r#""mlm_loss":null,"mlm_accuracy":0.0,"pair_loss":null"#), "{text}");
        let EventKind::Evaluation(read) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
        assert!(read.scores.main().loss.is_nan() && read.scores.loss().is_nan());
        assert_eq!((read.step, read.scores.of("pair").unwrap().accuracy), (3, 0.5));
    }

    #[test]
    fn evaluations_of_before_are_read() {
        let text = r#"{"event":"evaluation","step":5,"samples":8,"masked_tokens":9,"mlm_loss":2.5,"mlm_accuracy":0.5,
            "pair_loss":null,"pair_accuracy":null,"unigram_entropy":3.5}"#;
        let EventKind::Evaluation(read) = serde_json::from_str(text).unwrap() else { panic!("{text}") };
        assert_eq!(read.scores, [score("mlm", 2.5, 0.5)].into_iter().collect());
        assert_eq!(read.scores.loss(), 2.5);
        assert!(Scores::default().loss().is_nan() && Scores::default().main().loss.is_nan());
    }
}
