//! Masks by frequency and masks of phrases with real ranks: the tokens that are masked, world sizes, kills, the stored list, and
//! wrong values.

use std::collections::BTreeMap;

use lambert_control::StepRecord;
use lambert_dataset::Dataset;
use lambert_dataset::token_counts::TOKEN_COUNTS;

use crate::support::{
    Running, TestDir, assert_accepted, assert_refused, assert_same_bits, assert_same_weights, checkpoints, done,
    same_bits_after_kills,
};

/// Writes a list of the 50 most frequent pairs of words of the corpus.
fn phrases(dir: &TestDir) -> String {
    let corpus = std::fs::read_to_string(dir.path("corpus.txt")).unwrap();
    let mut counts = BTreeMap::<String, usize>::new();
    for line in corpus.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_word = |word: &&str| word.chars().all(char::is_alphabetic);
        let pairs = words.windows(2).filter(|pair| pair.iter().all(is_word));
        pairs.for_each(|pair| *counts.entry(pair.join(" ")).or_default() += 1);
    }
    let mut pairs: Vec<(usize, String)> = counts.into_iter().map(|(pair, count)| (count, pair)).collect();
    pairs.sort_unstable_by(|a, b| b.cmp(a));
    pairs.truncate(50);
    dir.file("phrases.txt", pairs.iter().map(|(_, pair)| format!("{pair}\n")).collect::<String>())
}

/// Writes a configuration with two stages of `steps` steps. Only the second one masks by frequency.
fn config(dir: &TestDir, steps: u64) -> String {
    let stage = |name: &str, keys: &str| {
        format!(
            "[[stage]]\nname = {name:?}\ndata = {:?}\nsteps = {steps}\nglobal_batch = 16\nmicro_batch_tokens = 256\n\
             learning_rate = 5e-3\n{keys}\n",
            dir.path("data/train")
        )
    };
    let text = format!(
        "[model]\nlayers = 2\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\n\
         [objective]\nmask_unit = \"word\"\nphrases = {:?}\n{}{}\
         [evaluation]\ndata = {:?}\nevery_steps = {steps}\nsamples = 64\n\
         [checkpoint]\nevery_steps = 7\nkeep = 3\n[cluster]\nranks = 2\nall_reduce.backend = \"mpi\"\n\
         restart.limit = 100\n[device]\nkind = \"cpu\"\n",
        phrases(dir),
        stage("plain", ""),
        stage("rare", "objective.mask_frequency_exponent = 0.5"),
        dir.path("data/held-out"),
    );
    dir.file("choice.toml", text)
}

fn digests(records: &[StepRecord]) -> Vec<u64> {
    records.iter().map(|record| record.batch.digest).collect()
}

fn train(config: &str, run: &str, more: &[&str]) -> Vec<StepRecord> {
    let ended = Running::start_with(config, run, more).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    ended.records
}

#[test]
fn every_world_masks_the_same_tokens() {
    let dir = TestDir::new();
    let config = config(&dir, 8);
    let runs = ["1", "2", "3"].map(|ranks| {
        let (run, ranks) = (dir.path(ranks), format!("cluster.ranks={ranks}"));
        (run.clone(), train(&config, &run, &["--set", &ranks, "--set", "cluster.all_reduce.canonical=true"]))
    });
    let [(one, records), others @ ..] = &runs;
    for (other, others) in others {
        assert_eq!(digests(records), digests(others), "{other}");
        assert_same_weights(one, other);
    }
    assert_eq!(std::fs::read(format!("{one}/phrases.txt")).unwrap(), std::fs::read(dir.path("phrases.txt")).unwrap());
    done(&["export", "--output", &dir.path("model"), one]);
    let card = std::fs::read_to_string(dir.path("model/README.md")).unwrap();
    let masks = "whole words and phrases, at most 20 per sample; then 15.0% of the tokens, whole words and phrases, rare \
                 tokens more often (count^-0.5)";
    assert!(card.contains(masks), "{card}");
    // Without phrases both stages have other masks, without frequencies only the second one.
    let without = |name: &str, text: &str, by: &str| {
        let text = std::fs::read_to_string(&config).unwrap().replace(text, by);
        let changed = dir.file(&format!("{name}.toml"), text);
        digests(&train(&changed, &dir.path(name), &["--set", "cluster.ranks=1"]))
    };
    let all = digests(records);
    let no_phrases = without("no-phrases", &format!("phrases = {:?}\n", dir.path("phrases.txt")), "");
    assert!(no_phrases.iter().zip(&all).all(|(other, digest)| other != digest));
    let no_frequencies = without("no-frequencies", "objective.mask_frequency_exponent = 0.5", "");
    assert_eq!(no_frequencies[..8], all[..8]);
    assert!(no_frequencies[8..].iter().zip(&all[8..]).all(|(other, digest)| other != digest));
}

