//! Embeddings and scores of texts: pooling, layers, padding, order, agreement with `fill-mask`, and wrong input.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{Float32Type, Int32Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use serde_json::Value;

use crate::support::{TestDir, copy, done, lambert, run};

const HIDDEN: usize = 32;

/// A row of the output of `lambert embed`.
#[derive(Debug)]
struct Row {
    text: String,
    tokens: i32,
    embedding: Vec<f32>,
}

fn rows(path: &str) -> Vec<Row> {
    let file = bytes::Bytes::from(std::fs::read(path).unwrap());
    let of_batch = |batch: RecordBatch| -> Vec<Row> {
        let (texts, tokens) = (batch.column(0).as_string::<i32>(), batch.column(1).as_primitive::<Int32Type>());
        let embeddings = batch.column(2).as_fixed_size_list();
        let row = |index: usize| Row {
            text: texts.value(index).to_owned(),
            tokens: tokens.value(index),
            embedding: embeddings.value(index).as_primitive::<Float32Type>().values().to_vec(),
        };
        (0..batch.num_rows()).map(row).collect()
    };
    ParquetRecordBatchReader::try_new(file, 1000).unwrap().flat_map(|batch| of_batch(batch.unwrap())).collect()
}

fn distance(one: &[f32], other: &[f32]) -> f32 {
    assert_eq!(one.len(), other.len());
    one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Trains a tiny model. Returns its run and some sentences of the corpus.
fn trained(dir: &TestDir) -> (String, Vec<String>) {
    let url = dir.path("run");
    done(&["run", "--config", &dir.config(8, 1), "--run", &url]);
    let corpus = std::fs::read_to_string(dir.path("corpus.txt")).unwrap();
    let sentences: Vec<String> = corpus.lines().filter(|line| !line.is_empty()).take(300).map(str::to_owned).collect();
    (url, sentences)
}

#[test]
fn embeddings_do_not_depend_on_the_other_texts() {
    let dir = TestDir::new();
    let (url, mut texts) = trained(&dir);
    // An empty text, and one with more tokens than the model has positions.
    texts.insert(1, String::new());
    texts.insert(2, texts[0].repeat(40));
    let embed = |name: &str, texts: &[String], more: &[&str]| {
        let (input, output) = (dir.file("texts.txt", texts.join("\n") + "\n"), dir.path(&format!("{name}.parquet")));
        let said = done(&[&["embed", &url, "--input", &input, "--output", &output], more].concat());
        (said, rows(&output))
    };
    let (said, all) = embed("all", &texts, &[]);
    assert!(
        said.contains("wrote 302 embeddings of 32 elements; 1 texts were truncated to the model's maximum length"),
        "{said}"
    );
    assert!(all.iter().map(|row| &row.text).eq(&texts));
    assert_eq!((all[1].tokens, all[2].tokens), (0, 62));
    for index in [0, 1, 2, 17, 301] {
        let (_, one) = embed("one", &texts[index..=index], &[]);
        let difference = distance(&one[0].embedding, &all[index].embedding);
        assert!(difference < 1e-5, "text {index}: {difference:e}");
    }
    assert!(distance(&all[0].embedding, &all[17].embedding) > 1e-3);

    let some = &texts[..8];
    let (_, mean) = embed("mean", some, &["--layer", "2"]);
    let (_, cls) = embed("cls", some, &["--pooling", "cls"]);
    let (_, lower) = embed("lower", some, &["--layer", "0"]);
    for (index, last) in all[..8].iter().enumerate() {
        assert!(distance(&mean[index].embedding, &last.embedding) < 1e-5, "layer 2 is the last one");
        assert_eq!(cls[index].embedding.len(), HIDDEN);
        assert!(distance(&cls[index].embedding, &last.embedding) > 1e-3);
        assert!(distance(&lower[index].embedding, &last.embedding) > 1e-3);
    }
    // Without context, the state of [CLS] is the same in all texts.
    let (_, first) = embed("first", some, &["--layer", "0", "--pooling", "cls"]);
    assert!(first.iter().all(|row| distance(&row.embedding, &first[0].embedding) < 1e-6));
}

#[test]
fn scores_are_those_of_single_masks() {
    let dir = TestDir::new();
    let (url, texts) = trained(&dir);
    // A text of whole tokens, so that a mask can be in the place of each.
    let vocabulary = std::fs::read_to_string(dir.path("vocab.txt")).unwrap();
    let is_word = |line: &&str| line.len() > 2 && line.chars().all(|letter| letter.is_ascii_lowercase());
    let tokens: Vec<&str> = vocabulary.lines().filter(is_word).take(6).collect();
    let text = tokens.join(" ");
    let input = dir.file("texts.txt", format!("{text}\n\n{}\n", texts[1]));
    let scored = done(&["score", &url, "--input", &input, "--json"]);
    let scores: Vec<Value> = scored.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(scores.len(), 3);
    assert_eq!((&scores[1]["tokens"], &scores[1]["log_likelihood"]), (&0.into(), &0.0.into()));
    assert!(tokens.len() == 6 && scores[0]["tokens"] == 6, "{tokens:?}");
    let mut sum = 0.0;
    for position in 0..tokens.len() {
        let masked: Vec<&str> =
            tokens.iter().enumerate().map(|(index, token)| if index == position { "[MASK]" } else { token }).collect();
        let guesses = done(&["fill-mask", &url, &masked.join(" "), "--top", "300", "--json"]);
        let guesses: Value = serde_json::from_str(&guesses).unwrap();
        let found = guesses[0].as_array().unwrap().iter().find(|guess| guess["piece"] == tokens[position]).unwrap();
        sum += found["probability"].as_f64().unwrap().ln();
    }
    let score = scores[0]["log_likelihood"].as_f64().unwrap();
    assert!((score - sum).abs() < 1e-4, "{score} {sum}");
    let plain = run(&["score", &url, "--input", &input]);
    let first = format!("{score:.4}\t{:.4}\t{}\t{}", score / tokens.len() as f64, tokens.len(), text);
    assert_eq!(plain.out.lines().next(), Some(first.as_str()));
    assert!(plain.err.contains("pseudo-perplexity"), "{}", plain.err);
}

/// Embeddings and scores are compared with the exported model. An evaluation is compared with those of the training.
#[test]
fn texts_are_computed_in_fp32_and_evaluations_in_the_precision_of_the_run() {
    let dir = TestDir::new();
    let url = dir.path("run");
    done(&["run", "--config", &dir.config(8, 1), "--run", &url, "--set", "model.precision=bf16"]);
    let copied = dir.path("fp32");
    copy(Path::new(&url), Path::new(&copied));
    let config = std::fs::read_to_string(dir.path("fp32/run.toml")).unwrap();
    assert!(config.contains("precision = \"bf16\""), "{config}");
    dir.file("fp32/run.toml", config.replace("precision = \"bf16\"", "precision = \"fp32\""));
    let corpus = std::fs::read_to_string(dir.path("corpus.txt")).unwrap();
    let input = dir.file(
        "texts.txt",
        corpus.lines().filter(|line| !line.is_empty()).take(20).fold(String::new(), |all, line| all + line + "\n"),
    );
    let results = [&url, &copied].map(|url| {
        let output = dir.path("out.parquet");
        done(&["embed", url, "--input", &input, "--output", &output]);
        let embeddings: Vec<Vec<f32>> = rows(&output).into_iter().map(|row| row.embedding).collect();
        let score = done(&["score", url, "--input", &input, "--json"]);
        let masks = done(&["fill-mask", url, "the [MASK] sees the star .", "--json"]);
        let evaluation = done(&["eval", url, "--data", &dir.path("data/held-out"), "--json"]);
        (embeddings, score, masks, evaluation)
    });
    let [run, copied] = results;
    assert_eq!((run.0, run.1, run.2), (copied.0, copied.1, copied.2));
    assert_ne!(run.3, copied.3);
}

/// The output never replaces the input, by whatever name.
#[test]
fn an_output_that_is_the_input_is_refused() {
    let dir = TestDir::new();
    let url = dir.path("absent");
    let text = "the star sees the bird .\n";
    let input = dir.file("texts.txt", text);
    let link = dir.path("link.txt");
    std::os::unix::fs::symlink("texts.txt", &link).unwrap();
    for output in [&input, &link] {
        for found in [
            run(&["embed", &url, "--input", &input, "--output", output]),
            run(&["vocab", "--input", &input, "--size", "100", "--output", output]),
        ] {
            assert!(found.code == 2 && found.err.contains("choose another --output"), "{} {}", found.code, found.err);
        }
        let mut command = Command::new(lambert());
        command.args(["embed", &url, "--input", "-", "--output", output]).stdin(File::open(&input).unwrap());
        assert_eq!(command.status().unwrap().code(), Some(2));
    }
    assert_eq!(std::fs::read_to_string(&input).unwrap(), text);
}

#[test]
fn wrong_input_is_refused_by_name() {
    let dir = TestDir::new();
    let (url, texts) = trained(&dir);
    let (input, output) = (dir.file("texts.txt", &texts[0]), dir.path("out.parquet"));
    let embed = |input: &str, output: &str, more: &[&str]| {
        run(&[&["embed", &url, "--input", input, "--output", output], more].concat())
    };
    for (found, code, message) in [
        (embed("/nowhere.txt", &output, &[]), 2, "cannot read /nowhere.txt"),
        (embed(&input, "/dev/null/out.parquet", &[]), 1, "cannot create /dev/null/out.parquet"),
        (embed(&input, &output, &["--layer", "3"]), 2, "--layer 3: the model has 2 layers"),
        (embed(&input, &output, &["--layer", "last-four"]), 2, "the model has 2 layers, expected at least 4"),
        (embed(&input, &output, &["--layer", "top"]), 2, "expected last, last-four or the number of a layer"),
        (run(&["score", &url, "--input", "/nowhere.txt"]), 2, "cannot read /nowhere.txt"),
    ] {
        assert!(found.code == code && found.err.contains(message), "{message}: {} {}", found.code, found.err);
    }
    assert!(!Path::new(&output).exists());
    let invalid = dir.file("invalid.txt", b"the bird\nthe star\xff\xfe sees .\n");
    let message = "invalid.txt, line 2, byte 9: invalid UTF-8; expected one text per line, in UTF-8";
    for found in [embed(&invalid, &output, &[]), run(&["score", &url, "--input", &invalid])] {
        assert!(found.code == 2 && found.err.contains(message), "{} {}", found.code, found.err);
    }
    assert!(!Path::new(&output).exists());
    // A byte-order mark, a line of a control character, and no final line break.
    let odd = dir.file("odd.txt", b"\xef\xbb\xbfthe star sees .\r\n\x00 the");
    assert_eq!(embed(&odd, &output, &[]).code, 0);
    assert_eq!(rows(&output).iter().map(|row| row.text.as_str()).collect::<Vec<_>>(), ["the star sees .", "\0 the"]);
    assert_eq!(embed(&dir.path(""), &output, &[]).code, 2);
}
