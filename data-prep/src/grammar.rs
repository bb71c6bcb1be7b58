//! Synthetic corpora from a small probabilistic grammar.
//!
//! The next word is predictable from local context: determiners agree with nouns, nouns have typical adjectives, and
//! verbs have typical objects. It is also predictable from distant context. A document has one topic and one
//! protagonist. Verbs agree with their subject across a relative clause. The end of a sentence refers to its object.
//!
//! A bigram model alone has a loss that is more than 1.5 nats per word below that of the unigram baseline. The
//! generator reports the loss of the baseline.

mod words;

use std::collections::HashMap;
use std::io::{self, Write};

use serde::Serialize;

use lambert_dataset::random::{Key, Rng};
use words::{NAMES, TOPICS, Topic};

/// Statistics of a generated corpus.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GrammarReport {
    /// Number of documents. Blank lines separate documents.
    pub documents: u64,
    /// Number of sentences.
    pub sentences: u64,
    /// Number of words, including periods and commas.
    pub words: u64,
    /// Size of the text, bytes.
    pub bytes: u64,
    /// Number of distinct words.
    pub vocabulary: usize,
    /// Loss of the unigram baseline, nats per word.
    pub unigram_entropy: f64,
}

/// Writes `documents` documents to `output`. The output is a pure function of `seed`.
///
/// # Errors
/// Writing to `output` failed.
pub fn generate(output: impl Write, documents: u64, seed: u64) -> io::Result<GrammarReport> {
    generate_with(output, documents, seed, |_, _| {})
}

/// Like [`generate`], and calls `progress` after each document with the numbers of documents and bytes written so far.
///
/// # Errors
/// Writing to `output` failed.
pub fn generate_with(
    mut output: impl Write,
    documents: u64,
    seed: u64,
    mut progress: impl FnMut(u64, u64),
) -> io::Result<GrammarReport> {
    let mut counts: HashMap<&'static str, u64> = HashMap::new();
    let (mut sentences, mut bytes) = (0, 0);
    let mut text = String::new();
    for number in 0..documents {
        let mut document = DocumentGenerator::new(Key::new(seed).with(number).rng());
        text.clear();
        for _ in 0..document.rng.between(6, 16) {
            let sentence = document.sentence();
            sentence.iter().for_each(|word| *counts.entry(word).or_default() += 1);
            write_sentence(&sentence, &mut text);
            sentences += 1;
        }
        text.push('\n');
        bytes += text.len() as u64;
        output.write_all(text.as_bytes())?;
        progress(number + 1, bytes);
    }
    output.flush()?;
    let mut frequencies: Vec<u64> = counts.values().copied().collect();
    frequencies.sort_unstable();
    Ok(GrammarReport {
        documents,
        sentences,
        words: frequencies.iter().sum(),
        bytes,
        vocabulary: frequencies.len(),
        unigram_entropy: lambert_dataset::entropy(&frequencies),
    })
}

/// Appends a sentence as a capitalized line, without spaces before punctuation.
fn write_sentence(sentence: &[&str], text: &mut String) {
    for (index, word) in sentence.iter().enumerate() {
        if index == 0 {
            let (first, rest) = word.split_at(1);
            text.push_str(&first.to_uppercase());
            text.push_str(rest);
            continue;
        }
        if !matches!(*word, "." | ",") {
            text.push(' ');
        }
        if NAMES.iter().any(|(name, _)| name == word) {
            let (first, rest) = word.split_at(1);
            text.push_str(&first.to_uppercase());
            text.push_str(rest);
        } else {
            text.push_str(word);
        }
    }
    text.push('\n');
}

type Sentence = Vec<&'static str>;

/// Generates the sentences of one document.
struct DocumentGenerator {
    rng: Rng,
    topic: &'static Topic,
    protagonist: &'static str,
    pronoun: &'static str,
    /// Recurring possession of the protagonist, as an index into the nouns of the topic.
    thing: usize,
    place: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum GrammaticalNumber {
    Singular,
    Plural,
}

impl DocumentGenerator {
    fn new(mut rng: Rng) -> Self {
        let topic = &TOPICS[rng.below(TOPICS.len() as u64) as usize];
        let (protagonist, pronoun) = NAMES[rng.below(NAMES.len() as u64) as usize];
        let thing = rng.below(topic.nouns.len() as u64) as usize;
        let place = topic.places[rng.below(topic.places.len() as u64) as usize];
        Self { rng, topic, protagonist, pronoun, thing, place }
    }

    fn sentence(&mut self) -> Sentence {
        let mut words = Vec::new();
        match self.rng.below(5) {
            0 => self.simple(&mut words),
            1 => self.relative_clause(&mut words),
            2 => self.possessive(&mut words),
            3 => self.coreference(&mut words),
            _ => self.reported_speech(&mut words),
        }
        words.push(".");
        words
    }

    /// "These old boats carry the heavy nets in the harbour."
    fn simple(&mut self, words: &mut Sentence) {
        let number = self.number();
        let noun = self.noun();
        self.noun_phrase(noun, number, words);
        self.predicate(number, words);
        self.location_phrase(words);
    }

