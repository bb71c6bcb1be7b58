//! Replaced-token detection with real ranks: world sizes, kills, records, both exports, and settings that do not fit.

use std::collections::BTreeSet;

use lambert_control::StepRecord;
use safetensors::SafeTensors;
use serde_json::{Value, json};

use crate::families::datasets;
use crate::support::{
    Running, TestDir, assert_accepted, assert_refused, assert_same_weights, done, read_json, run, same_bits_after_kills,
};

const CANONICAL: [&str; 2] = ["--set", "cluster.all_reduce.canonical=true"];

/// Writes a configuration of `steps` steps. The generator has one layer, the discriminator two.
fn config(dir: &TestDir, steps: u64) -> String {
    let data = datasets(dir, "none");
    let text = format!(
        "[model]\nfamily = \"electra\"\nlayers = 2\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\nembedding = 24\n\
         dropout = 0.1\n[objective.replaced_tokens]\ngenerator_layers = 1\ngenerator_hidden = 16\n\
         [optimizer]\nkind = \"adamw\"\n[[stage]]\nname = \"all\"\ndata = \"{data}/train\"\nsteps = {steps}\n\
         global_batch = 16\nmicro_batch_tokens = 256\nlearning_rate = 5e-3\n\
         [evaluation]\ndata = \"{data}/held-out\"\nevery_steps = 8\nsamples = 32\n\
         [checkpoint]\nevery_steps = 5\nkeep = 3\n[cluster]\nranks = 2\nall_reduce.backend = \"mpi\"\n\
         restart.limit = 100\n[device]\nkind = \"cpu\"\n"
    );
    dir.file("electra.toml", text)
}

fn train(config: &str, url: &str, more: &[&str]) -> Vec<StepRecord> {
    let ended = Running::start_with(config, url, more).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    ended.records
}

/// Names of the tensors of an exported folder.
fn names(folder: &str) -> BTreeSet<String> {
    let bytes = std::fs::read(format!("{folder}/model.safetensors")).unwrap();
    SafeTensors::deserialize(&bytes).unwrap().names().into_iter().map(str::to_owned).collect()
}

#[test]
fn every_world_has_the_same_draws_and_weights() {
    let dir = TestDir::new();
    let config = config(&dir, 24);
    let [one, two, three] = ["1", "2", "3"].map(|ranks| {
        let (url, set) = (dir.path(ranks), format!("cluster.ranks={ranks}"));
        let records = train(&config, &url, &[&CANONICAL[..], &["--set", &set]].concat());
        (url, records)
    });
    let digests = |records: &[StepRecord]| -> Vec<_> {
        records.iter().map(|record| (record.batch.digest, record.batch.drawn_digest)).collect()
    };
    for (url, records) in [&two, &three] {
        assert_eq!(digests(records), digests(&one.1));
        assert_same_weights(&one.0, url);
    }
    assert!(one.1.iter().all(|record| record.batch.drawn_digest.is_some()));
    let unequal: BTreeSet<_> = one.1.iter().map(|record| record.batch.drawn_digest).collect();
    assert_eq!(unequal.len(), 24, "every step draws other tokens");

    // Without canonical sums, the weights differ by rounding, and a draw may flip where two tokens are almost equally good.
    let records = |ranks: &str| {
        train(&config, &dir.path(&format!("plain-{ranks}")), &["--set", &format!("cluster.ranks={ranks}")])
    };
    let (one, three) = (records("1"), records("3"));
    let flipped = digests(&one).iter().zip(digests(&three)).filter(|(one, three)| *one != three).count();
    eprintln!("steps with a flipped draw, one rank and three: {flipped} of {}", one.len());
    assert!(flipped <= 6, "{flipped}");
}

