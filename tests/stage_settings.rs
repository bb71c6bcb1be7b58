//! Masks, learning rates and StableAdamW of stages with real ranks: shares of masked tokens, world sizes, kills, and wrong
//! values.

use lambert_control::StepRecord;
use lambert_dataset::Dataset;

use crate::support::{
    Running, TestDir, assert_accepted, assert_refused, assert_same_weights, done, same_bits_after_kills,
};

/// Names and mask probabilities of the stages.
const STAGES: [(&str, f64); 3] = [("wide", 0.3), ("middle", 0.15), ("narrow", 0.05)];

/// Writes a configuration with three stages of `steps` steps.
fn config(dir: &TestDir, steps: u64) -> String {
    let stage = |(name, share): (&str, f64)| {
        format!(
            "[[stage]]\nname = {name:?}\ndata = {:?}\nsteps = {steps}\nglobal_batch = 16\nmicro_batch_tokens = 256\n\
             learning_rate = 5e-3\ndecay = \"one-minus-sqrt\"\ndecay_fraction = 0.25\n\
             objective = {{ mask_probability = {share}, max_predictions = 0, mask_share = 1.0, random_share = 0.0 }}\n",
            dir.path("data/train")
        )
    };
    let text = format!(
        "[model]\nlayers = 2\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\n\
         [optimizer]\nkind = \"stable-adamw\"\nbeta2 = 0.98\nweight_decay = 1e-4\ndecay_relative_to_peak = true\n{}\
         [metrics]\ntrust_ratios_every_steps = 1\n\
         [evaluation]\ndata = {:?}\nevery_steps = {steps}\nsamples = 64\nmask_probability = 0.2\n\
         [checkpoint]\nevery_steps = 7\nkeep = 3\n[cluster]\nranks = 2\nall_reduce.backend = \"mpi\"\n\
         restart.limit = 100\n[device]\nkind = \"cpu\"\n",
        STAGES.map(stage).concat(),
        dir.path("data/held-out"),
    );
    dir.file("stages.toml", text)
}

fn train(config: &str, run: &str, more: &[&str]) -> Vec<StepRecord> {
    let ended = Running::start_with(config, run, more).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    ended.records
}

#[test]
fn stages_have_their_masks_and_rates_in_every_world() {
    let dir = TestDir::new();
    let config = config(&dir, 8);
    let runs = ["1", "2", "3"].map(|ranks| {
        let (run, ranks) = (dir.path(ranks), format!("cluster.ranks={ranks}"));
        let records = train(&config, &run, &["--set", &ranks, "--set", "cluster.all_reduce.canonical=true"]);
        (run, records)
    });
    let [(one, records), others @ ..] = &runs;
    assert_eq!(records.len(), 24);
    for (record, (name, share)) in records.iter().zip(STAGES.iter().flat_map(|stage| [stage; 8])) {
        assert_eq!(record.stage, *name);
        let masked = record.batch.masked_tokens as f64 / record.batch.tokens as f64;
        // At least one token of each sample is masked, and the number is rounded.
        assert!((masked - share).abs() < 0.02, "{name}: {masked} of the tokens are masked");
        let ratios = &record.update.trust_ratios;
        assert!(!ratios.is_empty() && ratios.values().all(|ratio| (0.0..=1.0).contains(ratio)), "{ratios:?}");
    }
    // 20 % of the steps are the warm-up, the last quarter is the decay.
    let rates: Vec<f64> = records[..8].iter().map(|record| record.update.learning_rate).collect();
    let decayed = 5e-3 * (1.0 - 0.5_f64.sqrt());
    let expected = [2.5e-3, 5e-3, 5e-3, 5e-3, 5e-3, 5e-3, 5e-3, decayed];
    assert!(rates.iter().zip(expected).all(|(rate, expected)| (rate - expected).abs() < 1e-12), "{rates:?}");

    for (other, others) in others {
        let facts = |record: &StepRecord| (record.batch.digest, record.batch.masked_tokens);
        assert!(records.iter().map(facts).eq(others.iter().map(facts)), "{other}");
        assert_same_weights(one, other);
    }
    // Evaluations have a probability of their own, the same in all stages.
    let metrics = done(&["metrics", one, "--format", "jsonl"]);
    let evaluations = metrics.lines().filter(|line| line.contains("unigram_entropy"));
    let masked: Vec<u64> = evaluations
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["masked_tokens"].as_u64().unwrap())
        .collect();
    assert!(masked.len() == 3 && masked.iter().all(|count| *count == masked[0] && *count > 0), "{masked:?}");
}

