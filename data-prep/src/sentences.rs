//! Sentence splitting.
//!
//! Boundaries follow Unicode UAX #29 (`boundaries`). This standard handles neither abbreviations nor reported speech.
//! So this module removes boundaries such as the one after `Mr.` or `J. R.`, or the one between `"Who?"` and `he
//! asked`.

mod abbreviations;
mod boundaries;
mod starters;

use abbreviations::ABBREVIATIONS;
use boundaries::boundaries;
use starters::STARTERS;

/// Length, in bytes, above which a Thai or Lao sentence is split at spaces. These scripts have no full stop.
const LONG_SENTENCE_BYTES: usize = 600;
/// Minimum length of a part of a split sentence, bytes. A Thai letter takes three bytes.
const MIN_PART_BYTES: usize = 150;
/// Bytes before a full stop that are searched for the start of the word. No rule concerns a longer word, except that of
/// [`is_dotted`]: with an odd number of bytes, a long word such as `A.B.C` is cut before a letter.
const WORD_BYTES: usize = 63;

/// Appends the trimmed sentences of `paragraph` to `sentences`.
pub fn split<'a>(paragraph: &'a str, sentences: &mut Vec<&'a str>) {
    let mut start = 0;
    for end in boundaries(paragraph) {
        // The sentence before may end behind this boundary, with a closing guillemet and the space after it.
        if end <= start {
            continue;
        }
        // At the end of the paragraph, there is no next sentence for an opening bracket.
        let end = match end == paragraph.len() {
            true => end,
            false => end + closing_guillemet(&paragraph[end..]) - opening_brackets(&paragraph[start..end]),
        };
        if end <= start || end < paragraph.len() && !is_boundary(&paragraph[start..end], &paragraph[end..]) {
            continue;
        }
        let sentence = paragraph[start..end].trim();
        if sentence.len() > LONG_SENTENCE_BYTES && sentence.bytes().any(|byte| byte == 0xe0) {
            split_at_spaces(sentence, sentences);
        } else if !sentence.is_empty() {
            sentences.push(sentence);
        }
        start = end;
    }
}

/// For each sentence of [`split`], true if it starts the paragraph or follows a space. Only spaces are between sentences.
pub fn spaces_before<'a>(paragraph: &'a str, sentences: &'a [&'a str]) -> impl Iterator<Item = bool> + 'a {
    let mut rest = paragraph;
    sentences.iter().enumerate().map(move |(number, sentence)| {
        let text = rest.trim_start();
        let follows_space = number == 0 || text.len() < rest.len();
        rest = text.strip_prefix(sentence).unwrap_or(" ");
        follows_space
    })
}

/// Length of the opening brackets at the end of `sentence` that belong to the next sentence, as in `彼は聞いた。「私だ。」`.
fn opening_brackets(sentence: &str) -> usize {
    let opens = |c: char| matches!(c, '「' | '『' | '（' | '《' | '〈' | '【');
    let stem = sentence.trim_end_matches(opens);
    // The closing quotes of German are the opening quotes of Chinese. The preceding character shows if a quote is
    // closing or opening.
    let quoted = stem.strip_suffix(['“', '‘']).filter(|stem| stem.ends_with(['。', '！', '？', '”', '’']));
    sentence.len() - quoted.unwrap_or(stem).len()
}

/// Length of a closing `»` and the space after it, if French spacing separates the `»` from its sentence: `« Qui ? » Il
/// partit.`
fn closing_guillemet(after: &str) -> usize {
    let Some(rest) = after.strip_prefix('»') else { return 0 };
    // Before a letter, `»` is an opening mark, as in German.
    if rest.starts_with(char::is_alphanumeric) { 0 } else { after.len() - rest.trim_start().len() }
}

/// Splits a long sentence at the spaces between two Thai or Lao letters. These spaces separate clauses.
fn split_at_spaces<'a>(sentence: &'a str, sentences: &mut Vec<&'a str>) {
    let mut start = 0;
    for (space, _) in sentence.match_indices(' ') {
        let (before, after) = (&sentence[start..space], &sentence[space + 1..]);
        if before.len() >= MIN_PART_BYTES && before.ends_with(is_thai_or_lao) && after.starts_with(is_thai_or_lao) {
            sentences.push(before);
            start = space + 1;
        }
    }
    sentences.push(&sentence[start..]);
}

/// True for Thai and Lao letters.
fn is_thai_or_lao(character: char) -> bool {
    matches!(character, '\u{e00}'..='\u{eff}')
}

