//! Memory throughput of optimizer updates of 110 million weights, compared with the memory bandwidth:
//! `cargo bench --workspace --bench optimizer`.
//!
//! The bandwidth is measured with an in-place axpy (`y += a * x`, 12 bytes per element) over buffers of the same size
//! with the same number of threads. The throughput assumes that no access hits a cache. Then LAMB moves 44 bytes per
//! element. The norm reads the gradients. The first pass reads weights, gradients and moments, and writes moments and
//! update. The second pass reads update and weights, and writes weights. AdamW moves 32 bytes per element.
//!
//! Muon is measured with iterations in bf16 and in f32. Its throughput is in FLOP/s of the iterations.
//!
//! Each round measures axpy and each optimizer once. The benchmark prints medians over the rounds. The environment
//! variables `LAMBERT_BENCH_ROUNDS` (default: 7) and `LAMBERT_BENCH_THREADS` (default: 2) set the numbers of rounds and
//! threads.
#![allow(clippy::unwrap_used)] // A panic is how a benchmark reports.

use std::sync::Arc;
use std::time::Instant;

use lambert_config::run::{Model, Muon, MuonPrecision, Optimizer as Settings, OptimizerKind};
use lambert_plan::architecture::Architecture;
use lambert_plan::muon::UpdateWork;
use lambert_worker::kernels::Host;
use lambert_worker::optim;
use lambert_worker::state::{Buffer, Parameters, TrainState};

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
    let specs = Architecture::new(&Model::default(), 12, 30_522);
    let mut state = TrainState::new(Parameters::zeros(Arc::new(Host), specs));
    let elements = state.elements();
    let (mut values, gradients) = (vec![0.01_f32; elements], vec![1e-3_f32; elements]);
    state.write(Buffer::Weights, 0, &values);
    let settings = |kind, precision| {
        let muon = Muon { precision, ..Muon::default() };
        Settings { kind, muon, ..Settings::default() }
    };
    let settings = [
        settings(OptimizerKind::Lamb, MuonPrecision::Bf16),
        settings(OptimizerKind::Adamw, MuonPrecision::Bf16),
        settings(OptimizerKind::Muon, MuonPrecision::Bf16),
        settings(OptimizerKind::Muon, MuonPrecision::Fp32),
    ];
    let mut seconds = [vec![], vec![], vec![], vec![], vec![]];
    for _ in 0..number("LAMBERT_BENCH_ROUNDS", 7) {
        let mut time = |index: usize, work: &mut dyn FnMut()| {
            let start = Instant::now();
            work();
            seconds[index].push(start.elapsed().as_secs_f64());
        };
        time(0, &mut || axpy(&mut values, &gradients, threads));
        for (index, settings) in settings.iter().enumerate() {
            state.write(Buffer::Gradients, 0, &gradients);
            time(1 + index, &mut || drop(optim::update(&mut state, settings, 1e-3, &mut optim::SingleRank).unwrap()));
        }
    }
    let median = |values: &mut Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let bandwidth = 12.0 * elements as f64 / median(&mut seconds[0]);
    println!("{elements} weights, {threads} threads; axpy {:.1} GB/s", bandwidth / 1e9);
    for (name, index, bytes) in [("LAMB", 1, 44.0), ("AdamW", 2, 32.0)] {
        let time = median(&mut seconds[index]);
        let rate = bytes * elements as f64 / time;
        println!(
            "{name:<6} {:>6.1} ms, {:.3} ns per weight, {:.1} GB/s = {:.0} % of the bandwidth",
            time * 1e3,
            time * 1e9 / elements as f64,
            rate / 1e9,
            100.0 * rate / bandwidth
        );
    }
    for (name, index) in [("bf16", 3), ("fp32", 4)] {
        let work = UpdateWork::new(&settings[index - 1], state.parameters.architecture(), 1);
        let time = median(&mut seconds[index]);
        println!("Muon, {name}: {:.2} s, {:.1} GFLOP/s", time, work.flops / time / 1e9);
    }
}
