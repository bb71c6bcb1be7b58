//! Mixture of datasets in a stage.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Stage;
use crate::load::ConfigIssue;

/// Maximum number of datasets in a mixture.
const MAX_DATASETS: usize = 1000;

/// Dataset of a mixture.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct MixtureDataset {
    /// Name in records; required. Letters, digits, `_` and `-`.
    pub name: String,
    /// Dataset, as folder or URL; required.
    pub data: String,
    /// Weight of the dataset. Its share of the samples is the weight divided by the sum of all weights. Absent: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
}

impl Stage {
    /// Keys and URLs of the datasets of this stage, which is stage `index`.
    pub fn datasets(&self, index: usize) -> Vec<(String, &str)> {
        if self.mixture.is_empty() {
            return vec![(format!("stage.{index}.data"), &self.data)];
        }
        let parts = self.mixture.iter().enumerate();
        parts.map(|(place, part)| (format!("stage.{index}.mixture.{place}.data"), part.data.as_str())).collect()
    }

    /// Checks that the stage has either a dataset or a valid mixture.
    pub(super) fn check_data(&self, index: usize, issues: &mut Vec<ConfigIssue>) {
        let key = |name: &str| format!("stage.{index}.{name}");
        let missing = "missing: expected the dataset's folder or URL";
        if self.mixture.is_empty() {
            if self.data.is_empty() {
                issues.push(ConfigIssue::new(key("data"), missing));
            }
            if self.mixture_temperature.is_some() {
                issues.push(ConfigIssue::new(key("mixture_temperature"), "has no effect without a mixture"));
            }
            return;
        }
        if !self.data.is_empty() {
            issues.push(ConfigIssue::new(key("data"), "conflicts with mixture: a stage has one dataset or a mixture"));
        }
        if self.mixture.len() > MAX_DATASETS {
            let message = format!("has {} datasets, expected at most {MAX_DATASETS}", self.mixture.len());
            issues.push(ConfigIssue::new(key("mixture"), message));
        }
        if self.mixture_temperature.is_some_and(|power| !(0.0..=10.0).contains(&power)) {
            issues.push(ConfigIssue::new(key("mixture_temperature"), "must be from 0 to 10"));
        }
        let mut names = BTreeSet::new();
        for (place, part) in self.mixture.iter().enumerate() {
            let key = |name: &str| format!("stage.{index}.mixture.{place}.{name}");
            check_name(key("name"), &part.name, &mut names, issues);
            if part.data.is_empty() {
                issues.push(ConfigIssue::new(key("data"), missing));
            }
            match part.weight {
                Some(_) if self.mixture_temperature.is_some() => {
                    issues.push(ConfigIssue::new(key("weight"), "conflicts with mixture_temperature"));
                }
                Some(weight) if !(weight > 0.0 && weight.is_finite()) => {
                    issues.push(ConfigIssue::of_value(key("weight"), weight, "must be above 0"));
                }
                _ => {}
            }
        }
    }
}

/// Checks the name of a dataset in records. `names` are the names of the datasets before it.
pub(super) fn check_name<'a>(key: String, name: &'a str, names: &mut BTreeSet<&'a str>, issues: &mut Vec<ConfigIssue>) {
    let is_valid = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    if name.is_empty() || !name.chars().all(is_valid) {
        issues.push(ConfigIssue::new(key, "expected a name of letters, digits, `_` and `-`"));
    } else if !names.insert(name) {
        issues.push(ConfigIssue::new(key, format!("another dataset is also named {name}")));
    }
}
