//! Import of models in the format of transformers: the same tensors, files and losses, other types and several files, training
//! from an imported model, and folders that are refused.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize};
use serde_json::{Value, json};

use crate::support::{Running, TestDir, assert_same_weights, copy, done, observed, run};

/// Tensors of a safetensors file: type, shape and values.
type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn tensors(path: &str) -> Tensors {
    let bytes = std::fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let values = |view: TensorView<'_>| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
    file.tensors().into_iter().map(|(name, view)| (name, values(view))).collect()
}

fn write(path: &str, tensors: &Tensors) {
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    std::fs::write(path, serialize(views, None).unwrap()).unwrap();
}

/// Exports a trained model to the folder `name`.
fn exported(dir: &TestDir, name: &str) -> String {
    let folder = dir.path(name);
    done(&["export", observed::run().to_str().unwrap(), "--output", &folder]);
    folder
}

/// Imports `folder` as the run `name`. Returns the run and the URL of its checkpoint.
fn imported(dir: &TestDir, folder: &str, name: &str) -> (String, String) {
    let run = dir.path(name);
    let checkpoint = done(&["import", folder, "--output", &run]);
    (run, checkpoint.trim().to_owned())
}

fn json_of(path: &str) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn bf16(tensors: &Tensors) -> Tensors {
    let upper = |data: &[u8]| data.chunks(4).flat_map(|bytes| [bytes[2], bytes[3]]).collect();
    tensors.iter().map(|(name, (_, shape, data))| (name.clone(), (Dtype::BF16, shape.clone(), upper(data)))).collect()
}

#[test]
fn an_imported_model_has_the_same_tensors_files_and_loss() {
    let dir = TestDir::new();
    let folder = exported(&dir, "model");
    // Layout of the tokenizer file that lambert would not write.
    let tokenizer = format!("{folder}/tokenizer.json");
    std::fs::write(&tokenizer, json_of(&tokenizer).to_string()).unwrap();
    let (run, checkpoint) = imported(&dir, &folder, "imported");
    assert_eq!(checkpoint, format!("{run}/checkpoints/step-000000000-a0001"));
    let again = dir.path("again");
    done(&["export", &run, "--output", &again]);
    assert_eq!(tensors(&format!("{folder}/model.safetensors")), tensors(&format!("{again}/model.safetensors")));
    for name in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "config.json"] {
        let [before, after] = [&folder, &again].map(|folder| std::fs::read(format!("{folder}/{name}")).unwrap());
        assert_eq!(before, after, "{name}");
    }
    let loss = |model: &str| {
        let said = done(&["eval", "--data", &dir.path("data/held-out"), "--samples", "64", "--json", model]);
        serde_json::from_str::<Value>(&said).unwrap()["mlm_loss"].as_f64().unwrap().to_bits()
    };
    assert_eq!(loss(observed::run().to_str().unwrap()), loss(&checkpoint));
    let card = std::fs::read_to_string(format!("{again}/README.md")).unwrap();
    assert!(card.contains("lambert imported it and did not train it."), "{card}");
    assert!(card.contains("\n## Model\n") && card.contains("\n## Versions\n"), "{card}");
    // The configuration of an import has defaults in place of the facts of its training.
    for heading in ["Training data", "Training", "Results", "Configuration"] {
        assert!(!card.contains(&format!("\n## {heading}\n")), "{heading}: {card}");
    }
    // A copy keeps the tokenizer files.
    let copied = dir.path("copied");
    done(&["checkpoint", "copy", &checkpoint, &copied]);
    done(&["export", &copied, "--output", &dir.path("of-copy")]);
    let [before, after] = [&tokenizer, &dir.path("of-copy/tokenizer.json")].map(|path| std::fs::read(path).unwrap());
    assert_eq!(before, after);
    // A run directory is never overwritten.
    let twice = crate::support::run(&["import", &folder, "--output", &run]);
    assert!(twice.code == 2 && twice.err.contains("has run.toml already; name a new folder"), "{}", twice.err);
}

