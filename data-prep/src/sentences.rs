//! Paragraphs to sentences.
//!
//! The boundaries are those of Unicode's UAX #29 (`boundaries`). That standard cannot know abbreviations or reported
//! speech, so boundaries behind `Mr.`, `J. R.` or `"Who?"` before `he asked` are taken out.

mod abbreviations;
mod boundaries;
mod starters;

use abbreviations::ABBREVIATIONS;
use boundaries::boundaries;
use starters::STARTERS;

/// Sentences with more bytes are divided at spaces where the script has no full stop.
const LONG: usize = 600;
/// The least bytes of a part of such a sentence; a Thai letter has three.
const PART: usize = 150;

/// Appends the sentences of `paragraph` to `sentences`, without the space around them.
pub fn split<'a>(paragraph: &'a str, sentences: &mut Vec<&'a str>) {
    let mut start = 0;
    for end in boundaries(paragraph) {
        let end = end + closing(&paragraph[end..]) - opening(&paragraph[start..end]);
        if end <= start || end < paragraph.len() && !is_boundary(&paragraph[start..end], &paragraph[end..]) {
            continue;
        }
        let sentence = paragraph[start..end].trim();
        if sentence.len() > LONG && sentence.bytes().any(|byte| byte == 0xe0) {
            divide(sentence, sentences);
        } else if !sentence.is_empty() {
            sentences.push(sentence);
        }
        start = end;
    }
}

/// Bytes of brackets at the end of a sentence that open the next one: `彼は聞いた。「私だ。」` has no space between them.
fn opening(sentence: &str) -> usize {
    let opens = |c: char| matches!(c, '「' | '『' | '（' | '《' | '〈' | '【');
    let stem = sentence.trim_end_matches(opens);
    // German closes with what opens in Chinese, so there it depends on what stands before.
    let quoted = stem.strip_suffix(['“', '‘']).filter(|stem| stem.ends_with(['。', '！', '？', '”', '’']));
    sentence.len() - quoted.unwrap_or(stem).len()
}

/// Bytes of a closing `»` with the space behind it, where French sets one apart: `« Qui ? » Il partit.`
fn closing(after: &str) -> usize {
    let Some(rest) = after.strip_prefix('»') else { return 0 };
    // Before a letter it opens, as in German.
    if rest.starts_with(char::is_alphanumeric) { 0 } else { after.len() - rest.trim_start().len() }
}

/// Divides a long sentence at the spaces between two letters of Thai or Lao, which end clauses there.
fn divide<'a>(sentence: &'a str, sentences: &mut Vec<&'a str>) {
    let mut start = 0;
    for (space, _) in sentence.match_indices(' ') {
        let (before, after) = (&sentence[start..space], &sentence[space + 1..]);
        if before.len() >= PART && before.ends_with(has_no_stop) && after.starts_with(has_no_stop) {
            sentences.push(before);
            start = space + 1;
        }
    }
    sentences.push(&sentence[start..]);
}

/// Letters of Thai and Lao.
fn has_no_stop(character: char) -> bool {
    matches!(character, '\u{e00}'..='\u{eff}')
}

/// Whether a sentence ends between `before` and `after`.
fn is_boundary(before: &str, after: &str) -> bool {
    // "Who?" he asked: whatever closes the first part, a small letter goes on.
    if after.starts_with(char::is_lowercase) {
        return false;
    }
    let trimmed = before.trim_end();
    let Some(stem) = trimmed.strip_suffix('.') else {
        // 「誰？」と彼は聞いた。
        return !(trimmed.ends_with(['」', '』']) && after.starts_with('と'));
    };
    let word = stem.rsplit([' ', '\u{a0}', '(', '"', '“', '‘', '\'', '—', '-']).next().unwrap_or("");
    if stem.ends_with(has_no_stop) || ABBREVIATIONS.binary_search(&word).is_ok() || is_year(word, after) {
        return false;
    }
    if is_initial(word) {
        // "vitamin C. The", but "J. R. Smith".
        let before = stem[..stem.len() - word.len()].trim_end();
        let named = before.ends_with(char::is_alphanumeric) && after.starts_with(char::is_alphabetic);
        return named && begins_a_sentence(after);
    }
    !is_dotted(word) || begins_a_sentence(after)
}

/// `U.S` and `p.m`: they stand before names as well as at the end of a sentence.
fn is_dotted(word: &str) -> bool {
    word.len() > 2 && word.split('.').all(|letter| letter.len() == 1 && letter.starts_with(char::is_alphabetic))
}

/// `c. 1900`, `b. 1850`: a small letter stands for a word before a number.
fn is_year(word: &str, after: &str) -> bool {
    let mut characters = word.chars();
    let small = matches!((characters.next(), characters.next()), (Some(c), None) if c.is_lowercase());
    small && after.starts_with(|c: char| c.is_ascii_digit())
}

fn begins_a_sentence(after: &str) -> bool {
    let length = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
    let (word, rest) = after.split_at(length);
    // "A" of "J. A. Smith" is none.
    word.is_empty() || STARTERS.binary_search(&word).is_ok() && !rest.starts_with('.')
}

