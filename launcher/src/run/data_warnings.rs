//! Warnings about the data of a run, before the run starts: too many repetitions, too few samples for a batch, too few
//! masked tokens, words that cannot be masked, unused pairs of segments, and evaluation data that differ from the training data.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use lambert_config::run::{MaskUnit, Objective, Pair, RunConfig, Stage};
use lambert_dataset::tokenizer::TokenTable;
use lambert_dataset::{Dataset, TokenUsage};
use lambert_plan::{mixture, timeline};

use super::open_datasets::OpenDatasets;
use crate::failure::Failure;

/// Number of epochs above which there is a warning. The pre-training of BERT had about 40 epochs (Devlin et al. 2018).
const MAX_EPOCHS: f64 = 40.0;
/// Fraction of `[UNK]` tokens above which there is a warning.
const MAX_UNKNOWN: f64 = 0.05;
/// Overlap of token frequencies below which there is a warning. Measured overlaps: two parts of a novel 0.78, two
/// novels 0.63, a novel and Wikipedia 0.47, different languages below 0.2 (data-prep/tests/held_out.rs).
const MIN_OVERLAP: f64 = 0.3;

/// Mean number of tokens of a word above which there is a warning. Text without spaces has long words in BPE: 1.3 tokens in
/// English, more than 20 in Chinese.
const MAX_WORD_TOKENS: f64 = 6.0;

/// Time limit for reading the datasets.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An open dataset and the configuration key that names it.
struct NamedDataset {
    key: String,
    dataset: Arc<Dataset>,
    /// Token frequencies, if known.
    usage: Option<TokenUsage>,
}

impl NamedDataset {
    fn open(key: String, url: &str, opened: &OpenDatasets) -> Result<Self, Failure> {
        let dataset = opened.open(url)?;
        // If a shard is unreadable, the worker that needs the shard reports the error.
        let usage = TokenUsage::of(&dataset).ok().flatten();
        Ok(Self { key, dataset, usage })
    }

    /// Warns about a large fraction of `[UNK]` tokens.
    fn unknown(&self) -> Option<String> {
        let unknown = self.usage.as_ref()?.unknown();
        (unknown > MAX_UNKNOWN).then(|| {
            let percent = 100.0 * unknown;
            format!("{}: {percent:.0}% of the tokens are [UNK]: the vocabulary does not fit this text", self.key)
        })
    }
}

/// Warns about words that have too many tokens to be masked as a whole. `counts` are those of the tokens by id.
fn long_words(key: &str, objective: &Objective, tokens: &TokenTable, counts: &[u64]) -> Option<String> {
    if objective.mask_unit == MaskUnit::Piece {
        return None;
    }
    let starts = (0_u32..).zip(counts).filter(|(id, _)| !tokens.is_continuation(*id));
    let (words, all) = (starts.map(|(_, count)| count).sum::<u64>(), counts.iter().sum::<u64>());
    let mean = all as f64 / words.max(1) as f64;
    (mean > MAX_WORD_TOKENS).then(|| {
        format!(
            "{key}: a word has {mean:.0} tokens on average, but words with more tokens than a sample may mask are never masked; \
             set objective.mask_unit = \"piece\""
        )
    })
}

/// Returns all warnings. Each warning starts with its configuration key. If a file system hangs, gives up after
/// `TIMEOUT`.
///
/// # Errors
/// A dataset cannot be opened.
pub fn find(config: &RunConfig, opened: &OpenDatasets) -> Result<Vec<String>, Failure> {
    let (sender, found) = mpsc::channel();
    let (config, opened) = (config.clone(), opened.clone());
    let look = move || drop(sender.send(find_all(&config, &opened)));
    std::thread::Builder::new().name("data".to_owned()).spawn(look).map_err(Failure::failed)?;
    found.recv_timeout(TIMEOUT).unwrap_or_else(|_| {
        let seconds = TIMEOUT.as_secs();
        Ok(vec![format!("cannot read the datasets within {seconds} s; skipping the checks of their contents")])
    })
}