/// lambert has no heads for fine-tuning and needs no ids of special tokens, but their users do.
#[test]
fn keys_for_fine_tuning_survive_training() {
    let dir = TestDir::new();
    let config = dir.config(2, 1);
    let sets = ["--set", "model.family=albert", "--set", "model.dropout=0.0", "--set", "objective.pair=none"];
    let train = |name: &str, more: &[&str]| {
        let url = dir.path(name);
        done(&[&["run", "--config", &config, "--run", &url], &sets[..], more].concat());
        let folder = dir.path(&format!("{name}-model"));
        done(&["export", &url, "--output", &folder]);
        folder
    };
    let folder = train("first", &[]);
    let mut keys = json_of(&format!("{folder}/config.json"));
    assert_eq!(keys.get("cls_token_id"), None);
    keys["classifier_dropout_prob"] = json!(0.25);
    keys["cls_token_id"] = json!(2);
    keys["auto_map"] = json!({"AutoModel": "modeling.Model"});
    std::fs::write(format!("{folder}/config.json"), keys.to_string()).unwrap();
    let (imported, checkpoint) = imported(&dir, &folder, "imported");
    let again = dir.path("again");
    done(&["export", &imported, "--output", &again]);
    let copied = dir.path("copied");
    done(&["checkpoint", "copy", &checkpoint, &copied]);
    done(&["export", &copied, "--output", &dir.path("of-copy")]);
    let further = train("further", &["--from", &checkpoint]);
    let from_folder = train("from-folder", &["--from", &format!("hf:{folder}")]);
    for folder in [again, dir.path("of-copy"), further, from_folder] {
        let kept = json_of(&format!("{folder}/config.json"));
        assert_eq!((&kept["classifier_dropout_prob"], &kept["cls_token_id"]), (&json!(0.25), &json!(2)), "{folder}");
        assert_eq!(kept.get("auto_map"), None, "{folder}");
    }
}

/// The pre-training of ALBERT has no dropout, its classifiers have some.
#[test]
fn classifiers_of_albert_have_dropout() {
    let dir = TestDir::new();
    let (config, run_url, folder) = (dir.config(1, 1), dir.path("run"), dir.path("model"));
    let sets = ["--set", "model.family=albert", "--set", "model.dropout=0.0", "--set", "objective.pair=none"];
    done(&[&["run", "--config", &config, "--run", &run_url], &sets[..]].concat());
    done(&["export", &run_url, "--output", &folder]);
    let keys = json_of(&format!("{folder}/config.json"));
    assert_eq!((&keys["hidden_dropout_prob"], &keys["classifier_dropout_prob"]), (&json!(0.0), &json!(0.1)));
}

/// transformers counts the positions of RoBERTa from the id of the padding token.
#[test]
fn another_padding_token_of_roberta_is_refused() {
    let dir = TestDir::new();
    let (config, run_url, folder) = (dir.config(2, 1), dir.path("run"), dir.path("model"));
    let sets = ["--set", "model.family=roberta", "--set", "objective.pair=none", "--set", "model.segments=1"];
    done(&[&["run", "--config", &config, "--run", &run_url], &sets[..]].concat());
    done(&["export", &run_url, "--output", &folder]);
    let path = format!("{folder}/config.json");
    let mut keys = json_of(&path);
    assert_eq!((&keys["pad_token_id"], &keys["max_position_embeddings"]), (&json!(0), &json!(65)));
    imported(&dir, &folder, "same");
    keys["pad_token_id"] = json!(7);
    std::fs::write(&path, keys.to_string()).unwrap();
    let refused = run(&["import", &folder, "--output", &dir.path("other")]);
    let message =
        "config.json: pad_token_id is 7, but the padding token of the tokenizer has the id 0; expected the same id";
    assert!(refused.code == 2 && refused.err.contains(message), "{}", refused.err);
}

