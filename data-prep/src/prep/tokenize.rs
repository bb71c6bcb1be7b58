//! The first half of a preparation: files to documents of token ids in the work folder, on any number of threads.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::job::Job;
use super::spill::{DoneBatch, ReadFile, SourceTotals, Spill};
use super::{PrepError, Progress, Status, corpus};
use crate::extract::Extracted;
use crate::record::{DocumentId, ids};
use crate::sentences;
use crate::source::{Batch, Batches, Note, Part, SourceFile, extract, is_read_by};
use lambert_dataset::tokenizer::Encoder;

/// How long a thread's work may stay in memory only: what a kill can cost.
const LONGEST: Duration = Duration::from_secs(10);
/// A sentence of more tokens is cut into several.
const LONGEST_SENTENCE: usize = 1024;

/// Tokenizes every batch of this part that no run file holds yet.
pub fn run(job: &Job<'_>, part: Part, threads: usize, progress: &dyn Progress) -> Result<(), PrepError> {
    let runs = job.runs()?;
    let batches = || runs.iter().flat_map(|run| &run.contents.batches);
    let done: HashMap<(u32, u32), u64> = batches().map(|batch| ((batch.file, batch.number), batch.digest)).collect();
    let complete = complete_files(batches());
    corpus::check_unchanged(job, &runs, &complete, threads)?;
    let left: Vec<&SourceFile> =
        job.files.iter().filter(|file| is_read_by(file, part) && !complete.contains(&file.number)).collect();
    let total = left.iter().map(|file| file.bytes).sum();
    let (files, bytes, batches_kept) = (left.len(), total, done.len());
    tracing::debug!(files, bytes, batches_kept, "tokenizing");
    let batches = Batches::new(&job.sources, left, done, part, job.memory.window());
    let shared = Shared { job, part, batches, total, stop: AtomicBool::new(false), text: AtomicU64::new(0) };
    let results: Vec<Result<(), PrepError>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(|| shared.work(job.memory.kept(), progress))).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    results.into_iter().collect()
}

/// Files all of whose batches are among `batches`.
fn complete_files<'a>(batches: impl Iterator<Item = &'a DoneBatch>) -> HashSet<u32> {
    let mut found: HashMap<u32, (u32, Option<u32>)> = HashMap::new();
    for batch in batches {
        let entry = found.entry(batch.file).or_default();
        entry.0 += 1;
        if batch.last {
            entry.1 = Some(batch.number + 1);
        }
    }
    found.into_iter().filter(|(_, (count, of))| Some(*count) == *of).map(|(file, _)| file).collect()
}

struct Shared<'a> {
    job: &'a Job<'a>,
    part: Part,
    batches: Batches<'a>,
    total: u64,
    stop: AtomicBool,
    text: AtomicU64,
}

