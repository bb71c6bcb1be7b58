//! Benchmarks of the MPI backend: `cargo bench -p lambert-collective -- [reduce] [overlap] [gather] [small]
//! [buckets] [accuracy]`. Without arguments, all of them run.
//!
//! The program starts itself under `mpirun`, one job per measurement. Jobs that are compared run in turn, in several
//! rounds. The program prints medians.

#![allow(clippy::unwrap_used, reason = "a benchmark that fails should panic")]

use std::process::{Command, Stdio};
use std::time::Instant;

use ::mpi::ffi;
use lambert_collective::mpi::{MpiOptions, WireFormat};
use lambert_collective::{Bucket, Endpoints, all_reduce, mpi, world};

/// Number of gradients of BERT-base, 440 MB.
const GRADIENTS: usize = 110_000_000;

const ROUNDS: usize = 7;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    if world::detect().is_some() {
        return as_rank(&arguments[0]);
    }
    let is_selected = |name: &str| arguments.is_empty() || arguments.iter().any(|argument| argument == name);
    for (name, ranks, jobs) in [
        ("reduce", 2, &["MPI_Allreduce", "ring", "ring-bf16"][..]),
        ("overlap", 2, &["overlap"]),
        ("gather", 8, &["MPI_Gather", "gather"]),
        ("small", 2, &["small"]),
        ("small", 8, &["small"]),
        ("buckets", 16, &["buckets"]),
        ("accuracy", 2, &["accuracy", "accuracy-bf16"]),
        ("accuracy", 8, &["accuracy", "accuracy-bf16"]),
    ] {
        if is_selected(name) {
            compare(ranks, jobs);
        }
    }
}

/// Runs the jobs in turn. Prints the median of each measurement and of its ratio to the first job of the same round.
fn compare(ranks: usize, jobs: &[&str]) {
    let mut results = vec![Vec::new(); jobs.len()];
    for _ in 0..ROUNDS {
        for (job, results) in jobs.iter().zip(&mut results) {
            results.push(run(ranks, job));
        }
    }
    for (job, rounds) in jobs.iter().zip(&results) {
        println!("{job}, {ranks} ranks, median (min to max) of {ROUNDS} rounds:");
        for (index, (name, _)) in rounds[0].iter().enumerate() {
            let values = rounds.iter().map(|round| round[index].1);
            let ratios = rounds.iter().zip(&results[0]).map(|(round, first)| round[index].1 / first[index].1);
            let ratio =
                if *job == jobs[0] { String::new() } else { format!("; relative to {}: {}", jobs[0], spread(ratios)) };
            println!("    {name}: {}{ratio}", spread(values));
        }
    }
}

fn spread(values: impl Iterator<Item = f64>) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    format!("{:.3} ({:.3} to {:.3})", values[values.len() / 2], values[0], values[values.len() - 1])
}

/// Runs a job and returns the measurements that rank 0 prints as `name = number`.
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
    let parse = |line: &str| line.split_once(" = ").map(|(name, value)| (name.to_owned(), value.parse().unwrap()));
    text.lines().filter_map(parse).collect()
}

fn as_rank(job: &str) {
    let job: fn(&mut Endpoints) = match job {
        "MPI_Allreduce" => return with_plain_mpi(plain_all_reduce),
        "MPI_Gather" => return with_plain_mpi(plain_gather),
        "ring-bf16" => return with_options(bf16_options(), reduce),
        "accuracy-bf16" => return with_options(bf16_options(), accuracy),
        "ring" => reduce,
        "overlap" => overlap,
        "gather" => gather,
        "small" => small,
        "buckets" => buckets,
        "accuracy" => accuracy,
        other => panic!("unknown job {other}"),
    };
    with_options(MpiOptions::default(), job);
}

fn bf16_options() -> MpiOptions {
    MpiOptions { wire: WireFormat::Bf16, ..MpiOptions::default() }
}

fn with_options(options: MpiOptions, job: fn(&mut Endpoints)) {
    let mut endpoints = mpi::init(options).unwrap();
    job(&mut endpoints);
    endpoints.finish().unwrap();
}

/// CPU time that this process has used, seconds.
fn cpu_seconds() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let nanoseconds = tasks.map(|task| {
        let text = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|field| field.parse::<f64>().ok()).unwrap_or_default()
    });
    nanoseconds.sum::<f64>() / 1e9
}

