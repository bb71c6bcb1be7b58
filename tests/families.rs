//! Training of each family with real ranks: kills, world sizes, growth, export, and values that a family does not have.

use safetensors::SafeTensors;
use serde_json::Value;

use crate::support::{
    Running, TestDir, assert_same_bits, assert_same_weights, done, run, same_bits_after_kills, wait_for_no_workers,
};

/// Families with their sentence pairs, further keys of `[model]`, and the class of the export.
const FAMILIES: [(&str, &str, &str, &str); 7] = [
    ("roberta", "none", "", "RobertaForMaskedLM"),
    ("xlm-roberta", "none", "", "XLMRobertaForMaskedLM"),
    ("albert", "sop", "embedding = 24\n", "AlbertForPreTraining"),
    ("electra", "none", "embedding = 48\n", "ElectraForMaskedLM"),
    ("distilbert", "none", "", "DistilBertForMaskedLM"),
    ("modernbert", "none", "attention_window = 16\nglobal_attention_every = 2\n", "ModernBertForMaskedLM"),
    ("deberta-v2", "none", "position_buckets = 32\n", "DebertaV2ForMaskedLM"),
];

const STEPS: u64 = 24;

/// Prepares datasets with sentence pairs of this kind, unless they exist. Returns their folder.
pub fn datasets(dir: &TestDir, pair: &str) -> String {
    let data = dir.path(&format!("data-{pair}"));
    if !std::path::Path::new(&data).exists() {
        let sets = [
            format!("source.0.path={}", dir.path("corpus.txt")),
            format!("vocabulary.file={}", dir.path("vocab.txt")),
            format!("samples.pair={pair}"),
            format!("output.url={data}"),
        ];
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        done(&[&["prep", "--config", &dir.path("prep.toml")], &sets[..]].concat());
    }
    data
}

/// Prepares a dataset with the sentence pairs of a family and writes a configuration of [`STEPS`] steps.
fn config(dir: &TestDir, family: &str, pair: &str, keys: &str) -> String {
    config_of_steps(dir, family, pair, keys, STEPS)
}

/// Like [`config`], with another number of steps. The model grows from two layers to four after half of them.
fn config_of_steps(dir: &TestDir, family: &str, pair: &str, keys: &str, steps: u64) -> String {
    let (name, data) = (format!("{family}.toml"), datasets(dir, pair));
    let stage = |layers: usize| {
        format!(
            "[[stage]]\nname = \"{layers}\"\nlayers = {layers}\ndata = \"{data}/train\"\nsteps = {}\nglobal_batch = 16\n\
             micro_batch_tokens = 256\nlearning_rate = 5e-3\n",
            steps / 2
        )
    };
    let text = format!(
        "[model]\nfamily = {family:?}\nlayers = 4\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\n\
         dropout = 0.1\n{keys}{}{}[evaluation]\ndata = \"{data}/held-out\"\nevery_steps = 8\nsamples = 32\n\
         [checkpoint]\nevery_steps = 5\nkeep = 3\n[cluster]\nranks = 2\nall_reduce.backend = \"mpi\"\n\
         restart.limit = 100\n[device]\nkind = \"cpu\"\n",
        stage(2),
        stage(4),
    );
    dir.file(&name, text)
}

/// Trains two ranks, two ranks with kills, one rank, and three ranks of the families that differ most.
#[test]
fn each_family_trains_grows_and_resumes_with_the_same_bits_in_every_world() {
    const CANONICAL: [&str; 2] = ["--set", "cluster.all_reduce.canonical=true"];
    for (family, pair, keys, class) in FAMILIES {
        let dir = TestDir::new();
        let config = config(&dir, family, pair, keys);
        let (calm, killed) = (dir.path("calm"), dir.path("killed"));
        let train = |run: &str, more: &[&str]| {
            done(&[&["run", "--config", &config, "--run", run], &CANONICAL[..], more].concat());
        };
        train(&calm, &[]);
        // A worker is killed before the growth, and the coordinator after it.
        let mut running = Running::start_with(&config, &killed, &CANONICAL);
        running.reach(7);
        running.kill_rank(1, "-9");
        running.reach(15);
        running.kill_coordinator("-9");
        drop(running);
        wait_for_no_workers(&killed);
        let ended = Running::start_with(&config, &killed, &CANONICAL).end();
        assert_eq!(ended.code, Some(0), "{family}: {}", ended.log);
        assert_same_bits(&calm, &killed);

        let worlds = if ["albert", "modernbert", "deberta-v2"].contains(&family) { &["1", "3"][..] } else { &["1"] };
        for ranks in worlds {
            let run = dir.path(ranks);
            train(&run, &["--set", &format!("cluster.ranks={ranks}")]);
            assert_same_weights(&calm, &run);
        }

        let exported = dir.path("exported");
        done(&["export", &calm, "--output", &exported]);
        let description: Value =
            serde_json::from_str(&std::fs::read_to_string(format!("{exported}/config.json")).unwrap()).unwrap();
        assert_eq!(description["architectures"], serde_json::json!([class]));
        // The export is imported and exported again with the same weights. transformers has no enhanced mask decoder.
        done(&["import", &exported, "--output", &dir.path("imported")]);
        done(&["export", &dir.path("imported"), "--output", &dir.path("again")]);
        let [before, after] = ["exported", "again"]
            .map(|folder| std::fs::read(dir.path(&format!("{folder}/model.safetensors"))).unwrap());
        let [before, after] = [&before, &after].map(|file| SafeTensors::deserialize(file).unwrap());
        for (name, view) in before.tensors() {
            let is_left_out = family == "deberta-v2" && name == "deberta.embeddings.position_embeddings.weight";
            assert_eq!(after.tensor(&name).ok(), (!is_left_out).then_some(view), "{family}: {name}");
        }
        let plan = done(&["plan", "--config", &config, "--machine", "a100"]);
        assert!(plan.contains("parameters"), "{plan}");
        assert_eq!(plan.contains("little of the all-reduce overlaps"), family == "albert", "{plan}");
    }
}

