//! Losses and accuracies of a step or an evaluation. The names of the losses are data, not code. A record has the
//! fields `NAME_loss` and `NAME_accuracy` for each loss that had targets, and `NAME_precision` and `NAME_recall` for a detection.

use std::fmt;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Value of one loss in a step or an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// Name of the loss.
    pub name: String,
    /// Mean loss over all targets, nats.
    pub loss: f64,
    /// Fraction of targets that were predicted correctly. `None` if the loss has no accuracy.
    pub accuracy: Option<f64>,
    /// Fraction of the positive predictions of a detection that are right. `None` for other losses, and without such
    /// predictions.
    pub precision: Option<f64>,
    /// Fraction of the positive targets of a detection that are predicted. `None` for other losses, and without such targets.
    pub recall: Option<f64>,
}

impl Score {
    /// Creates the score of a loss that is not a detection.
    pub fn new(name: &str, loss: f64, accuracy: Option<f64>) -> Self {
        Self { name: name.to_owned(), loss, accuracy, precision: None, recall: None }
    }
}

/// Scores of all losses that had targets in a step or an evaluation. The main loss of the run comes first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scores(Vec<Score>);

impl Scores {
    /// Returns the score of the loss `name`, if it had targets.
    pub fn get(&self, name: &str) -> Option<&Score> {
        self.0.iter().find(|score| score.name == name)
    }

    /// Returns the score of the main loss. Its value is NaN if no loss had targets.
    pub fn main(&self) -> Score {
        self.0.first().cloned().unwrap_or_else(|| Score::new("loss", f64::NAN, None))
    }

    /// Returns the sum of the losses without their weights, nats. Returns NaN if no loss had targets.
    pub(crate) fn sum(&self) -> f64 {
        if self.0.is_empty() { f64::NAN } else { self.0.iter().map(|score| score.loss).sum() }
    }

    /// Iterates over the scores, the main loss first.
    pub fn iter(&self) -> std::slice::Iter<'_, Score> {
        self.0.iter()
    }

    fn entry(&mut self, name: &str) -> &mut Score {
        let index = self.0.iter().position(|score| score.name == name).unwrap_or(self.0.len());
        if index == self.0.len() {
            self.0.push(Score::new(name, f64::NAN, None));
        }
        &mut self.0[index]
    }
}

impl FromIterator<Score> for Scores {
    fn from_iter<I: IntoIterator<Item = Score>>(scores: I) -> Self {
        Self(scores.into_iter().collect())
    }
}

const LOSS: &str = "_loss";
const ACCURACY: &str = "_accuracy";
const PRECISION: &str = "_precision";
const RECALL: &str = "_recall";

