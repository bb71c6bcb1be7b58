//! Byte-level BPE and Unigram through all commands: vocabulary, dataset, training with kills, export and import.

use serde_json::Value;

use crate::support::{
    Running, TestDir, assert_same_bits, assert_same_weights, done, run, same_bits_after_kills, wait_for_no_workers,
};

/// Models of tokenizers, each with a family that uses it, further keys of `[model]`, and the class of the export.
const KINDS: [(&str, &str, &str, &str); 2] = [
    ("bpe", "roberta", "", "RobertaForMaskedLM"),
    ("unigram", "deberta-v2", "position_buckets = 32\n", "DebertaV2ForMaskedLM"),
];

const STEPS: u64 = 16;

/// Options of `lambert prep` for a dataset of samples without pairs.
fn prep(dir: &TestDir, vocabulary: &str, output: &str, more: &[&str]) -> Vec<String> {
    let sets = [
        format!("source.0.path={}", dir.path("corpus.txt")),
        format!("vocabulary.file={vocabulary}"),
        "samples.pair=none".to_owned(),
        format!("output.url={output}"),
    ];
    let sets = sets.iter().map(String::as_str).chain(more.iter().copied());
    let sets = sets.flat_map(|set| ["--set".to_owned(), set.to_owned()]);
    ["prep".to_owned(), "--config".to_owned(), dir.path("prep.toml")].into_iter().chain(sets).collect()
}

