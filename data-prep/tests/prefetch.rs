//! Prefetching of a remote dataset into the cache.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use lambert_dataset::Dataset;

use crate::common::remote::{Remote, copied_bytes, files};

/// Waits until `done` is true.
fn wait_for(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Windows of `size` row groups, over two epochs in file order.
fn windows(dataset: &Dataset, size: usize) -> (Box<dyn Iterator<Item = Vec<usize>> + Send>, u64) {
    let count = dataset.row_groups().len();
    let epoch = move || (0..count).step_by(size).map(move |first| (first..(first + size).min(count)).collect());
    (Box::new(epoch().chain(epoch())), count.div_ceil(size) as u64)
}

#[test]
fn row_groups_are_prefetched_within_the_cache_limit() {
    let remote = Remote::new("ahead");
    let dataset = remote.open(1e9);
    let (order, count) = windows(&dataset, 4);
    let prefetch = dataset.prefetch_windows(order, count, 1.0).unwrap();
    assert!(prefetch.is_some());
    let all_bytes = dataset.manifest().shard_bytes();
    wait_for("not all were downloaded", || copied_bytes(&remote.cache()) == all_bytes);

    let (order, count) = windows(&dataset, 4);
    assert!(remote.local().prefetch_windows(order, count, 1.0).unwrap().is_none(), "local files are not copied");
    let (order, count) = windows(&dataset, 4);
    assert!(remote.open(1.0).prefetch_windows(order, count, 1.0).unwrap().is_none(), "the cache is too small");

    // With a cache that is smaller than the dataset, the prefetch waits for the reader.
    let remote = Remote::new("ahead-limited");
    let dataset = remote.open(all_bytes as f64 * 0.55);
    let (order, count) = windows(&dataset, 4);
    let prefetch = dataset.prefetch_windows(order, count, 1.0).unwrap().unwrap();
    // A fifth of the dataset is ahead: 2 of 10 windows. The window of the reader comes before them.
    let checksums = remote.ranges();
    let expected = |last: usize| -> Vec<PathBuf> {
        let ranges = |group: &lambert_dataset::RowGroup| {
            let ranges = &checksums[group.shard];
            let path = |index: usize| remote.cache().join(format!("{}.range", ranges.range_sha256[index]));
            [group.index, ranges.footer()].map(path)
        };
        let mut paths: Vec<PathBuf> = dataset.row_groups()[..last].iter().flat_map(ranges).collect();
        paths.sort();
        paths.dedup();
        paths
    };
    let copies = || {
        let mut copies = files(&remote.cache(), ".range");
        copies.sort();
        copies
    };
    let windows_ahead = count as usize / 5;
    wait_for("the windows ahead were not downloaded", || copies() == expected((windows_ahead + 1) * 4));
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(copies(), expected((windows_ahead + 1) * 4));
    prefetch.passed(1);
    wait_for("the next window was not downloaded", || copies() == expected((windows_ahead + 2) * 4));
}

/// With a cache that has room for about half of the dataset, no row group is evicted before it is read.
#[test]
fn the_reader_finds_all_row_groups_that_were_prefetched() {
    let remote = Remote::new("ahead-epochs");
    let dataset = remote.open(remote.local().manifest().shard_bytes() as f64 * 0.55);
    let (order, count) = windows(&dataset, 2);
    let prefetch = dataset.prefetch_windows(order, count, 1.0).unwrap().unwrap();
    let checksums = remote.ranges();
    let is_cached = |group: usize| {
        let group = dataset.row_groups()[group];
        remote.cache().join(format!("{}.range", checksums[group.shard].range_sha256[group.index])).exists()
    };
    let (order, _) = windows(&dataset, 2);
    let order: Vec<Vec<usize>> = order.collect();
    let ahead = count as usize / 5;
    for (number, window) in order.iter().enumerate() {
        let first = if number == 0 { 0 } else { number + 1 };
        let next = &order[first..(number + ahead + 1).min(order.len()).max(first)];
        wait_for("a window ahead was not downloaded", || next.iter().flatten().all(|group| is_cached(*group)));
        assert!(window.iter().all(|group| is_cached(*group)), "window {number} of {} is not cached", order.len());
        window.iter().for_each(|group| drop(dataset.read(*group).unwrap()));
        prefetch.passed(number as u64 + 1);
    }
}

#[test]
fn whole_shards_are_prefetched_if_they_fit_into_the_cache() {
    let remote = Remote::of_earlier_version("ahead-whole");
    let dataset = remote.open(1e9);
    let all_bytes = dataset.manifest().shard_bytes();
    let (order, count) = windows(&dataset, 4);
    let prefetch = dataset.prefetch_windows(order, count, 1.0).unwrap();
    assert!(prefetch.is_some());
    wait_for("not all were downloaded", || copied_bytes(&remote.cache()) == all_bytes);
    let (order, count) = windows(&dataset, 4);
    assert!(remote.open(all_bytes as f64 - 1.0).prefetch_windows(order, count, 1.0).unwrap().is_none());
}
