//! Word counts of a corpus, by the words of a tokenization model.

use std::borrow::Cow;

use tokenizers::pipeline::{
    Normalizer, NormalizerChain, PipelineNormalizer, PipelinePreTokenizer, PipelineTokenizer, PreTokenizer,
    PreTokenizerScratch, Span,
};

use super::WordCounts;

/// Upper limit on the length of a word, bytes.
pub const MAX_WORD_BYTES: usize = 400;
/// Upper limit on the number of distinct words counted at a time. Above the limit, the rarest words are dropped.
const MAX_COUNTED_WORDS: usize = 8 << 20;

/// Splits lines into the words of a model, as its tokenizer does.
pub struct WordSplitter {
    /// Steps of the normalization.
    pub normalizers: Normalizers,
    /// Splitter of normalized lines.
    pub pre_tokenizer: PipelinePreTokenizer,
    /// If true, the second and later lines of a document have a space before them, which belongs to their first word.
    pub leading_space: bool,
    /// Treatment of words longer than [`MAX_WORD_BYTES`].
    pub long_words: LongWords,
    /// Spelling of a word in the tokens of the model.
    pub spelling: fn(&str) -> Cow<'_, str>,
}

/// Steps of a normalization.
pub enum Normalizers {
    /// These steps.
    Steps(Vec<PipelineNormalizer>),
    /// Those of a tokenizer.
    Of(PipelineTokenizer),
}

impl Normalizers {
    fn steps(&self) -> &[PipelineNormalizer] {
        match self {
            Self::Steps(steps) => steps,
            Self::Of(tokenizer) => tokenizer.get_normalizers(),
        }
    }
}

/// Treatment of long words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LongWords {
    /// They are not counted.
    Skip,
    /// They are cut into several words.
    Cut,
}

/// Counts the words of documents.
pub struct WordCounter {
    splitter: WordSplitter,
    scratch: PreTokenizerScratch,
    spans: Vec<Span>,
    /// The counts.
    pub counts: WordCounts,
}

impl WordCounter {
    /// Counter without words.
    pub fn new(splitter: WordSplitter) -> Self {
        Self { splitter, scratch: PreTokenizerScratch::default(), spans: Vec::new(), counts: WordCounts::new() }
    }

    /// Counts the words of a document.
    pub fn count_document(&mut self, text: &str) {
        if !self.splitter.leading_space {
            text.lines().for_each(|line| self.count_line(line));
            return;
        }
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        for (index, line) in lines.enumerate() {
            if index == 0 {
                self.count_line(line);
            } else {
                self.count_line(&format!(" {line}"));
            }
        }
    }

    fn count_line(&mut self, line: &str) {
        let Ok(line) = NormalizerChain(self.splitter.normalizers.steps()).normalize(line, 0) else { return };
        self.spans.clear();
        if self.splitter.pre_tokenizer.pre_tokenize(&line, &mut self.scratch, &mut self.spans).is_err() {
            return;
        }
        for span in &self.spans {
            let word = &line[span.range()];
            if word.len() > MAX_WORD_BYTES && self.splitter.long_words == LongWords::Skip {
                continue;
            }
            let mut rest = &*(self.splitter.spelling)(word);
            while !rest.is_empty() {
                let (word, after) = match self.splitter.long_words {
                    LongWords::Skip => (rest, ""),
                    LongWords::Cut => rest.split_at(rest.floor_char_boundary(MAX_WORD_BYTES)),
                };
                add(&mut self.counts, word, 1);
                rest = after;
            }
        }
        let mut min_count = 1;
        while self.counts.len() > MAX_COUNTED_WORDS {
            self.counts.retain(|_, count| *count > min_count);
            min_count += 1;
        }
    }
}

/// Adds `count` occurrences of `word`.
fn add(counts: &mut WordCounts, word: &str, count: u64) {
    match counts.get_mut(word) {
        Some(total) => *total += count,
        None => drop(counts.insert(word.to_owned(), count)),
    }
}
