//! Datasets of a run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use lambert_config::RunConfig;
use lambert_config::run::Stage;
use lambert_dataset::{Dataset, DatasetError, VocabularyInfo, check_compatibility};
use lambert_plan::{memory, mixture};
use lambert_store::Store;
use lambert_store::run::{CONFIG, MAX_PHRASES_BYTES, PHRASES};

use crate::data::Mixture;
use crate::error::Error;
use crate::masking::Phrases;
use crate::worker::host_share::HostShare;

/// Datasets of a run.
pub struct Datasets {
    /// Data of each stage.
    pub stages: Vec<Mixture>,
    /// Held-out datasets: that of `evaluation.data`, if any, then the extra ones.
    pub held_out: Vec<Arc<Dataset>>,
    /// Phrases that are masked as a whole, if any.
    pub phrases: Option<Arc<Phrases>>,
}

/// Datasets of which a rank checks the sizes of all files. With thousands of shards, a check by every rank would take half an
/// hour, because an object store limits the rate of requests. Every rank verifies what it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeChecks {
    /// True if the rank checks datasets on local and shared file systems.
    local: bool,
    /// True if the rank checks datasets in object stores.
    remote: bool,
}

impl SizeChecks {
    /// Checks of a rank. The first rank of each host checks local datasets. The coordinator has checked remote datasets. Without
    /// a coordinator, rank 0 checks them.
    pub fn of_rank(rank: usize, local_rank: usize, has_coordinator: bool) -> Self {
        Self { local: local_rank == 0, remote: rank == 0 && !has_coordinator }
    }

    fn open(self, url: &str) -> Result<Dataset, DatasetError> {
        let dataset = Dataset::open_without_size_check(url)?;
        let is_checked = if dataset.is_remote() { self.remote } else { self.local };
        if is_checked {
            dataset.check_sizes()?;
        }
        Ok(dataset)
    }
}

impl Datasets {
    /// Opens all datasets and the phrases in `store`, the store of the run. Checks that the datasets fit the model, the objective
    /// and the memory of this host. The error lists every problem. Opens a dataset once, even if several stages use it.
    pub fn open(config: &RunConfig, store: &Store, size_checks: SizeChecks) -> Result<Self, Error> {
        let opened = RefCell::new(BTreeMap::new());
        let open = |url: &str| {
            if let Some(dataset) = opened.borrow().get(url) {
                return Ok(Arc::clone(dataset));
            }
            let dataset = Arc::new(size_checks.open(url)?.with_cache(&config.cluster.dataset_cache));
            opened.borrow_mut().insert(url.to_owned(), Arc::clone(&dataset));
            Ok::<_, DatasetError>(dataset)
        };
        let stages: Vec<Mixture> =
            config.stage.iter().map(|stage| open_mixture(stage, open)).collect::<Result<_, _>>()?;
        let held_out_keys = config.evaluation.datasets();
        let held_out = held_out_keys.iter().map(|(_, url)| open(url)).collect::<Result<Vec<_>, _>>()?;
        let keys = config.stage.iter().enumerate().flat_map(|(index, stage)| stage.datasets(index));
        let opened = stages.iter().flat_map(Mixture::datasets);
        let mut used: Vec<(String, &Dataset)> = keys.zip(opened).map(|((key, _), dataset)| (key, &**dataset)).collect();
        let held_out_keys = held_out_keys.into_iter().map(|(key, _)| key);
        used.extend(held_out_keys.zip(held_out.iter().map(|dataset| &**dataset)));
        let mut issues = Vec::new();
        check_compatibility(config, &used, None, &mut issues);
        let data: Vec<memory::DatasetShape> = stages.iter().map(Mixture::shape).collect();
        memory::check(config, &data, HostShare::count().ranks, &mut issues);
        if !issues.is_empty() {
            return Err(Error::invalid_config(CONFIG, issues));
        }
        let dataset = &stages[0].datasets()[0];
        let phrases = match config.objective.phrases {
            Some(_) => {
                let list = store.get_at_most(PHRASES, MAX_PHRASES_BYTES)?;
                Some(Arc::new(tokenize_phrases(&list, &format!("{}/{PHRASES}", store.url()), dataset)?))
            }
            None => None,
        };
        Ok(Self { stages, held_out, phrases })
    }

    /// Returns the first dataset. All datasets share its vocabulary.
    pub fn first(&self) -> &Dataset {
        &self.stages[0].datasets()[0]
    }
}

/// Splits the phrases of `list`, the content of the file `name`, into the tokens of a dataset. Leaves out phrases with unknown
/// words.
pub fn tokenize_phrases(list: &[u8], name: &str, dataset: &Dataset) -> Result<Phrases, Error> {
    let manifest = dataset.manifest();
    let info = VocabularyInfo { size: manifest.vocabulary.size, lowercase: manifest.lowercase };
    let tokenizer = info.tokenizer(&dataset.vocabulary()?)?;
    let mut encoder = tokenizer.encoder();
    let text = String::from_utf8_lossy(list);
    let (mut phrases, mut known, mut all) = (Phrases::default(), 0_usize, 0_usize);
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        all += 1;
        if encoder.encode(line).contains(&manifest.special.unk) {
            continue;
        }
        known += 1;
        phrases.insert(encoder.encode(line));
        // In a byte-level BPE, a phrase has other tokens after a space.
        phrases.insert(encoder.encode_next(line));
    }
    tokenizer.check()?;
    if known == 0 {
        return Err(Error::Usage(format!(
            "objective.phrases: each of the {all} phrases of {name} has an unknown word"
        )));
    }
    if known < all {
        tracing::debug!("{} of {all} phrases have an unknown word and are not used", all - known);
    }
    Ok(phrases)
}

/// Opens the data of a stage with `open`.
pub fn open_mixture(
    stage: &Stage,
    open: impl Fn(&str) -> Result<Arc<Dataset>, DatasetError>,
) -> Result<Mixture, DatasetError> {
    if stage.mixture.is_empty() {
        return Ok(Mixture::single(open(&stage.data)?));
    }
    let datasets = stage.mixture.iter().map(|part| open(&part.data)).collect::<Result<Vec<_>, _>>()?;
    let rows: Vec<u64> = datasets.iter().map(|dataset| dataset.rows()).collect();
    let counts = mixture::block_counts(&mixture::weights(stage, &rows));
    let names = stage.mixture.iter().map(|part| part.name.clone()).collect();
    Ok(Mixture::new(datasets, names, counts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_ranks_check_the_sizes_of_files() {
        let checks = |rank, local_rank, has_coordinator| {
            let SizeChecks { local, remote } = SizeChecks::of_rank(rank, local_rank, has_coordinator);
            (local, remote)
        };
        assert_eq!(checks(0, 0, true), (true, false));
        assert_eq!(checks(8, 0, true), (true, false), "the first rank of another host");
        assert_eq!(checks(9, 1, true), (false, false));
        assert_eq!((checks(0, 0, false), checks(8, 0, false)), ((true, true), (true, false)));
    }
}
