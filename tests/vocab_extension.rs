//! Runs that start from a model whose vocabulary their datasets extend.

use std::collections::BTreeMap;

use safetensors::SafeTensors;

use crate::support::{Running, TestDir, assert_same_weights, checkpoints, done, run};

const NEW: usize = 12;

/// Text with words that the generated corpus does not have.
fn domain(dir: &TestDir) -> String {
    let sentence = |number: usize| {
        let organs = ["cardiomyopathy", "pericarditis", "myocarditis", "endocarditis"];
        let (one, other) = (organs[number % 4], organs[number / 4 % 4]);
        format!("the {one} of patient {number} followed the {other} .\nthe doctor sees the {other} .\n\n")
    };
    dir.file("domain.txt", (0..200).map(sentence).collect::<String>())
}

/// Prepares the domain text with a vocabulary, as the dataset `name`.
fn prepare(dir: &TestDir, vocabulary: &str, name: &str) {
    let config = format!(
        "[[source]]\npath = {:?}\ndocuments = \"blank-line\"\n[output]\nurl = {:?}\n[vocabulary]\nfile = {:?}\n\
         [samples]\nsequence_length = 64\nheld_out = 0.1\n",
        domain(dir),
        dir.path(name),
        dir.path(vocabulary)
    );
    done(&["prep", "--config", &dir.file(&format!("prep-{name}.toml"), config)]);
}