#[test]
fn detection_is_recorded_and_both_networks_are_exported() {
    let dir = TestDir::new();
    let (config, url) = (config(&dir, 40), dir.path("run"));
    let records = train(&config, &url, &[]);
    let loss = |record: &StepRecord, name: &str| record.scores.get(name).unwrap().loss;
    let (first, last) = (&records[0], &records[39]);
    for name in ["mlm", "rtd"] {
        assert!(loss(last, name) < 0.95 * loss(first, name), "{name}: {} {}", loss(first, name), loss(last, name));
    }
    for record in &records {
        let total = loss(record, "mlm") + 50.0 * loss(record, "rtd");
        assert!((record.loss / total - 1.0).abs() < 1e-9, "{} {total}", record.loss);
        assert!(record.scores.get("rtd").unwrap().recall.is_some_and(|recall| (0.0..=1.0).contains(&recall)));
    }
    // 85 % of the masked tokens become [MASK], and none becomes a random token.
    let stored = std::fs::read_to_string(format!("{url}/run.toml")).unwrap();
    assert!(stored.contains("mask_share = 0.85") && stored.contains("random_share = 0.0"), "{stored}");

    let [discriminator, generator] = ["discriminator", "generator"].map(|network| {
        let folder = dir.path(network);
        let network = if network == "generator" { &["--network", "generator"][..] } else { &[] };
        done(&[&["export", &url, "--output", &folder], network].concat());
        folder
    });
    for (folder, class, layers, hidden) in
        [(&discriminator, "ElectraForPreTraining", 2, 32), (&generator, "ElectraForMaskedLM", 1, 16)]
    {
        let description = read_json(folder, "config.json");
        assert_eq!(description["architectures"], json!([class]));
        let sizes = ["num_hidden_layers", "hidden_size", "embedding_size"].map(|key| description[key].clone());
        assert_eq!(sizes, [json!(layers), json!(hidden), json!(24)]);
        let card = std::fs::read_to_string(format!("{folder}/README.md")).unwrap();
        assert!(card.contains(class) && card.contains("replaced-token detection by a discriminator"), "{card}");
        assert_eq!(card.contains("pipeline_tag: fill-mask"), class == "ElectraForMaskedLM", "{card}");
    }
    let (of_discriminator, of_generator) = (names(&discriminator), names(&generator));
    // The shared embeddings: words, positions, segments, and gain and bias of the norm; and the names of both first layers.
    let shared: Vec<&String> = of_discriminator.intersection(&of_generator).collect();
    assert_eq!(shared.iter().filter(|name| name.starts_with("electra.embeddings.")).count(), 5, "{shared:?}");
    assert!(of_discriminator.contains("discriminator_predictions.dense_prediction.weight"), "{of_discriminator:?}");
    assert!(of_generator.contains("generator_lm_head.bias"), "{of_generator:?}");
    assert!(of_generator.iter().chain(&of_discriminator).all(|name| !name.starts_with("generator.")));

    // The generator predicts masked tokens before and after an import of its export.
    done(&["import", &generator, "--output", &dir.path("imported")]);
    let predictions = |url: &str| -> Value {
        serde_json::from_str(&done(&["fill-mask", url, "the [MASK] visits the star .", "--json"])).unwrap()
    };
    assert_eq!(predictions(&url), predictions(&dir.path("imported")));
    // A masked-language model can start from the discriminator.
    let missing = run(&["import", &discriminator, "--output", &dir.path("other")]);
    assert!(missing.code != 0 && missing.err.contains("mlm-head"), "{}", missing.err);
    done(&["import", &discriminator, "--init-missing", "mlm-head", "--output", &dir.path("other")]);
    assert_eq!(names(&discriminator).len() - 4, read_shared(&dir.path("other"), &discriminator));

    let evaluated: Value = serde_json::from_str(&done(&[
        "eval",
        &url,
        "--data",
        &format!("{}/held-out", datasets(&dir, "none")),
        "--samples",
        "32",
        "--json",
    ]))
    .unwrap();
    for name in ["mlm_loss", "rtd_loss", "rtd_recall"] {
        assert!(evaluated[name].is_number(), "{name}: {evaluated}");
    }
    // The total has the weights of the losses. The best checkpoint is chosen by it.
    let number = |value: &Value, name: &str| value[name].as_f64().unwrap();
    let is_total =
        |of: &Value, total: f64| (number(of, "mlm_loss") + 50.0 * number(of, "rtd_loss") - total).abs() < 1e-9;
    assert!(is_total(&evaluated, number(&evaluated, "loss")), "{evaluated}");
    let metrics = done(&["metrics", &url]);
    let mut records = metrics.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let last = records.rfind(|record| record["event"] == "evaluation").unwrap();
    let manifests = crate::support::checkpoints(&url).into_iter().map(|name| {
        let file = format!("{url}/checkpoints/{name}/manifest.json");
        serde_json::from_slice::<Value>(&std::fs::read(file).unwrap()).unwrap()
    });
    let saved = manifests.into_iter().find(|manifest| manifest["step"] == last["step"]).unwrap();
    assert!(is_total(&last, number(&saved, "held_out_loss")), "{last} {saved}");
    let plan: Value = serde_json::from_str(&done(&["plan", "--config", &config, "--json"])).unwrap();
    let parameters: usize = ["discriminator", "generator"].map(|name| count(&dir.path(name))).iter().sum();
    let shared = 24 * (vocabulary(&url) + 64 + 2 + 2);
    assert_eq!(plan["stages"][0]["parameters"], json!(parameters - shared));
    let refused = run(&["export", &dir.path("imported"), "--output", &dir.path("none"), "--network", "generator"]);
    assert!(refused.code == 2 && refused.err.contains("--network"), "{}", refused.err);
}

