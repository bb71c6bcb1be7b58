//! Tokenization: reads the input files on any number of threads and writes tokenized documents to spill files.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::job::JobContext;
use super::rejected::RejectedItem;
use super::spill::{FinishedBatch, FinishedFile, SourceTotals, SpillBuffer};
use super::{PrepError, PrepProgress, PrepStatus, corpus};
use crate::extract::Extracted;
use crate::record::{DocumentId, ids};
use crate::sentences;
use crate::source::{BatchQueue, DocumentBatch, SkipNotice, SourceFile, WorkPart, extract, is_read_by};
use lambert_config::prep::Pair;
use lambert_dataset::tokenizer::Encoder;

/// Longest time between two writes of tokenized documents to disk. It limits the work that is lost if the process is
/// killed.
const MAX_UNSAVED: Duration = Duration::from_secs(10);
/// Largest number of tokens per sentence. Longer sentences are split.
const MAX_SENTENCE_TOKENS: usize = 1024;

/// Tokenizes every batch of this part that is not yet in a spill file.
pub fn run(job: &JobContext<'_>, part: WorkPart, threads: usize, progress: &dyn PrepProgress) -> Result<(), PrepError> {
    let spill_files = job.spill_files()?;
    let batches = || spill_files.iter().flat_map(|spill_file| &spill_file.contents.batches);
    let done: HashMap<(u32, u32), u64> = batches().map(|batch| ((batch.file, batch.number), batch.digest)).collect();
    let complete = complete_files(batches());
    corpus::check_unchanged(job, &spill_files, &complete, threads)?;
    let remaining: Vec<&SourceFile> =
        job.files.iter().filter(|file| is_read_by(file, part) && !complete.contains(&file.number)).collect();
    let total = remaining.iter().map(|file| file.bytes).sum();
    let (files, bytes, batches_kept) = (remaining.len(), total, done.len());
    tracing::debug!(files, bytes, batches_kept, "tokenizing");
    let batches = BatchQueue::new(&job.sources, remaining, done, part, job.memory.decompressor_window());
    let task =
        TokenizeTask { job, part, batches, total, should_stop: AtomicBool::new(false), text_bytes: AtomicU64::new(0) };
    let results: Vec<Result<(), PrepError>> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| task.run_worker(job.memory.spill_buffer(), progress))).collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    results.into_iter().collect()
}

/// Returns the numbers of the files whose batches are all in `batches`.
fn complete_files<'a>(batches: impl Iterator<Item = &'a FinishedBatch>) -> HashSet<u32> {
    let mut found: HashMap<u32, (u32, Option<u32>)> = HashMap::new();
    for batch in batches {
        let entry = found.entry(batch.file).or_default();
        entry.0 += 1;
        if batch.is_last {
            entry.1 = Some(batch.number + 1);
        }
    }
    found.into_iter().filter(|(_, (count, of))| Some(*count) == *of).map(|(file, _)| file).collect()
}

struct TokenizeTask<'a> {
    job: &'a JobContext<'a>,
    part: WorkPart,
    batches: BatchQueue<'a>,
    total: u64,
    should_stop: AtomicBool,
    text_bytes: AtomicU64,
}

