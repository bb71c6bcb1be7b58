mod span_targets;

use lambert_config::run::MaskUnit;

use super::choose::{MAX_NGRAM_WORDS, MAX_SPAN_WORDS, ngram_length, span_length};
use super::*;

/// A vocabulary of 1,000 tokens. Every third token from 500 on continues a word.
fn vocab() -> MaskVocab {
    let continuations = (0..1000).map(|id| id >= 500 && id % 3 == 0).collect();
    let replacements = (0..1000).collect();
    MaskVocab {
        mask_id: 4,
        unk_id: 1,
        special_ids: [0, 2, 3],
        continuations,
        replacements,
        weights: None,
        phrases: None,
    }
}

/// A random sample of two segments.
fn sample(length: u32, number: u64) -> Vec<u32> {
    let mut rng = Key::new(7).with(number).rng();
    let mut ids: Vec<u32> = (0..length).map(|_| rng.between(100, 999) as u32).collect();
    (ids[0], ids[length as usize / 3], ids[length as usize - 1]) = (2, 3, 3);
    ids
}

fn objective(mask_unit: MaskUnit) -> Objective {
    Objective { mask_unit, max_predictions: 0, ..Objective::default() }
}

const UNITS: [MaskUnit; 4] = [MaskUnit::Piece, MaskUnit::Word, MaskUnit::Span, MaskUnit::Ngram];

#[test]
fn masks_are_reproducible_and_differ_between_epochs() {
    for unit in UNITS {
        let masked = |epoch| {
            let mut ids = sample(128, 1);
            let objective = objective(unit);
            let masked = mask(&mut ids, &objective, &vocab(), key(1, &objective, epoch, 17));
            (ids, masked)
        };
        assert_eq!(masked(0), masked(0));
        assert_ne!(masked(0), masked(1));
    }
}

#[test]
fn static_masks_repeat() {
    let fixed = |count, epoch| {
        key(1, &Objective { masking: Masking::Static, static_masks: count, ..Objective::default() }, epoch, 17)
    };
    assert_eq!(fixed(1, 0), fixed(1, 3));
    assert_eq!(fixed(10, 2), fixed(10, 12));
    assert_ne!(fixed(10, 2), fixed(10, 3));
}

/// Replacement counts of the masked tokens of many samples.
#[derive(Default)]
struct Counts {
    total: u64,
    as_mask: u64,
    as_random: u64,
    same: u64,
    positions: Vec<u64>,
    max_tokens: u64,
    mixed: u64,
    runs: u64,
}

impl Counts {
    fn collect(objective: &Objective, samples: u64) -> Self {
        let vocab = vocab();
        let replacement = if objective.mask_token == MaskToken::Unk { vocab.unk_id } else { vocab.mask_id };
        let mut counts = Self { positions: vec![0; 128], ..Self::default() };
        for number in 0..samples {
            let original = sample(128, number);
            let mut ids = original.clone();
            let masked = mask(&mut ids, objective, &vocab, key(3, objective, 0, number));
            counts.max_tokens += objective.predictions(128) as u64;
            let at: Vec<usize> = masked.iter().map(|masked| usize::from(masked.position)).collect();
            assert!(at.is_sorted_by(|a, b| a < b));
            for (&position, masked) in at.iter().zip(&masked) {
                assert_eq!(masked.label, original[position]);
                assert!(!vocab.special_ids.contains(&masked.label));
                counts.positions[position] += 1;
                counts.total += 1;
                match ids[position] {
                    id if id == replacement => counts.as_mask += 1,
                    id if id == masked.label => counts.same += 1,
                    _ => counts.as_random += 1,
                }
            }
            counts.count_runs(&ids, &at, replacement);
            let changed = |position: &usize| ids[*position] != original[*position];
            assert!((0..128).filter(changed).all(|position| at.contains(&position)));
        }
        counts
    }

    /// Counts runs of adjacent masked tokens, and runs that mix the replacement token with other tokens.
    fn count_runs(&mut self, ids: &[u32], at: &[usize], replacement: u32) {
        for run in at.chunk_by(|a, b| a + 1 == *b) {
            self.runs += 1;
            let masked = run.iter().filter(|&&position| ids[position] == replacement).count();
            self.mixed += u64::from(masked > 0 && masked < run.len());
        }
    }

    fn fraction(&self, count: u64) -> f64 {
        count as f64 / self.total as f64
    }
}

