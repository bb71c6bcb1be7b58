//! Sentence boundaries of Unicode UAX #29.
//!
//! `icu_segmenter` examines every character. But a sentence can end only after a terminator such as a full stop. So the
//! segmenter starts one character before the next possible terminator. No rule depends on the text before that
//! character.

use icu_segmenter::SentenceSegmenter;
use icu_segmenter::options::SentenceBreakInvariantOptions;

/// Iterates over the end offsets of the sentences in `text`. The last offset is the end of the text.
pub fn boundaries(text: &str) -> impl Iterator<Item = usize> {
    let segmenter = SentenceSegmenter::new(SentenceBreakInvariantOptions::default());
    let mut at = 0;
    std::iter::from_fn(move || {
        let from = at + last_inert(&text.as_bytes()[at..]);
        // The first boundary is the start of the segmented text.
        at = from + segmenter.segment_str(&text[from..]).nth(1)?;
        Some(at)
    })
}

/// Returns the start of the last character in the run of inert characters at the start of `text`. An inert character
/// does not end a sentence, and the characters before it do not affect it.
fn last_inert(text: &[u8]) -> usize {
    let (mut last, mut at) = (0, 0);
    loop {
        let run = text[at..].iter().position(|&byte| !INERT_ASCII[usize::from(byte)]).unwrap_or(text.len() - at);
        if run > 0 {
            at += run;
            last = at - 1;
        }
        let width = match text[at..] {
            // Letters: Latin from À to ſ, Cyrillic from Ѐ to ѿ.
            [0xc3..=0xc5 | 0xd0..=0xd1, _, ..] => 2,
            // – — ‘ ’ “ ” …
            [0xe2, 0x80, 0x93 | 0x94 | 0x98 | 0x99 | 0x9c | 0x9d | 0xa6, ..] => 3,
            _ => return last,
        };
        last = at;
        at += width;
    }
}

/// Inert ASCII characters.
const INERT_ASCII: [bool; 256] = {
    let mut last_inert = [false; 256];
    let mut byte = 0;
    while byte < 128 {
        last_inert[byte] = !matches!(byte as u8, b'.' | b'!' | b'?' | b'\n' | b'\r');
        byte += 1;
    }
    last_inert
};

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_dataset::random::Key;

    fn assert_same(text: &str) {
        let segmenter = SentenceSegmenter::new(SentenceBreakInvariantOptions::default());
        let expected: Vec<usize> = segmenter.segment_str(text).skip(1).collect();
        assert_eq!(boundaries(text).collect::<Vec<_>>(), expected, "{text:?}");
    }

    #[test]
    fn boundaries_equal_those_of_segmenting_the_whole_text() {
        ["", ".", "a", "A.B", "x. y", "3.14 e.g. It. «Ja.» No", "Who? “he.” ’Tis…", "Да. Нет", "好。不好"]
            .into_iter()
            .for_each(assert_same);
        // The test uses terminators, closing marks, continuations, combining characters, and every inert character.
        let odd = ".!?。．\u{85}\u{2028}\r\n\t )”’»,;:—–…aBz9 \u{301}\u{ad}\u{200d}\u{feff}ßЯяאا ज中ไ١ª\u{1f600}";
        let last_inert = (0..0x80).chain(0xc0..0x180).chain(0x400..0x480).filter_map(char::from_u32);
        let characters: Vec<char> = odd.chars().chain(last_inert).collect();
        let odd = odd.chars().count() as u64;
        for seed in 0..100_000 {
            let mut rng = Key::new(seed).rng();
            let pick = |_| {
                let most = if rng.chance(0.7) { odd } else { characters.len() as u64 };
                characters[rng.below(most) as usize]
            };
            assert_same(&(0..1 + seed % 12).map(pick).collect::<String>());
        }
    }
}