#[test]
fn chosen_masks_resume_with_the_same_bits() {
    let dir = TestDir::new();
    let config = config(&dir, 30);
    same_bits_after_kills(&dir, &config, 1, 60);
}

#[test]
#[ignore = "a minute: CONTRIBUTING.md"]
fn twenty_kills_of_chosen_masks_leave_the_same_bits() {
    let dir = TestDir::new();
    let config = config(&dir, 600);
    same_bits_after_kills(&dir, &config, 20, 1200);
}

#[test]
fn a_run_keeps_its_phrases() {
    let dir = TestDir::new();
    let config = config(&dir, 8);
    let (calm, stopped) = (dir.path("calm"), dir.path("stopped"));
    train(&config, &calm, &[]);
    let mut running = Running::start(&config, &stopped);
    running.reach(5);
    running.kill_coordinator("-TERM");
    running.end();
    // The file of the configuration changes. The run goes on with its own list.
    dir.file("phrases.txt", "other words\n");
    let resumed = Running::start(&config, &stopped).end();
    assert_eq!(resumed.code, Some(0), "{}", resumed.log);
    assert!(resumed.log.contains("phrases.txt has changed; the run keeps its stored phrases"), "{}", resumed.log);
    assert_same_bits(&calm, &stopped);
    // A copy of the run has the list, too.
    let copy = dir.path("copy");
    done(&["checkpoint", "copy", &format!("{stopped}/checkpoints/{}", checkpoints(&stopped)[0]), &copy]);
    let list = |run: &str| std::fs::read(format!("{run}/phrases.txt")).unwrap();
    assert_eq!(list(&copy), list(&calm));
}

#[test]
fn wrong_values_are_refused_by_name() {
    let dir = TestDir::new();
    let config = config(&dir, 8);
    assert_refused(
        &dir,
        &config,
        &[
            ("objective.mask_unit=piece", "objective.phrases: needs a mask_unit of whole words: word, span or ngram"),
            ("objective.mask_frequency_exponent=2.0", "objective.mask_frequency_exponent = 2: must be from 0 to 1"),
            ("stage.1.objective.mask_frequency_exponent=-1.0", "stage.1.objective.mask_frequency_exponent = -1: must"),
            ("objective.phrases=/nowhere/phrases.txt", "objective.phrases: cannot read /nowhere/phrases.txt"),
        ],
    );
    let counts = dir.path(&format!("data/train/{TOKEN_COUNTS}"));
    let text = std::fs::read_to_string(&counts).unwrap();
    let dataset = Dataset::open(&dir.path("data/train")).unwrap();
    let total: u64 = dataset.token_counts().unwrap().iter().sum();
    let manifest = dataset.manifest();
    assert!(total < manifest.counts.tokens && total > manifest.counts.tokens * 9 / 10, "{total}");
    // Counts of another dataset, a file that was cut off, and no file.
    let other = std::fs::read_to_string(dir.path(&format!("data/held-out/{TOKEN_COUNTS}"))).unwrap();
    for (content, message) in [
        (other.as_str(), "does not belong to the dataset beside it: the entropy of its counts is"),
        (&text[..text.len() / 2], "does not belong to the dataset beside it: EOF while parsing"),
        ("", "is missing; masks by frequency need it;"),
    ] {
        match content.is_empty() {
            true => std::fs::remove_file(&counts).unwrap(),
            false => std::fs::write(&counts, content).unwrap(),
        }
        for message in ["stage.1.data: ", message] {
            assert_refused(&dir, &config, &[("stage.1.objective.mask_frequency_exponent=0.5", message)]);
        }
        // The other masks do not need the file.
        assert_accepted(&dir, &config, "stage.1.objective.mask_frequency_exponent=0");
    }
}