#[test]
fn replacement_rates_match_80_10_10() {
    for unit in UNITS {
        let counts = Counts::collect(&objective(unit), 60_000);
        assert_eq!(counts.max_tokens, 60_000 * 19);
        // In nearly all samples, some word fits in the remaining budget.
        assert!(
            counts.total <= counts.max_tokens && counts.fraction(counts.max_tokens) < 1.001,
            "{unit:?}: {}",
            counts.total
        );
        // Four standard deviations of a frequency of 0.8 in 1,140,000 draws are 0.0015. With one draw per
        // span of about four words, four standard deviations are more than twice as large. A random token
        // equals the original with probability 1/1,000.
        let slack = if unit == MaskUnit::Span { 3.0 } else { 1.0 };
        for (count, expected) in [(counts.as_mask, 0.8), (counts.as_random, 0.0999), (counts.same, 0.1001)] {
            let fraction = counts.fraction(count);
            assert!((fraction - expected).abs() < 0.0015 * slack, "{unit:?}: {fraction} of {expected}");
        }
        assert_eq!((counts.positions[0], counts.positions[42], counts.positions[127]), (0, 0, 0));
    }
}

#[test]
fn single_tokens_are_masked_uniformly() {
    let counts = Counts::collect(&objective(MaskUnit::Piece), 60_000);
    let expected = counts.total as f64 / 125.0;
    for (position, count) in
        counts.positions.iter().enumerate().filter(|(position, _)| ![0, 42, 127].contains(position))
    {
        assert!((*count as f64 / expected - 1.0).abs() < 0.06, "{position}: {count} of {expected}");
    }
}

#[test]
fn whole_words_are_masked_together() {
    let vocab = vocab();
    let is_masked =
        |masked: &[MaskedToken], position: usize| masked.iter().any(|found| usize::from(found.position) == position);
    for (unit, number) in (0..2_000).flat_map(|number| [MaskUnit::Word, MaskUnit::Ngram].map(|unit| (unit, number))) {
        let (ids, objective) = (sample(128, number), objective(unit));
        let masked = mask(&mut ids.clone(), &objective, &vocab, Key::new(number));
        for position in 1..128 {
            let resumes = vocab.is_continuation(ids[position]) && !vocab.special_ids.contains(&ids[position - 1]);
            if resumes {
                assert_eq!(
                    is_masked(&masked, position),
                    is_masked(&masked, position - 1),
                    "sample {number}, token {position}"
                );
            }
        }
    }
}

#[test]
fn span_lengths_match_paper_and_spans_share_a_replacement() {
    let mut rng = Key::new(2).rng();
    let mut lengths = [0_u64; MAX_SPAN_WORDS as usize + 1];
    (0..1_000_000).for_each(|_| lengths[span_length(&mut rng) as usize] += 1);
    let all: f64 = (1..=10).map(|length| 0.2 * 0.8_f64.powi(length - 1)).sum();
    for length in 1..=10 {
        let expected = 0.2 * 0.8_f64.powi(length - 1) / all;
        let fraction = lengths[length as usize] as f64 / 1e6;
        // Four standard deviations.
        assert!((fraction - expected).abs() < 4.0 * (expected / 1e6).sqrt(), "{length}: {fraction} of {expected}");
    }
    let mean: f64 = (1..=10).map(|length| length as f64 * lengths[length] as f64 / 1e6).sum();
    assert!((mean - 3.797).abs() < 0.011, "{mean}");

    let (span, token) =
        (Counts::collect(&objective(MaskUnit::Span), 5_000), Counts::collect(&objective(MaskUnit::Piece), 5_000));
    assert!(span.runs * 3 < token.runs, "{} runs against {}", span.runs, token.runs);
    // Adjacent spans may have different replacements, but adjacent single tokens differ more often.
    let mixed = |counts: &Counts| counts.mixed as f64 / (counts.total - counts.runs) as f64;
    assert!(mixed(&span) * 4.0 < mixed(&token), "{} against {}", mixed(&span), mixed(&token));
}