    /// "The captain that the sailors follow hauls the net." The verb agrees with the first noun.
    fn relative_clause(&mut self, words: &mut Sentence) {
        let (outer, inner) = (self.number(), self.number());
        let (subject, other) = (self.noun(), self.noun());
        self.noun_phrase(subject, outer, words);
        words.push("that");
        self.noun_phrase(other, inner, words);
        let verb = self.verb();
        words.push(self.topic.verb(verb, inner == GrammaticalNumber::Singular));
        self.predicate(outer, words);
    }

    /// "In the harbour, Anna mends her net."
    fn possessive(&mut self, words: &mut Sentence) {
        words.extend(["in", "the", self.place, ","]);
        words.push(self.protagonist);
        let verb = self.verb();
        words.push(self.topic.verb(verb, true));
        words.push(if self.pronoun == "she" { "her" } else { "his" });
        words.push(self.topic.noun(self.thing, true));
    }

    /// "Anna sees this boat, and then she hauls the boat."
    fn coreference(&mut self, words: &mut Sentence) {
        let number = self.number();
        let noun = self.noun();
        words.extend([self.protagonist, "sees"]);
        self.noun_phrase(noun, number, words);
        words.extend([",", "and", "then", self.pronoun]);
        let verb = self.verb();
        words.extend([
            self.topic.verb(verb, true),
            "the",
            self.topic.noun(noun, number == GrammaticalNumber::Singular),
        ]);
    }

    /// "Anna says that many sailors follow the captain."
    fn reported_speech(&mut self, words: &mut Sentence) {
        let number = self.number();
        words.extend([self.protagonist, "says", "that"]);
        let noun = self.noun();
        self.noun_phrase(noun, number, words);
        self.predicate(number, words);
    }

    /// Appends a verb and an object, usually the object that is typical of the verb.
    fn predicate(&mut self, number: GrammaticalNumber, words: &mut Sentence) {
        let verb = self.verb();
        words.push(self.topic.verb(verb, number == GrammaticalNumber::Singular));
        let nouns = self.topic.nouns.len();
        let object = if self.rng.chance(0.8) { verb % nouns } else { self.noun() };
        let number = self.number();
        self.noun_phrase(object, number, words);
    }

    fn noun_phrase(&mut self, noun: usize, number: GrammaticalNumber, words: &mut Sentence) {
        let is_singular = number == GrammaticalNumber::Singular;
        let determiners = if is_singular { ["the", "this", "every"] } else { ["the", "these", "many"] };
        words.push(determiners[self.rng.below(3) as usize]);
        if self.rng.chance(0.5) {
            let adjectives = self.topic.adjectives.len();
            let usual = noun % adjectives;
            let other = self.rng.below(adjectives as u64) as usize;
            words.push(self.topic.adjectives[if self.rng.chance(0.8) { usual } else { other }]);
        }
        words.push(self.topic.noun(noun, is_singular));
    }

    fn location_phrase(&mut self, words: &mut Sentence) {
        if self.rng.chance(0.6) {
            words.extend(["in", "the", self.place]);
        }
    }

    fn number(&mut self) -> GrammaticalNumber {
        if self.rng.chance(0.5) { GrammaticalNumber::Singular } else { GrammaticalNumber::Plural }
    }

    fn noun(&mut self) -> usize {
        self.rng.below(self.topic.nouns.len() as u64) as usize
    }

    fn verb(&mut self) -> usize {
        self.rng.below(self.topic.verbs.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_text() {
        let text = |seed| {
            let mut bytes = Vec::new();
            let report = generate(&mut bytes, 50, seed).unwrap();
            (bytes, report)
        };
        assert_eq!(text(1), text(1));
        assert_ne!(text(1).0, text(2).0);
    }

    #[test]
    fn the_report_matches_the_text() {
        let mut bytes = Vec::new();
        let report = generate(&mut bytes, 400, 3).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert_eq!(report.bytes, text.len() as u64);
        assert_eq!(text.trim_end().split("\n\n").count() as u64, report.documents);
        assert_eq!(text.lines().filter(|line| !line.is_empty()).count() as u64, report.sentences);
        let spaced = text.replace('.', " .").replace(',', " ,");
        assert_eq!(spaced.split_whitespace().count() as u64, report.words);
        assert!((200..600).contains(&report.vocabulary), "{report:?}");
        assert!((4.0..6.0).contains(&report.unigram_entropy), "{report:?}");
    }

    /// A bigram model has a much lower loss than the unigram baseline. Topic and distant agreement lower the loss
    /// further.
    #[test]
    fn bigrams_beat_unigrams_by_more_than_a_nat() {
        let mut bytes = Vec::new();
        let report = generate(&mut bytes, 3000, 4).unwrap();
        let text = String::from_utf8(bytes).unwrap().to_lowercase().replace('.', " .").replace(',', " ,");
        let words: Vec<&str> = text.split_whitespace().collect();
        let (mut pairs, mut singles) = (HashMap::<(&str, &str), f64>::new(), HashMap::<&str, f64>::new());
        for pair in words.windows(2) {
            *pairs.entry((pair[0], pair[1])).or_default() += 1.0;
            *singles.entry(pair[0]).or_default() += 1.0;
        }
        let total = (words.len() - 1) as f64;
        let conditional: f64 =
            pairs.iter().map(|((before, _), &count)| -count / total * (count / singles[before]).ln()).sum();
        assert!(conditional < report.unigram_entropy - 1.5, "{conditional} {report:?}");
    }
}