/// Returns the mean wall-clock time and the mean CPU time of a call, seconds. Makes one warm-up call and then `times`
/// measured calls.
fn measure(times: u32, mut call: impl FnMut()) -> [f64; 2] {
    call();
    let (begin, cpu) = (Instant::now(), cpu_seconds());
    (0..times).for_each(|_| call());
    [begin.elapsed().as_secs_f64(), cpu_seconds() - cpu].map(|seconds| seconds / f64::from(times))
}

fn print(endpoints: &Endpoints, name: &str, value: f64) {
    if endpoints.group.rank() == 0 {
        println!("{name} = {value}");
    }
}

fn reduce(endpoints: &mut Endpoints) {
    let mut values = vec![0.001f32; GRADIENTS];
    let [seconds, cpu] = measure(3, || all_reduce(&mut *endpoints.reducer, &mut values, None).unwrap());
    print(endpoints, "seconds", seconds);
    print(endpoints, "CPU seconds per rank", cpu);
    print(endpoints, "GB/s", 4.0 * GRADIENTS as f64 / 1e9 / seconds);
}

/// Runs an all-reduce while one thread per rank computes.
fn overlap(endpoints: &mut Endpoints) {
    let mut values = vec![0.001f32; GRADIENTS];
    let [alone, _] = measure(2, || all_reduce(&mut *endpoints.reducer, &mut values, None).unwrap());
    endpoints.group.barrier().unwrap();
    let [computing, _] = measure(2, compute);
    endpoints.group.barrier().unwrap();
    let [both, cpu] = measure(2, || {
        // SAFETY: `values` is not accessed before the all-reduce is complete.
        let bucket = unsafe { Bucket::host(values.as_mut_ptr(), values.len()) };
        let pending = endpoints.reducer.start(bucket).unwrap();
        compute();
        pending.wait(None).unwrap();
    });
    print(endpoints, "all-reduce alone, seconds", alone);
    print(endpoints, "computation alone, seconds", computing);
    print(endpoints, "both, seconds", both);
    print(endpoints, "both, CPU seconds per rank", cpu);
    print(endpoints, "overlapped fraction of the all-reduce", 1.0 - (both - computing) / alone);
}

/// Computes in registers for about one second.
fn compute() {
    let mut values = std::hint::black_box([1.5f32; 32]);
    for _ in 0..std::hint::black_box(120_000_000u32) {
        values.iter_mut().for_each(|value| *value = *value * 0.999 + 0.001);
    }
    std::hint::black_box(values);
}

/// Message sizes per rank, bytes.
const GATHER_BYTES: [usize; 2] = [64, 1 << 20];

fn gather(endpoints: &mut Endpoints) {
    for length in GATHER_BYTES {
        let bytes = vec![1; length];
        let [seconds, _] = measure(50, || drop(endpoints.group.gather_bytes(&bytes, 0).unwrap()));
        print(endpoints, &format!("{length} bytes per rank, ms"), 1e3 * seconds);
    }
}

fn small(endpoints: &mut Endpoints) {
    let [barrier, _] = measure(1000, || endpoints.group.barrier().unwrap());
    let [sum, _] = measure(1000, || endpoints.group.all_reduce_sum_f64(&mut [1.0; 32]).unwrap());
    let [bucket, _] = measure(1000, || all_reduce(&mut *endpoints.reducer, &mut [1.0; 1024], None).unwrap());
    print(endpoints, "barrier, microseconds", 1e6 * barrier);
    print(endpoints, "all-reduce of 32 f64, microseconds", 1e6 * sum);
    print(endpoints, "bucket of 4 KiB, microseconds", 1e6 * bucket);
    let late = late(endpoints);
    print(endpoints, "two all-reduces of 32 f64 after the last rank arrives, microseconds", 1e6 * late);
    let begin = cpu_seconds();
    std::thread::sleep(std::time::Duration::from_secs(5));
    print(endpoints, "idle, CPU ms per second", 200.0 * (cpu_seconds() - begin));
}