fn find_all(config: &RunConfig, opened: &OpenDatasets) -> Result<Vec<String>, Failure> {
    let open = |(key, url): (String, &str)| NamedDataset::open(key, url, opened);
    let held_out = config.evaluation.datasets().into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
    let (mut repeated, mut masked, mut unknown, mut last) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let (mut idle, mut paired) = (Vec::new(), Vec::new());
    for (index, stage) in config.stage.iter().enumerate() {
        let datasets = stage.datasets(index).into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let rows: Vec<u64> = datasets.iter().map(|data| data.dataset.rows()).collect();
        let shares = mixture::shares(&mixture::block_counts(&mixture::weights(stage, &rows)));
        for ((data, rows), share) in datasets.iter().zip(rows).zip(shares) {
            repeated.extend(counts(&data.key, stage, rows, share));
        }
        let longest = datasets.iter().map(|data| data.dataset.sizes().sequence_length).max();
        idle.extend(idle_ranks(index, stage.global_batch, config.cluster.ranks));
        masked.extend(few_masks(
            &format!("stage.{index}"),
            &stage.objective.of(&config.objective),
            longest.unwrap_or(0),
        ));
        unknown.extend(datasets.iter().filter_map(NamedDataset::unknown));
        masked.extend(datasets.iter().filter_map(|data| {
            let objective = stage.objective.of(&config.objective);
            let tokens = TokenTable::read(&data.dataset.vocabulary().ok()?, &data.key).ok()?;
            long_words(&data.key, &objective, &tokens, &data.dataset.token_counts().ok()?)
        }));
        let pairs = |data: &NamedDataset| unused_pairs(&data.key, data.dataset.manifest().samples.pair, config);
        paired.extend(datasets.iter().filter_map(pairs));
        last = datasets;
    }
    if config.evaluation.mask_probability.is_some() {
        let longest = held_out.iter().map(|data| data.dataset.sizes().sequence_length).max();
        masked.extend(few_masks("evaluation", &config.evaluation_objective(), longest.unwrap_or(0)));
    }
    unknown.extend(held_out.iter().filter_map(NamedDataset::unknown));
    let mut warnings = [repeated, idle, masked, unknown, paired].concat();
    // The final held-out loss should reflect the data of the last stage.
    let held_out = held_out.first().and_then(|data| data.usage.as_ref());
    let overlap = |train: &NamedDataset| Some((train.usage.as_ref()?.overlap(held_out?), train.key.clone()));
    let overlaps = last.iter().map(overlap).collect::<Option<Vec<_>>>().unwrap_or_default();
    let closest = overlaps.into_iter().max_by(|(left, _), (right, _)| left.total_cmp(right));
    warnings.extend(closest.and_then(|(overlap, key)| unlike(&key, overlap)));
    Ok(warnings)
}

/// Warnings about the number of samples of a dataset that has this share of the samples of a stage.
fn counts(key: &str, stage: &Stage, rows: u64, share: f64) -> Vec<String> {
    let epochs = share * timeline::samples(stage) as f64 / rows.max(1) as f64;
    let repeated = (epochs > MAX_EPOCHS).then(|| {
        format!(
            "{key}: {rows} samples are repeated {epochs:.0} times (more than {MAX_EPOCHS:.0}): the model will overfit; use \
             more text or fewer steps"
        )
    });
    let drawn = share * stage.global_batch as f64;
    let few = ((rows as f64) < drawn).then(|| match stage.mixture.is_empty() {
        true => format!("{key}: {rows} samples are fewer than a global batch of {drawn}: batches repeat samples"),
        false => {
            format!("{key}: has {rows} samples, but a global batch draws {drawn:.0} of them: batches repeat samples")
        }
    });
    repeated.into_iter().chain(few).collect()
}

/// Warns if a global batch has fewer samples than there are ranks.
fn idle_ranks(stage: usize, global_batch: usize, ranks: usize) -> Option<String> {
    let idle = ranks.checked_sub(global_batch).filter(|idle| *idle > 0)?;
    let compute = if idle == 1 { "1 rank computes".to_owned() } else { format!("{idle} ranks compute") };
    Some(format!(
        "stage.{stage}: global_batch ({global_batch}) is smaller than the number of ranks ({ranks}): {compute} nothing; use \
         fewer ranks or a larger global_batch"
    ))
}

/// Warns about a dataset with pairs of segments, of kind `prepared`, if the model does not learn to tell them apart.
fn unused_pairs(key: &str, prepared: Pair, config: &RunConfig) -> Option<String> {
    let second = match prepared {
        Pair::Nsp => "in half of the samples, the second segment is from another document",
        Pair::Sop => "in half of the samples, the two segments are swapped",
        Pair::None => return None,
    };
    (config.objective.pair == Pair::None).then(|| {
        format!(
            "{key}: was prepared with samples.pair = \"{prepared}\", but objective.pair is \"none\": {second}; prepare it with \
             samples.pair = \"none\""
        )
    })
}

/// Warns if `max_predictions` reduces the share of masked tokens in samples of `length` tokens by more than a tenth. `place` is the
/// section with the probability.
pub fn few_masks(place: &str, objective: &Objective, length: usize) -> Option<String> {
    let share = objective.predictions(length) as f64 / length.max(1) as f64;
    let Objective { mask_probability, max_predictions, .. } = objective;
    (share < 0.9 * mask_probability).then(|| {
        format!(
            "{place}: max_predictions = {max_predictions} masks only {:.1}% of the tokens in samples of {length}, not \
             mask_probability = {mask_probability}; increase max_predictions (0: no limit)",
            100.0 * share
        )
    })
}