/// Number of parameters of an exported folder.
fn count(folder: &str) -> usize {
    let bytes = std::fs::read(format!("{folder}/model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.tensors().iter().map(|(_, view)| view.shape().iter().product::<usize>()).sum()
}

fn vocabulary(url: &str) -> usize {
    std::fs::read_to_string(format!("{url}/vocab.txt")).unwrap().lines().count()
}

/// Number of tensors of the run at `url` that are equal to those of an exported folder.
fn read_shared(url: &str, folder: &str) -> usize {
    let checkpoint = crate::support::checkpoints(url).pop().unwrap();
    let files = [format!("{url}/checkpoints/{checkpoint}/model.safetensors"), format!("{folder}/model.safetensors")];
    let [run, exported] = files.map(|file| std::fs::read(file).unwrap());
    let [run, exported] = [&run, &exported].map(|bytes| SafeTensors::deserialize(bytes).unwrap());
    let is_equal =
        |(name, view): &(String, safetensors::tensor::TensorView<'_>)| run.tensor(name).ok().as_ref() == Some(view);
    exported.tensors().iter().filter(|tensor| is_equal(tensor)).count()
}

#[test]
fn detection_resumes_with_the_same_bits() {
    let dir = TestDir::new();
    let config = config(&dir, 60);
    same_bits_after_kills(&dir, &config, 1, 60);
}

/// Kills a run at random steps. The final bits must be those of a calm run.
#[test]
#[ignore = "minutes: CONTRIBUTING.md"]
fn twenty_kills_of_a_detection_leave_the_same_bits() {
    const KILLS: u64 = 20;
    const STEPS: u64 = 60 * KILLS;
    let dir = TestDir::new();
    let config = config(&dir, STEPS);
    same_bits_after_kills(&dir, &config, KILLS, STEPS);
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let dir = TestDir::new();
    let config = config(&dir, 8);
    assert_accepted(&dir, &config, "objective.mask_unit=word");
    assert_accepted(&dir, &config, "stage.0.layers=2");
    assert_refused(
        &dir,
        &config,
        &[
            ("model.family=bert", "objective.replaced_tokens: needs model.family = \"electra\", the family is bert"),
            ("stage.0.layers=1", "stage.0.layers = 1: must be model.layers (2), because"),
            (
                "objective.span_boundary_weight=1",
                "objective.span_boundary_weight: must be 0 with objective.replaced_tokens",
            ),
            ("objective.teacher.from=other", "objective.teacher: is not available with objective.replaced_tokens"),
            ("objective.replaced_tokens.weight=0", "objective.replaced_tokens.weight = 0: must be above 0"),
            (
                "objective.replaced_tokens.generator_heads=3",
                "objective.replaced_tokens.generator_heads: 3 heads do not divide hidden size 16",
            ),
            (
                "objective.replaced_tokens.generator_layers=0",
                "objective.replaced_tokens.generator_layers = 0: must be above 0",
            ),
            ("objective.replaced_tokens.width=1", "objective.replaced_tokens"),
        ],
    );
    // A run without a discriminator is no start for one with it, and the reverse.
    let plain = dir.path("plain");
    let text = std::fs::read_to_string(&config).unwrap();
    let without = text.replace("[objective.replaced_tokens]\ngenerator_layers = 1\ngenerator_hidden = 16\n", "");
    done(&["run", "--config", &dir.file("plain.toml", without), "--run", &plain]);
    let checkpoint = crate::support::checkpoints(&plain).pop().unwrap();
    let from = format!("run.from={plain}/checkpoints/{checkpoint}");
    let refused = run(&["run", "--config", &config, "--run", &dir.path("from"), "--set", &from]);
    assert!(refused.code != 0 && refused.err.contains("replaced_tokens"), "{}", refused.err);
    // Neither network can grow, and the heads of the generator give its weights their meaning.
    let both = dir.path("both");
    done(&["run", "--config", &config, "--run", &both]);
    let teacher = format!("objective.teacher.from={both}");
    let student = dir.path("plain.toml");
    let refused = run(&["run", "--config", &student, "--run", &dir.path("student"), "--set", &teacher]);
    assert!(refused.code == 2 && refused.err.contains("has a generator and a discriminator"), "{}", refused.err);
    let from = format!("{both}/checkpoints/{}", crate::support::checkpoints(&both).pop().unwrap());
    for (set, message) in [
        ("model.layers=3", "a model with objective.replaced_tokens cannot grow"),
        ("objective.replaced_tokens.generator_heads=2", "hidden size 16, 2 heads"),
    ] {
        let start = ["run", "--config", &config, "--run", &dir.path("grown"), "--from", &from, "--set", set];
        let refused = run(&start);
        assert!(refused.code == 2 && refused.err.contains(message), "{}", refused.err);
    }
}