/// Embeddings and the bias of the MLM head of an export: rows of numbers.
fn rows(dir: &TestDir, model: &str) -> BTreeMap<String, Vec<Vec<f32>>> {
    let folder = dir.path("rows");
    drop(std::fs::remove_dir_all(&folder));
    done(&["export", model, "--output", &folder]);
    let bytes = std::fs::read(format!("{folder}/model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    ["bert.embeddings.word_embeddings.weight", "cls.predictions.bias"]
        .into_iter()
        .map(|name| {
            let tensor = file.tensor(name).unwrap();
            let number = |bytes: &[u8]| f32::from_le_bytes(bytes.try_into().unwrap());
            let numbers: Vec<f32> = tensor.data().chunks_exact(4).map(number).collect();
            let width = numbers.len() / tensor.shape()[0];
            (name.to_owned(), numbers.chunks(width).map(<[f32]>::to_vec).collect())
        })
        .collect()
}

/// Trains the run `name` on the domain from `from`. Without a rate the weights stay as they are.
fn trained(dir: &TestDir, name: &str, from: &str, rate: &str) -> String {
    let text = std::fs::read_to_string(dir.config(8, 2)).unwrap();
    let text = text.replace(&dir.path("data/train"), &dir.path("domain/train")).replace("5e-3", rate);
    let (config, url) = (dir.file("domain.toml", text), dir.path(name));
    done(&["run", "--config", &config, "--run", &url, "--from", from]);
    url
}

#[test]
fn new_tokens_start_as_the_mean_of_their_old_tokens() {
    let dir = TestDir::new();
    let base = dir.path("base");
    done(&["run", "--config", &dir.config(20, 2), "--run", &base]);
    let size = std::fs::read_to_string(dir.path("vocab.txt")).unwrap().lines().count();
    let (old, new) = (dir.path("vocab.txt"), dir.path("extended.txt"));
    let total = (size + NEW).to_string();
    let said = done(&["vocab", "--extend", &old, "--input", &domain(&dir), "--size", &total, "--output", &new]);
    assert!(said.contains(&format!("({total} tokens, {NEW} of them new)\ntext before: ")), "{said}");
    prepare(&dir, "extended.txt", "domain");

    let checkpoint = format!("{base}/checkpoints/{}", checkpoints(&base)[0]);
    let still = trained(&dir, "still", &checkpoint, "1e-30");
    let (before, after) = (rows(&dir, &base), rows(&dir, &still));
    let vocabulary = std::fs::read_to_string(&new).unwrap();
    let tokens: Vec<&str> = vocabulary.lines().collect();
    let extension =
        lambert_dataset::tokenizer::VocabularyExtension::new(&std::fs::read(&old).unwrap(), vocabulary.as_bytes())
            .unwrap();
    for (name, before) in &before {
        let after = &after[name];
        assert_eq!((before.len(), after.len()), (size, size + NEW), "{name}");
        assert_eq!(before[..], after[..size], "{name}");
        for (parts, (token, row)) in extension.parts.iter().zip(tokens[size..].iter().zip(&after[size..])) {
            // A character that the old vocabulary lacks starts as [UNK].
            assert!(parts.len() > 1 || parts[..] == [1], "{token} is {parts:?}");
            for (place, element) in row.iter().enumerate() {
                let mean = parts.iter().map(|part| before[*part as usize][place]).sum::<f32>() / parts.len() as f32;
                assert!((element - mean).abs() < 1e-6, "{name}, {token}: {element}, not {mean}");
            }
        }
    }
    // The run keeps the extended vocabulary, and its rows are trained.
    let moved = trained(&dir, "moved", &checkpoint, "5e-3");
    assert_eq!(std::fs::read(format!("{moved}/vocab.txt")).unwrap(), vocabulary.as_bytes());
    assert_ne!(rows(&dir, &moved)["cls.predictions.bias"][size..], after["cls.predictions.bias"][size..]);
    done(&["fill-mask", &moved, "the [MASK] of patient 3 ."]);

    // A transformers folder as the base; its tokenizer files describe the old vocabulary.
    let published = dir.path("published");
    done(&["export", &base, "--output", &published]);
    let of_folder = trained(&dir, "of-folder", &format!("hf:{published}"), "5e-3");
    assert_same_weights(&moved, &of_folder);
    let export = dir.path("export");
    done(&["export", &of_folder, "--output", &export]);
    let tokenizer = std::fs::read_to_string(format!("{export}/tokenizer.json")).unwrap();
    let last = tokens.last().unwrap();
    assert!(tokenizer.contains(&format!("\"{last}\": {}", size + NEW - 1)), "no {last} in {tokenizer}");
}

#[test]
fn a_killed_run_with_an_extended_vocabulary_has_the_same_bits() {
    let dir = TestDir::new();
    let base = dir.path("base");
    done(&["run", "--config", &dir.config(8, 1), "--run", &base]);
    let size = std::fs::read_to_string(dir.path("vocab.txt")).unwrap().lines().count() + NEW;
    let (old, new) = (dir.path("vocab.txt"), dir.path("extended.txt"));
    done(&["vocab", "--extend", &old, "--input", &domain(&dir), "--size", &size.to_string(), "--output", &new]);
    prepare(&dir, "extended.txt", "domain");
    let checkpoint = format!("{base}/checkpoints/{}", checkpoints(&base)[0]);
    let text = std::fs::read_to_string(dir.config(16, 2)).unwrap();
    let config = dir.file("domain.toml", text.replace(&dir.path("data/train"), &dir.path("domain/train")));
    let (whole, killed) = (dir.path("whole"), dir.path("killed"));
    done(&["run", "--config", &config, "--run", &whole, "--from", &checkpoint]);
    let mut running = Running::start_with(&config, &killed, &["--from", &checkpoint]);
    running.reach(3);
    running.kill_rank(1, "-9");
    running.reach(10);
    running.kill_rank(0, "-9");
    assert_eq!(running.end().code, Some(0));
    crate::support::assert_same_bits(&whole, &killed);
}

#[test]
fn other_vocabularies_are_refused() {
    let dir = TestDir::new();
    let base = dir.path("base");
    done(&["run", "--config", &dir.config(4, 1), "--run", &base]);
    let checkpoint = format!("{base}/checkpoints/{}", checkpoints(&base)[0]);
    let vocabulary = std::fs::read_to_string(dir.path("vocab.txt")).unwrap();
    let mut tokens: Vec<&str> = vocabulary.lines().collect();
    let last = tokens.len() - 1;
    tokens.swap(last, last - 1);
    dir.file("other.txt", tokens.join("\n") + "\nmore\n");
    prepare(&dir, "other.txt", "domain");
    let text = std::fs::read_to_string(dir.config(8, 1)).unwrap();
    let config = dir.file("domain.toml", text.replace(&dir.path("data/train"), &dir.path("domain/train")));
    let start = |more: &[&str]| {
        let start = ["run", "--config", &config, "--run", &dir.path("refused"), "--from", &checkpoint];
        run(&[&start[..], more].concat())
    };
    let ran = start(&[]);
    let why = format!("does not extend that of {base}: its token {} is", last - 1);
    assert!(ran.code == 2 && ran.err.contains(&why), "{}", ran.err);

    dir.file("other.txt", vocabulary + "more\n");
    std::fs::remove_dir_all(dir.path("domain")).unwrap();
    prepare(&dir, "other.txt", "domain");
    let ran = start(&["--with-optimizer"]);
    assert!(ran.code == 2 && ran.err.contains("new tokens have no moments"), "{}", ran.err);
    assert!(!std::path::Path::new(&dir.path("refused")).exists());
}
