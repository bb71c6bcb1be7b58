//! Tests of `BatchReader`: a step decodes no row group twice, and the batches do not depend on the number of threads.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "support/samples.rs"]
mod samples;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lambert_config::run::{DatasetCache, FaultInjection, Objective};
use lambert_dataset::Dataset;
use lambert_dataset::random::Key;
use lambert_dataset::ranges;
use lambert_store::Store;
use lambert_worker::data::order::{EpochOrder, WINDOW};
use lambert_worker::data::reader::BatchReader;
use lambert_worker::data::{BatchRequest, GlobalBatch, LoaderOptions, Mixture, MixturePosition, SampleSource};
use lambert_worker::recovery::skipped_samples::SkippedSamples;
use samples::Shape;

const ROWS: u64 = 500;
const GROUP: u64 = 5;

fn dataset(folder: &Path) -> Arc<Dataset> {
    samples::write(folder, &Shape { rows: ROWS, longest: 32, rows_per_group: GROUP as usize, shards: 4, pieces: 99 });
    Arc::new(Dataset::open(folder.to_str().unwrap()).unwrap())
}

fn reader(dataset: &Arc<Dataset>, shuffle: bool) -> BatchReader {
    let (objective, fault_injection) = (Objective::default(), FaultInjection::default());
    BatchReader::new(SampleSource {
        mixture: Mixture::single(Arc::clone(dataset)),
        objective,
        phrases: None,
        seed: 1,
        shuffle,
        fault_injection,
    })
    .unwrap()
}

fn options(rank: usize, world: usize) -> LoaderOptions {
    let (position, skipped) = (MixturePosition::default(), SkippedSamples::default());
    LoaderOptions {
        position,
        skipped,
        skipped_shards: Vec::new(),
        micro_batch_tokens: 256,
        layout: lambert_plan::batch_partition::Layout::Padded,
        rank,
        world_size: world,
        batch_shards: world,
        max_threads: 4,
        max_batch: 300,
    }
}

/// Reads the samples 0 to `end` in batches of `size` samples.
fn read(reader: &mut BatchReader, options: &LoaderOptions, size: usize, end: u64, threads: usize) -> Vec<GlobalBatch> {
    let starts = (0..end).step_by(size);
    starts.map(|start| reader.global_batch(options, start, BatchRequest::whole(size), threads).unwrap()).collect()
}

#[test]
fn batches_do_not_depend_on_threads_and_have_each_sample_once() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    for size in [7, 100, 300] {
        let (end, alone) = (2 * ROWS, options(0, 1));
        let one = read(&mut reader(&dataset, true), &alone, size, end, 1);
        assert_eq!(one, read(&mut reader(&dataset, true), &alone, size, end, 4));
        let digest = |batch: &GlobalBatch| batch.micro_batches.iter().map(|micro| micro.digest).sum::<u64>();
        let ranks: Vec<_> =
            (0..3).map(|rank| read(&mut reader(&dataset, true), &options(rank, 3), size, end, 2)).collect();
        for (step, batch) in one.iter().enumerate() {
            assert_eq!(digest(batch), ranks.iter().map(|rank| digest(&rank[step])).sum::<u64>());
            assert!(
                ranks
                    .iter()
                    .all(|rank| rank[step].lengths == batch.lengths && rank[step].sample_range == batch.sample_range)
            );
        }
    }
}

#[test]
fn no_row_group_is_decoded_twice_in_a_step() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let groups = dataset.row_groups().len();
    let sizes: Vec<u64> = dataset.row_groups().iter().map(|group| group.rows).collect();
    let order = EpochOrder::new(&sizes, 1, 0);
    // 260 samples span more than three windows of row groups. These are more row groups than the cache can contain.
    let size = 260;
    let mut large = reader(&dataset, true);
    for start in [0, size] {
        let before = large.decoded_row_groups();
        large.global_batch(&options(0, 1), start, BatchRequest::whole(size as usize), 2).unwrap();
        let touched: BTreeSet<usize> = (start..(start + size).min(ROWS)).map(|at| order.at(at).row_group).collect();
        assert!(touched.len() > 3 * WINDOW && touched.len() < groups);
        let decoded = (large.decoded_row_groups() - before) as usize;
        // The second step also reads the start of the next epoch.
        let limit = if start > 0 { touched.len() + WINDOW } else { touched.len() };
        assert!(decoded <= limit, "decoded {decoded} row groups, expected at most {limit}");
        assert!(start > 0 || decoded == limit, "decoded {decoded} row groups, expected {limit}");
    }
    // Small batches mostly lie within one window. An epoch must decode each row group only once, shuffled or not.
    for shuffle in [true, false] {
        let mut small = reader(&dataset, shuffle);
        read(&mut small, &options(0, 1), 10, ROWS, 2);
        assert_eq!(small.decoded_row_groups() as usize, groups, "shuffled: {shuffle}");
    }
}