/// `J` of "J. R. R. Tolkien", but not the word "I".
fn is_initial(word: &str) -> bool {
    let mut characters = word.chars();
    matches!((characters.next(), characters.next()), (Some(c), None) if c.is_uppercase() && c != 'I')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sentences(paragraph: &str) -> Vec<&str> {
        let mut found = Vec::new();
        split(paragraph, &mut found);
        found
    }

    #[test]
    fn lists_of_words_are_sorted() {
        assert!(ABBREVIATIONS.is_sorted() && STARTERS.is_sorted());
    }

    #[test]
    fn abbreviations_initials_and_numbers_end_nothing() {
        let text = "Mr. J. R. Smith paid 3.14 dollars, e.g. for No. 5. Then Dr. Watson left.";
        assert_eq!(sentences(text), ["Mr. J. R. Smith paid 3.14 dollars, e.g. for No. 5.", "Then Dr. Watson left."]);
        assert_eq!(sentences("So did I. He went."), ["So did I.", "He went."]);
    }

    #[test]
    fn a_letter_that_is_no_initial_ends_a_sentence_before_a_word_that_begins_one() {
        assert_eq!(sentences("He took vitamin C. The cold went."), ["He took vitamin C.", "The cold went."]);
        assert_eq!(sentences("Er nahm Vitamin C. Die Kälte ging."), ["Er nahm Vitamin C.", "Die Kälte ging."]);
        assert_eq!(
            sentences("Il prit la vitamine C. Le froid vint. Elle partit."),
            ["Il prit la vitamine C. Le froid vint.", "Elle partit."]
        );
        for text in ["J. A. Smith and George W. Bush met.", "Then A. A. Milne wrote.", "By S. E. All of Kent."] {
            assert_eq!(sentences(text), [text]);
        }
    }

    #[test]
    fn abbreviations_of_many_languages_end_nothing() {
        for text in [
            "El Sr. García y la Dra. López viven en la Avda. Mayor.",
            "Il Sig. Rossi e il dott. Bianchi, cfr. Dante, arrivano.",
            "Dhr. Jansen sprak o.a. Duits, bijv. Nr. 5.",
            "Kościół św. Jana przy ul. Długiej, tzw. Stary, m.in. Jan.",
            "Bydlel např. Karel v č. 5, tzv. Malý.",
            "Nagy pl. Budapest, ifj. Kovács és az ún. Vár.",
            "Он жил на ул. Ленина, англ. London, им. Пушкина, т.е. Москва.",
            "Жив на вул. Франка, напр. Київ, т.зв. Січ.",
            "Geldi, bkz. Ankara, Doç. Yılmaz ve Sn. Kaya.",
            "Ο Δρ. Παπάς, δηλ. Γιάννης, π.χ. Αθήνα.",
            "Han bor bl.a. Stockholm, s.k. Norrmalm.",
            "It was built c. 1900 by him (c. 1900 – c. 1950).",
        ] {
            assert_eq!(sentences(text), [text]);
        }
    }

    /// Words of one language that are abbreviations of another.
    #[test]
    fn words_that_sentences_end_with_end_them() {
        for text in [
            "He looked ill. She left.",
            "Poor old chap. I like him.",
            "Deixa-me ir. Joaquina saiu.",
            "Han döljer sig. Närmaste är bra.",
        ] {
            assert_eq!(sentences(text).len(), 2, "{text}");
        }
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
    fn dotted_abbreviations_end_a_sentence_before_a_word_that_begins_one() {
        assert_eq!(
            sentences("The U.S. Army left the U.S. The Navy came at 5 p.m. Monday."),
            ["The U.S. Army left the U.S.", "The Navy came at 5 p.m. Monday."]
        );
        assert_eq!(
            sentences("Born on Oct. 5, 1852, he had a Ph.D. In it he wrote of J.R.R. Tolkien."),
            ["Born on Oct. 5, 1852, he had a Ph.D. In it he wrote of J.R.R. Tolkien."]
        );
    }

    #[test]
    fn quotations_of_several_languages() {
        assert_eq!(sentences("« Qui est-ce ? » demanda-t-il."), ["« Qui est-ce ? » demanda-t-il."]);
        assert_eq!(sentences("« Qui est-ce ? » Il partit."), ["« Qui est-ce ? »", "Il partit."]);
        assert_eq!(sentences("Er kam. »Wer ist da?« fragte sie."), ["Er kam.", "»Wer ist da?« fragte sie."]);
        assert_eq!(sentences("„Wer ist da?“ Er schwieg."), ["„Wer ist da?“", "Er schwieg."]);
        assert_eq!(sentences("「誰だ？」と彼は聞いた。「私だ。」"), ["「誰だ？」と彼は聞いた。", "「私だ。」"]);
        assert_eq!(sentences("他说：“好。”他走了……我不知道。"), ["他说：“好。”", "他走了……我不知道。"]);
        assert_eq!(sentences("他走了。“好。”“不好！”"), ["他走了。", "“好。”", "“不好！”"]);
    }

    #[test]
    fn thai_is_divided_at_spaces_once_it_is_long() {
        let clause = "ประเทศไทยเป็นรัฐชาติอันตั้งอยู่ในเอเชียตะวันออกเฉียงใต้";
        assert_eq!(sentences(&[clause; 2].join(" ")).len(), 1);
        let long = [clause; 60].join(" ");
        let found = sentences(&long);
        assert_eq!(found, vec![clause; 60]);
        // Not at a number, and never in the middle of a word.
        let dates = ["เมื่อวันที่ 24 มิถุนายน พ.ศ. 2475"; 40].join(" ");
        assert!(sentences(&dates).iter().all(|part| part.ends_with("2475") || part.ends_with("มิถุนายน")), "{dates}");
    }

    #[test]
    fn chinese_and_japanese_sentences_end_without_spaces() {
        assert_eq!(sentences("這是一句。這是兩句！好嗎？"), ["這是一句。", "這是兩句！", "好嗎？"]);
        assert_eq!(sentences("吾輩は猫である。名前はまだ無い。"), ["吾輩は猫である。", "名前はまだ無い。"]);
    }
}
