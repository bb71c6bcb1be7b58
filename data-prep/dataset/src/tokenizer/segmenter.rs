//! Tokens of single words, from the vocabulary alone. It is slower than the tokenizers library, but tokens can be added.

use std::collections::HashMap;

use super::token_table::{TokenTable, TokenizerModel};
use super::unigram::UNKNOWN_PENALTY;
use super::{TokenizerError, TokenizerFile, json};

/// Splits words into tokens. A word has no spaces and is spelled like the tokens: in byte symbols for BPE, with `▁`
/// before it for Unigram.
#[derive(Debug, Clone)]
pub struct Segmenter {
    ids: HashMap<String, u32>,
    texts: Vec<String>,
    /// Number of characters of the longest token.
    longest: usize,
    rules: Rules,
}

/// Rules of a model.
#[derive(Debug, Clone)]
enum Rules {
    WordPiece,
    Bpe(Merges),
    /// Scores by id: natural logarithms of probabilities.
    Unigram(Vec<f64>),
}

/// Merges of BPE.
#[derive(Debug, Clone, Default)]
struct Merges {
    /// Merged pairs with the order in which they are merged.
    orders: HashMap<(u32, u32), usize>,
    /// Order of the next pair.
    next: usize,
    /// True if a word that is a token is not split (`ignore_merges`).
    keeps_words: bool,
}

impl Merges {
    /// Appends a pair. Of equal pairs the last decides, as in the tokenizers library.
    fn push(&mut self, pair: (u32, u32)) {
        self.orders.insert(pair, self.next);
        self.next += 1;
    }
}

impl Segmenter {
    /// Segmenter of a vocab.txt or tokenizer.json. `origin` is its name in error messages.
    ///
    /// # Errors
    /// The bytes are not a vocabulary.
    pub fn read(bytes: &[u8], origin: &str) -> Result<Self, TokenizerError> {
        if !TokenizerFile::is_json(bytes) {
            return Ok(Self::new(&TokenTable::read(bytes, origin)?, Rules::WordPiece));
        }
        let file = TokenizerFile::read(bytes, origin)?;
        let mut segmenter = Self::new(&file.tokens, Rules::WordPiece);
        segmenter.rules = match file.tokens.model() {
            TokenizerModel::WordPiece => Rules::WordPiece,
            TokenizerModel::Bpe => {
                let id = |text: String| segmenter.ids.get(&text).copied().unwrap_or_default();
                let mut merges = Merges { keeps_words: file.ignores_merges(), ..Merges::default() };
                file.merges().into_iter().for_each(|(left, right)| merges.push((id(left), id(right))));
                Rules::Bpe(merges)
            }
            TokenizerModel::Unigram => {
                let mut scores = file.scores();
                scores.resize(file.tokens.size(), f64::NEG_INFINITY);
                // Special tokens are never parts of a word.
                for (id, score) in (0..).zip(&mut scores) {
                    *score = if file.tokens.is_special(id) { f64::NEG_INFINITY } else { *score };
                }
                Rules::Unigram(scores)
            }
        };
        Ok(segmenter)
    }

    fn new(tokens: &TokenTable, rules: Rules) -> Self {
        let ids = (0..).zip(tokens.texts()).map(|(id, text)| (text.clone(), id)).collect();
        let longest = tokens.texts().iter().map(|text| text.chars().count()).max().unwrap_or(0);
        Self { ids, texts: tokens.texts().to_vec(), longest, rules }
    }

    /// All tokens, in id order.
    #[must_use]
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    /// Score of a token; none if the model has no scores.
    #[must_use]
    pub fn score(&self, id: u32) -> Option<f64> {
        match &self.rules {
            Rules::Unigram(scores) => scores.get(id as usize).copied(),
            _ => None,
        }
    }

    /// Lowest score of a token; none if the model has no scores.
    #[must_use]
    pub fn lowest_score(&self) -> Option<f64> {
        let Rules::Unigram(scores) = &self.rules else { return None };
        scores.iter().copied().filter(|score| score.is_finite()).min_by(f64::total_cmp)
    }