#[test]
fn ngrams_have_one_to_three_words_with_probabilities_of_one_over_n() {
    let mut rng = Key::new(2).rng();
    for longest in 1..=MAX_NGRAM_WORDS {
        let mut lengths = [0_u64; MAX_NGRAM_WORDS + 1];
        (0..1_000_000).for_each(|_| lengths[ngram_length(longest, &mut rng)] += 1);
        let all: f64 = (1..=longest).map(|length| 1.0 / length as f64).sum();
        for (length, count) in lengths.iter().enumerate().take(longest + 1).skip(1) {
            let (expected, fraction) = (1.0 / length as f64 / all, *count as f64 / 1e6);
            // Four standard deviations.
            assert!((fraction - expected).abs() <= 4.0 * (expected * (1.0 - expected) / 1e6).sqrt(), "{length}");
        }
    }
    // With few masked tokens, n-grams rarely touch. Their mean length is (1 + 1 + 1) / (1 + 1/2 + 1/3) = 1.64 words.
    let vocab = MaskVocab { continuations: Arc::from([false; 1000]), ..vocab() };
    let objective = Objective { mask_probability: 0.05, ..objective(MaskUnit::Ngram) };
    let (mut tokens, mut runs) = (0, 0);
    for number in 0..160_000 {
        let masked = mask(&mut sample(128, number), &objective, &vocab, Key::new(number));
        tokens += masked.len();
        runs += 1 + masked.windows(2).filter(|pair| pair[1].position > pair[0].position + 1).count();
    }
    let mean = tokens as f64 / runs as f64;
    assert!(tokens >= 950_000 && (1.5..1.75).contains(&mean), "{mean} words in {tokens} tokens");
}

#[test]
fn shares_and_probability_are_configurable() {
    for unit in UNITS {
        let slack = if unit == MaskUnit::Span { 3.0 } else { 1.0 };
        for (probability, mask_share, random_share) in
            [(0.3, 1.0, 0.0), (0.05, 0.5, 0.0), (0.4, 0.0, 0.25), (0.15, 0.85, 0.0)]
        {
            let settings = Objective { mask_probability: probability, mask_share, random_share, ..objective(unit) };
            let counts = Counts::collect(&settings, 1_000_000 / (128.0 * probability) as u64);
            let share = counts.fraction(counts.max_tokens).recip();
            assert!((0.998..=1.0).contains(&share), "{unit:?}: {share} of {probability}");
            // A random token is [MASK] with probability 1/1,000, and the original with the same probability.
            let (masked, random) = (mask_share + 0.001 * random_share, 0.998 * random_share);
            let same = 1.0 - masked - random;
            for (count, expected) in [(counts.as_mask, masked), (counts.as_random, random), (counts.same, same)] {
                // Four standard deviations.
                let limit = 4.0 * (expected * (1.0 - expected) / counts.total as f64).sqrt() * slack;
                let fraction = counts.fraction(count);
                assert!((fraction - expected).abs() <= limit, "{unit:?}: {fraction} of {expected}");
            }
        }
    }
}

#[test]
fn mask_token_is_configurable() {
    let unk = Objective { mask_token: MaskToken::Unk, ..objective(MaskUnit::Piece) };
    let counts = Counts::collect(&unk, 1_000);
    assert!((counts.fraction(counts.as_mask) - 0.8).abs() < 0.015);
}

#[test]
fn short_samples_mask_at_least_one_token_and_no_special_token() {
    for unit in UNITS {
        let objective = Objective { mask_unit: unit, ..Objective::default() };
        let masked = [MaskedToken { position: 1, label: 7 }];
        assert_eq!(mask(&mut [2, 7, 3], &objective, &vocab(), Key::new(1)), masked);
        assert_eq!(mask(&mut [2, 3], &objective, &vocab(), Key::new(1)), []);
    }
    let (some, all) = (Objective::default(), objective(MaskUnit::Piece));
    assert_eq!((some.predictions(512), all.predictions(512), some.predictions(128)), (20, 77, 19));
}

/// The first masked token of a sample is drawn with a probability proportional to the weight of the token.
#[test]
fn rare_tokens_are_masked_more_often() {
    const SAMPLES: u64 = 1_000_000;
    // A token with a larger id is rarer. The counts are 1,000,000 to 1.
    let counts: Vec<u64> = (0..1000_u32).map(|id| 10_u64.pow(6 - id / 150)).collect();
    for exponent in [0.5, 1.0] {
        let vocab = MaskVocab { weights: Some(TokenWeights::new(&counts, exponent)), ..vocab() };
        let weight = |id: u32| (counts[id as usize] as f64).powf(-exponent);
        let one = Objective { max_predictions: 1, ..objective(MaskUnit::Piece) };
        let (mut found, mut expected, mut variance) = ([0_u64; 7], [0.0; 7], [0.0; 7]);
        for number in 0..SAMPLES {
            let ids = sample(16, number);
            let masked = mask(&mut ids.clone(), &one, &vocab, Key::new(number));
            let &[MaskedToken { label, .. }] = masked.as_slice() else { panic!("{masked:?}") };
            found[label as usize / 150] += 1;
            let candidates = || ids.iter().filter(|id| !vocab.special_ids.contains(id));
            let total: f64 = candidates().map(|id| weight(*id)).sum();
            for class in 0..7 {
                let own = candidates().filter(|id| **id as usize / 150 == class).map(|id| weight(*id));
                let share = own.sum::<f64>() / total;
                expected[class] += share;
                variance[class] += share * (1.0 - share);
            }
        }
        for class in 0..7 {
            // Four standard deviations.
            let (found, limit) = (found[class] as f64, 4.0 * variance[class].sqrt());
            assert!((found - expected[class]).abs() <= limit, "{exponent}, {class}: {found} of {}", expected[class]);
        }
        assert!(found[6] > 10 * found[0], "{found:?}");
    }
}

