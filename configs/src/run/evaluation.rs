//! Evaluation on held-out data.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::{fraction, positive};
use super::mixture::check_name;
use crate::load::ConfigIssue;

/// Maximum number of extra held-out datasets.
const MAX_EXTRA: usize = 100;

/// Evaluation on held-out data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Evaluation {
    /// Held-out dataset, as folder or URL. Empty: no evaluation.
    ///
    /// Its loss determines the best checkpoint and plateaus.
    pub data: String,
    /// More held-out datasets, whose losses are recorded beside the first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extra: Vec<HeldOutDataset>,
    /// Also evaluates before the first step.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schemars(!skip_serializing_if)]
    pub at_start: bool,
    /// Steps between evaluations. Each stage also ends with an evaluation.
    pub every_steps: u64,
    /// Tokens between evaluations, in place of `every_steps`.
    ///
    /// At the start of a run, lambert replaces it by `every_steps`, from the mean number of tokens of a step of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every_tokens: Option<f64>,
    /// Maximum number of samples per evaluation of a dataset. 0: all samples.
    pub samples: u64,
    /// Fraction of tokens to predict. Absent: that of `[objective]`, even in stages that override it.
    ///
    /// Losses are comparable only if this fraction is the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mask_probability: Option<f64>,
}

impl Default for Evaluation {
    fn default() -> Self {
        Self {
            data: String::new(),
            extra: Vec::new(),
            at_start: false,
            every_steps: 1000,
            every_tokens: None,
            samples: 2048,
            mask_probability: None,
        }
    }
}

/// Extra held-out dataset.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HeldOutDataset {
    /// Name in records; required. Letters, digits, `_` and `-`.
    pub name: String,
    /// Dataset, as folder or URL; required.
    pub data: String,
}

impl Evaluation {
    /// Keys and URLs of the held-out datasets, that of `data` first. Empty without an evaluation.
    pub fn datasets(&self) -> Vec<(String, &str)> {
        if self.data.is_empty() {
            return Vec::new();
        }
        let extra = self.extra.iter().enumerate();
        let extra = extra.map(|(place, extra)| (format!("evaluation.extra.{place}.data"), extra.data.as_str()));
        std::iter::once(("evaluation.data".to_owned(), self.data.as_str())).chain(extra).collect()
    }

    pub(super) fn check(&self, issues: &mut Vec<ConfigIssue>) {
        if let Some(share) = self.mask_probability {
            fraction("evaluation.mask_probability", share, issues);
            positive("evaluation.mask_probability", share, issues);
        }
        positive("evaluation.every_steps", self.every_steps as f64, issues);
        if self.data.is_empty() {
            for (key, is_set) in [("extra", !self.extra.is_empty()), ("at_start", self.at_start)] {
                if is_set {
                    issues.push(ConfigIssue::new(format!("evaluation.{key}"), "needs evaluation.data"));
                }
            }
        }
        if self.extra.len() > MAX_EXTRA {
            let message = format!("has {} datasets, expected at most {MAX_EXTRA}", self.extra.len());
            issues.push(ConfigIssue::new("evaluation.extra", message));
        }
        let mut names = BTreeSet::new();
        for (place, extra) in self.extra.iter().enumerate() {
            check_name(format!("evaluation.extra.{place}.name"), &extra.name, &mut names, issues);
            if extra.data.is_empty() {
                let message = "missing: expected the dataset's folder or URL";
                issues.push(ConfigIssue::new(format!("evaluation.extra.{place}.data"), message));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extra(name: &str, data: &str) -> HeldOutDataset {
        HeldOutDataset { name: name.into(), data: data.into() }
    }

    #[test]
    fn extra_datasets_need_names_and_a_first_dataset() {
        let check = |data: &str, extra: Vec<HeldOutDataset>| {
            let mut issues = Vec::new();
            Evaluation { data: data.into(), extra, ..Evaluation::default() }.check(&mut issues);
            issues.into_iter().map(|issue| issue.key).collect::<Vec<_>>()
        };
        assert_eq!(check("d", vec![extra("a", "x"), extra("b-1", "x")]), [""; 0]);
        assert_eq!(check("", vec![extra("a", "x")]), ["evaluation.extra"]);
        let wrong = vec![extra("a", ""), extra("a", "x"), extra("", "x"), extra("a b", "x")];
        let keys = ["extra.0.data", "extra.1.name", "extra.2.name", "extra.3.name"];
        assert_eq!(check("d", wrong), keys.map(|key| format!("evaluation.{key}")));
        assert_eq!(check("d", vec![extra("", "x"); 101])[0], "evaluation.extra");
    }

    #[test]
    fn the_datasets_have_keys() {
        let evaluation = Evaluation { data: "d".into(), extra: vec![extra("a", "x")], ..Evaluation::default() };
        let expected = [("evaluation.data".to_owned(), "d"), ("evaluation.extra.0.data".to_owned(), "x")];
        assert_eq!(evaluation.datasets(), expected);
        assert_eq!(Evaluation { data: String::new(), ..evaluation }.datasets(), []);
    }
}