#[test]
fn the_first_damaged_row_group_is_reported_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    for shard in &dataset.manifest().shards {
        let path = folder.path().join(&shard.path);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[7] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    let errors = [1, 2, 4].map(|threads| {
        let error =
            reader(&dataset, true).global_batch(&options(0, 1), 0, BatchRequest::whole(300), threads).unwrap_err();
        assert_eq!(dataset.damaged_shard(&error), Some(0));
        error.to_string()
    });
    assert!(errors[0].contains("shard-00000-of-00004.parquet is damaged"), "{}", errors[0]);
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
}

#[test]
fn half_batches_have_each_sample_once_in_any_world() {
    let folder = tempfile::tempdir().unwrap();
    let dataset = dataset(folder.path());
    let wanted = BatchRequest { samples: 61, split_key: Some(Key::new(4)) };
    let of_world = |world: usize| {
        let mut halves = [Vec::new(), Vec::new()];
        for rank in 0..world {
            let batch = reader(&dataset, true).global_batch(&options(rank, world), 0, wanted, 2).unwrap();
            assert_eq!(batch.whole().micro_batches.len(), batch.micro_batches.len());
            for (all, half) in halves.iter_mut().zip(batch.halves()) {
                assert_eq!(half.shard_micro_batches.len(), 1, "rank {rank} has several shards of a half batch");
                assert_eq!(half.shards().map(<[_]>::len).sum::<usize>(), half.micro_batches.len());
                all.extend(half.micro_batches.iter().flat_map(|micro| micro.sample_indices.iter().copied()));
            }
        }
        halves.each_mut().into_iter().for_each(|half| half.sort_unstable());
        halves
    };
    let one = of_world(1);
    assert_eq!(one.each_ref().map(Vec::len), [30, 31]);
    let mut all = one.concat();
    all.sort_unstable();
    assert_eq!(all, (0..61).collect::<Vec<_>>());
    [2, 3].iter().for_each(|world| assert_eq!(of_world(*world), one));
}

/// A run that ends, or an evaluation of a few samples, downloads no row groups that it does not read.
#[test]
fn prefetch_ends_with_the_last_sample() {
    let folder = tempfile::tempdir().unwrap();
    let local = dataset(&folder.path().join("data"));
    let url = "memory://prefetch/data";
    let store = Store::open(url).unwrap();
    for entry in std::fs::read_dir(folder.path().join("data")).unwrap() {
        let path = entry.unwrap().path();
        store.put(path.file_name().unwrap().to_str().unwrap(), std::fs::read(&path).unwrap().into()).unwrap();
    }
    let all = ranges::parse(&store.get(ranges::CHECKSUMS).unwrap(), local.manifest()).unwrap();
    let sizes: Vec<u64> = local.row_groups().iter().map(|group| group.rows).collect();
    let order = EpochOrder::new(&sizes, 1, 0);
    // Samples from the second window to the start of the third.
    let (start, samples) = (WINDOW as u64 * GROUP + 3, WINDOW as u64 * GROUP);
    let groups: BTreeSet<usize> = [start, start + samples - 1].iter().flat_map(|n| order.window(*n)).copied().collect();
    assert_eq!(groups.len(), 2 * WINDOW);
    let mut expected = BTreeSet::new();
    for group in groups.iter().map(|group| local.row_groups()[*group]) {
        let ranges = &all[group.shard];
        expected.extend([group.index, ranges.footer()].map(|index| format!("{}.range", ranges.range_sha256[index])));
    }
    let cache = folder.path().join("cache");
    let settings = DatasetCache { folder: cache.to_str().unwrap().to_owned(), gigabytes: 1.0 };
    let remote = Arc::new(Dataset::open(url).unwrap().with_cache(&settings));
    let mut reader = reader(&remote, true);
    let position = MixturePosition { next: start, ..MixturePosition::default() };
    reader.start_prefetch(&position, Some(samples)).unwrap();
    let copies = || -> BTreeSet<String> {
        let names = std::fs::read_dir(&cache).into_iter().flatten().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).filter(|name| name.ends_with(".range")).collect()
    };
    let begin = Instant::now();
    while copies() != expected {
        assert!(begin.elapsed() < Duration::from_secs(60), "{} of {} files", copies().len(), expected.len());
        std::thread::sleep(Duration::from_millis(2));
    }
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(copies(), expected);
}