impl TokenizeTask<'_> {
    fn run_worker(&self, buffer_bytes: usize, progress: &dyn PrepProgress) -> Result<(), PrepError> {
        let result = self.process_batches(buffer_bytes, progress);
        if result.is_err() {
            self.should_stop.store(true, Ordering::Relaxed);
        }
        result
    }

    fn process_batches(&self, buffer_bytes: usize, progress: &dyn PrepProgress) -> Result<(), PrepError> {
        let samples = &self.job.config.samples;
        let has_signatures = self.job.config.documents.remove_near_duplicates > 0.0;
        let mut spill =
            SpillBuffer::new(samples.seed, samples.held_out, ids::width(self.job.tokenizer.size()), has_signatures);
        let mut encoder = DocumentEncoder::new(self.job);
        let mut open_file = Default::default();
        let mut written = Instant::now();
        let spill_folder = self.job.spill_folder();
        while !self.should_stop.load(Ordering::Relaxed) {
            let Some(batch) = self.batches.next(&mut open_file)? else { break };
            self.encode(&batch, &mut encoder, &mut spill, progress)?;
            self.report(&batch, progress);
            if spill.len() >= buffer_bytes || written.elapsed() >= MAX_UNSAVED {
                self.write(&mut spill, &spill_folder)?;
                written = Instant::now();
            }
        }
        if spill.is_empty() { Ok(()) } else { self.write(&mut spill, &spill_folder) }
    }

    fn write(&self, spill: &mut SpillBuffer, folder: &Path) -> Result<(), PrepError> {
        self.job.tokenizer.check()?;
        spill.write_file(folder, self.part)
    }

    fn encode(
        &self,
        batch: &DocumentBatch,
        encoder: &mut DocumentEncoder<'_>,
        spill: &mut SpillBuffer,
        progress: &dyn PrepProgress,
    ) -> Result<(), PrepError> {
        let file = &self.job.files[batch.file as usize];
        let source = &self.job.sources[file.source];
        encoder.is_excluded = file.source >= self.job.config.source.len();
        let before = spill.totals();
        for raw in &batch.documents {
            let id = DocumentId { file: batch.file, ordinal: raw.ordinal };
            let item = || RejectedItem::with_document(batch.file, raw);
            let extracted = extract(source, file, raw, &mut |reason| {
                spill.reject(reason, 1, batch.file, raw.offset, item);
                progress.skipped(&file.name, &SkipNotice::new(reason, raw.offset));
            })?;
            match extracted {
                Extracted::Rejected(_) if encoder.is_excluded => {}
                Extracted::Rejected(reason) => spill.reject(reason, 1, batch.file, raw.offset, item),
                Extracted::Text(text) => encoder.push(id, raw.offset, &text, false, spill),
                Extracted::Sentences(text) => encoder.push(id, raw.offset, &text, true, spill),
            }
        }
        let mut kept = spill.totals();
        kept -= before;
        let found = batch.documents.len() as u64;
        spill.add_source_totals(file.source, SourceTotals { text_bytes: batch.bytes() as u64, found, kept });
        for notice in &batch.notices {
            let item = || RejectedItem::with_notice(batch.file, notice);
            spill.reject(notice.reason, 1, batch.file, notice.offset, item);
            progress.skipped(&file.name, notice);
        }
        if batch.is_assigned {
            let (file, number, is_last, digest) = (batch.file, batch.number, batch.is_last, batch.digest());
            spill.add_finished_batch(FinishedBatch { file, number, is_last, digest });
        }
        if let Some(sha256) = &batch.sha256 {
            spill.add_finished_file(FinishedFile {
                file: batch.file,
                sha256: sha256.clone(),
                stamp: file.stamp.clone(),
            });
        }
        Ok(())
    }

    fn report(&self, batch: &DocumentBatch, progress: &dyn PrepProgress) {
        let bytes = batch.bytes() as u64;
        let text_bytes = self.text_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        progress.update(&PrepStatus {
            phase: "tokenizing",
            source: Some(self.job.files[batch.file as usize].source),
            done: self.batches.bytes_read(),
            total: self.total,
            unit: "bytes",
            text_bytes,
        });
    }
}

/// Tokenizes documents.
struct DocumentEncoder<'a> {
    encoder: Encoder<'a>,
    minimum_tokens: usize,
    pair: Pair,
    is_excluded: bool,
    /// Number of sentences of the current document that were split.
    split_sentences: u64,
    tokens: Vec<u32>,
    lengths: Vec<u16>,
}

impl<'a> DocumentEncoder<'a> {
    fn new(job: &'a JobContext<'_>) -> Self {
        let (encoder, minimum_tokens) = (job.tokenizer.encoder(), job.config.documents.minimum_tokens);
        Self {
            encoder,
            minimum_tokens,
            pair: job.config.samples.pair,
            is_excluded: false,
            split_sentences: 0,
            tokens: Vec::new(),
            lengths: Vec::new(),
        }
    }

    fn push(&mut self, id: DocumentId, offset: u64, text: &str, is_sentence_per_line: bool, spill: &mut SpillBuffer) {
        self.tokens.clear();
        self.lengths.clear();
        self.split_sentences = 0;
        let mut found = Vec::new();
        for paragraph in text.lines() {
            if is_sentence_per_line {
                self.push_sentence(paragraph, true);
                continue;
            }
            found.clear();
            sentences::split(paragraph, &mut found);
            for (sentence, follows_space) in found.iter().zip(sentences::spaces_before(paragraph, &found)) {
                self.push_sentence(sentence, follows_space);
            }
        }
        let mut reject = |reason: &str, count: u64| {
            spill.reject(reason, count, id.file, offset, || RejectedItem::with_text(id.file, offset, text));
        };
        if self.split_sentences > 0 && !self.is_excluded {
            reject("sentences: of over 1024 tokens, cut", self.split_sentences);
        }
        if self.tokens.is_empty() {
            reject("documents: without a sentence", 1);
        } else if self.tokens.len() < self.minimum_tokens && !self.is_excluded {
            reject("documents: too short", 1);
        } else if self.pair == Pair::Sop && self.lengths.len() == 1 && !self.is_excluded {
            reject("documents: of one sentence, which has no order", 1);
        } else {
            spill.push(id, &self.lengths, &self.tokens, self.is_excluded);
        }
    }

    /// Appends a sentence. `follows_space`: it does not touch the sentence before it, as it does in Chinese.
    fn push_sentence(&mut self, sentence: &str, follows_space: bool) {
        let ids = match (self.tokens.is_empty(), follows_space) {
            (true, _) => self.encoder.encode(sentence),
            (false, true) => self.encoder.encode_next(sentence),
            (false, false) => self.encoder.encode_joined(sentence),
        };
        self.split_sentences += u64::from(ids.len() > MAX_SENTENCE_TOKENS);
        for ids in ids.chunks(MAX_SENTENCE_TOKENS) {
            self.lengths.push(ids.len() as u16);
            self.tokens.extend_from_slice(ids);
        }
    }
}
