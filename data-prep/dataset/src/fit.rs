//! Whether a run can learn from its datasets.

use lambert_config::Fault;
use lambert_config::run::{Pair, RunConfig};

use super::Dataset;

/// Adds a fault for everything that keeps a dataset from being one that this configuration's model can learn from.
/// `used` are the datasets with the keys that name them; `vocabulary` is the sha256 that their vocabularies must have, or
/// that of the first if there is none to keep to.
pub fn check_fit(config: &RunConfig, used: &[(String, &Dataset)], vocabulary: Option<&str>, faults: &mut Vec<Fault>) {
    let first = used.first().map(|(_, dataset)| dataset.manifest().vocabulary.sha256.as_str());
    let (positions, wanted) = (config.model.positions, config.objective.pair);
    for (key, dataset) in used {
        let manifest = dataset.manifest();
        let (length, prepared) = (manifest.sequence_length, manifest.samples.pair);
        let mut fault = |message: String| faults.push(Fault::new(key, message));
        if length > positions {
            fault(format!("has samples of up to {length} tokens, but model.positions is {positions}"));
        }
        if wanted != Pair::None && prepared != wanted {
            fault(format!("was prepared with pair = {prepared:?}, but objective.pair is {wanted:?}"));
        }
        if dataset.rows() == 0 {
            fault("has no samples".to_owned());
        }
        if vocabulary.or(first).is_some_and(|expected| expected != manifest.vocabulary.sha256) {
            let other = if vocabulary.is_some() { "the model" } else { used[0].0.as_str() };
            fault(format!("does not have the vocabulary of {other}"));
        }
    }
}