/// Weights change which tokens are masked, but not how many.
#[test]
fn weights_do_not_change_the_number_of_masked_tokens() {
    let counts: Vec<u64> = (1..=1000).collect();
    let weighted = MaskVocab { weights: Some(TokenWeights::new(&counts, 0.5)), ..vocab() };
    for (unit, number) in (0..1000).flat_map(|number| UNITS.map(|unit| (unit, number))) {
        let count = |vocab: &MaskVocab| mask(&mut sample(128, number), &objective(unit), vocab, Key::new(number)).len();
        let (plain, weighted) = (count(&vocab()), count(&weighted));
        // A last word may not fit.
        assert!(
            plain <= 19 && weighted <= 19 && plain.abs_diff(weighted) <= 2,
            "{unit:?} {number}: {weighted} of {plain}"
        );
        assert!(unit != MaskUnit::Piece || plain == weighted);
    }
}

#[test]
fn phrases_are_masked_as_a_whole() {
    // Tokens from 100 to 499 are words. 600 and 603 continue a word.
    let list: [&[u32]; 4] = [&[110, 120], &[110, 120, 130], &[200, 600], &[210, 220]];
    let mut phrases = Phrases::default();
    list.iter().for_each(|phrase| phrases.insert(phrase));
    let vocab = MaskVocab { phrases: Some(Arc::new(phrases)), ..vocab() };
    let ids = [2, 110, 120, 130, 300, 110, 120, 140, 200, 600, 603, 210, 220, 600, 3, 110, 3];
    // "200 600" is no phrase before 603, and "210 220" none before 600: they would end within a word.
    let words: [&[u16]; 9] = [&[1, 2, 3], &[4], &[5, 6], &[7], &[8, 9, 10], &[11], &[12, 13], &[15], &[]];
    for unit in [MaskUnit::Word, MaskUnit::Ngram, MaskUnit::Span] {
        let (mut masked_words, mut samples) = ([0_u64; 9], 0);
        for number in 0..20_000 {
            let settings = Objective { mask_probability: 0.3, ..objective(unit) };
            let masked = mask(&mut ids.clone(), &settings, &vocab, Key::new(number));
            let at: Vec<u16> = masked.iter().map(|masked| masked.position).collect();
            samples += 1;
            for (word, positions) in words.iter().enumerate() {
                let count = positions.iter().filter(|position| at.contains(position)).count();
                assert!(count == 0 || count == positions.len(), "{unit:?} {number}: {at:?} cuts {positions:?}");
                masked_words[word] += u64::from(count > 0);
            }
        }
        assert!(masked_words[..8].iter().all(|count| *count * 20 > samples), "{unit:?}: {masked_words:?}");
    }
}

/// A phrase with more tokens than may be masked is no phrase, so its words are masked like others.
#[test]
fn long_phrases_are_split() {
    let mut phrases = Phrases::default();
    phrases.insert(&[110, 120, 130]);
    let vocab = MaskVocab { phrases: Some(Arc::new(phrases)), ..vocab() };
    let masked = |number, max_predictions| {
        let settings = Objective { max_predictions, mask_probability: 0.9, ..objective(MaskUnit::Word) };
        mask(&mut [2, 110, 120, 130, 3], &settings, &vocab, Key::new(number)).len()
    };
    for number in 0..100 {
        assert_eq!((masked(number, 2), masked(number, 3)), (2, 3));
    }
}

#[test]
fn the_longest_samples_are_masked() {
    let ids: Vec<u32> = (0..u32::from(u16::MAX)).map(|position| 100 + position % 900).collect();
    for unit in UNITS {
        let masked = mask(&mut ids.clone(), &objective(unit), &vocab(), Key::new(1));
        assert!(masked.len() > 9_000, "{unit:?}: {}", masked.len());
    }
}
