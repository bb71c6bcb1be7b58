//! Parallel loops over chunks of the flat buffers. The chunk boundaries and the order of summation do not depend on the
//! number of threads. Results therefore have the same bits for any number of threads.

use std::ops::Range;

use lambert_dataset::random::{STEP, mix};

use crate::kernels::ParamUpdate;

/// Elements per chunk. The value is small enough to balance the threads, and large enough to keep the overhead low.
const CHUNK: usize = 1 << 16;

/// One range of elements in each of the four flat buffers.
#[derive(Default)]
pub struct Slices<'a> {
    pub weights: &'a mut [f32],
    /// Gradients, which the update overwrites.
    pub gradients: &'a mut [f32],
    /// First moments.
    pub first: &'a mut [f32],
    /// Second moments.
    pub second: &'a mut [f32],
}

impl Slices<'_> {
    /// Splits off the first `count` elements.
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

/// A range of elements of one parameter.
pub struct Chunk<'a> {
    /// Index of the parameter.
    pub parameter: usize,
    /// Update constants.
    pub constants: ParamUpdate,
    /// Elements.
    pub slices: Slices<'a>,
}

/// Splits the parameters into chunks. A chunk never spans two parameters. The ranges must be in buffer order.
pub fn split<'a>(parameters: &[(Range<usize>, ParamUpdate)], mut slices: Slices<'a>) -> Vec<Chunk<'a>> {
    let mut chunks = Vec::new();
    let mut end = 0;
    for (parameter, (range, constants)) in parameters.iter().enumerate() {
        slices.take(range.start - end);
        end = range.end;
        let mut left = range.len();
        while left > 0 {
            let count = left.min(CHUNK);
            chunks.push(Chunk { parameter, constants: *constants, slices: slices.take(count) });
            left -= count;
        }
    }
    chunks
}

/// Runs `work` on every chunk on `threads` threads and returns the results in chunk order.
pub fn for_each_chunk<R: Send>(
    chunks: &mut [Chunk<'_>],
    threads: usize,
    work: impl Fn(&mut Chunk<'_>) -> R + Sync,
) -> Vec<R> {
    let elements: usize = chunks.iter().map(|chunk| chunk.slices.weights.len()).sum();
    let target = elements.div_ceil(threads.max(1));
    let run = |part: &mut [Chunk<'_>]| part.iter_mut().map(&work).collect::<Vec<R>>();
    std::thread::scope(|scope| {
        let mut others = Vec::new();
        let mut rest = chunks;
        for _ in 1..threads {
            let mut sum = 0;
            let count = rest.iter().take_while(|chunk| {
                sum += chunk.slices.weights.len();
                sum <= target
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

/// Calls `map` with the index and the elements of each chunk of `values`, on `threads`
/// threads. Returns the results in chunk order.
fn map_chunks<R: Send>(values: &[f32], threads: usize, map: impl Fn(usize, &[f32]) -> R + Sync) -> Vec<R> {
    let chunks: Vec<(usize, &[f32])> = values.chunks(CHUNK).enumerate().collect();
    let map = &map;
    std::thread::scope(|scope| {
        let parts = chunks.chunks(chunks.len().div_ceil(threads.max(1)).max(1));
        let results =
            |part: &[(usize, &[f32])]| part.iter().map(|(number, chunk)| map(*number, chunk)).collect::<Vec<R>>();
        let parts: Vec<_> = parts.map(|part| scope.spawn(move || results(part))).collect();
        let join = |part: std::thread::ScopedJoinHandle<'_, Vec<R>>| {
            part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        parts.into_iter().flat_map(join).collect()
    })
}

/// Sum of squares in f64, on `threads` threads.
pub fn parallel_sum_of_squares(values: &[f32], threads: usize) -> f64 {
    map_chunks(values, threads, |_, chunk| sum_of_squares(chunk)).iter().sum()
}

/// Implements [`Kernels::digest`](crate::kernels::Kernels::digest) on `threads` threads.
pub fn digest(values: &[f32], threads: usize) -> u64 {
    let chunk_digest = |number: usize, chunk: &[f32]| {
        let (pairs, rest) = chunk.as_chunks::<2>();
        let words = pairs.iter().copied().chain(rest.first().map(|last| [*last, 0.0]));
        let mixed = words.zip((number * CHUNK / 2 + 1) as u64..).map(|([low, high], index)| {
            let word = u64::from(high.to_bits()) << 32 | u64::from(low.to_bits());
            mix(word.wrapping_add(index.wrapping_mul(STEP)))
        });
        mixed.fold(0, u64::wrapping_add)
    };
    map_chunks(values, threads, chunk_digest).into_iter().fold(0, u64::wrapping_add)
}

/// Sum of squares in f64, accumulated in eight fixed lanes. The result is reproducible, and precise enough for a norm.
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