#[test]
fn names_types_and_files_of_other_versions_are_read() {
    let dir = TestDir::new();
    let folder = exported(&dir, "model");
    let weights = format!("{folder}/model.safetensors");
    let before = tensors(&weights);
    // bf16, in two files, with old names, an alias of the decoder, a buffer, and without tokenizer.json.
    let changed = bf16(&before);
    let mut renamed: Tensors = changed
        .iter()
        .map(|(name, tensor)| {
            let name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
            (name, tensor.clone())
        })
        .collect();
    renamed.insert("cls.predictions.decoder.weight".into(), changed["bert.embeddings.word_embeddings.weight"].clone());
    let bias = renamed.remove("cls.predictions.bias").unwrap();
    renamed.insert("cls.predictions.decoder.bias".into(), bias);
    renamed.insert("bert.embeddings.position_ids".into(), (Dtype::I64, vec![1], vec![0; 8]));
    let second = renamed.split_off("bert.encoder.layer.1");
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let map =
        |tensors: &Tensors, file: &str| tensors.keys().map(|name| (name.clone(), json!(file))).collect::<Vec<_>>();
    let weight_map: serde_json::Map<String, Value> =
        [map(&renamed, names[0]), map(&second, names[1])].concat().into_iter().collect();
    write(&format!("{folder}/{}", names[0]), &renamed);
    write(&format!("{folder}/{}", names[1]), &second);
    dir.file("model/model.safetensors.index.json", json!({"metadata": {}, "weight_map": weight_map}).to_string());
    std::fs::remove_file(&weights).unwrap();
    std::fs::remove_file(format!("{folder}/tokenizer.json")).unwrap();

    let ran = run(&["import", &folder, "--output", &dir.path("imported")]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    for note in [
        "tied: cls.predictions.decoder.weight is bert.embeddings.word_embeddings.weight",
        "renamed: cls.predictions.decoder.bias to cls.predictions.bias",
    ] {
        assert!(ran.err.contains(note), "{}", ran.err);
    }
    done(&["export", &dir.path("imported"), "--output", &dir.path("again")]);
    assert_eq!(tensors(&dir.path("again/model.safetensors")), changed);
    assert_eq!(json_of(&dir.path("again/config.json"))["torch_dtype"], "bfloat16");

    // A class without heads has no prefix, and needs an MLM head.
    let base: Tensors = before
        .iter()
        .filter_map(|(name, tensor)| Some((name.strip_prefix("bert.")?.to_owned(), tensor.clone())))
        .collect();
    write(&weights, &base);
    let refused = run(&["import", &folder, "--output", &dir.path("base")]);
    assert!(
        refused.code == 2 && refused.err.contains("`lambert import` initializes them with --init-missing mlm-head"),
        "{}",
        refused.err
    );
    assert!(!Path::new(&dir.path("base")).exists());
    let ran = run(&["import", &folder, "--output", &dir.path("base"), "--init-missing", "mlm-head"]);
    assert!(ran.code == 0 && ran.err.contains("initialized: cls."), "{}", ran.err);
    done(&["export", &dir.path("base"), "--output", &dir.path("base-again")]);
    let after = tensors(&dir.path("base-again/model.safetensors"));
    for (name, tensor) in before.iter().filter(|(name, _)| name.starts_with("bert.") && !name.contains("pooler")) {
        assert_eq!(&after[name], tensor, "{name}");
    }
}

/// Versions of transformers before 5 store the bias of an untied decoder once. A folder with a sentence-pair head and no pooler
/// needs a flag.
#[test]
fn missing_parts_are_copied_or_asked_for() {
    let dir = TestDir::new();
    let folder = exported(&dir, "model");
    let (weights, config) = (format!("{folder}/model.safetensors"), format!("{folder}/config.json"));
    let whole = tensors(&weights);
    let mut untied = whole.clone();
    untied.insert("cls.predictions.decoder.weight".into(), whole["bert.embeddings.word_embeddings.weight"].clone());
    write(&weights, &untied);
    let tied = std::fs::read(&config).unwrap();
    let mut keys = json_of(&config);
    keys["tie_word_embeddings"] = json!(false);
    std::fs::write(&config, keys.to_string()).unwrap();
    let ran = run(&["import", &folder, "--output", &dir.path("untied")]);
    assert!(
        ran.code == 0 && ran.err.contains("copied: cls.predictions.bias to cls.predictions.decoder.bias"),
        "{}",
        ran.err
    );
    done(&["export", &dir.path("untied"), "--output", &dir.path("untied-again")]);
    let again = tensors(&dir.path("untied-again/model.safetensors"));
    assert_eq!(again["cls.predictions.decoder.bias"], whole["cls.predictions.bias"]);
    std::fs::write(&config, tied).unwrap();

    let without = |names: &[&str]| {
        let kept = whole.iter().filter(|(name, _)| !names.contains(&name.as_str()));
        write(&weights, &kept.map(|(name, tensor)| (name.clone(), tensor.clone())).collect());
    };
    let pooler = ["bert.pooler.dense.weight", "bert.pooler.dense.bias"];
    let pair = ["cls.seq_relationship.weight", "cls.seq_relationship.bias"];
    let import = |name: &str, more: &[&str]| run(&[&["import", &folder, "--output", &dir.path(name)], more].concat());
    for names in [&pooler[..], &pooler[..1]] {
        without(names);
        let refused = import("pooler", &[]);
        assert!(refused.code == 2 && refused.err.contains("with --init-missing pooler"), "{}", refused.err);
    }
    let ran = import("pooler", &["--init-missing", "pooler"]);
    assert!(ran.code == 0 && ran.err.contains("initialized: bert.pooler.dense.weight"), "{}", ran.err);
    // Half a head is an error, no head is a model of another class.
    without(&pair[..1]);
    let refused = import("half", &[]);
    let message = "cls.seq_relationship.weight is missing; the weights do not fit config.json";
    assert!(refused.code == 2 && refused.err.contains(message), "{}", refused.err);
    without(&[pooler, pair].concat());
    let ran = import("none", &[]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    done(&["export", &dir.path("none"), "--output", &dir.path("none-again")]);
    assert_eq!(json_of(&dir.path("none-again/config.json"))["architectures"], json!(["BertForMaskedLM"]));
}

#[test]
fn a_run_continues_from_an_imported_model_and_grows_it() {
    let dir = TestDir::new();
    let folder = exported(&dir, "model");
    // Layout of the tokenizer file that lambert would not write.
    let tokenizer = format!("{folder}/tokenizer.json");
    std::fs::write(&tokenizer, json_of(&tokenizer).to_string()).unwrap();
    let (_, checkpoint) = imported(&dir, &folder, "imported");
    let text = std::fs::read_to_string(observed::config(&dir)).unwrap();
    let second = text.find("[[stage]]\nname = \"deep\"").unwrap();
    let rest = text.find("[evaluation]").unwrap();
    // One stage of six layers. The imported model has four.
    let text = [&text[..second], &text[rest..]].concat().replace("layers = 2\n", "layers = 6\n");
    let text = text.replacen("layers = 4\n", "layers = 6\n", 1).replace("steps = 60", "steps = 4");
    let config = dir.file("continued.toml", text);
    let ended = Running::start_with(&config, &dir.path("continued"), &["--from", &checkpoint]).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let fresh = Running::start(&config, &dir.path("fresh")).end();
    let first = |records: &[lambert_control::StepRecord]| records[0].loss;
    assert!(first(&ended.records) < first(&fresh.records) - 0.2, "{} {}", first(&ended.records), first(&fresh.records));

    // The folder itself can be the start of a run.
    let (direct, from) = (dir.path("direct"), format!("hf:{folder}"));
    let checked = run(&["run", "--config", &config, "--run", &direct, "--from", &from, "--check"]);
    assert!(checked.code == 0 && !Path::new(&direct).exists(), "{}", checked.err);
    let set = format!("run.from={from}");
    let ended = Running::start_with(&config, &direct, &["--set", &set]).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_same_weights(&dir.path("continued"), &direct);
    done(&["export", &direct, "--output", &dir.path("direct-model")]);
    let [before, after] =
        [&tokenizer, &dir.path("direct-model/tokenizer.json")].map(|path| std::fs::read(path).unwrap());
    assert_eq!(before, after);
    // A restart does not need the folder.
    std::fs::rename(&folder, dir.path("moved")).unwrap();
    done(&["run", "--config", &config, "--run", &direct, "--set", &set]);
    let refused = run(&["run", "--config", &config, "--run", &dir.path("none"), "--set", &set]);
    assert!(
        refused.code == 2
            && refused.err.contains("does not exist; lambert downloads nothing")
            && !Path::new(&dir.path("none")).exists(),
        "{}",
        refused.err
    );
    let refused = run(&["run", "--config", &config, "--run", &dir.path("none"), "--from", &dir.path("moved")]);
    let hint = format!("is not a checkpoint; expected hf:{} for a transformers folder", dir.path("moved"));
    assert!(refused.code == 2 && refused.err.contains(&hint), "{}", refused.err);
    let other = ["--from", &format!("hf:{}", dir.path("moved")), "--set", "model.hidden=64"];
    let refused = run(&[&["run", "--config", &config, "--run", &dir.path("none")], &other[..]].concat());
    assert!(refused.code == 2 && refused.err.contains("its model has hidden = 32"), "{}", refused.err);
}

#[test]
fn names_that_are_no_folders_are_explained() {
    let dir = TestDir::new();
    std::fs::create_dir(dir.path("empty")).unwrap();
    for (folder, message) in [
        ("google-bert/bert-base-uncased", "does not exist; lambert downloads nothing"),
        ("hf:folder", "hf:folder: only run.from and objective.teacher take hf:; name the folder, folder"),
        (&dir.path("empty"), "has no config.json; expected a folder that save_pretrained"),
    ] {
        let refused = run(&["import", folder, "--output", &dir.path("imported")]);
        assert!(refused.code == 2 && refused.err.contains(message), "{}", refused.err);
        assert!(!Path::new(&dir.path("imported")).exists());
    }
}

#[test]
fn folders_that_contradict_themselves_are_refused_by_name() {
    let dir = TestDir::new();
    let whole = exported(&dir, "model");
    let mut number = 0;
    let mut refused = |change: &dyn Fn(&str), message: &str| {
        number += 1;
        let (folder, run_url) = (dir.path(&format!("folder-{number}")), dir.path(&format!("run-{number}")));
        copy(Path::new(&whole), Path::new(&folder));
        change(&folder);
        let ran = run(&["import", &folder, "--output", &run_url]);
        assert_eq!(ran.code, 2, "{message}: {}", ran.err);
        assert!(ran.err.contains(message), "{message}: {}", ran.err);
        assert!(!Path::new(&run_url).exists(), "{message}");
    };
    let set = |name: &'static str, key: &'static str, value: Value| {
        move |folder: &str| {
            let path = format!("{folder}/{name}");
            let mut content = json_of(&path);
            content[key] = value.clone();
            std::fs::write(&path, content.to_string()).unwrap();
        }
    };
    let change = |name: &'static str, change: fn(&mut Tensors)| {
        move |folder: &str| {
            let path = format!("{folder}/{name}");
            let mut all = tensors(&path);
            change(&mut all);
            write(&path, &all);
        }
    };
    let rename = |from: &'static str, to: &'static str| {
        move |folder: &str| std::fs::rename(format!("{folder}/{from}"), format!("{folder}/{to}")).unwrap()
    };
    const WORDS: &str = "bert.embeddings.word_embeddings.weight";
    const WEIGHTS: &str = "model.safetensors";
    refused(&set("config.json", "model_type", json!("gpt2")), "config.json: model_type is \"gpt2\"; expected bert,");
    refused(
        &set("config.json", "position_embedding_type", json!("relative_key")),
        "position_embedding_type is \"relative_key\"",
    );
    refused(&set("config.json", "hidden_size", json!(48)), "has the shape [");
    refused(&set("config.json", "hidden_act", json!("relu")), "hidden_act is \"relu\"; expected gelu");
    refused(&set("config.json", "vocab_size", json!(7)), "vocab_size is 7, but the vocabulary has");
    refused(&set("config.json", "num_hidden_layers", json!(5)), "the weights do not fit config.json");
    refused(
        &set("config.json", "num_hidden_layers", json!(3)),
        "config.json describes a model without the tensor bert.encoder.layer.3.",
    );
    refused(&set("config.json", "num_hidden_layers", json!(2_000_000_000)), "2000000000 layers; expected at most 1024");
    refused(
        &set("config.json", "type_vocab_size", json!(1)),
        "config.json describes a model that lambert does not support: model.segments",
    );
    refused(
        &set("tokenizer_config.json", "do_lower_case", json!("false")),
        "do_lower_case is \"false\"; expected true",
    );
    refused(
        &|folder| drop(std::fs::write(format!("{folder}/added_tokens.json"), r#"{"<url>": 9999}"#)),
        "added_tokens.json: the added token \"<url>\" is not in the vocabulary",
    );
    refused(
        &set("tokenizer_config.json", "added_tokens_decoder", json!({"5": {"content": "<url>"}})),
        "tokenizer_config.json: the added token \"<url>\" is not in the vocabulary",
    );
    refused(&set("config.json", "num_attention_heads", json!(0)), "model.heads");
    refused(
        &set("tokenizer_config.json", "do_lower_case", json!(false)),
        "do_lower_case is false, but tokenizer.json has lowercase true",
    );
    refused(&set("tokenizer.json", "model", json!({"type": "WordLevel"})), "expected WordPiece, BPE or Unigram");
    refused(&set("tokenizer.json", "model", json!({"type": "BPE"})), "tokenizer.json: model.vocab is missing");
    refused(
        &|folder| drop(std::fs::write(format!("{folder}/vocab.txt"), "[PAD]\n")),
        "vocab.txt: its tokens are not those of",
    );
    refused(
        &rename(WEIGHTS, "pytorch_model.bin"),
        "if you trust it, convert it: python -c 'import sys, transformers as t;",
    );
    refused(&rename(WEIGHTS, "other"), "has no model.safetensors; expected a folder that save_pretrained");
    refused(&rename("config.json", "other"), "has no config.json");
    refused(
        &change(WEIGHTS, |all| drop(all.remove("bert.encoder.layer.1.output.dense.bias"))),
        "layer.1.output.dense.bias is missing",
    );
    refused(
        &change(WEIGHTS, |all| all.get_mut(WORDS).unwrap().2[..4].copy_from_slice(&f32::NAN.to_le_bytes())),
        "element 0 of bert.embeddings.word_embeddings.weight is NaN",
    );
    refused(
        &change(WEIGHTS, |all| {
            let mut other = all[WORDS].clone();
            other.2[0] ^= 1;
            all.insert("cls.predictions.decoder.weight".into(), other);
        }),
        "tie_word_embeddings is true, but cls.predictions.decoder.weight and",
    );
    let cut = |folder: &str| {
        let path = format!("{folder}/{WEIGHTS}");
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 100]).unwrap();
    };
    refused(&cut, "model.safetensors: ");
    let hostile = |folder: &str| {
        std::fs::write(format!("{folder}/{WEIGHTS}"), [&u64::MAX.to_le_bytes()[..], b"{}"].concat()).unwrap();
    };
    refused(&hostile, "model.safetensors: ");
    let outside = |folder: &str| {
        std::fs::remove_file(format!("{folder}/{WEIGHTS}")).unwrap();
        let index = json!({"weight_map": {"a": "../model.safetensors"}});
        std::fs::write(format!("{folder}/model.safetensors.index.json"), index.to_string()).unwrap();
    };
    refused(&outside, "weight_map names the file \"../model.safetensors\"");
}