/// Returns the mean time of two sums from the arrival of rank 0, which is 5 ms later than the others, seconds. The second sum
/// needs the ranks that wait for the first.
fn late(endpoints: &mut Endpoints) -> f64 {
    const TIMES: u32 = 200;
    let mut waited = 0.0;
    for _ in 0..TIMES {
        if endpoints.group.rank() == 0 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let begin = Instant::now();
        (0..2).for_each(|_| endpoints.group.all_reduce_sum_f64(&mut [1.0; 32]).unwrap());
        waited += begin.elapsed().as_secs_f64();
    }
    waited / f64::from(TIMES)
}

fn buckets(endpoints: &mut Endpoints) {
    for kibibytes in [16, 32, 64, 128, 256] {
        let mut values = vec![1.0; kibibytes << 8];
        let [seconds, _] = measure(100, || all_reduce(&mut *endpoints.reducer, &mut values, None).unwrap());
        print(endpoints, &format!("bucket of {kibibytes} KiB, ms"), 1e3 * seconds);
    }
}

/// Measures the relative error of sums. Each rank contributes one value between -1 and 1 to each sum, and the values
/// are independent.
fn accuracy(endpoints: &mut Endpoints) {
    let number = |i: u64, rank: usize| {
        let mixed = (i ^ (rank as u64) << 40).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    let mut values: Vec<f32> = (0..1 << 20).map(|i| number(i, endpoints.group.rank())).collect();
    all_reduce(&mut *endpoints.reducer, &mut values, None).unwrap();
    let world = endpoints.group.world_size();
    let (mut errors, mut squares) = (0.0, 0.0);
    for (i, &value) in values.iter().enumerate() {
        let sum: f64 = (0..world).map(|rank| f64::from(number(i as u64, rank))).sum();
        errors += (f64::from(value) - sum).powi(2);
        squares += sum.powi(2);
    }
    print(endpoints, "relative error of the sum, ppm of its L2 norm", 1e6 * (errors / squares).sqrt());
}

/// Initializes MPI without this crate, calls `job` with the rank and the world size, and finalizes MPI.
fn with_plain_mpi(job: fn(i32, i32)) {
    let (mut rank, mut world) = (0, 0);
    // SAFETY: MPI is not initialized yet; null arguments are allowed; the integers live for the calls.
    unsafe {
        assert_eq!(ffi::MPI_Init(std::ptr::null_mut(), std::ptr::null_mut()), 0);
        assert_eq!(ffi::MPI_Comm_rank(ffi::RSMPI_COMM_WORLD, &mut rank), 0);
        assert_eq!(ffi::MPI_Comm_size(ffi::RSMPI_COMM_WORLD, &mut world), 0);
    }
    job(rank, world);
    // SAFETY: MPI is initialized, and no MPI call follows.
    assert_eq!(unsafe { ffi::MPI_Finalize() }, 0);
}

fn plain_all_reduce(rank: i32, _: i32) {
    let mut values = vec![0.001f32; GRADIENTS];
    // Value of MPI_IN_PLACE in Open MPI.
    let in_place = std::ptr::without_provenance_mut(1);
    let [seconds, cpu] = measure(3, || {
        let (count, first) = (values.len() as i32, values.as_mut_ptr().cast());
        // SAFETY: `values` has `count` values and lives for the call.
        let code = unsafe {
            ffi::MPI_Allreduce(in_place, first, count, ffi::RSMPI_FLOAT, ffi::RSMPI_SUM, ffi::RSMPI_COMM_WORLD)
        };
        assert_eq!(code, 0);
    });
    if rank == 0 {
        println!("seconds = {seconds}\nCPU seconds per rank = {cpu}");
        println!("GB/s = {}", 4.0 * GRADIENTS as f64 / 1e9 / seconds);
    }
}

fn plain_gather(rank: i32, world: i32) {
    for length in GATHER_BYTES {
        let (bytes, mut all) = (vec![1u8; length], vec![0u8; length * world as usize]);
        let [seconds, _] = measure(50, || {
            let (from, to, count) = (bytes.as_ptr().cast(), all.as_mut_ptr().cast(), length as i32);
            // SAFETY: both buffers are large enough and live for the call.
            let code = unsafe {
                let kind = ffi::RSMPI_UINT8_T;
                ffi::MPI_Gather(from, count, kind, to, count, kind, 0, ffi::RSMPI_COMM_WORLD)
            };
            assert_eq!(code, 0);
        });
        if rank == 0 {
            println!("{length} bytes per rank, ms = {}", 1e3 * seconds);
        }
    }
}
