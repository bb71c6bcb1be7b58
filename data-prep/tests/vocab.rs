//! Vocabulary training yields the same result for any number of threads and in every process. This is tested because
//! hash tables have a different order in every process.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{corpora, generated, source};
use lambert_config::prep::{Documents, Source};
use lambert_data_prep::vocab::{VocabSettings, train};

const FOLDER: &str = "LAMBERT_TEST_VOCAB_FOLDER";
const OUTPUT: &str = "LAMBERT_TEST_VOCAB_OUTPUT";

/// The generated text. If the development corpora are available, also German and Japanese novels.
fn sources(folder: &Path) -> Vec<Source> {
    let mut sources = vec![source(&folder.join("corpus.txt"), "text", Documents::BlankLine)];
    if let Some(corpora) = corpora() {
        let books = ["books/de/goethe_werther.txt", "books/ja"].map(|name| corpora.join(name));
        sources.extend(books.iter().map(|path| source(path, "text", Documents::File)));
    }
    sources
}

/// Child process of the test below. It does nothing if the test runner runs it directly.
#[test]
fn child() {
    if let (Some(folder), Some(output)) = (std::env::var_os(FOLDER), std::env::var_os(OUTPUT)) {
        // Many pairs have equal frequency, and the text has more characters than the alphabet limit.
        let settings = VocabSettings { size: 3_000, limit_alphabet: Some(900), ..VocabSettings::default() };
        std::fs::write(output, train(&sources(Path::new(&folder)), &settings).unwrap()).unwrap();
    }
}

#[test]
fn the_vocabulary_does_not_depend_on_threads_or_processes() {
    let folder = tempfile::tempdir().unwrap();
    generated(folder.path(), 1_500);
    let trained: Vec<String> = ["1", "2", "2", "5"]
        .into_iter()
        .enumerate()
        .map(|(number, threads)| {
            let output = folder.path().join(number.to_string());
            let status = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "vocab::child", "--test-threads=1"])
                .envs([(FOLDER, folder.path()), (OUTPUT, output.as_path())])
                .env("RAYON_NUM_THREADS", threads)
                .stdout(Stdio::null())
                .status();
            assert!(status.unwrap().success());
            std::fs::read_to_string(output).unwrap()
        })
        .collect();
    assert!(trained[0].lines().count() > 500, "{}", trained[0].lines().count());
    trained.iter().for_each(|other| assert!(*other == trained[0]));
    // All lines are distinct, and the special tokens come first.
    let lines: std::collections::BTreeSet<&str> = trained[0].lines().collect();
    assert_eq!(lines.len(), trained[0].lines().count());
    assert!(trained[0].starts_with("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"));
}
