//! The flat buffers in chunks that several threads work on. How they are cut does not depend on the threads, and sums over
//! chunks are added in their order, so that the result does not either.

use std::ops::Range;

use lambert_dataset::random::{STEP, mix};

use crate::kernels::Rule;

/// Elements of a chunk: many for each thread, and little enough bookkeeping.
const CHUNK: usize = 1 << 16;

/// The same elements of the four flat buffers.
#[derive(Default)]
pub struct Slices<'a> {
    /// Weights.
    pub weights: &'a mut [f32],
    /// Gradients; scratch afterwards.
    pub gradients: &'a mut [f32],
    /// First moments.
    pub first: &'a mut [f32],
    /// Second moments.
    pub second: &'a mut [f32],
}

impl Slices<'_> {
    /// Takes the first `count` elements off.
    fn take(&mut self, count: usize) -> Self {
        Self {
            weights: take(&mut self.weights, count),
            gradients: take(&mut self.gradients, count),
            first: take(&mut self.first, count),
            second: take(&mut self.second, count),
        }
    }
}

fn take<'a>(buffer: &mut &'a mut [f32], count: usize) -> &'a mut [f32] {
    let (taken, rest) = std::mem::take(buffer).split_at_mut(count);
    *buffer = rest;
    taken
}

/// Some elements of one parameter.
pub struct Chunk<'a> {
    /// The parameter's number.
    pub parameter: usize,
    /// How it is updated.
    pub rule: Rule,
    /// Its elements.
    pub slices: Slices<'a>,
}

/// Cuts the parameters, whose ranges lie in the order of the buffers, into chunks of one parameter each.
pub fn cut<'a>(parameters: &[(Range<usize>, Rule)], mut slices: Slices<'a>) -> Vec<Chunk<'a>> {
    let mut chunks = Vec::new();
    let mut end = 0;
    for (parameter, (range, rule)) in parameters.iter().enumerate() {
        slices.take(range.start - end);
        end = range.end;
        let mut left = range.len();
        while left > 0 {
            let count = left.min(CHUNK);
            chunks.push(Chunk { parameter, rule: *rule, slices: slices.take(count) });
            left -= count;
        }
    }
    chunks
}

/// Gives every chunk to `work` on `threads` threads; the results in the order of the chunks.
pub fn each<R: Send>(chunks: &mut [Chunk<'_>], threads: usize, work: impl Fn(&mut Chunk<'_>) -> R + Sync) -> Vec<R> {
    let elements: usize = chunks.iter().map(|chunk| chunk.slices.weights.len()).sum();
    let share = elements.div_ceil(threads.max(1));
    let run = |part: &mut [Chunk<'_>]| part.iter_mut().map(&work).collect::<Vec<R>>();
    std::thread::scope(|scope| {
        let mut others = Vec::new();
        let mut rest = chunks;
        for _ in 1..threads {
            let mut sum = 0;
            let count = rest.iter().take_while(|chunk| {
                sum += chunk.slices.weights.len();
                sum <= share
            });
            let (part, after) = rest.split_at_mut(count.count());
            others.push(scope.spawn(|| run(part)));
            rest = after;
        }
        let last = run(rest);
        let join = |thread: std::thread::ScopedJoinHandle<'_, Vec<R>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        let mut results: Vec<R> = others.into_iter().flat_map(join).collect();
        results.extend(last);
        results
    })
}

/// What `of` makes of each chunk of `values` (its number, and its elements), on `threads` threads; in their order.
fn over<R: Send>(values: &[f32], threads: usize, of: impl Fn(usize, &[f32]) -> R + Sync) -> Vec<R> {
    let chunks: Vec<(usize, &[f32])> = values.chunks(CHUNK).enumerate().collect();
    let of = &of;
    std::thread::scope(|scope| {
        let parts = chunks.chunks(chunks.len().div_ceil(threads.max(1)).max(1));
        let results =
            |part: &[(usize, &[f32])]| part.iter().map(|(number, chunk)| of(*number, chunk)).collect::<Vec<R>>();
        let parts: Vec<_> = parts.map(|part| scope.spawn(move || results(part))).collect();
        let join = |part: std::thread::ScopedJoinHandle<'_, Vec<R>>| {
            part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        parts.into_iter().flat_map(join).collect()
    })
}

/// Sum of the squares on `threads` threads; see [`sum_of_squares`].
pub fn sum_of_squares_of(values: &[f32], threads: usize) -> f64 {
    over(values, threads, |_, chunk| sum_of_squares(chunk)).iter().sum()
}

/// As [`Kernels::digest`](crate::kernels::Kernels::digest), on `threads` threads.
pub fn digest(values: &[f32], threads: usize) -> u64 {
    let of_chunk = |number: usize, chunk: &[f32]| {
        let (pairs, rest) = chunk.as_chunks::<2>();
        let words = pairs.iter().copied().chain(rest.first().map(|last| [*last, 0.0]));
        let mixed = words.zip((number * CHUNK / 2 + 1) as u64..).map(|([low, high], place)| {
            let word = u64::from(high.to_bits()) << 32 | u64::from(low.to_bits());
            mix(word.wrapping_add(place.wrapping_mul(STEP)))
        });
        mixed.fold(0, u64::wrapping_add)
    };
    over(values, threads, of_chunk).into_iter().fold(0, u64::wrapping_add)
}

/// Sum of the squares, in f64 over fixed lanes, so that it is exact enough for a norm and the same each time.
pub fn sum_of_squares(values: &[f32]) -> f64 {
    let mut lanes = [0.0_f64; 8];
    let (blocks, rest) = values.as_chunks::<8>();
    for block in blocks {
        for (lane, value) in lanes.iter_mut().zip(block) {
            *lane += f64::from(*value) * f64::from(*value);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|value| f64::from(*value) * f64::from(*value)).sum::<f64>()
}