    /// Text of the token that two tokens of a word merge to.
    #[must_use]
    pub fn merged(&self, (left, right): (u32, u32)) -> String {
        let (left, right) = (&self.texts[left as usize], &self.texts[right as usize]);
        match self.rules {
            Rules::WordPiece => [left, right.strip_prefix(json::PREFIX).unwrap_or(right)].concat(),
            _ => [left.as_str(), right].concat(),
        }
    }

    /// True if the vocabulary has this token.
    #[must_use]
    pub fn has(&self, text: &str) -> bool {
        self.ids.contains_key(text)
    }

    /// True for WordPiece.
    #[must_use]
    pub fn is_word_piece(&self) -> bool {
        matches!(self.rules, Rules::WordPiece)
    }

    /// True if the model has merges.
    #[must_use]
    pub fn has_merges(&self) -> bool {
        matches!(self.rules, Rules::Bpe(_))
    }

    /// Adds the token that a pair of tokens merges to, and returns its id. In BPE the pair is merged after all others. In
    /// Unigram the token has this score.
    pub fn add(&mut self, pair: (u32, u32), score: f64) -> u32 {
        if let Rules::Bpe(merges) = &mut self.rules {
            merges.push(pair);
        }
        self.add_text(self.merged(pair), score)
    }

    /// Adds a token and returns its id. In Unigram it has this score. In BPE no merge leads to it.
    pub fn add_text(&mut self, text: String, score: f64) -> u32 {
        let id = self.texts.len() as u32;
        if let Rules::Unigram(scores) = &mut self.rules {
            scores.push(score);
        }
        self.longest = self.longest.max(text.chars().count());
        self.ids.insert(text.clone(), id);
        self.texts.push(text);
        id
    }

    /// Tokens of single characters that a word needs. A character of BPE is a byte, which every vocabulary has.
    #[must_use]
    pub fn characters(&self, word: &str) -> Vec<String> {
        let is_first = |index: usize| index == 0 || !matches!(self.rules, Rules::WordPiece);
        let characters = word.chars().enumerate();
        characters
            .map(|(index, character)| match is_first(index) {
                true => character.to_string(),
                false => format!("{}{character}", json::PREFIX),
            })
            .collect()
    }

    /// Tokens of a word, or of the text of a token that continues a word. None if the vocabulary cannot represent it.
    #[must_use]
    pub fn segment(&self, word: &str) -> Option<Vec<u32>> {
        match &self.rules {
            Rules::WordPiece => self.longest_first(word),
            Rules::Bpe(merges) => self.merge(word, merges),
            Rules::Unigram(scores) => self.most_probable(word, scores, None),
        }
    }

    /// Tokens of a word as the tokenizer writes them, with `unk` for what the vocabulary cannot represent: a word of
    /// WordPiece, or consecutive characters of Unigram.
    #[must_use]
    pub fn segment_with_unknown(&self, word: &str, unk: u32) -> Vec<u32> {
        let tokens = match &self.rules {
            Rules::Unigram(scores) => self.most_probable(word, scores, Some(unk)),
            _ => self.segment(word),
        };
        tokens.unwrap_or_else(|| vec![unk])
    }

    /// WordPiece: at each place the longest token.
    fn longest_first(&self, word: &str) -> Option<Vec<u32>> {
        let (mut rest, mut is_start) = match word.strip_prefix(json::PREFIX) {
            Some(rest) if !rest.is_empty() => (rest, false),
            _ => (word, true),
        };
        let mut found = Vec::new();
        while !rest.is_empty() {
            let ends = rest.char_indices().map(|(at, character)| at + character.len_utf8()).rev();
            let longest = ends.into_iter().find_map(|end| {
                let text = if is_start { rest[..end].to_owned() } else { format!("{}{}", json::PREFIX, &rest[..end]) };
                Some((end, *self.ids.get(&text)?))
            });
            let (end, id) = longest?;
            found.push(id);
            (rest, is_start) = (&rest[end..], false);
        }
        Some(found)
    }

