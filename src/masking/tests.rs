//! The masks against their definitions.

use lambert_config::run::MaskUnit;

use super::choose::{LONGEST_SPAN, span_length};
use super::*;

/// Of 1,000 pieces every third one from 500 goes on a word.
fn pieces() -> Pieces {
    let continuations = (0..1000).map(|id| id >= 500 && id % 3 == 0).collect();
    Pieces { mask: 4, unk: 1, never: [0, 2, 3], continuations }
}

/// Two segments of pieces.
fn sample(length: u32, number: u64) -> Vec<u32> {
    let mut rng = Key::new(7).with(number).rng();
    let mut ids: Vec<u32> = (0..length).map(|_| rng.between(100, 999) as u32).collect();
    (ids[0], ids[length as usize / 3], ids[length as usize - 1]) = (2, 3, 3);
    ids
}

fn objective(mask_unit: MaskUnit) -> Objective {
    Objective { mask_unit, max_predictions: 0, ..Objective::default() }
}

const UNITS: [MaskUnit; 3] = [MaskUnit::Piece, MaskUnit::Word, MaskUnit::Span];

#[test]
fn a_sample_is_masked_the_same_way_each_time_and_another_way_each_epoch() {
    for unit in UNITS {
        let masked = |epoch| {
            let mut ids = sample(128, 1);
            let objective = objective(unit);
            let hidden = mask(&mut ids, &objective, &pieces(), key(1, &objective, epoch, 17));
            (ids, hidden)
        };
        assert_eq!(masked(0), masked(0));
        assert_ne!(masked(0), masked(1));
    }
}

#[test]
fn static_masks_come_back() {
    let fixed = |count, epoch| {
        key(1, &Objective { masking: Masking::Static, static_masks: count, ..Objective::default() }, epoch, 17)
    };
    assert_eq!(fixed(1, 0), fixed(1, 3));
    assert_eq!(fixed(10, 2), fixed(10, 12));
    assert_ne!(fixed(10, 2), fixed(10, 3));
}

/// What became of the hidden tokens of many samples.
#[derive(Default)]
struct Counts {
    total: u64,
    as_mask: u64,
    as_random: u64,
    same: u64,
    places: Vec<u64>,
    most: u64,
    mixed: u64,
    runs: u64,
}

impl Counts {
    fn of(objective: &Objective, samples: u64) -> Self {
        let pieces = pieces();
        let hider = if objective.mask_token == MaskToken::Unk { pieces.unk } else { pieces.mask };
        let mut counts = Self { places: vec![0; 128], ..Self::default() };
        for number in 0..samples {
            let original = sample(128, number);
            let mut ids = original.clone();
            let hidden = mask(&mut ids, objective, &pieces, key(3, objective, 0, number));
            counts.most += objective.predictions(128) as u64;
            let at: Vec<usize> = hidden.iter().map(|hidden| usize::from(hidden.position)).collect();
            assert!(at.is_sorted_by(|a, b| a < b));
            for (&position, hidden) in at.iter().zip(&hidden) {
                assert_eq!(hidden.label, original[position]);
                assert!(!pieces.never.contains(&hidden.label));
                counts.places[position] += 1;
                counts.total += 1;
                match ids[position] {
                    id if id == hider => counts.as_mask += 1,
                    id if id == hidden.label => counts.same += 1,
                    _ => counts.as_random += 1,
                }
            }
            counts.count_runs(&ids, &at, hider);
            let changed = |place: &usize| ids[*place] != original[*place];
            assert!((0..128).filter(changed).all(|place| at.contains(&place)));
        }
        counts
    }

    /// Runs of neighbours, and those in which \[MASK\] stands beside something else.
    fn count_runs(&mut self, ids: &[u32], at: &[usize], hider: u32) {
        for run in at.chunk_by(|a, b| a + 1 == *b) {
            self.runs += 1;
            let hidden = run.iter().filter(|&&place| ids[place] == hider).count();
            self.mixed += u64::from(hidden > 0 && hidden < run.len());
        }
    }

    fn share(&self, count: u64) -> f64 {
        count as f64 / self.total as f64
    }
}

