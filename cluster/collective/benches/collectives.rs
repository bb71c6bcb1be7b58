//! Times over MPI on this machine: `cargo bench -p lambert-collective -- [reduce] [overlap] [gather] [small] [accuracy]`, all by default.
//!
//! The program starts itself under `mpirun`, a job for each figure. What is compared is interleaved in rounds; medians are told.

#![allow(clippy::unwrap_used, reason = "a bench that cannot measure has nothing to tell")]

use std::process::{Command, Stdio};
use std::time::Instant;

use ::mpi::ffi;
use lambert_collective::mpi::{Options, Wire};
use lambert_collective::{Bucket, Endpoints, all_reduce, mpi, world};

/// BERT-base's gradients, 440 MB.
const GRADIENTS: usize = 110_000_000;

const ROUNDS: usize = 7;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if world::detect().is_some() {
        return as_rank(&arguments[0]);
    }
    let is_asked = |name: &str| arguments.is_empty() || arguments.iter().any(|argument| argument == name);
    for (name, ranks, jobs) in [
        ("reduce", 2, &["MPI_Allreduce", "ring", "ring-bf16"][..]),
        ("overlap", 2, &["overlap"]),
        ("gather", 8, &["MPI_Gather", "gather"]),
        ("small", 2, &["small"]),
        ("accuracy", 2, &["accuracy", "accuracy-bf16"]),
        ("accuracy", 8, &["accuracy", "accuracy-bf16"]),
    ] {
        if is_asked(name) {
            compare(ranks, jobs);
        }
    }
}

/// Runs the jobs in turn, and prints the median of each of their figures and of its ratio to the first job's in the same round.
fn compare(ranks: usize, jobs: &[&str]) {
    let mut figures = vec![Vec::new(); jobs.len()];
    for _ in 0..ROUNDS {
        for (job, figures) in jobs.iter().zip(&mut figures) {
            figures.push(run(ranks, job));
        }
    }
    for (job, rounds) in jobs.iter().zip(&figures) {
        println!("{job}, {ranks} ranks, median (least to most) of {ROUNDS}:");
        for (index, (name, _)) in rounds[0].iter().enumerate() {
            let values = rounds.iter().map(|round| round[index].1);
            let ratios = rounds.iter().zip(&figures[0]).map(|(round, first)| round[index].1 / first[index].1);
            let ratio = if *job == jobs[0] { String::new() } else { format!("; to {} {}", jobs[0], spread(ratios)) };
            println!("    {name}: {}{ratio}", spread(values));
        }
    }
}

fn spread(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    format!("{:.3} ({:.3} to {:.3})", values[values.len() / 2], values[0], values[values.len() - 1])
}

/// The figures that rank 0 of a job prints, as `name = number`.
fn run(ranks: usize, job: &str) -> Vec<(String, f64)> {
    let output = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", &ranks.to_string()])
        .arg(std::env::current_exe().unwrap())
        .arg(job)
        .stderr(Stdio::inherit())
        .output()
        .expect("mpirun is installed (cluster/setup.sh does it)");
    assert!(output.status.success(), "{job} failed");
    let text = String::from_utf8(output.stdout).unwrap();
    let figure = |line: &str| line.split_once(" = ").map(|(name, value)| (name.to_owned(), value.parse().unwrap()));
    text.lines().filter_map(figure).collect()
}

fn as_rank(job: &str) {
    let job: fn(&mut Endpoints) = match job {
        "MPI_Allreduce" => return open_mpi(open_mpi_reduces),
        "MPI_Gather" => return open_mpi(open_mpi_gathers),
        "ring-bf16" => return with_options(bf16(), reduce),
        "accuracy-bf16" => return with_options(bf16(), accuracy),
        "ring" => reduce,
        "overlap" => overlap,
        "gather" => gather,
        "small" => small,
        "accuracy" => accuracy,
        other => panic!("there is no job {other}"),
    };
    with_options(Options::default(), job);
}

fn bf16() -> Options {
    Options { wire: Wire::Bf16, ..Options::default() }
}

fn with_options(options: Options, job: fn(&mut Endpoints)) {
    let mut ends = mpi::init(options).unwrap();
    job(&mut ends);
    ends.finish().unwrap();
}

/// Seconds of the processor that this process has used.
fn cpu_seconds() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let nanoseconds = tasks.map(|task| {
        let text = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|field| field.parse::<f64>().ok()).unwrap_or_default()
    });
    nanoseconds.sum::<f64>() / 1e9
}

/// Seconds, and seconds of the processor, of the mean of `times` calls, after one that does not count.
fn measured(times: u32, mut call: impl FnMut()) -> [f64; 2] {
    call();
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    (0..times).for_each(|_| call());
    [begin.elapsed().as_secs_f64(), cpu_seconds() - cpu].map(|seconds| seconds / f64::from(times))
}

fn tell(ends: &Endpoints, name: &str, value: f64) {
    if ends.group.rank() == 0 {
        println!("{name} = {value}");
    }
}

fn reduce(ends: &mut Endpoints) {
    let mut values = vec![0.001f32; GRADIENTS];
    let [seconds, cpu] = measured(3, || all_reduce(&mut *ends.reducer, &mut values, None).unwrap());
    tell(ends, "seconds", seconds);
    tell(ends, "processor seconds of a rank", cpu);
    tell(ends, "GB/s", 4.0 * GRADIENTS as f64 / 1e9 / seconds);
}