/// Kills a run `kills` times at random steps. The final bits must be those of a calm run.
fn assert_same_bits_after(kills: u64, steps: u64) {
    let dir = TestDir::new();
    let config = config(&dir, steps);
    same_bits_after_kills(&dir, &config, kills, 3 * steps);
}

#[test]
fn stages_with_their_own_masks_resume_with_the_same_bits() {
    assert_same_bits_after(1, 20);
}

#[test]
#[ignore = "a minute: CONTRIBUTING.md"]
fn twenty_kills_of_stages_with_their_own_masks_leave_the_same_bits() {
    assert_same_bits_after(20, 400);
}

#[test]
fn durations_in_tokens_become_steps() {
    let dir = TestDir::new();
    let text = std::fs::read_to_string(config(&dir, 8)).unwrap();
    let text = text.replacen("steps = 8\n", "tokens = 5e3\n", 1).replace("every_steps = 8", "every_tokens = 2000");
    let config = dir.file("tokens.toml", text);
    let dataset = Dataset::open(&dir.path("data/train")).unwrap();
    let of_step = 16.0 * dataset.manifest().counts.tokens as f64 / dataset.rows() as f64;
    let steps = (5e3 / of_step).ceil() as usize;
    let plan = done(&["plan", "--config", &config, "--json"]);
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    assert_eq!(plan["stages"][0]["steps"], steps);
    let url = dir.path("run");
    let records = train(&config, &url, &["--set", "cluster.ranks=1"]);
    let first: Vec<&StepRecord> = records.iter().filter(|record| record.stage == "wide").collect();
    assert_eq!((first.len(), records.len()), (steps, steps + 16));
    let tokens: u64 = first.iter().map(|record| record.batch.tokens).sum();
    assert!((tokens as f64 - 5e3).abs() < 0.1 * 5e3 + of_step, "{tokens} tokens");
    let stored = std::fs::read_to_string(format!("{url}/run.toml")).unwrap();
    let every = format!("every_steps = {}\n", (2000.0 / of_step).round());
    assert!(stored.contains(&format!("steps = {steps}\n")) && stored.contains(&every), "{stored}");
    assert!(!stored.contains("tokens = 5"), "{stored}");
    // The same file resumes the run.
    assert_eq!(Running::start_with(&config, &url, &["--set", "cluster.ranks=1"]).end().code, Some(0));
}

#[test]
fn wrong_values_of_a_stage_are_refused_by_name() {
    let dir = TestDir::new();
    let config = config(&dir, 8);
    assert_accepted(&dir, &config, "stage.1.objective.mask_share=0.95");
    assert_refused(
        &dir,
        &config,
        &[
            (
                "stage.1.objective.random_share=0.5",
                "stage.1.objective.random_share: 0.5 + mask_share = 1 is more than 1",
            ),
            ("stage.0.objective.mask_probability=1.5", "stage.0.objective.mask_probability = 1.5: must"),
            ("stage.2.decay_fraction=0.9", "stage.2.decay_fraction = 0.9: must be from 0 to 0.8 (1 - warmup)"),
            ("stage.2.decay=constant", "stage.2.decay_fraction: needs a decay with an end"),
            ("stage.0.tokens=1e6", "stage.0.tokens: conflicts with steps"),
            ("evaluation.every_tokens=0", "evaluation.every_tokens = 0: must be from 1 to 1e18"),
            ("evaluation.mask_probability=0.0", "evaluation.mask_probability"),
            ("optimizer.kind=lamb", "optimizer.decay_relative_to_peak: is not available for LAMB"),
        ],
    );
}