    /// BPE: merges the pairs in their order.
    fn merge(&self, word: &str, merges: &Merges) -> Option<Vec<u32>> {
        if let Some(id) = self.ids.get(word).filter(|_| merges.keeps_words) {
            return Some(vec![*id]);
        }
        let mut buffer = [0; 4];
        let symbols = word.chars().map(|symbol| self.ids.get(&*symbol.encode_utf8(&mut buffer)).copied());
        let mut tokens = symbols.collect::<Option<Vec<u32>>>()?;
        loop {
            let pairs = tokens.windows(2).map(|pair| (pair[0], pair[1]));
            let first = pairs.filter_map(|pair| Some((*merges.orders.get(&pair)?, pair))).min();
            let Some((_, pair)) = first else { return Some(tokens) };
            let merged = *self.ids.get(&self.merged(pair))?;
            replace(&mut tokens, pair, merged);
        }
    }

    /// Unigram: the tokens with the highest sum of scores. `unk` is the token of unknown characters; None if the word
    /// must have none.
    fn most_probable(&self, word: &str, scores: &[f64], unk: Option<u32>) -> Option<Vec<u32>> {
        let mut ends: Vec<usize> = word.char_indices().map(|(at, _)| at).collect();
        ends.push(word.len());
        let known = |from: usize, to: usize| {
            let id = *self.ids.get(&word[ends[from]..ends[to]])?;
            Some((id, scores[id as usize])).filter(|(_, score)| score.is_finite())
        };
        let unknown = unk.zip(self.lowest_score().map(|lowest| lowest - UNKNOWN_PENALTY));
        let mut best: Vec<Option<(f64, usize, u32)>> = vec![None; ends.len()];
        for to in 1..ends.len() {
            for from in to.saturating_sub(self.longest)..to {
                let Some(before) = (if from == 0 { Some(0.0) } else { best[from].map(|(sum, ..)| sum) }) else {
                    continue;
                };
                let Some((id, score)) = known(from, to).or(unknown.filter(|_| from + 1 == to)) else { continue };
                let sum = before + score;
                if best[to].is_none_or(|(other, ..)| sum > other) {
                    best[to] = Some((sum, from, id));
                }
            }
        }
        let (mut tokens, mut at) = (Vec::new(), ends.len() - 1);
        while at > 0 {
            let (_, from, id) = best[at]?;
            // Consecutive unknown characters are one token.
            if unk != Some(id) || tokens.last() != Some(&id) {
                tokens.push(id);
            }
            at = from;
        }
        tokens.reverse();
        Some(tokens)
    }
}

/// Replaces each occurrence of a pair by one token, from left to right.
pub fn replace(tokens: &mut Vec<u32>, pair: (u32, u32), merged: u32) {
    let (mut from, mut to) = (0, 0);
    while from < tokens.len() {
        let is_pair = tokens[from] == pair.0 && tokens.get(from + 1) == Some(&pair.1);
        tokens[to] = if is_pair { merged } else { tokens[from] };
        from += if is_pair { 2 } else { 1 };
        to += 1;
    }
    tokens.truncate(to);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_word_piece_are_split_at_the_longest_tokens() {
        let vocabulary = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n##c\nab\n";
        let mut segmenter = Segmenter::read(vocabulary.as_bytes(), "v").unwrap();
        assert_eq!(segmenter.segment("abc"), Some(vec![8, 7]));
        assert_eq!((segmenter.segment("##bc"), segmenter.segment("x")), (Some(vec![6, 7]), None));
        assert_eq!(segmenter.add((6, 7), 0.0), 9);
        assert_eq!((segmenter.segment("##bc"), segmenter.merged((8, 7))), (Some(vec![9]), "abc".to_owned()));
    }

    #[test]
    fn equal_pairs_are_replaced_from_the_left() {
        let mut tokens = vec![1, 1, 1, 2, 1];
        replace(&mut tokens, (1, 1), 9);
        assert_eq!(tokens, [9, 1, 2, 1]);
    }
}
