//! Losses on the extra held-out datasets of a run.

use std::collections::{BTreeMap, BTreeSet};

use lambert_control::{Evaluation, ExtraEvaluation, Score, Scores};
use serde::Serialize;

use super::chart::{Point, is_drawable};

/// Results on an extra held-out dataset.
#[derive(Debug, Serialize)]
pub struct ExtraReport {
    pub name: String,
    /// Last evaluation by loss, nats.
    pub losses: BTreeMap<String, f64>,
    /// Accuracies of the last evaluation by loss, as fractions.
    pub accuracies: BTreeMap<String, f64>,
    /// Step and main loss of the first evaluation.
    pub first: Option<Point>,
    /// Main loss by step.
    #[serde(skip)]
    pub curve: Vec<Point>,
}

impl ExtraReport {
    /// Results on all extra datasets, by name.
    pub fn all(evaluations: &[Evaluation]) -> Vec<Self> {
        let names: BTreeSet<&String> = evaluations.iter().flat_map(|evaluation| evaluation.extra.keys()).collect();
        names.into_iter().map(|name| Self::of(name, evaluations)).collect()
    }

    fn of(name: &str, evaluations: &[Evaluation]) -> Self {
        let of_name = |evaluation: &Evaluation| Some((evaluation.step, evaluation.extra.get(name)?.clone()));
        let all: Vec<(u64, ExtraEvaluation)> = evaluations.iter().filter_map(of_name).collect();
        let curve = curve(all.iter().map(|(step, extra)| (*step, &extra.scores)));
        let last = all.last().map(|(_, extra)| &extra.scores);
        Self {
            name: name.to_owned(),
            losses: by_name(last, |score| Some(score.loss)),
            accuracies: by_name(last, |score| score.accuracy),
            first: curve.first().copied(),
            curve,
        }
    }
}

/// Value of each loss.
pub fn by_name(scores: Option<&Scores>, value: fn(&Score) -> Option<f64>) -> BTreeMap<String, f64> {
    let scores = scores.into_iter().flat_map(Scores::iter);
    scores.filter_map(|score| Some((score.name.clone(), value(score)?))).collect()
}

/// Main loss by step.
pub fn curve<'a>(evaluations: impl Iterator<Item = (u64, &'a Scores)>) -> Vec<Point> {
    let points = evaluations.map(|(step, scores)| (step as f64, scores.main().loss));
    points.filter(|(_, loss)| is_drawable(*loss)).collect()
}