/// True if a sentence ends between `before` and `after`.
fn is_boundary(before: &str, after: &str) -> bool {
    // "Who?" he asked: a lowercase letter continues the sentence.
    if after.starts_with(char::is_lowercase) {
        return false;
    }
    let trimmed = before.trim_end();
    let Some(stem) = trimmed.strip_suffix('.') else {
        // After a closing bracket, と continues the sentence: 「誰？」と彼は聞いた。
        return !(trimmed.ends_with(['」', '』']) && after.starts_with('と'));
    };
    let word = last_bytes(stem).rsplit([' ', '\u{a0}', '(', '"', '“', '‘', '\'', '—', '-']).next().unwrap_or("");
    if stem.ends_with(is_thai_or_lao)
        || ABBREVIATIONS.binary_search(&word).is_ok()
        || is_abbreviated_before_number(word, after)
        || is_ordinal(word, after)
    {
        return false;
    }
    if is_initial(word) {
        // A sentence ends within "vitamin C. The", but not within "J. R. Smith".
        let before = stem[..stem.len() - word.len()].trim_end();
        let named = before.ends_with(char::is_alphanumeric) && after.starts_with(char::is_alphabetic);
        return named && starts_sentence(after);
    }
    !is_dotted(word) || starts_sentence(after)
}

/// Returns the end of `text`, of at most [`WORD_BYTES`] bytes, in whole characters.
fn last_bytes(text: &str) -> &str {
    let start = (text.len().saturating_sub(WORD_BYTES)..).find(|&start| text.is_char_boundary(start));
    &text[start.unwrap_or(text.len())..]
}

/// True for abbreviations such as `U.S` and `p.m`. They occur before names, and also at the end of a sentence.
fn is_dotted(word: &str) -> bool {
    word.len() > 2 && word.split('.').all(|letter| letter.len() == 1 && letter.starts_with(char::is_alphabetic))
}

/// True for a single lowercase letter before a number, as in `c. 1900` and `b. 1850`.
fn is_abbreviated_before_number(word: &str, after: &str) -> bool {
    let mut characters = word.chars();
    let small = matches!((characters.next(), characters.next()), (Some(c), None) if c.is_lowercase());
    small && after.starts_with(|c: char| c.is_ascii_digit())
}

/// True for a German ordinal number before a noun that usually has one, as in `3. März` and `19. Jahrhundert`.
fn is_ordinal(word: &str, after: &str) -> bool {
    let is_number = (1..=2).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_digit());
    let length = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
    is_number && ORDINAL_NOUNS.contains(&&after[..length])
}

/// German nouns that follow an ordinal number.
const ORDINAL_NOUNS: [&str; 25] = [
    "April",
    "Auflage",
    "August",
    "Bezirk",
    "Dezember",
    "FC",
    "Februar",
    "Jahrestag",
    "Jahrhundert",
    "Jahrhunderts",
    "Jahrtausend",
    "Januar",
    "Juli",
    "Juni",
    "Jänner",
    "Kapitel",
    "Klasse",
    "Lebensjahr",
    "Mai",
    "März",
    "November",
    "Oktober",
    "September",
    "Weltkrieg",
    "Weltkriegs",
];

fn starts_sentence(after: &str) -> bool {
    let length = after.find(|c: char| !c.is_alphabetic()).unwrap_or(after.len());
    let (word, rest) = after.split_at(length);
    // The "A" of "J. A. Smith" is an initial.
    word.is_empty() || STARTERS.binary_search(&word).is_ok() && !rest.starts_with('.')
}

