//! Mixtures of datasets with real ranks: shares, positions of the datasets over several stages, world sizes, kills,
//! rollbacks, damaged shards, and wrong values.

use std::collections::BTreeMap;
use std::sync::Arc;

use lambert_control::StepRecord;
use lambert_dataset::Dataset;
use lambert_plan::mixture::{block_counts, shares};
use lambert_store::Store;
use lambert_store::checkpoint::RollbackRecord;
use lambert_worker::data::Mixture;
use lambert_worker::data::order::EpochOrder;
use serde_json::Value;

use crate::support::{
    Running, TestDir, assert_accepted, assert_refused, assert_same_bits, assert_same_weights, checkpoints, done,
    same_bits_after_kills,
};

/// Samples of a global batch.
const BATCH: u64 = 16;

/// Prepares a second dataset with the same vocabulary. It has fewer samples than the first.
fn prepare(dir: &TestDir) -> String {
    let (corpus, url) = (dir.path("other.txt"), dir.path("other"));
    done(&["generate", "--documents", "60", "--seed", "2", "--output", &corpus]);
    let sets = [
        format!("source.0.path={corpus}"),
        format!("vocabulary.file={}", dir.path("vocab.txt")),
        format!("output.url={url}"),
        "output.shards=6".into(),
        "output.rows_per_group=16".into(),
    ];
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    done(&[&["prep", "--config", &dir.path("prep.toml")][..], &sets].concat());
    format!("{url}/train")
}

/// Writes a configuration with `steps` steps of each of three stages: one dataset, a mixture with weights, and a mixture
/// with a temperature, which masks by the frequencies of each dataset.
fn config(dir: &TestDir, steps: u64) -> String {
    let (first, other) = (dir.path("data/train"), prepare(dir));
    let part =
        |name: &str, url: &str, more: &str| format!("[[stage.mixture]]\nname = {name:?}\ndata = {url:?}\n{more}\n");
    let stage = |name: &str, keys: &str| {
        format!(
            "[[stage]]\nname = {name:?}\nsteps = {steps}\nglobal_batch = {BATCH}\nmicro_batch_tokens = 256\n\
             learning_rate = 5e-3\n{keys}\n"
        )
    };
    let text = [
        "[model]\nlayers = 2\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\n\
         [checkpoint]\nevery_steps = 7\nkeep = 3\n[cluster]\nranks = 2\nall_reduce.backend = \"mpi\"\n\
         restart.limit = 100\n[device]\nkind = \"cpu\"\n"
            .to_owned(),
        stage("single", &format!("data = {first:?}")),
        stage("weights", ""),
        part("first", &first, "weight = 3.0"),
        part("other", &other, "weight = 1.0"),
        stage("temperature", "mixture_temperature = 0.5\nobjective.mask_frequency_exponent = 0.5"),
        part("first", &first, ""),
        part("other", &other, ""),
    ];
    dir.file("mixtures.toml", text.concat())
}

fn train(config: &str, run: &str, more: &[&str]) -> Vec<StepRecord> {
    let ended = Running::start_with(config, run, more).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    ended.records
}