/// Trains a vocabulary and prepares datasets with it. Returns the vocabulary and the configuration of a run.
fn prepared(dir: &TestDir, (model, family, keys, _): (&str, &str, &str, &str)) -> (String, String) {
    let (vocabulary, data) = (dir.path("tokenizer.json"), dir.path("datasets"));
    done(&["vocab", "--model", model, "--size", "600", "--input", &dir.path("corpus.txt"), "--output", &vocabulary]);
    let arguments = prep(dir, &vocabulary, &data, &[]);
    done(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let text = format!(
        "[model]\nfamily = {family:?}\nlayers = 2\nhidden = 32\nheads = 2\nintermediate = 64\npositions = 64\n{keys}\
         [objective]\nmask_unit = \"word\"\n\
         [[stage]]\nname = \"a\"\ndata = \"{data}/train\"\nsteps = {STEPS}\nglobal_batch = 16\nmicro_batch_tokens = 256\n\
         learning_rate = 5e-3\n[evaluation]\ndata = \"{data}/held-out\"\nevery_steps = 8\nsamples = 32\n\
         [checkpoint]\nevery_steps = 5\nkeep = 3\n[cluster]\nranks = 2\nall_reduce.backend = \"mpi\"\n\
         all_reduce.canonical = true\nrestart.limit = 100\n[device]\nkind = \"cpu\"\n"
    );
    (vocabulary, dir.file("tokenizers.toml", text))
}

fn json_of(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[test]
fn each_model_trains_resumes_and_is_exported_and_imported() {
    for kind in KINDS {
        let (model, _, _, class) = kind;
        let dir = TestDir::new();
        let (vocabulary, config) = prepared(&dir, kind);
        let manifest = json_of(&dir.path("datasets/train/manifest.json"));
        assert_eq!(manifest["vocabulary"]["path"], "tokenizer.json");
        assert_eq!(manifest["vocabulary"]["model"], model);
        let size = manifest["vocabulary"]["size"].as_u64().unwrap();
        let shown = done(&["inspect", &dir.path("datasets/train"), "--samples", "1", "--verify"]);
        let label = if model == "bpe" { "BPE" } else { "Unigram" };
        assert!(shown.contains(&format!("vocabulary   {size} {label} tokens, cased")), "{shown}");

        let (calm, killed, one) = (dir.path("calm"), dir.path("killed"), dir.path("one"));
        done(&["run", "--config", &config, "--run", &calm]);
        let mut running = Running::start_with(&config, &killed, &[]);
        running.reach(7);
        running.kill_rank(1, "-9");
        running.reach(12);
        running.kill_coordinator("-9");
        drop(running);
        wait_for_no_workers(&killed);
        assert_eq!(Running::start_with(&config, &killed, &[]).end().code, Some(0));
        assert_same_bits(&calm, &killed);
        done(&["run", "--config", &config, "--run", &one, "--set", "cluster.ranks=1"]);
        assert_same_weights(&calm, &one);

        let predicted: Value =
            serde_json::from_str(&done(&["fill-mask", &calm, "the [MASK] sees it", "--top", "3", "--json"])).unwrap();
        assert_eq!(predicted[0].as_array().unwrap().len(), 3, "{predicted}");
        let loss = |run: &str| {
            let said = done(&["eval", run, "--data", &dir.path("datasets/held-out"), "--samples", "32", "--json"]);
            serde_json::from_str::<Value>(&said).unwrap()["mlm_loss"].as_f64().unwrap().to_bits()
        };
        // Text is evaluated like a dataset of it with samples of full length.
        let sets = [
            "samples.sequence_length=64",
            "samples.short_sequence_probability=0",
            "samples.held_out=0",
            "documents.remove_duplicates=false",
        ];
        let mut arguments = prep(&dir, &vocabulary, &dir.path("text"), &sets);
        arguments[2] = dir.file(
            "text.toml",
            format!("[[source]]\nformat = \"auto\"\npath = {:?}\n[vocabulary]\n", dir.path("corpus.txt")),
        );
        done(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let dataset = done(&["eval", &calm, "--data", &dir.path("text/train"), "--json"]);
        assert_eq!(done(&["eval", &calm, "--text", &dir.path("corpus.txt"), "--json"]), dataset);
        let report = done(&["report", &calm, "--format", "json"]);
        assert!(!report.contains("\"vocabulary\":0"), "{report}");

        // The exported files are those of the dataset, and an import of them is the same model.
        let (folder, imported, again) = (dir.path("exported"), dir.path("imported"), dir.path("again"));
        done(&["export", &calm, "--output", &folder]);
        let files = |folder: &str, name: &str| std::fs::read(format!("{folder}/{name}"));
        assert_eq!(files(&folder, "tokenizer.json").unwrap(), std::fs::read(&vocabulary).unwrap());
        assert!(files(&folder, "vocab.txt").is_err());
        let described = json_of(&format!("{folder}/config.json"));
        assert_eq!((&described["architectures"][0], &described["vocab_size"]), (&class.into(), &size.into()));
        let tokenizer = json_of(&format!("{folder}/tokenizer_config.json"));
        assert_eq!(tokenizer["tokenizer_class"], "PreTrainedTokenizerFast");
        let card = String::from_utf8(files(&folder, "README.md").unwrap()).unwrap();
        assert!(card.contains(&format!("{size} {label} tokens, cased")), "{card}");
        let checkpoint = done(&["import", &folder, "--output", &imported]);
        done(&["export", &imported, "--output", &again]);
        for name in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"] {
            assert_eq!(files(&folder, name).unwrap(), files(&again, name).unwrap(), "{model}: {name}");
        }
        if model == "bpe" {
            // transformers has no enhanced mask decoder of DeBERTa, so that its import has another loss.
            assert_eq!(loss(&calm), loss(&imported));
            assert_eq!(
                files(&folder, "model.safetensors").unwrap().len(),
                files(&again, "model.safetensors").unwrap().len()
            );
        }
        done(&["checkpoint", "copy", checkpoint.trim(), &dir.path("copied")]);
        done(&["export", &dir.path("copied"), "--output", &dir.path("of-copy")]);
        assert_eq!(files(&dir.path("of-copy"), "tokenizer.json").unwrap(), std::fs::read(&vocabulary).unwrap());

        let refused = run(&[
            "run",
            "--config",
            &config,
            "--run",
            &dir.path("unk"),
            "--check",
            "--set",
            "objective.mask_token=unk",
        ]);
        let has_no_token = "has no token for unknown text (byte-level BPE): set objective.mask_token = \"mask\"";
        assert_eq!(
            (refused.code, refused.err.contains(has_no_token)),
            if model == "bpe" { (2, true) } else { (0, false) }
        );
    }
}

/// Kills a run at random steps. The final bits must be those of a calm run.
#[test]
#[ignore = "minutes: CONTRIBUTING.md"]
fn twenty_kills_with_each_model_leave_the_same_bits() {
    const KILLS: u64 = 20;
    for kind in KINDS {
        let dir = TestDir::new();
        let (_, config) = prepared(&dir, kind);
        let text = std::fs::read_to_string(&config).unwrap();
        let config =
            dir.file("long.toml", text.replace(&format!("steps = {STEPS}\n"), &format!("steps = {}\n", 60 * KILLS)));
        eprintln!("{}", kind.0);
        same_bits_after_kills(&dir, &config, KILLS, 60 * KILLS);
    }
}

#[test]
fn preparation_refuses_files_that_are_no_tokenizers() {
    let dir = TestDir::new();
    let refused = |name: &str, content: &str, more: &[&str], message: &str| {
        let vocabulary = dir.file(name, content);
        let arguments = prep(&dir, &vocabulary, &dir.path("refused"), more);
        let found = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        assert_ne!(found.code, 0);
        assert!(found.err.contains(message), "no {message:?} in {}", found.err);
        assert!(!std::path::Path::new(&dir.path("refused")).exists());
    };
    refused("cut.json", "{\"version\": \"1.0\", \"model\"", &[], "cut.json: EOF while parsing");
    refused("word.json", "{\"model\": {\"type\": \"WordPiece\"}}", &[], "its model is WordPiece; use its vocab.txt");
    let golden: Value = serde_json::from_str(include_str!("../data-prep/tests/golden/tokenizer_files.json")).unwrap();
    let roberta = golden["kinds"]["roberta"]["file"].to_string();
    refused("roberta.json", &roberta, &["samples.pair=nsp"], "puts two separators between the segments of a pair");
}
