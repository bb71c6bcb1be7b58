//! Results on held-out datasets. They are written to logs and files and sent in messages.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::scores::Scores;

/// Loss and accuracy on held-out samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Completed steps of the run.
    pub step: u64,
    /// Number of samples evaluated.
    pub samples: u64,
    /// Number of masked tokens evaluated.
    pub masked_tokens: u64,
    /// The total loss, nats: the mean losses, each multiplied by its weight, summed. Absent if it is not finite, and in
    /// records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Value and accuracy of each loss: `mlm_loss`, `mlm_accuracy`, `pair_loss`, ...
    #[serde(flatten)]
    pub scores: Scores,
    /// Entropy of the token (word piece) frequencies in the dataset, nats. It equals the loss of the unigram baseline.
    pub unigram_entropy: f64,
    /// Results on the extra held-out datasets, by the name of the dataset.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, ExtraEvaluation>,
}

/// Loss and accuracy on the samples of an extra held-out dataset. The fields are those of [`Evaluation`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExtraEvaluation {
    /// Number of samples evaluated.
    pub samples: u64,
    /// Number of masked tokens evaluated.
    pub masked_tokens: u64,
    /// The total loss, nats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<f64>,
    /// Value and accuracy of each loss.
    #[serde(flatten)]
    pub scores: Scores,
    /// Entropy of the token frequencies in the dataset, nats.
    pub unigram_entropy: f64,
}

impl Evaluation {
    /// Total loss, nats. NaN if it is not finite.
    pub fn total_loss(&self) -> f64 {
        total_loss(self.loss, &self.scores)
    }
}

impl ExtraEvaluation {
    /// Total loss, nats. NaN if it is not finite.
    pub fn total_loss(&self) -> f64 {
        total_loss(self.loss, &self.scores)
    }
}

/// Records of earlier versions have no total: it is the sum of their losses, which all had weight 1.
fn total_loss(loss: Option<f64>, scores: &Scores) -> f64 {
    loss.unwrap_or_else(|| scores.sum())
}

impl From<Evaluation> for ExtraEvaluation {
    fn from(Evaluation { samples, masked_tokens, loss, scores, unigram_entropy, .. }: Evaluation) -> Self {
        Self { samples, masked_tokens, loss, scores, unigram_entropy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{EventKind, Score};

    fn evaluation(loss: Option<f64>) -> Evaluation {
        let scores = [Score::new("mlm", 6.0, Some(0.25)), Score::new("rtd", 0.25, Some(0.75))].into_iter().collect();
        let (samples, masked_tokens, unigram_entropy) = (9, 8, 1.0);
        Evaluation { step: 3, samples, masked_tokens, loss, scores, unigram_entropy, extra: BTreeMap::new() }
    }

    #[test]
    fn total_is_the_weighted_loss_or_the_sum_of_an_old_record() {
        let text = serde_json::to_string(&EventKind::Evaluation(evaluation(Some(18.5)))).unwrap();
        assert!(text.contains(r#""masked_tokens":8,"loss":18.5,"mlm_loss":6.0"#), "{text}");
        let total = |text: &str| match serde_json::from_str(text).unwrap() {
            EventKind::Evaluation(evaluation) => evaluation.total_loss(),
            other => panic!("{other:?}"),
        };
        assert_eq!(total(&text), 18.5);
        assert_eq!(total(&text.replace(r#""loss":18.5,"#, "")), 6.25);
        assert_eq!(ExtraEvaluation::from(evaluation(Some(18.5))).total_loss(), 18.5);
        assert_eq!(ExtraEvaluation::from(evaluation(None)).total_loss(), 6.25);
    }
}
