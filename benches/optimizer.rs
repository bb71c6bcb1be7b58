//! Updates of 110 million weights beside the machine's memory bandwidth: `cargo bench -p lambert --bench optimizer`.
//!
//! The bandwidth is that of an in-place axpy (`y += a x`, 12 bytes an element) over buffers of the same size on the same
//! threads. Bytes an element by the formulas, without caches: LAMB 44 (gradients for the norm; weights, gradients and
//! moments read, moments and update written; update and weights read, weights written), AdamW 28 (the norm is given).
//! `LAMBERT_BENCH_ROUNDS` (7) rounds are interleaved; medians are printed. `LAMBERT_BENCH_THREADS` (2).
#![allow(clippy::unwrap_used)] // A panic is a bench's report.

use std::time::Instant;

use lambert::model::parameters;
use lambert::optim::{self, Optimizer};
use lambert_config::run::{Model, Optimizer as Settings, OptimizerKind};

fn axpy(y: &mut [f32], x: &[f32], threads: usize) {
    let share = y.len().div_ceil(threads);
    std::thread::scope(|scope| {
        for (y, x) in y.chunks_mut(share).zip(x.chunks(share)) {
            scope.spawn(move || y.iter_mut().zip(x).for_each(|(y, x)| *y += 0.5 * *x));
        }
    });
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn main() {
    let threads = number("LAMBERT_BENCH_THREADS", 2);
    tch::set_num_threads(threads as i32);
    let specs = parameters::specs(&Model::default(), 12, 30_522);
    let elements = specs.last().unwrap().range().end;
    let (mut weights, mut gradients) = (vec![0.01_f32; elements], vec![1e-3_f32; elements]);
    let mut optimizers = [OptimizerKind::Lamb, OptimizerKind::Adamw]
        .map(|kind| Optimizer::new(Settings { kind, ..Settings::default() }, elements));
    let mut seconds = [vec![], vec![], vec![]];
    for _ in 0..number("LAMBERT_BENCH_ROUNDS", 7) {
        let mut time = |index: usize, work: &mut dyn FnMut()| {
            let start = Instant::now();
            work();
            seconds[index].push(start.elapsed().as_secs_f64());
        };
        time(0, &mut || axpy(&mut weights, &gradients, threads));
        gradients.fill(1e-3);
        time(1, &mut || {
            let norm = optim::norm(&gradients);
            optimizers[0].step(&specs, &mut weights, &mut gradients, norm, 1e-3);
        });
        gradients.fill(1e-3);
        time(2, &mut || optimizers[1].step(&specs, &mut weights, &mut gradients, 1.0, 1e-3));
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let bandwidth = 12.0 * elements as f64 / median(&mut seconds[0]);
    println!("{elements} weights, {threads} threads; axpy {:.1} GB/s", bandwidth / 1e9);
    for (name, index, bytes) in [("LAMB", 1, 44.0), ("AdamW", 2, 28.0)] {
        let time = median(&mut seconds[index]);
        let rate = bytes * elements as f64 / time;
        println!(
            "{name:<6} {:>6.1} ms, {:.3} ns a weight, {:.1} GB/s = {:.0} % of the bandwidth",
            time * 1e3,
            time * 1e9 / elements as f64,
            rate / 1e9,
            100.0 * rate / bandwidth
        );
    }
}
