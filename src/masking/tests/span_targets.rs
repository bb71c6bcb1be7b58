//! Spans and their boundaries, as the span boundary objective sees them.

use super::*;
use crate::data::span_targets::SpanTargets;
use lambert_plan::architecture::SPAN_POSITIONS;

/// Masks `ids` and returns the positions of the masked tokens and the targets of the span boundary objective.
fn targets(ids: &[u32], objective: &Objective, number: u64) -> (Vec<i32>, SpanTargets) {
    let masked = mask(&mut ids.to_vec(), objective, &vocab(), key(3, objective, 0, number));
    let positions: Vec<i32> = masked.iter().map(|masked| i32::from(masked.position)).collect();
    let labels: Vec<i32> = masked.iter().map(|masked| masked.label as i32).collect();
    let targets = SpanTargets::new(&positions, &labels, std::iter::once(0..ids.len() as i32));
    (positions, targets)
}

/// For each masked token, the boundaries are the nearest unmasked tokens on both sides.
#[test]
fn boundaries_are_the_nearest_unmasked_tokens() {
    let (mut tokens, mut deep, mut special) = (0_u64, 0_u64, 0_u64);
    let vocab = vocab();
    for number in 0..60_000 {
        let ids = sample(128, number);
        let (positions, found) = targets(&ids, &objective(MaskUnit::Span), number);
        let mut is_masked = [false; 128];
        positions.iter().for_each(|position| is_masked[*position as usize] = true);
        let mut expected = SpanTargets::default();
        for position in &positions {
            let place = *position as usize;
            let left = (0..place).rev().find(|place| !is_masked[*place]).unwrap();
            let right = (place + 1..128).find(|place| !is_masked[*place]).unwrap();
            tokens += 1;
            if place - left > SPAN_POSITIONS {
                deep += 1;
                continue;
            }
            special += u64::from([left, right].iter().any(|place| vocab.special_ids.contains(&ids[*place])));
            expected.left.push(left as i32);
            expected.right.push(right as i32);
            expected.offsets.push((place - left - 1) as i32);
            expected.labels.push(ids[place] as i32);
        }
        assert_eq!(found, expected, "sample {number}");
    }
    // A sample masks at most 19 tokens, so no span is too long.
    assert!(tokens > 1_000_000 && deep == 0 && special > 10_000, "{tokens} {deep} {special}");
}

/// If spans rarely touch, the numbers of tokens at each position of a span follow from the distribution of the lengths. The
/// last span of a sample is cut at the limit of masked tokens.
#[test]
fn positions_in_spans_follow_the_lengths() {
    const LIMIT: usize = 20;
    const SAMPLES: u64 = 55_000;
    let settings = Objective { mask_probability: 0.01, ..objective(MaskUnit::Span) };
    // Each token is a word.
    let ids: Vec<u32> = [2].into_iter().chain((0..1998).map(|place| 100 + place % 400)).chain([3]).collect();
    assert_eq!(settings.predictions(ids.len()), LIMIT);
    let mut counts = [0_u64; SPAN_POSITIONS];
    let mut total = 0;
    for number in 0..SAMPLES {
        let (_, found) = targets(&ids, &settings, number);
        found.offsets.iter().for_each(|offset| counts[*offset as usize] += 1);
        total += found.labels.len() as u64;
    }
    assert_eq!(total, SAMPLES * LIMIT as u64);
    let longest = MAX_SPAN_WORDS as usize;
    let all: f64 = (0..longest).map(|length| 0.8_f64.powi(length as i32)).sum();
    // Probability that a span has more than `offset` words.
    let longer = |offset: usize| (offset..longest).map(|length| 0.8_f64.powi(length as i32)).sum::<f64>() / all;
    // Probability that a span begins after `place` masked tokens.
    let mut begins = vec![1.0];
    for place in 1..LIMIT {
        let ends = |length: usize| (longer(length - 1) - longer(length)) * begins[place - length];
        begins.push((1..=place.min(longest)).map(ends).sum::<f64>());
    }
    for (offset, count) in counts.iter().enumerate() {
        let expected = longer(offset) * begins[..LIMIT - offset].iter().sum::<f64>();
        let found = *count as f64 / SAMPLES as f64;
        // About one span in fifty touches another one, so the tokens of these have later positions.
        let limit = 0.04 * expected + 0.04;
        assert!((found - expected).abs() < limit, "offset {offset}: {found} of {expected}");
    }
    assert!(counts[9] > 0 && counts[0] > SAMPLES * 5, "{counts:?}");
}
