//! Local copies of a remote dataset: one verified copy per host, with least-recently-used eviction. A copy has a byte range
//! of a shard or, if the dataset has no checksums of byte ranges, a whole shard.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use lambert_config::run::DatasetCache;
use lambert_dataset::{Dataset, Samples};

use crate::common::remote::{Remote, SHARDS, copied_bytes, files};

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

fn all(dataset: &Dataset) -> Vec<Samples> {
    (0..dataset.row_groups().len()).map(|group| dataset.read(group).unwrap()).collect()
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
fn a_dataset_is_opened_without_a_check_of_sizes_and_reads_report_wrong_sizes() {
    for remote in [Remote::new("sizes"), Remote::of_earlier_version("sizes-whole")] {
        let shards = remote.local().manifest().shards.clone();
        let [missing, short] = [&shards[3], &shards[5]];
        remote.store.delete(&missing.path).unwrap();
        let bytes = remote.store.get(&short.path).unwrap();
        remote.store.put(&short.path, bytes.slice(..10)).unwrap();
        let size_error = |shard: &lambert_dataset::Shard, found: &str| {
            let (url, file, expected) = (&remote.url, &shard.path, shard.bytes);
            format!("{url}/{file}: expected {expected} bytes according to the manifest, found {found}")
        };
        let error = Dataset::open(&remote.url).map(drop).unwrap_err();
        assert_eq!(error.to_string(), size_error(missing, "no such file"));
        let settings = DatasetCache { folder: remote.cache().to_str().unwrap().to_owned(), gigabytes: 1.0 };
        let dataset = Dataset::open_without_size_check(&remote.url).unwrap().with_cache(&settings);
        dataset.read(0).unwrap();
        let read = |shard| dataset.read(group_of(&dataset, shard)).unwrap_err().to_string();
        assert_eq!(read(3), size_error(missing, "no such file"));
        assert_eq!(read(5), size_error(short, "10 bytes"));
    }
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