/// Warns if the token frequencies of two datasets overlap too little.
fn unlike(train: &str, overlap: f64) -> Option<String> {
    (overlap < MIN_OVERLAP).then(|| {
        let percent = 100.0 * overlap;
        format!(
            "evaluation.data: its token frequencies overlap with those of {train} by only {percent:.0}%: check that \
             both have the same language and kind of text"
        )
    })
}

#[cfg(test)]
mod tests {
    use lambert_config::run::MixtureDataset;

    use super::*;

    #[test]
    fn words_that_cannot_be_masked_cause_a_warning() {
        let vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n";
        let tokens = TokenTable::read(vocabulary.as_bytes(), "vocab.txt").unwrap();
        let of = |mask_unit, counts: [u64; 7]| {
            long_words("stage.0.data", &Objective { mask_unit, ..Objective::default() }, &tokens, &counts)
        };
        let warning = of(MaskUnit::Word, [0, 0, 0, 0, 0, 10, 240]).unwrap();
        assert!(warning.starts_with("stage.0.data: a word has 25 tokens on average"), "{warning}");
        assert_eq!(of(MaskUnit::Piece, [0, 0, 0, 0, 0, 10, 240]), None);
        assert_eq!(of(MaskUnit::Span, [0, 0, 0, 0, 0, 10, 40]), None);
    }

    #[test]
    fn few_or_repeated_samples_cause_a_warning() {
        let stage = Stage { steps: 1200, global_batch: 64, ..Stage::default() };
        let warned = |rows| counts("stage.0.data", &stage, rows, 1.0);
        assert_eq!(warned(1920), [""; 0]);
        let [repeated] = &warned(1900)[..] else { panic!("{:?}", warned(1900)) };
        assert!(repeated.starts_with("stage.0.data: 1900 samples are repeated 40 times"), "{repeated}");
        let [repeated, few] = &warned(2)[..] else { panic!("{:?}", warned(2)) };
        assert!(repeated.contains("2 samples are repeated 38400 times"), "{repeated}");
        assert!(few.contains("2 samples are fewer than a global batch of 64"), "{few}");
        // In a mixture, the share of the dataset counts.
        let mixed = Stage { mixture: vec![MixtureDataset::default(); 2], ..stage };
        assert_eq!(counts("stage.0.mixture.0.data", &mixed, 960, 0.5), [""; 0]);
        let [_, few] = &counts("stage.0.mixture.0.data", &mixed, 15, 0.25)[..] else { panic!("no warnings") };
        assert!(few.contains("has 15 samples, but a global batch draws 16 of them"), "{few}");
    }

    #[test]
    fn more_ranks_than_samples_cause_a_warning() {
        assert_eq!(idle_ranks(0, 16, 16), None);
        let warning = "stage.0: global_batch (8) is smaller than the number of ranks (16): 8 ranks compute nothing; use fewer \
                       ranks or a larger global_batch";
        assert_eq!(idle_ranks(0, 8, 16).as_deref(), Some(warning));
        assert!(idle_ranks(1, 15, 16).unwrap().contains(": 1 rank computes nothing; "));
    }

    #[test]
    fn a_low_limit_of_masked_tokens_causes_a_warning() {
        let objective = Objective { mask_probability: 0.3, ..Objective::default() };
        let warning = few_masks("stage.1", &objective, 128).unwrap();
        assert_eq!(
            warning,
            "stage.1: max_predictions = 20 masks only 15.6% of the tokens in samples of 128, not mask_probability = 0.3; \
             increase max_predictions (0: no limit)"
        );
        assert_eq!(few_masks("stage.1", &Objective { max_predictions: 0, ..objective }, 128), None);
        assert_eq!(few_masks("stage.0", &Objective::default(), 128), None);
    }

    #[test]
    fn unused_pairs_cause_a_warning() {
        let of = |pair| {
            let objective = Objective { pair, ..Objective::default() };
            RunConfig { objective, ..RunConfig::default() }
        };
        let warning = unused_pairs("stage.0.data", Pair::Nsp, &of(Pair::None)).unwrap();
        assert!(
            warning.starts_with("stage.0.data: was prepared with samples.pair = \"nsp\", but objective"),
            "{warning}"
        );
        assert!(unused_pairs("stage.0.data", Pair::Sop, &of(Pair::None)).unwrap().contains("are swapped"));
        assert_eq!(unused_pairs("stage.0.data", Pair::None, &of(Pair::None)), None);
        assert_eq!(unused_pairs("stage.0.data", Pair::Nsp, &of(Pair::Nsp)), None);
    }

    #[test]
    fn held_out_text_of_another_kind_causes_a_warning() {
        assert_eq!(unlike("stage.0.data", 0.3), None);
        assert!(unlike("stage.0.data", 0.294).unwrap().contains("by only 29%"));
    }
}