/// Manifest of the newest checkpoint of a run.
fn manifest(run: &str) -> Value {
    let path = format!("{run}/checkpoints/{}/manifest.json", checkpoints(run)[0]);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Samples of a dataset in the steps of a stage.
fn samples(records: &[StepRecord], stage: &str, name: &str) -> f64 {
    let of_stage = records.iter().filter(|record| record.stage == stage);
    of_stage.map(|record| record.mixture[name].share * record.batch.samples as f64).sum()
}

#[test]
fn every_world_reads_the_same_mixture() {
    let dir = TestDir::new();
    let config = config(&dir, 12);
    let runs = ["1", "2", "3"].map(|ranks| {
        let (run, ranks) = (dir.path(ranks), format!("cluster.ranks={ranks}"));
        (run.clone(), train(&config, &run, &["--set", &ranks, "--set", "cluster.all_reduce.canonical=true"]))
    });
    let [(one, records), others @ ..] = &runs;
    for (other, others) in others {
        let facts = |record: &StepRecord| (record.batch.digest, record.batch.masked_tokens, record.mixture.clone());
        assert!(records.iter().map(facts).eq(others.iter().map(facts)), "{other}");
        assert_same_weights(one, other);
    }
    let open = |url: &str| Arc::new(Dataset::open(url).unwrap());
    let [first, other] = [open(&dir.path("data/train")), open(&dir.path("other/train"))];
    assert!(records[..12].iter().all(|record| record.mixture.is_empty()), "{:?}", records[0]);
    let drawn = 12.0 * BATCH as f64;
    let rows = [first.rows(), other.rows()].map(|rows| (rows as f64).sqrt());
    for (stage, share) in [("weights", 0.25), ("temperature", rows[1] / (rows[0] + rows[1]))] {
        let found = samples(records, stage, "other");
        assert!((found - share * drawn).abs() <= 1.5, "{stage}: {found} samples of {drawn}, expected {share}");
    }
    // A dataset continues where the stages before ended.
    let from_all = |name| ["weights", "temperature"].map(|stage| samples(records, stage, name)).iter().sum::<f64>();
    let expected = BTreeMap::from([
        (first.manifest_sha256().to_owned(), (drawn + from_all("first")).round() as u64),
        (other.manifest_sha256().to_owned(), from_all("other").round() as u64),
    ]);
    let cursor: BTreeMap<String, u64> = serde_json::from_value(manifest(one)["cursor"].clone()).unwrap();
    assert_eq!(cursor, expected);
    let epochs = |step: usize| records[step - 1].mixture["first"].epochs * first.rows() as f64;
    assert!(epochs(13) > drawn && epochs(13) <= drawn + BATCH as f64, "{}", epochs(13));
    assert!((epochs(36) - expected[first.manifest_sha256()] as f64).abs() < 1e-6, "{}", epochs(36));
    // Reports, metrics and the model card name the datasets.
    let report = done(&["report", "--format", "markdown", one]);
    assert!(report.contains("first 75.0%, other 25.0%"), "{report}");
    let metrics = done(&["metrics", one, "--format", "csv"]);
    assert!(metrics.lines().next().unwrap().contains("mixture.other.share"), "{metrics}");
    done(&["export", "--output", &dir.path("model"), one]);
    let card = std::fs::read_to_string(dir.path("model/README.md")).unwrap();
    assert!(card.contains("data/train") && card.contains("other/train"), "{card}");
    let plan = done(&["plan", "--config", &config, "--json"]);
    let plan: Value = serde_json::from_str(&plan).unwrap();
    let epochs = plan["stages"][1]["epochs"].as_f64().unwrap();
    let passes = [0.75 * drawn / first.rows() as f64, 0.25 * drawn / other.rows() as f64];
    assert!((epochs / passes[0].max(passes[1]) - 1.0).abs() < 1e-3, "{epochs} {passes:?}");
}

/// Kills a run `kills` times at random steps. The final bits must be those of a calm run.
fn assert_same_bits_after(kills: u64, steps: u64) {
    let dir = TestDir::new();
    let config = config(&dir, steps);
    let runs = same_bits_after_kills(&dir, &config, kills, 3 * steps);
    let [calm, killed] = runs.map(|run| manifest(&run));
    assert_eq!(calm["cursor"], killed["cursor"]);
    assert_eq!(calm["state"]["mixtures"], killed["state"]["mixtures"]);
    assert_eq!(calm["state"]["mixtures"].as_object().unwrap().len(), 2);
}

#[test]
fn mixtures_resume_with_the_same_bits() {
    assert_same_bits_after(1, 20);
}

#[test]
#[ignore = "a minute: CONTRIBUTING.md"]
fn twenty_kills_of_mixtures_leave_the_same_bits() {
    assert_same_bits_after(20, 400);
}

#[test]
fn a_rollback_skips_samples_of_the_mixture() {
    let dir = TestDir::new();
    let config = config(&dir, 90);
    let datasets = ["data/train", "other/train"].map(|url| Arc::new(Dataset::open(&dir.path(url)).unwrap()));
    let [first, other] = &datasets;
    let counts = block_counts(&[3.0, 1.0]);
    assert_eq!(shares(&counts), [0.75, 0.25]);
    let mixture = Mixture::new(datasets.to_vec(), vec!["first".into(), "other".into()], counts);
    // A row of the first dataset in step 51. The second dataset has no such row.
    let sizes: Vec<u64> = first.row_groups().iter().map(|group| group.rows).collect();
    let (mut order, epoch) = (mixture.order(1), EpochOrder::new(&sizes, 1, 0));
    let row = |index: u64| {
        let location = epoch.at(index);
        first.row_groups()[location.row_group].first_row + location.row as u64
    };
    let drawn = (50 * BATCH..51 * BATCH).map(|number| order.at(number)).filter(|sample| sample.dataset == 0);
    let row = drawn.map(|sample| row(sample.index)).find(|row| *row >= other.rows()).unwrap();
    let only = ["stage.0.steps=90", "guard.loss_window=20", "cluster.restart.limit=9"];
    let text = std::fs::read_to_string(&config).unwrap();
    let stages: Vec<&str> = text.split("[[stage]]").collect();
    let config = dir.file("one-mixture.toml", format!("{}[[stage]]{}", stages[0], stages[2]));
    let settings = |more: &[String]| -> Vec<String> {
        let sets = only.iter().map(|set| (*set).to_owned()).chain(more.iter().cloned());
        sets.flat_map(|set| ["--set".to_owned(), set]).collect()
    };
    let start = |name: &str, more: &[String]| {
        let settings = settings(more);
        let ended =
            Running::start_with(&config, &dir.path(name), &settings.iter().map(String::as_str).collect::<Vec<_>>());
        let ended = ended.end();
        assert_eq!(ended.code, Some(0), "{}", ended.log);
        ended
    };
    let faulty = start("faulty", &[format!("test.million_samples=[{row}]")]);
    let skipped = format!("skipping samples {}-{} of the mixture of ", 49 * BATCH, 51 * BATCH - 1);
    assert!(faulty.log.contains(&skipped), "{}", faulty.log);
    // A run that never had these samples has the same weights and positions.
    let (id, samples) = (mixture.id().to_owned(), 49 * BATCH..51 * BATCH);
    let record =
        RollbackRecord { attempt: 0, last_kept: 0, mixture_id: id, samples, reason: "a test leaves them out".into() };
    std::fs::create_dir_all(dir.path("without")).unwrap();
    record.write(&Store::open(&dir.path("without")).unwrap()).unwrap();
    start("without", &[]);
    assert_same_bits(&dir.path("faulty"), &dir.path("without"));
    let [faulty, without] = ["faulty", "without"].map(|name| manifest(&dir.path(name)));
    assert_eq!(faulty["cursor"], without["cursor"]);
    assert_eq!(faulty["state"]["mixtures"], serde_json::json!({ mixture.id(): 92 * BATCH }));
    assert_eq!(faulty["state"], without["state"]);
}

#[test]
fn a_damaged_shard_of_one_dataset_is_skipped() {
    let dir = TestDir::new();
    let config = config(&dir, 30);
    let dataset = Dataset::open(&dir.path("other/train")).unwrap();
    let (shard, path) = (3, dir.path(&format!("other/train/{}", dataset.manifest().shards[3].path)));
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    std::fs::write(&path, bytes).unwrap();
    let records = train(&config, &dir.path("run"), &["--set", "guard.damaged_shard=skip"]);
    let state = &manifest(&dir.path("run"))["state"];
    assert_eq!(state["skipped_by_dataset"][dataset.manifest_sha256()]["shards"], serde_json::json!([shard]));
    let skipped = records.last().unwrap().skipped.samples;
    assert!(skipped > 0 && state["skipped_samples"] == skipped, "{state}");
    let cursor = manifest(&dir.path("run"))["cursor"].clone();
    let drawn: u64 = cursor.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(drawn, 90 * BATCH + skipped, "samples read twice or not at all");
}

#[test]
fn wrong_mixtures_are_refused_by_name() {
    let dir = TestDir::new();
    let config = config(&dir, 8);
    let first = dir.path("data/train");
    assert_accepted(&dir, &config, "stage.1.mixture.0.weight=0.5");
    assert_refused(
        &dir,
        &config,
        &[
            (&*format!("stage.1.data={first}"), "stage.1.data: conflicts with mixture"),
            ("stage.1.mixture.1.weight=0", "stage.1.mixture.1.weight = 0: must be above 0"),
            ("stage.1.mixture.1.name=first", "stage.1.mixture.1.name: another dataset is also named first"),
            ("stage.1.mixture.1.name=a.b", "stage.1.mixture.1.name: expected a name of letters"),
            (&*format!("stage.1.mixture.1.data={first}"), "stage.1.mixture.1.data: appears twice in this mixture"),
            ("stage.1.mixture.1.data=none", "stage.1.mixture.1.data: "),
            ("stage.2.mixture.1.weight=1", "stage.2.mixture.1.weight: conflicts with mixture_temperature"),
            ("stage.2.mixture_temperature=-1", "stage.2.mixture_temperature: must be from 0 to 10"),
            ("stage.0.mixture_temperature=1", "stage.0.mixture_temperature: has no effect without a mixture"),
        ],
    );
    // Weights can be changed like any key, so `lambert tune` can search for them.
    let runs = dir.path("tuned");
    let sets = ["--set", "stage.0.steps=2", "--set", "stage.1.steps=2", "--set", "stage.2.steps=2"];
    let held_out = format!("evaluation.data={}", dir.path("data/held-out"));
    let grid = ["--grid", "stage.1.mixture.1.weight=0.5,2.0", "--set", &held_out];
    let table = done(&[&["tune", "--config", &config, "--runs", &runs], &grid[..], &sets].concat());
    assert!(table.contains("weight=0.5") && table.contains("weight=2.0"), "{table}");
}