/// Writes the fields as a map, which is flattened into the record. JSON has no NaN, so values that are not finite
/// become null, and null is read as NaN.
impl Serialize for Scores {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let finite = |value: f64| Some(value).filter(|value| value.is_finite());
        let mut map = serializer.serialize_map(None)?;
        for Score { name, loss, accuracy, precision, recall } in &self.0 {
            map.serialize_entry(&format!("{name}{LOSS}"), &finite(*loss))?;
            for (ending, share) in [(ACCURACY, accuracy), (PRECISION, precision), (RECALL, recall)] {
                if let Some(share) = share {
                    map.serialize_entry(&format!("{name}{ending}"), &finite(*share))?;
                }
            }
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
                f.write_str("losses and accuracies by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Scores, A::Error> {
                let mut scores = Scores::default();
                while let Some(key) = map.next_key::<String>()? {
                    // In older records, a loss without targets has null in both fields.
                    if let Some(name) = key.strip_suffix(LOSS) {
                        scores.entry(name).loss = map.next_value::<Option<f64>>()?.unwrap_or(f64::NAN);
                    } else if let Some(name) = key.strip_suffix(ACCURACY) {
                        scores.entry(name).accuracy = Some(map.next_value::<Option<f64>>()?.unwrap_or(f64::NAN));
                    } else if let Some(name) = key.strip_suffix(PRECISION) {
                        scores.entry(name).precision = map.next_value()?;
                    } else if let Some(name) = key.strip_suffix(RECALL) {
                        scores.entry(name).recall = map.next_value()?;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                let has_no_targets = |score: &Score| score.loss.is_nan() && score.accuracy.is_some_and(f64::is_nan);
                scores.0.retain(|score| !has_no_targets(score));
                Ok(scores)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{Evaluation, EventKind, ExtraEvaluation, StepRecord};

    fn score(name: &str, loss: f64, accuracy: f64) -> Score {
        Score::new(name, loss, Some(accuracy))
    }

    #[test]
    fn step_records_keep_their_json_fields() {
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
    fn a_loss_without_accuracy_has_no_accuracy_field() {
        let scores: Scores = [Score { accuracy: None, ..score("mse", 2.0, 0.0) }].into_iter().collect();
        let text = serde_json::to_string(&scores).unwrap();
        assert_eq!(text, r#"{"mse_loss":2.0}"#);
        assert_eq!(serde_json::from_str::<Scores>(&text).unwrap(), scores);
    }

    #[test]
    fn a_non_finite_loss_is_written_as_null_and_read_as_nan() {
        let scores: Scores = [score("mlm", f64::NAN, 0.0), score("pair", f64::INFINITY, 0.5)].into_iter().collect();
        let evaluation = Evaluation {
            step: 3,
            samples: 9,
            masked_tokens: 9,
            loss: None,
            scores,
            unigram_entropy: 1.0,
            extra: BTreeMap::new(),
        };
        let text = serde_json::to_string(&EventKind::Evaluation(evaluation)).unwrap();
        assert!(text.contains(r#""mlm_loss":null,"mlm_accuracy":0.0,"pair_loss":null"#), "{text}");
        let EventKind::Evaluation(read) = serde_json::from_str(&text).unwrap() else { panic!("{text}") };
        assert!(read.scores.main().loss.is_nan() && read.scores.sum().is_nan());
        assert_eq!((read.step, read.scores.get("pair").unwrap().accuracy), (3, Some(0.5)));
    }

    #[test]
    fn evaluations_in_the_old_format_are_read() {
        let text = r#"{"event":"evaluation","step":5,"samples":8,"masked_tokens":9,"mlm_loss":2.5,"mlm_accuracy":0.5,
            "pair_loss":null,"pair_accuracy":null,"unigram_entropy":3.5}"#;
        let EventKind::Evaluation(read) = serde_json::from_str(text).unwrap() else { panic!("{text}") };
        assert_eq!(read.scores, [score("mlm", 2.5, 0.5)].into_iter().collect());
        assert_eq!(read.scores.sum(), 2.5);
        assert!(Scores::default().sum().is_nan() && Scores::default().main().loss.is_nan());
        assert_eq!(read.extra, BTreeMap::new());
    }

    #[test]
    fn scores_of_extra_datasets_stand_apart() {
        let of = |loss: f64| [score("mlm", loss, 0.25)].into_iter().collect();
        let (samples, masked_tokens, unigram_entropy) = (4, 5, 3.0);
        let extra = ExtraEvaluation { samples, masked_tokens, loss: Some(3.5), scores: of(3.5), unigram_entropy };
        let extra = BTreeMap::from([("general".to_owned(), extra)]);
        let evaluation = Evaluation {
            step: 3,
            samples: 9,
            masked_tokens: 9,
            loss: Some(2.5),
            scores: of(2.5),
            unigram_entropy,
            extra,
        };
        let event = EventKind::Evaluation(evaluation);
        let text = serde_json::to_string(&event).unwrap();
        let part =
            r#""extra":{"general":{"samples":4,"masked_tokens":5,"loss":3.5,"mlm_loss":3.5,"mlm_accuracy":0.25,"#;
        assert!(text.contains(part), "{text}");
        assert_eq!(serde_json::from_str::<EventKind>(&text).unwrap(), event);
    }
}