/// Kills a run of each family at random steps, before and after its growth. The final bits must be those of a calm run.
#[test]
#[ignore = "minutes: CONTRIBUTING.md"]
fn twenty_kills_of_each_family_leave_the_same_bits() {
    const KILLS: u64 = 20;
    const STEPS: u64 = 60 * KILLS;
    for (family, pair, keys, _) in FAMILIES {
        let dir = TestDir::new();
        let config = config_of_steps(&dir, family, pair, keys, STEPS);
        eprintln!("{family}");
        same_bits_after_kills(&dir, &config, KILLS, STEPS);
    }
}

#[test]
fn values_that_a_family_does_not_have_are_refused() {
    let dir = TestDir::new();
    let config = config(&dir, "roberta", "none", "");
    let refused = |sets: &[&str], messages: &[&str]| {
        let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
        let found = run(&[&["run", "--config", &config, "--run", &dir.path("refused"), "--check"], &sets[..]].concat());
        assert_eq!(found.code, 2, "{}", found.err);
        for message in messages {
            assert!(found.err.contains(message), "no {message:?} in {}", found.err);
        }
    };
    refused(
        &["model.norm=pre", "model.segments=2", "model.embedding=16", "objective.pair=nsp"],
        &[
            "model.norm: a model of family roberta always has \"post\"",
            "model.segments: a model of family roberta always has 1",
            "model.embedding: a model of family roberta does not have this key",
            "objective.pair: must be \"none\": a model of family roberta has no sentence-pair head",
        ],
    );
    refused(
        &["model.gated=true", "model.rotary_base=500.0", "model.position_buckets=4"],
        &[
            "model.gated: a model of family roberta always has false",
            "model.rotary_base: a model of family roberta does not have this key",
            "model.position_buckets: a model of family roberta always has 0",
        ],
    );
    refused(&["model.family=robberta"], &["model.family"]);
    refused(
        &["model.family=electra", "model.segments=0"],
        &["model.segments = 0: must be above 0, because a model of family electra has segment embeddings"],
    );
    let modern = ["model.family=modernbert", "model.attention_window=16"];
    refused(
        &modern,
        &["stage.1.layers: 4 layers after 2: growth needs a multiple of model.global_attention_every = 3"],
    );
    refused(
        &[&modern[..], &["model.global_attention_every=2", "stage.1.growth.order=interleave"]].concat(),
        &["stage.1.growth.order: interleave would copy global attention to layers with local attention"],
    );
    refused(
        &[&modern[..], &["model.norm_kind=rms", "model.norm_bias=true", "model.heads=32"]].concat(),
        &[
            "model.norm_bias: must be false: RMS normalization has no bias",
            "model.heads: 32 heads have an odd size of 1: rotary positions need an even size",
        ],
    );
    refused(
        &["model.family=deberta-v2"],
        &["model.positions = 64: must be at least 130 (model.position_buckets / 2 + 2)"],
    );
    refused(
        &["model.family=albert", "model.groups=2", "objective.pair=none"],
        &["stage.1.layers: 4 layers after 2: a model with 2 groups of layers cannot grow"],
    );
    refused(
        &["model.family=albert", "model.groups=3", "objective.pair=none"],
        &["stage.0.layers: must be at least model.groups = 3"],
    );
    let growth = ["model.family=albert", "objective.pair=none", "stage.1.growth.identity=true"];
    refused(&growth, &["stage.1.growth: has no effect: all layers share their weights"]);
}

#[test]
fn a_model_that_no_class_of_transformers_supports_is_not_exported() {
    let dir = TestDir::new();
    let keys = "attention_window = 16\nglobal_attention_every = 2\nnorm_kind = \"rms\"\n";
    let config = config(&dir, "modernbert", "none", keys);
    let url = dir.path("rms");
    done(&["run", "--config", &config, "--run", &url, "--set", "stage.0.steps=4", "--set", "stage.1.steps=4"]);
    let refused = run(&["export", &url, "--output", &dir.path("exported")]);
    assert_eq!(refused.code, 2, "{}", refused.err);
    assert!(
        refused.err.contains("has model.norm_kind = \"rms\", which no transformers class supports"),
        "{}",
        refused.err
    );
    assert!(!std::path::Path::new(&dir.path("exported")).exists());
}
