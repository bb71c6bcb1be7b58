//! Throughput in MB/s of each stage of a preparation job and of whole preparation jobs, on the development corpora:
//! `cargo bench --workspace --bench stages`.
//!
//! Prints one line per stage: megabytes (10^6) of text or XML, median seconds per round, MB/s. A stage runs on one
//! thread, unless its name contains a number of threads. Each of the `LAMBERT_BENCH_ROUNDS` rounds (default 3) runs all
//! stages, so that a busy machine slows all stages alike.
#![allow(clippy::unwrap_used)] // A panic is a bench's report.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use lambert_config::PrepConfig;
use lambert_config::prep::Source;
use lambert_data_prep::extract::Extracted;
use lambert_data_prep::prep::{self, PrepOptions, PrepStatus};
use lambert_data_prep::sentences;
use lambert_data_prep::source::{self, RawDocument, SourceFile};
use lambert_data_prep::vocab::{self, VocabSettings};
use lambert_dataset::tokenizer::{Tokenizer, TokenizerModel};

struct Corpus {
    source: Source,
    raw: Vec<(Arc<SourceFile>, RawDocument)>,
    text: Vec<String>,
}

impl Corpus {
    fn new(path: &Path, format: &str) -> Self {
        let source = Source { path: path.display().to_string(), format: format.into(), ..Source::default() };
        let mut corpus = Self { source, raw: Vec::new(), text: Vec::new() };
        corpus.read();
        corpus.text = corpus.extract();
        corpus
    }

    fn read(&mut self) {
        self.raw.clear();
        for file in source::find_files(std::slice::from_ref(&self.source), 1).unwrap() {
            let mut reader = source::open_reader(&self.source, &file, Arc::default()).unwrap();
            let file = Arc::new(file);
            while let Some(document) = reader.next().unwrap() {
                self.raw.push((file.clone(), document));
            }
        }
    }

    fn extract(&self) -> Vec<String> {
        let extracted =
            self.raw.iter().map(|(file, raw)| source::extract(&self.source, file, raw, &mut |_| {}).unwrap());
        extracted.filter_map(|found| if let Extracted::Text(text) = found { Some(text) } else { None }).collect()
    }

    fn sentences(&self) -> Vec<&str> {
        let mut found = Vec::new();
        self.text.iter().flat_map(|text| text.lines()).for_each(|line| sentences::split(line, &mut found));
        found
    }

    fn raw_bytes(&self) -> usize {
        self.raw.iter().map(|(_, raw)| raw.bytes.len()).sum()
    }
}

/// Number of copies of the corpus in a whole preparation job. With several copies, the startup time is negligible.
const COPIES: usize = 4;