/// True for the `J` of "J. R. R. Tolkien", but not for the word "I".
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
    fn word_lists_are_sorted() {
        assert!(ABBREVIATIONS.is_sorted() && STARTERS.is_sorted());
        assert!(ABBREVIATIONS.iter().all(|word| word.len() < WORD_BYTES));
    }

    /// If the word were searched for in the whole sentence, the long text would take minutes.
    #[test]
    fn long_words_with_full_stops_take_linear_time() {
        for letter in ["ก", "A", "é"] {
            for text in [format!("{letter}.").repeat(60), format!("{letter}.").repeat(400_000)] {
                assert_eq!(sentences(&text), [text.as_str()]);
            }
        }
        let dotted = "A.".repeat(60);
        assert_eq!(sentences(&format!("{dotted} Smith left. {dotted} The cow.")).len(), 3);
    }

    #[test]
    fn abbreviations_initials_and_numbers_do_not_end_sentences() {
        let text = "Mr. J. R. Smith paid 3.14 dollars, e.g. for No. 5. Then Dr. Watson left.";
        assert_eq!(sentences(text), ["Mr. J. R. Smith paid 3.14 dollars, e.g. for No. 5.", "Then Dr. Watson left."]);
        assert_eq!(sentences("So did I. He went."), ["So did I.", "He went."]);
    }

    #[test]
    fn ordinal_numbers_do_not_end_sentences() {
        for text in [
            "Am 3. März 1990 ging er an der Straße des 17. Juni vorbei.",
            "Seit dem 19. Jahrhundert gibt es, z. B. in Köln, viele davon.",
            "El presidente de los EE. UU. llegó.",
        ] {
            assert_eq!(sentences(text), [text]);
        }
        assert_eq!(sentences("Er war 12. Dann ging er."), ["Er war 12.", "Dann ging er."]);
        assert_eq!(sentences("Es geschah 1812. Mai und Juni waren kalt.").len(), 2);
    }

    #[test]
    fn a_single_letter_ends_a_sentence_before_a_sentence_starter() {
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
    fn abbreviations_in_many_languages_do_not_end_sentences() {
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

    /// In each text, the word before the first full stop is an abbreviation in another language.
    #[test]
    fn ordinary_words_end_sentences() {
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
    fn reported_speech_continues_the_sentence() {
        assert_eq!(
            sentences("\"Who is he?\" asked Thames. \"A friend.\""),
            ["\"Who is he?\" asked Thames.", "\"A friend.\""]
        );
        assert_eq!(sentences("Wait... what? Yes!"), ["Wait... what?", "Yes!"]);
    }

    #[test]
    fn dotted_abbreviations_end_a_sentence_before_a_sentence_starter() {
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
    fn quotations_in_several_languages_are_split() {
        assert_eq!(sentences("« Qui est-ce ? » demanda-t-il."), ["« Qui est-ce ? » demanda-t-il."]);
        assert_eq!(sentences("« Qui est-ce ? » Il partit."), ["« Qui est-ce ? »", "Il partit."]);
        for separators in ["\u{2028}\u{2028}", "\r\r", "\u{2029} \u{85}\r\u{2028}"] {
            let text = format!("« Qui est-ce ? »{separators}Il partit.");
            assert_eq!(sentences(&text), ["« Qui est-ce ? »", "Il partit."], "{separators:?}");
        }
        assert_eq!(sentences("Er kam. »Wer ist da?« fragte sie."), ["Er kam.", "»Wer ist da?« fragte sie."]);
        assert_eq!(sentences("„Wer ist da?“ Er schwieg."), ["„Wer ist da?“", "Er schwieg."]);
        assert_eq!(sentences("「誰だ？」と彼は聞いた。「私だ。」"), ["「誰だ？」と彼は聞いた。", "「私だ。」"]);
        assert_eq!(sentences("他说：“好。”他走了……我不知道。"), ["他说：“好。”", "他走了……我不知道。"]);
        assert_eq!(sentences("他走了。“好。”“不好！”"), ["他走了。", "“好。”", "“不好！”"]);
    }

    #[test]
    fn an_opening_bracket_at_the_end_of_a_paragraph_is_kept() {
        for text in ["众虎离山，「", "你好（", "你好，《", "End of it 「 「", "「"] {
            assert_eq!(sentences(text), [text]);
        }
        assert_eq!(sentences("你好。「").concat(), "你好。「");
    }

    #[test]
    fn long_thai_text_is_split_at_spaces() {
        let clause = "ประเทศไทยเป็นรัฐชาติอันตั้งอยู่ในเอเชียตะวันออกเฉียงใต้";
        assert_eq!(sentences(&[clause; 2].join(" ")).len(), 1);
        let long = [clause; 60].join(" ");
        let found = sentences(&long);
        assert_eq!(found, vec![clause; 60]);
        // Text is not split next to a number and never within a word.
        let dates = ["เมื่อวันที่ 24 มิถุนายน พ.ศ. 2475"; 40].join(" ");
        assert!(sentences(&dates).iter().all(|part| part.ends_with("2475") || part.ends_with("มิถุนายน")), "{dates}");
    }

    #[test]
    fn chinese_and_japanese_sentences_need_no_spaces() {
        assert_eq!(sentences("這是一句。這是兩句！好嗎？"), ["這是一句。", "這是兩句！", "好嗎？"]);
        assert_eq!(sentences("吾輩は猫である。名前はまだ無い。"), ["吾輩は猫である。", "名前はまだ無い。"]);
    }

    #[test]
    fn spaces_between_sentences_are_found() {
        let thai = ["ประเทศไทยเป็นรัฐชาติอันตั้งอยู่ในเอเชียตะวันออกเฉียงใต้"; 60].join(" ");
        for (text, expected) in [
            ("這是一句。這是兩句！ 好嗎？\u{3000}好。好。", vec![true, false, true, true, false]),
            ("  He left.  \u{a0}She came. 他走了。“好。”", vec![true, true, true, false]),
            (&thai, vec![true; 60]),
            ("", vec![]),
        ] {
            assert_eq!(spaces_before(text, &sentences(text)).collect::<Vec<_>>(), expected, "{text}");
        }
        let odd: Vec<char> = ".!? 。「」“”»\u{3000}\t aBไ".chars().collect();
        for seed in 0..20_000 {
            let mut rng = lambert_dataset::random::Key::new(seed).rng();
            let text: String = (0..rng.below(300)).map(|_| odd[rng.below(odd.len() as u64) as usize]).collect();
            let found = sentences(&text);
            let start = |sentence: &str| sentence.as_ptr() as usize - text.as_ptr() as usize;
            let expected = found
                .iter()
                .enumerate()
                .map(|(number, sentence)| number == 0 || text[..start(sentence)].ends_with(char::is_whitespace));
            assert!(spaces_before(&text, &found).eq(expected), "{text:?}");
        }
    }
}