/// One compute thread a rank, beside the same all-reduce.
fn overlap(ends: &mut Endpoints) {
    let mut values = vec![0.001f32; GRADIENTS];
    let [alone, _] = measured(2, || all_reduce(&mut *ends.reducer, &mut values, None).unwrap());
    ends.group.barrier().unwrap();
    let [computing, _] = measured(2, compute);
    ends.group.barrier().unwrap();
    let [both, cpu] = measured(2, || {
        // SAFETY: `values` is not touched before the sum is there.
        let bucket = unsafe { Bucket::host(values.as_mut_ptr(), values.len()) };
        let pending = ends.reducer.start(bucket).unwrap();
        compute();
        pending.wait(None).unwrap();
    });
    tell(ends, "all-reduce alone, seconds", alone);
    tell(ends, "computing alone, seconds", computing);
    tell(ends, "both, seconds", both);
    tell(ends, "both, processor seconds of a rank", cpu);
    tell(ends, "part of the all-reduce that is hidden", 1.0 - (both - computing) / alone);
}

/// About a second of arithmetic without memory.
fn compute() {
    let mut lanes = std::hint::black_box([1.5f32; 32]);
    for _ in 0..std::hint::black_box(120_000_000u32) {
        lanes.iter_mut().for_each(|lane| *lane = *lane * 0.999 + 0.001);
    }
    std::hint::black_box(lanes);
}

/// Bytes that a rank brings to the root.
const GATHERED: [usize; 2] = [64, 1 << 20];

fn gather(ends: &mut Endpoints) {
    for length in GATHERED {
        let bytes = vec![1; length];
        let [seconds, _] = measured(50, || drop(ends.group.gather_bytes(&bytes, 0).unwrap()));
        tell(ends, &format!("{length} bytes of each, ms"), 1e3 * seconds);
    }
}

fn small(ends: &mut Endpoints) {
    let [barrier, _] = measured(1000, || ends.group.barrier().unwrap());
    let [sum, _] = measured(1000, || ends.group.all_reduce_sum_f64(&mut [1.0; 32]).unwrap());
    let [bucket, _] = measured(1000, || all_reduce(&mut *ends.reducer, &mut [1.0; 1024], None).unwrap());
    tell(ends, "barrier, microseconds", 1e6 * barrier);
    tell(ends, "sum of 32 f64, microseconds", 1e6 * sum);
    tell(ends, "bucket of 4 KiB, microseconds", 1e6 * bucket);
    let begin = cpu_seconds();
    std::thread::sleep(std::time::Duration::from_secs(5));
    tell(ends, "idle, processor ms a second", 200.0 * (cpu_seconds() - begin));
}

/// The error of sums of independent numbers between -1 and 1, one of each rank.
fn accuracy(ends: &mut Endpoints) {
    let number = |i: u64, rank: usize| {
        let mixed = (i ^ (rank as u64) << 40).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let mut values: Vec<f32> = (0..1 << 20).map(|i| number(i, ends.group.rank())).collect();
    all_reduce(&mut *ends.reducer, &mut values, None).unwrap();
    let world = ends.group.world();
    let (mut errors, mut squares) = (0.0, 0.0);
    for (i, &value) in values.iter().enumerate() {
        let sum: f64 = (0..world).map(|rank| f64::from(number(i as u64, rank))).sum();
        errors += (f64::from(value) - sum).powi(2);
        squares += sum.powi(2);
    }
    tell(ends, "error of the sum, parts in a million of its norm", 1e6 * (errors / squares).sqrt());
}

/// MPI as a plain program uses it; the job is told this rank's number and the number of ranks.
fn open_mpi(job: fn(i32, i32)) {
    let (mut rank, mut world) = (0, 0);
    // SAFETY: nothing has initialized MPI here; null arguments are allowed; the integers live for the calls.
    unsafe {
        assert_eq!(ffi::MPI_Init(std::ptr::null_mut(), std::ptr::null_mut()), 0);
        assert_eq!(ffi::MPI_Comm_rank(ffi::RSMPI_COMM_WORLD, &mut rank), 0);
        assert_eq!(ffi::MPI_Comm_size(ffi::RSMPI_COMM_WORLD, &mut world), 0);
    }
    job(rank, world);
    // SAFETY: it is initialized, and nothing calls it after this.
    assert_eq!(unsafe { ffi::MPI_Finalize() }, 0);
}

fn open_mpi_reduces(rank: i32, _: i32) {
    let mut values = vec![0.001f32; GRADIENTS];
    // Open MPI's MPI_IN_PLACE.
    let in_place = std::ptr::without_provenance_mut(1);
    let [seconds, cpu] = measured(3, || {
        let (count, first) = (values.len() as i32, values.as_mut_ptr().cast());
        // SAFETY: `values` has so many f32, and lives for the call.
        let code = unsafe {
            ffi::MPI_Allreduce(in_place, first, count, ffi::RSMPI_FLOAT, ffi::RSMPI_SUM, ffi::RSMPI_COMM_WORLD)
        };
        assert_eq!(code, 0);
    });
    if rank == 0 {
        println!("seconds = {seconds}\nprocessor seconds of a rank = {cpu}");
        println!("GB/s = {}", 4.0 * GRADIENTS as f64 / 1e9 / seconds);
    }
}

fn open_mpi_gathers(rank: i32, world: i32) {
    for length in GATHERED {
        let (bytes, mut all) = (vec![1u8; length], vec![0u8; length * world as usize]);
        let [seconds, _] = measured(50, || {
            let (from, to, count) = (bytes.as_ptr().cast(), all.as_mut_ptr().cast(), length as i32);
            // SAFETY: both buffers have room for what is sent, and live for the call.
            let code = unsafe {
                let kind = ffi::RSMPI_UINT8_T;
                ffi::MPI_Gather(from, count, kind, to, count, kind, 0, ffi::RSMPI_COMM_WORLD)
            };
            assert_eq!(code, 0);
        });
        if rank == 0 {
            println!("{length} bytes of each, ms = {}", 1e3 * seconds);
        }
    }
}