/// Start time of each phase of a preparation job.
type Phases = Mutex<Vec<(&'static str, Instant)>>;

fn whole(source: &Source, vocabulary: &Path, threads: usize, phases: &Phases) {
    let folder = tempfile::tempdir().unwrap();
    let mut config = PrepConfig { source: vec![source.clone(); COPIES], ..PrepConfig::default() };
    config.output.url = folder.path().join("data").display().to_string();
    config.vocabulary.file = vocabulary.display().to_string();
    // The corpus has only a few dozen documents. So a held-out split would contain about a tenth of the text, all in
    // one shard.
    config.samples.held_out = 0.0;
    *phases.lock().unwrap() = vec![("tokenizing", Instant::now())];
    let progress = |status: &PrepStatus| {
        let mut phases = phases.lock().unwrap();
        if phases.iter().all(|(name, _)| *name != status.phase) {
            phases.push((status.phase, Instant::now()));
        }
    };
    prep::run(&config, &PrepOptions { threads, memory: prep::DEFAULT_MEMORY, part: None, progress: &progress })
        .unwrap();
    phases.lock().unwrap().push(("", Instant::now()));
}

/// Formats the share of each phase: `tokenizing 61 %, sampling 14 %, writing 25 %`.
fn shares(phases: &Phases) -> String {
    let phases = phases.lock().unwrap();
    let all = phases[phases.len() - 1].1.duration_since(phases[0].1).as_secs_f64();
    let share = |pair: &[(&str, Instant)]| {
        format!("{} {:.0} %", pair[0].0, 100.0 * pair[1].1.duration_since(pair[0].1).as_secs_f64() / all)
    };
    phases.windows(2).map(share).collect::<Vec<_>>().join(", ")
}

/// Trains a tokenizer of the size of BERT's. Returns its file, too.
fn trained(model: TokenizerModel, source: &Source, folder: &Path) -> (PathBuf, Tokenizer) {
    let settings = VocabSettings { model, lowercase: false, ..VocabSettings::default() };
    let start = Instant::now();
    let text = vocab::train(std::slice::from_ref(source), &settings).unwrap();
    println!("{model}: trained in {:.1} s", start.elapsed().as_secs_f64());
    let path = folder.join(format!("{model}.json"));
    std::fs::write(&path, &text).unwrap();
    (path, Tokenizer::from_vocab(text.as_bytes(), false).unwrap())
}

type Stage<'a> = (&'static str, usize, Box<dyn FnMut() + 'a>);

fn main() {
    let corpora = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpora");
    if !corpora.is_dir() {
        println!("SKIPPED: no development corpora at {}", corpora.display());
        return;
    }
    let rounds = std::env::var("LAMBERT_BENCH_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let books = Corpus::new(&corpora.join("books/en"), "text");
    let dump_file = corpora.join("wiki/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.xml.bz2");
    let wiki = Corpus::new(&dump_file, "wikipedia");
    let vocabulary = corpora.join("vocab/bert-base-uncased-vocab.txt");
    let tokenizer = Tokenizer::from_vocab_file(&vocabulary, true).unwrap();
    let mut encoder = tokenizer.encoder();
    let folder = tempfile::tempdir().unwrap();
    let [(bpe_file, bpe), (unigram_file, unigram)] =
        [TokenizerModel::Bpe, TokenizerModel::Unigram].map(|model| trained(model, &books.source, folder.path()));
    let (mut bpe_encoder, mut unigram_encoder) = (bpe.encoder(), unigram.encoder());
    let sentences = books.sentences();
    let mut again = Corpus { source: wiki.source.clone(), raw: Vec::new(), text: Vec::new() };
    let text_bytes = books.text.iter().map(String::len).sum();
    let (one, two, dump) = (Phases::default(), Phases::default(), Phases::default());
    let (one_bpe, one_unigram) = (Phases::default(), Phases::default());
    let mut stages: Vec<Stage<'_>> = vec![
        ("text: extract", books.raw_bytes(), Box::new(|| drop(books.extract()))),
        ("text: sentences", text_bytes, Box::new(|| drop(books.sentences()))),
        (
            "text: tokens",
            text_bytes,
            Box::new(|| {
                sentences.iter().for_each(|sentence| {
                    std::hint::black_box(encoder.encode(sentence).len());
                });
            }),
        ),
        (
            "text: tokens, BPE",
            text_bytes,
            Box::new(|| {
                sentences.iter().for_each(|sentence| {
                    std::hint::black_box(bpe_encoder.encode_next(sentence).len());
                });
            }),
        ),
        (
            "text: tokens, Unigram",
            text_bytes,
            Box::new(|| {
                sentences.iter().for_each(|sentence| {
                    std::hint::black_box(unigram_encoder.encode_next(sentence).len());
                });
            }),
        ),
        (
            "text: tokens, Unigram crate",
            text_bytes,
            Box::new(|| {
                sentences.iter().for_each(|sentence| {
                    std::hint::black_box(unigram.encode(sentence).len());
                });
            }),
        ),
        ("text: whole, BPE", COPIES * books.raw_bytes(), Box::new(|| whole(&books.source, &bpe_file, 1, &one_bpe))),
        (
            "text: whole, Unigram",
            COPIES * books.raw_bytes(),
            Box::new(|| whole(&books.source, &unigram_file, 1, &one_unigram)),
        ),
        ("text: whole, 1 thread", COPIES * books.raw_bytes(), Box::new(|| whole(&books.source, &vocabulary, 1, &one))),
        ("text: whole, 2 threads", COPIES * books.raw_bytes(), Box::new(|| whole(&books.source, &vocabulary, 2, &two))),
        ("dump: decompress, pages", wiki.raw_bytes(), Box::new(|| again.read())),
        ("dump: extract", wiki.raw_bytes(), Box::new(|| drop(wiki.extract()))),
        ("dump: whole, 1 thread", COPIES * wiki.raw_bytes(), Box::new(|| whole(&wiki.source, &vocabulary, 1, &dump))),
    ];
    let mut seconds = vec![Vec::new(); stages.len()];
    for _ in 0..rounds {
        for ((_, _, run), seconds) in stages.iter_mut().zip(&mut seconds) {
            let start = Instant::now();
            run();
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    println!("{:<28} {:>8} {:>8} {:>8}", "stage", "MB", "s", "MB/s");
    for ((name, bytes, _), seconds) in stages.iter().zip(&mut seconds) {
        seconds.sort_by(f64::total_cmp);
        let (megabytes, median) = (*bytes as f64 / 1e6, seconds[seconds.len() / 2]);
        println!("{name:<28} {megabytes:>8.1} {median:>8.2} {:>8.1}", megabytes / median);
    }
    let median = |name: &str| {
        let stage = stages.iter().position(|(stage, ..)| *stage == name).unwrap();
        seconds[stage][seconds[stage].len() / 2]
    };
    println!("2 threads / 1 thread: {:.2}", median("text: whole, 1 thread") / median("text: whole, 2 threads"));
    for (name, phases) in [("1 thread", &one), ("2 threads", &two), ("dump", &dump)] {
        println!("{name}: {}", shares(phases));
    }
}
