//! Local copies of a remote dataset: one verified copy per host, with least-recently-used eviction. A copy has a byte range
//! of a shard or, if the dataset has no checksums of byte ranges, a whole shard.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::samples::Shape;
use lambert_config::run::DatasetCache;
use lambert_dataset::ranges::{self, CHECKSUMS, ShardRanges};
use lambert_dataset::{Dataset, Samples};
use lambert_store::Store;

const SHARDS: u64 = 8;

/// A dataset in a store, with a cache folder.
struct Remote {
    folder: tempfile::TempDir,
    url: String,
    store: Store,
}

impl Remote {
    fn new(name: &str) -> Self {
        Self::write(name, true)
    }

    /// A dataset of an earlier version, which has checksums only of whole shards.
    fn of_earlier_version(name: &str) -> Self {
        Self::write(name, false)
    }

    fn write(name: &str, has_checksums: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let local = folder.path().join("data");
        crate::samples::write(
            &local,
            &Shape { rows: 400, longest: 32, rows_per_group: 10, shards: SHARDS, pieces: 99 },
        );
        if !has_checksums {
            std::fs::remove_file(local.join(CHECKSUMS)).unwrap();
        }
        let url = format!("memory://{name}/data");
        let store = Store::open(&url).unwrap();
        for entry in std::fs::read_dir(&local).unwrap() {
            let path = entry.unwrap().path();
            store.put(path.file_name().unwrap().to_str().unwrap(), std::fs::read(&path).unwrap().into()).unwrap();
        }
        Self { folder, url, store }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    /// Opens the dataset as a separate process would, with a cache limit of `bytes`.
    fn open(&self, bytes: f64) -> Arc<Dataset> {
        let folder = self.cache().to_str().unwrap().to_owned();
        let settings = DatasetCache { folder, gigabytes: bytes / 1e9 };
        Arc::new(Dataset::open(&self.url).unwrap().with_cache(&settings))
    }

    fn local(&self) -> Arc<Dataset> {
        Arc::new(Dataset::open(self.folder.path().join("data").to_str().unwrap()).unwrap())
    }

    /// Checksums of each shard.
    fn ranges(&self) -> Vec<ShardRanges> {
        ranges::parse(&self.store.get(CHECKSUMS).unwrap(), self.local().manifest()).unwrap()
    }

    fn remove(&self, dataset: &Dataset) {
        dataset.manifest().shards.iter().for_each(|shard| self.store.delete(&shard.path).unwrap());
    }
}

/// A small tmpfs that is unmounted on drop. A process without the privilege to mount cannot create it.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(folder: &Path, bytes: u64) -> Option<Self> {
        std::fs::create_dir(folder).unwrap();
        let options = format!("size={bytes},mode=0700");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(folder).output();
        match mount {
            Ok(mounted) if mounted.status.success() => Some(Self(folder.to_owned())),
            failed => {
                eprintln!("SKIPPED: no disk that can be filled: {failed:?}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "{} is still mounted", self.0.display());
    }
}

/// Files in a folder whose names end with `ending`.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.to_str().unwrap().ends_with(ending)).collect()
}

fn all(dataset: &Dataset) -> Vec<Samples> {
    (0..dataset.row_groups().len()).map(|group| dataset.read(group).unwrap()).collect()
}

/// Size of all complete copies in a folder, bytes.
fn copied_bytes(folder: &Path) -> u64 {
    let copies = [".range", ".parquet"].into_iter().flat_map(|ending| files(folder, ending));
    copies.map(|copy| std::fs::metadata(copy).unwrap().len()).sum()
}

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

/// First row group of a shard.
fn group_of(dataset: &Dataset, shard: usize) -> usize {
    dataset.row_groups().iter().position(|group| group.shard == shard).unwrap()
}

#[test]
fn processes_on_a_host_share_one_verified_copy() {
    let ranges = |remote: Remote| {
        let groups = remote.local().row_groups().len() as u64;
        check_shared_copies(remote, ".range", groups + SHARDS);
    };
    ranges(Remote::new("shared"));
    check_shared_copies(Remote::of_earlier_version("shared-whole"), ".parquet", SHARDS);
}

/// Reads all samples in several threads with a dataset each. Checks that `copies` copies remain.
fn check_shared_copies(remote: Remote, ending: &str, copies: u64) {
    // If several processes run concurrently, each shard is fetched by only one of them. Only complete copies remain.
    let ranks: Vec<_> = (0..4)
        .map(|_| {
            let dataset = remote.open(1e9);
            std::thread::spawn(move || all(&dataset))
        })
        .collect();
    let read: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
    assert!(read.iter().all(|samples| *samples == read[0]));
    assert_eq!(read[0], all(&remote.local()));
    assert_eq!(files(&remote.cache(), ending).len() as u64, copies);
    assert_eq!(copied_bytes(&remote.cache()), remote.local().manifest().shard_bytes());
    let partial = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(".fetch-");
    assert!(!files(&remote.cache(), "").iter().any(partial), "{:?}", files(&remote.cache(), ""));
    // If all copies exist, nothing is fetched.
    let later = remote.open(1e9);
    remote.remove(&later);
    assert_eq!(all(&later), read[0]);
}

#[test]
fn a_row_group_is_read_without_the_rest_of_its_shard() {
    let remote = Remote::new("row-group");
    let (dataset, local) = (remote.open(1e9), remote.local());
    let group = group_of(&dataset, 3) + 2;
    assert_eq!(dataset.lengths(group).unwrap(), local.lengths(group).unwrap());
    assert_eq!(dataset.read(group).unwrap(), local.read(group).unwrap());
    // The footer and the row group.
    assert_eq!(files(&remote.cache(), ".range").len(), 2);
    let sizes = &remote.ranges()[3].range_bytes;
    assert_eq!(copied_bytes(&remote.cache()), sizes[2] + sizes.last().unwrap());
    dataset.verify().unwrap();
    assert_eq!(copied_bytes(&remote.cache()), dataset.manifest().shard_bytes());
}

#[test]
fn a_damaged_range_is_refetched_and_damage_in_the_store_names_its_bytes() {
    let remote = Remote::new("damaged-range");
    let expected = all(&remote.open(1e9));
    for (at, copy) in files(&remote.cache(), ".range").into_iter().enumerate() {
        let mut bytes = std::fs::read(&copy).unwrap();
        match at % 2 {
            0 => bytes[20] ^= 1,
            _ => bytes.truncate(20),
        }
        std::fs::write(&copy, bytes).unwrap();
    }
    assert_eq!(all(&remote.open(1e9)), expected);

    let dataset = remote.open(1e9);
    let (shard, first) = (&dataset.manifest().shards[2], group_of(&dataset, 2));
    let ranges = &remote.ranges()[2];
    let range = ranges.range(1);
    let copy = remote.cache().join(format!("{}.range", ranges.range_sha256[1]));
    std::fs::remove_file(&copy).unwrap();
    let mut bytes = std::fs::read(remote.folder.path().join("data").join(&shard.path)).unwrap();
    bytes[range.start as usize + 5] ^= 1;
    remote.store.put(&shard.path, bytes.into()).unwrap();
    for error in [dataset.read(first + 1).unwrap_err(), dataset.verify().unwrap_err()] {
        let message = error.to_string();
        let named = format!("{} is damaged: sha256 of bytes {} to {} is ", shard.path, range.start, range.end - 1);
        assert!(message.contains(&named), "{message}");
        assert_eq!(dataset.damaged_shard(&error), Some(2));
    }
    assert!(!copy.exists());
    assert_eq!(dataset.read(first + 2).unwrap(), expected[first + 2]);
}

#[test]
fn a_damaged_copy_is_refetched_and_a_damaged_shard_is_an_error() {
    let remote = Remote::of_earlier_version("damaged");
    let expected = all(&remote.open(1e9));
    for (at, copy) in files(&remote.cache(), ".parquet").into_iter().enumerate() {
        let mut bytes = std::fs::read(&copy).unwrap();
        match at % 2 {
            0 => bytes[100] ^= 1,
            _ => bytes.truncate(50),
        }
        std::fs::write(&copy, bytes).unwrap();
    }
    assert_eq!(all(&remote.open(1e9)), expected);
    let dataset = remote.open(1e9);
    let shard = &dataset.manifest().shards[2];
    std::fs::remove_file(remote.cache().join(format!("{}.parquet", shard.sha256))).unwrap();
    let mut bytes = std::fs::read(remote.folder.path().join("data").join(&shard.path)).unwrap();
    bytes[100] ^= 1;
    remote.store.put(&shard.path, bytes.into()).unwrap();
    let error = dataset.read(group_of(&dataset, 2)).unwrap_err();
    assert!(error.to_string().contains(&shard.path) && error.to_string().contains("is damaged"), "{error}");
    assert_eq!(dataset.damaged_shard(&error), Some(2));
    assert_eq!(files(&remote.cache(), ".parquet").len() as u64, SHARDS - 1);
}

#[test]
fn the_least_recently_used_copies_are_evicted_first() {
    let remote = Remote::of_earlier_version("limited");
    let largest = remote.open(1.0).manifest().shards.iter().map(|shard| shard.bytes).max().unwrap() as f64;
    let dataset = remote.open(3.5 * largest);
    let copies = || -> Vec<usize> {
        let there = |shard: &usize| {
            remote.cache().join(format!("{}.parquet", dataset.manifest().shards[*shard].sha256)).exists()
        };
        (0..SHARDS as usize).filter(there).collect()
    };
    for shard in [0, 1, 2] {
        dataset.read(group_of(&dataset, shard)).unwrap();
    }
    // Another process uses the oldest copy.
    remote.open(1e9).read(group_of(&dataset, 0)).unwrap();
    dataset.read(group_of(&dataset, 3)).unwrap();
    assert_eq!(copies(), [0, 2, 3]);
    // An evicted copy that is still open remains readable.
    dataset.read(group_of(&dataset, 1)).unwrap();
    // If the limit is below the size of a shard, the cache keeps one shard.
    let foreign = remote.cache().join("part-00001.parquet");
    std::fs::write(&foreign, vec![0; 1 << 20]).unwrap();
    let tight = remote.open(1.0);
    tight.read(group_of(&tight, 5)).unwrap();
    assert_eq!(copies(), [5]);
    assert!(foreign.exists(), "only copies of shards are evicted");
    assert_eq!(all(&tight), all(&remote.local()));
}

/// A process lists the cache folder only when it is full.
#[test]
fn ranges_are_evicted_and_the_recorded_size_follows() {
    let remote = Remote::new("limited-ranges");
    let local = remote.local();
    let limit = local.manifest().shard_bytes() / 3;
    let dataset = remote.open(limit as f64);
    let recorded = || std::fs::read_to_string(remote.cache().join("room.bytes")).unwrap().parse::<u64>().unwrap();
    for group in 0..local.row_groups().len() {
        assert_eq!(dataset.read(group).unwrap(), local.read(group).unwrap());
        let copied = copied_bytes(&remote.cache());
        assert!(copied <= limit, "{copied} bytes of {limit}");
        assert_eq!(recorded(), copied);
    }
    // A new process does not trust the record.
    std::fs::write(remote.cache().join("room.bytes"), "0").unwrap();
    remote.open(limit as f64).read(0).unwrap();
    assert_eq!(recorded(), copied_bytes(&remote.cache()));
    let last = |reads: &Dataset| reads.read(local.row_groups().len() - 1).unwrap();
    std::fs::write(remote.cache().join("room.bytes"), "no number").unwrap();
    assert_eq!(last(&dataset), last(&local));
}

/// Another user of a shared folder could have put a link in place of the record.
#[test]
fn the_recorded_size_is_not_written_through_a_link() {
    let remote = Remote::new("linked-record");
    let precious = remote.folder.path().join("precious");
    std::fs::write(&precious, "precious").unwrap();
    std::fs::create_dir(remote.cache()).unwrap();
    std::os::unix::fs::symlink(&precious, remote.cache().join("room.bytes")).unwrap();
    assert_eq!(all(&remote.open(1e9)), all(&remote.local()));
    assert_eq!(std::fs::read(&precious).unwrap(), b"precious");
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

/// The cache limit exceeds the size of the disk.
#[test]
fn copies_are_evicted_on_a_full_disk() {
    let remote = Remote::of_earlier_version("full");
    let local = remote.local();
    let largest = local.manifest().shards.iter().map(|shard| shard.bytes).max().unwrap();
    let Some(_disk) = SmallDisk::mount(&remote.cache(), 3 * largest.next_multiple_of(4096) + 8 * 4096) else { return };
    let dataset = remote.open(1e9);
    assert_eq!(all(&dataset), all(&local));
    let left = files(&remote.cache(), ".parquet").len();
    assert!((1..SHARDS as usize).contains(&left), "{left} copies");
}

#[test]
fn a_disk_too_small_for_a_shard_is_reported() {
    let remote = Remote::new("no-room");
    let Some(_disk) = SmallDisk::mount(&remote.cache(), 4096) else { return };
    let dataset = remote.open(1e9);
    let error = dataset.read(0).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(matches!(error, lambert_dataset::DatasetError::Cache { .. }), "{error:?}");
    assert!(error.to_string().contains(remote.cache().to_str().unwrap()), "{error}");
    assert!(cause.contains("No space left on device"), "{cause}");
    assert_eq!(dataset.damaged_shard(&error), None);
}

/// A hostile manifest contains the path of a file outside the cache folder.
#[test]
fn a_manifest_cannot_name_files_outside_the_folder() {
    let remote = Remote::of_earlier_version("hostile");
    std::fs::create_dir(remote.cache()).unwrap();
    let victim = remote.folder.path().join("victim.parquet");
    let shard = remote.open(1.0).manifest().shards[0].clone();
    // The file is as long as the shard, so that it would be accepted as a copy.
    std::fs::write(&victim, vec![b'x'; shard.bytes as usize]).unwrap();
    let (manifest, sha256) = (remote.store.get("manifest.json").unwrap(), shard.sha256);
    for name in
        ["../victim", victim.with_extension("").to_str().unwrap(), "", "ABC", &sha256.to_uppercase(), &sha256[1..]]
    {
        let hostile = String::from_utf8(manifest.to_vec()).unwrap().replace(&sha256, name);
        remote.store.put("manifest.json", hostile.into()).unwrap();
        let settings = DatasetCache { folder: remote.cache().to_str().unwrap().to_owned(), gigabytes: 1.0 };
        let read =
            Dataset::open(&remote.url).map(|dataset| dataset.with_cache(&settings)).and_then(|dataset| dataset.read(0));
        assert!(victim.exists(), "{name:?} had another file deleted");
        let error = read.unwrap_err().to_string();
        assert!(error.contains("manifest.json") && error.contains("64 hexadecimal digits"), "{name:?}: {error}");
    }
}

/// Environment variable that is set only in the child process of the second user. Its value is the folder to use.
const AS_SECOND_USER: &str = "LAMBERT_TEST_SECOND_USER";

/// Reads a remote dataset through the cache in `folder`, or in the default folder if `folder` is empty. Returns the
/// error as text.
fn read_with(folder: &str) -> Result<(), String> {
    let remote = Remote::new("second-user");
    let settings = DatasetCache { folder: folder.to_owned(), gigabytes: 1.0 };
    let dataset = Dataset::open(&remote.url).unwrap().with_cache(&settings);
    dataset.read(0).map(drop).map_err(|error| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}", source.unwrap_or_default())
    })
}