#[test]
fn a_million_masked_tokens_of_each_unit_keep_to_the_definition() {
    for unit in UNITS {
        let counts = Counts::of(&objective(unit), 60_000);
        assert_eq!(counts.most, 60_000 * 19);
        // Some word always fits into what is left, but for a few samples.
        assert!(counts.total <= counts.most && counts.share(counts.most) < 1.001, "{unit:?}: {}", counts.total);
        // Four standard deviations of a share of 0.8 in 1,140,000 are 0.0015; drawn for spans of about four words,
        // twice that and more. Random pieces hit the old one 1 in 1,000.
        let slack = if unit == MaskUnit::Span { 3.0 } else { 1.0 };
        for (count, expected) in [(counts.as_mask, 0.8), (counts.as_random, 0.0999), (counts.same, 0.1001)] {
            let share = counts.share(count);
            assert!((share - expected).abs() < 0.0015 * slack, "{unit:?}: {share} of {expected}");
        }
        assert_eq!((counts.places[0], counts.places[42], counts.places[127]), (0, 0, 0));
    }
}

#[test]
fn single_pieces_are_hidden_everywhere_alike() {
    let counts = Counts::of(&objective(MaskUnit::Piece), 60_000);
    let expected = counts.total as f64 / 125.0;
    for (place, count) in counts.places.iter().enumerate().filter(|(place, _)| ![0, 42, 127].contains(place)) {
        assert!((*count as f64 / expected - 1.0).abs() < 0.06, "{place}: {count} of {expected}");
    }
}

#[test]
fn words_are_hidden_whole() {
    let (pieces, objective) = (pieces(), objective(MaskUnit::Word));
    let is_hidden = |hidden: &[Hidden], place: usize| hidden.iter().any(|found| usize::from(found.position) == place);
    for number in 0..2_000 {
        let ids = sample(128, number);
        let hidden = mask(&mut ids.clone(), &objective, &pieces, Key::new(number));
        for place in 1..128 {
            let goes_on = pieces.is_continuation(ids[place]) && !pieces.never.contains(&ids[place - 1]);
            if goes_on {
                assert_eq!(is_hidden(&hidden, place), is_hidden(&hidden, place - 1), "sample {number}, token {place}");
            }
        }
    }
}

#[test]
fn spans_have_the_published_lengths_and_one_fate() {
    let mut rng = Key::new(2).rng();
    let mut lengths = [0_u64; LONGEST_SPAN as usize + 1];
    (0..1_000_000).for_each(|_| lengths[span_length(&mut rng) as usize] += 1);
    let all: f64 = (1..=10).map(|length| 0.2 * 0.8_f64.powi(length - 1)).sum();
    for length in 1..=10 {
        let expected = 0.2 * 0.8_f64.powi(length - 1) / all;
        let share = lengths[length as usize] as f64 / 1e6;
        // Four standard deviations.
        assert!((share - expected).abs() < 4.0 * (expected / 1e6).sqrt(), "{length}: {share} of {expected}");
    }
    let mean: f64 = (1..=10).map(|length| length as f64 * lengths[length] as f64 / 1e6).sum();
    assert!((mean - 3.797).abs() < 0.011, "{mean}");

    let (span, piece) = (Counts::of(&objective(MaskUnit::Span), 5_000), Counts::of(&objective(MaskUnit::Piece), 5_000));
    assert!(span.runs * 3 < piece.runs, "{} runs against {}", span.runs, piece.runs);
    // Neighbouring spans may differ; pieces differ mostly.
    let mixed = |counts: &Counts| counts.mixed as f64 / (counts.total - counts.runs) as f64;
    assert!(mixed(&span) * 4.0 < mixed(&piece), "{} against {}", mixed(&span), mixed(&piece));
}

#[test]
fn another_token_can_stand_for_what_is_hidden() {
    let unk = Objective { mask_token: MaskToken::Unk, ..objective(MaskUnit::Piece) };
    let counts = Counts::of(&unk, 1_000);
    assert!((counts.share(counts.as_mask) - 0.8).abs() < 0.015);
}

#[test]
fn short_samples_hide_at_least_one_token_and_never_a_special_one() {
    for unit in UNITS {
        let objective = Objective { mask_unit: unit, ..Objective::default() };
        let hidden = [Hidden { position: 1, label: 7 }];
        assert_eq!(mask(&mut [2, 7, 3], &objective, &pieces(), Key::new(1)), hidden);
        assert_eq!(mask(&mut [2, 3], &objective, &pieces(), Key::new(1)), []);
    }
    let (some, all) = (Objective::default(), objective(MaskUnit::Piece));
    assert_eq!((some.predictions(512), all.predictions(512), some.predictions(128)), (20, 77, 19));
}