impl Shared<'_> {
    fn work(&self, kept: usize, progress: &dyn Progress) -> Result<(), PrepError> {
        let result = self.batches_until_the_end(kept, progress);
        if result.is_err() {
            self.stop.store(true, Ordering::Relaxed);
        }
        result
    }

    fn batches_until_the_end(&self, kept: usize, progress: &dyn Progress) -> Result<(), PrepError> {
        let samples = &self.job.config.samples;
        let signed = self.job.config.documents.remove_near_duplicates > 0.0;
        let mut spill = Spill::new(samples.seed, samples.held_out, ids::width(self.job.tokenizer.size()), signed);
        let mut encoder = Documents::new(self.job);
        let mut place = Default::default();
        let mut written = Instant::now();
        let runs = self.job.runs_folder();
        while !self.stop.load(Ordering::Relaxed) {
            let Some(batch) = self.batches.next(&mut place)? else { break };
            self.encode(&batch, &mut encoder, &mut spill, progress)?;
            self.report(&batch, progress);
            if spill.len() >= kept || written.elapsed() >= LONGEST {
                self.write(&mut spill, &runs)?;
                written = Instant::now();
            }
        }
        if spill.is_empty() { Ok(()) } else { self.write(&mut spill, &runs) }
    }

    fn write(&self, spill: &mut Spill, folder: &Path) -> Result<(), PrepError> {
        self.job.tokenizer.check()?;
        spill.write(folder, self.part)
    }

    fn encode(
        &self,
        batch: &Batch,
        encoder: &mut Documents<'_>,
        spill: &mut Spill,
        progress: &dyn Progress,
    ) -> Result<(), PrepError> {
        let file = &self.job.files[batch.file as usize];
        let source = &self.job.sources[file.source];
        encoder.excluded = file.source >= self.job.config.source.len();
        let before = spill.totals();
        for raw in &batch.documents {
            let id = DocumentId { file: batch.file, ordinal: raw.ordinal };
            let extracted = extract(source, file, raw, &mut |what| {
                spill.reject(what, 1);
                progress.left_out(&file.name, &Note::new(what, raw.at));
            })?;
            match extracted {
                Extracted::Rejected(_) if encoder.excluded => {}
                Extracted::Rejected(reason) => spill.reject(reason, 1),
                Extracted::Text(text) => encoder.push(id, &text, false, spill),
                Extracted::Sentences(text) => encoder.push(id, &text, true, spill),
            }
        }
        let mut kept = spill.totals();
        kept -= before;
        let found = batch.documents.len() as u64;
        spill.count(file.source, SourceTotals { text_bytes: batch.bytes() as u64, found, kept });
        for note in &batch.notes {
            spill.reject(note.what, 1);
            progress.left_out(&file.name, note);
        }
        if batch.mine {
            let (file, number, last, digest) = (batch.file, batch.number, batch.last, batch.digest());
            spill.end_batch(DoneBatch { file, number, last, digest });
        }
        if let Some(sha256) = &batch.sha256 {
            spill.end_file(ReadFile { file: batch.file, sha256: sha256.clone(), stamp: file.stamp.clone() });
        }
        Ok(())
    }

    fn report(&self, batch: &Batch, progress: &dyn Progress) {
        let bytes = batch.bytes() as u64;
        let text = self.text.fetch_add(bytes, Ordering::Relaxed) + bytes;
        progress.update(&Status {
            phase: "tokenizing",
            source: Some(self.job.files[batch.file as usize].source),
            done: self.batches.bytes_read(),
            total: self.total,
            unit: "bytes",
            text_bytes: text,
        });
    }
}

/// Tokenizes documents one after another.
struct Documents<'a> {
    encoder: Encoder<'a>,
    minimum: usize,
    excluded: bool,
    /// Sentences that were cut.
    cut: u64,
    tokens: Vec<u32>,
    lengths: Vec<u16>,
}

impl<'a> Documents<'a> {
    fn new(job: &'a Job<'_>) -> Self {
        let (encoder, minimum) = (job.tokenizer.encoder(), job.config.documents.minimum_tokens);
        Self { encoder, minimum, excluded: false, cut: 0, tokens: Vec::new(), lengths: Vec::new() }
    }

    fn push(&mut self, id: DocumentId, text: &str, is_split: bool, spill: &mut Spill) {
        self.tokens.clear();
        self.lengths.clear();
        self.cut = 0;
        let mut found = Vec::new();
        for paragraph in text.lines() {
            if is_split {
                self.sentence(paragraph);
                continue;
            }
            found.clear();
            sentences::split(paragraph, &mut found);
            found.iter().for_each(|sentence| self.sentence(sentence));
        }
        if self.cut > 0 && !self.excluded {
            spill.reject("sentences: of over 1024 tokens, cut", self.cut);
        }
        if self.tokens.is_empty() {
            spill.reject("documents: without a sentence", 1);
        } else if self.tokens.len() < self.minimum && !self.excluded {
            spill.reject("documents: too short", 1);
        } else {
            spill.push(id, &self.lengths, &self.tokens, self.excluded);
        }
    }

    fn sentence(&mut self, sentence: &str) {
        let ids = self.encoder.encode(sentence);
        self.cut += u64::from(ids.len() > LONGEST_SENTENCE);
        for ids in ids.chunks(LONGEST_SENTENCE) {
            self.lengths.push(ids.len() as u16);
            self.tokens.extend_from_slice(ids);
        }
    }
}