/// A default folder that belongs to another user is an error. A configured folder may belong to another user.
#[test]
fn the_default_folder_is_private_and_a_configured_one_may_be_shared() {
    if let Ok(named) = std::env::var(AS_SECOND_USER) {
        return println!("read: {:?}", read_with(&named));
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can act as another user");
        return;
    }
    let user = 60_000 + std::process::id() % 5000;
    let as_user = |folder: &str| {
        let mut command = Command::new("setpriv");
        command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--clear-groups"]);
        command.arg(std::env::current_exe().unwrap()).args(["--exact", "--nocapture"]);
        command
            .arg("cache::the_default_folder_is_private_and_a_configured_one_may_be_shared")
            .env(AS_SECOND_USER, folder);
        let output = command.current_dir("/").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    let open = |folder: &Path| {
        std::fs::create_dir(folder).unwrap();
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o777)).unwrap();
    };
    let usual = PathBuf::from(format!("/var/tmp/lambert-{user}"));
    open(&usual);
    let read = as_user("");
    let left = files(&usual, "");
    std::fs::remove_dir_all(&usual).unwrap();
    assert!(read.contains(&format!("it belongs to user 0, expected user {user}")), "{read}");
    assert!(read.contains(&format!("cannot use {}, where copies of datasets are kept", usual.display())), "{read}");
    assert!(left.is_empty(), "{left:?} is written there");

    let read = as_user("");
    let mode = std::fs::metadata(&usual).unwrap().permissions().mode() & 0o777;
    std::fs::remove_dir_all(&usual).unwrap();
    assert!(read.contains("read: Ok(())") && mode == 0o700, "{mode:o}: {read}");

    let shared = tempfile::tempdir().unwrap();
    std::fs::set_permissions(shared.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let shared = shared.path().join("shared");
    open(&shared);
    // The files of the first user can be read and locked by others, but not removed.
    std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(read_with(shared.to_str().unwrap()), Ok(()));
    let others = files(&shared, ".range");
    assert_eq!(others.len(), 2);
    assert!(as_user(shared.to_str().unwrap()).contains("read: Ok(())"));
    std::fs::remove_file(&others[0]).unwrap();
    assert!(as_user(shared.to_str().unwrap()).contains("read: Ok(())"));
    assert_eq!(files(&shared, ".range").len(), 2);
}
