//! Paragraphs to sentences.
//!
//! The boundaries are those of Unicode's UAX #29, which the `icu_segmenter` crate finds. That standard cannot know
//! abbreviations or reported speech, so boundaries behind `Mr.`, `J. R.` or `"Who?"` before `he asked` are taken out.

use icu_segmenter::SentenceSegmenter;
use icu_segmenter::options::SentenceBreakInvariantOptions;

/// Appends the sentences of `paragraph` to `sentences`, without the space around them.
pub fn split<'a>(paragraph: &'a str, sentences: &mut Vec<&'a str>) {
    let segmenter = SentenceSegmenter::new(SentenceBreakInvariantOptions::default());
    let mut start = 0;
    for end in segmenter.segment_str(paragraph).skip(1) {
        if end < paragraph.len() && !is_boundary(&paragraph[start..end], &paragraph[end..]) {
            continue;
        }
        let sentence = paragraph[start..end].trim();
        if !sentence.is_empty() {
            sentences.push(sentence);
        }
        start = end;
    }
}

/// Whether a sentence ends between `before` and `after`.
fn is_boundary(before: &str, after: &str) -> bool {
    // "Who?" he asked: whatever closes the first part, a small letter goes on.
    if after.starts_with(char::is_lowercase) {
        return false;
    }
    let trimmed = before.trim_end();
    let Some(stem) = trimmed.strip_suffix('.') else { return true };
    let word = stem.rsplit([' ', '\u{a0}', '(', '"', '“', '‘', '\'', '—', '-']).next().unwrap_or("");
    !(is_initial(word) || ABBREVIATIONS.binary_search(&word).is_ok())
}

/// `J` of "J. R. R. Tolkien", but not the word "I".
fn is_initial(word: &str) -> bool {
    let mut characters = word.chars();
    matches!((characters.next(), characters.next()), (Some(c), None) if c.is_uppercase() && c != 'I')
}

/// Abbreviations before a capital letter, sorted by their bytes.
const ABBREVIATIONS: [&str; 70] = [
    "Adm", "Bros", "Capt", "Cf", "Co", "Col", "Comdr", "Cpl", "Dr", "Drs", "Esq", "Fig", "Fr", "Frl", "Ft", "Gen",
    "Gov", "Hon", "Hr", "Inc", "Jr", "Lieut", "Lt", "Ltd", "MM", "Maj", "Messrs", "Mgr", "Mlle", "Mlles", "Mme",
    "Mmes", "Mr", "Mrs", "Ms", "Mt", "No", "Nos", "Nr", "Prof", "Rep", "Rev", "Revd", "Sen", "Sgt", "Sr", "Sra", "St",
    "Sta", "Ste", "Vol", "approx", "bzw", "ca", "cf", "d.h", "dt", "e.g", "eg", "etc", "fig", "i.e", "ie", "p", "pp",
    "resp", "viz", "vol", "vs", "z.B",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn sentences(paragraph: &str) -> Vec<&str> {
        let mut found = Vec::new();
        split(paragraph, &mut found);
        found
    }

    #[test]
    fn abbreviations_are_sorted() {
        let mut sorted = ABBREVIATIONS;
        sorted.sort_unstable();
        assert_eq!(ABBREVIATIONS, sorted);
    }

    #[test]
    fn abbreviations_initials_and_numbers_end_nothing() {
        let text = "Mr. J. R. Smith paid 3.14 dollars, e.g. for No. 5. Then Dr. Watson left.";
        assert_eq!(sentences(text), ["Mr. J. R. Smith paid 3.14 dollars, e.g. for No. 5.", "Then Dr. Watson left."]);
        assert_eq!(sentences("So did I. He went."), ["So did I.", "He went."]);
    }

    #[test]
    fn reported_speech_goes_on() {
        assert_eq!(
            sentences("\"Who is he?\" asked Thames. \"A friend.\""),
            ["\"Who is he?\" asked Thames.", "\"A friend.\""]
        );
        assert_eq!(sentences("Wait... what? Yes!"), ["Wait... what?", "Yes!"]);
    }

    #[test]
    fn chinese_and_japanese_sentences_end_without_spaces() {
        assert_eq!(sentences("這是一句。這是兩句！好嗎？"), ["這是一句。", "這是兩句！", "好嗎？"]);
        assert_eq!(sentences("吾輩は猫である。名前はまだ無い。"), ["吾輩は猫である。", "名前はまだ無い。"]);
    }
}
