//! Tests of `lambert prep` under failures: a full disk, an unreadable file, a temporary outage of the object store, a
//! second process, SIGKILL at any moment.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "../../cluster/store/tests/s3_server/mod.rs"]
mod s3_server;
#[path = "../../tests/support/tree.rs"]
mod tree;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use lambert_dataset::random::Key;
use s3_server::{ACCESS_KEY, Fault, Rule, SECRET_KEY, Server};
use tree::{Tree, assert_same, tree};

const LAMBERT: &str = env!("CARGO_BIN_EXE_lambert");

/// Temporary folder with a generated corpus, a vocabulary and a configuration.
struct TestDir(tempfile::TempDir);

impl TestDir {
    fn new(documents: u64) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        place.done(&["generate", "--documents", &documents.to_string(), "--output", "corpus.txt"]);
        place.done(&["vocab", "--input", "corpus.txt", "--size", "400", "--output", "vocab.txt"]);
        place.config("prep.toml", "corpus.txt", "data");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn config(&self, name: &str, source: &str, output: &str) {
        let text = format!(
            "[[source]]\npath = {source:?}\ndocuments = \"blank-line\"\n[output]\nurl = {output:?}\nshards = 2\n\
             [vocabulary]\nfile = \"vocab.txt\"\n[samples]\nsequence_length = 64\n"
        );
        std::fs::write(self.path(name), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(LAMBERT);
        command.args(arguments).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    fn done(&self, arguments: &[&str]) {
        let Output { status, stderr, .. } = self.command(arguments).output().unwrap();
        assert!(status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&stderr));
    }

    /// Returns the datasets of a `lambert prep` without failures.
    fn undisturbed(&self) -> Tree {
        self.done(&["prep", "--config", "prep.toml", "--set", "output.url=undisturbed", "--threads", "1"]);
        tree(&self.path("undisturbed"))
    }
}

/// Asserts that the exit code is `code`, and that there is a single error message, which contains all `words`.
fn refused(output: &Output, code: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert_eq!(text.matches("lambert: error: ").count(), 1, "{text}");
    assert!(!text.contains("panicked"), "{text}");
    words.iter().for_each(|word| assert!(text.contains(word), "no {word:?} in {text}"));
}

#[test]
fn a_full_disk_is_reported_and_the_work_resumes_with_free_space() {
    let place = TestDir::new(6_000);
    std::fs::create_dir(place.path("disk")).unwrap();
    // The script mounts a separate file system of 16 MiB in a mount namespace and leaves 2 MiB free. The check of free
    // space is off.
    let script = "set -e; mount -t tmpfs -o size=16m tmpfs disk; head -c 14680064 /dev/zero > disk/filler; set +e
        \"$0\" prep --config prep.toml --set output.url=disk/data --set output.check_space=false --threads 2 2> first.log; echo $? > first.code
        rm disk/filler
        \"$0\" prep --config prep.toml --set output.url=disk/data --set output.check_space=false --threads 2 2> second.log; echo $? > second.code
        cp -r disk/data result";
    let mut unshare = Command::new("unshare");
    let unshared = unshare.args(["--map-root-user", "--mount", "sh", "-c", script, LAMBERT]);
    let _ = unshared.current_dir(place.0.path()).stderr(Stdio::null()).status();
    if !place.path("first.code").exists() {
        eprintln!("SKIPPED: no small file system could be mounted here");
        return;
    }
    let read = |name: &str| std::fs::read_to_string(place.path(name)).unwrap();
    let first = read("first.log");
    assert_eq!((read("first.code").trim(), first.matches("lambert: error: ").count()), ("1", 1), "{first}");
    assert!(first.contains("disk/data.work") && first.to_lowercase().contains("space"), "{first}");
    assert_eq!(read("second.code").trim(), "0", "{}", read("second.log"));
    assert_same(&place.undisturbed(), &tree(&place.path("result")));
}

#[test]
fn an_unreadable_file_is_named() {
    let place = TestDir::new(100);
    let allow = |name: &str, mode: u32| {
        std::fs::set_permissions(place.path(name), PermissionsExt::from_mode(mode)).unwrap();
    };
    std::fs::create_dir(place.path("out")).unwrap();
    [("", 0o755), ("corpus.txt", 0), ("out", 0o777)].iter().for_each(|(name, mode)| allow(name, *mode));
    let mut command = place.command(&["prep", "--config", "prep.toml", "--set", "output.url=out/data"]);
    // Root may read everything, so the test runs as `nobody`.
    if std::fs::read(place.path("corpus.txt")).is_ok() {
        command.uid(65_534).gid(65_534);
    }
    let output = command.output().unwrap();
    refused(&output, 1, &["cannot open corpus.txt", "Permission denied"]);
    assert!(!place.path("out/data").exists());
}

#[test]
fn a_damaged_block_is_rejected_or_skipped_and_counted() {
    let place = TestDir::new(4_000);
    let text = std::fs::read(place.path("corpus.txt")).unwrap();
    let mut packed = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    packed.write_all(&text).unwrap();
    let mut packed = packed.finish().unwrap();
    let middle = packed.len() / 2;
    packed[middle] ^= 1;
    std::fs::write(place.path("corpus.txt.bz2"), packed).unwrap();
    place.config("packed.toml", "corpus.txt.bz2", "packed");
    let output = place.command(&["prep", "--config", "packed.toml"]).output().unwrap();
    refused(&output, 1, &["corpus.txt.bz2: cannot read past byte"]);
    assert!(!place.path("packed/train/manifest.json").exists());
    let skip = ["prep", "--config", "packed.toml", "--set", "source.0.damaged=skip", "--set", "output.url=skipped"];
    let output = place.command(&skip).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("1 bzip2: damaged block"), "{printed}");
}

#[test]
fn unusual_file_names_work() {
    let place = TestDir::new(100);
    std::fs::create_dir(place.path("-in.txt")).unwrap();
    let names = ["with space.txt", "quo'te\".txt", "-dash.txt", "ümläut 文字 [1].txt", "*.txt", "folder.gz/inner.txt"];
    std::fs::create_dir(place.path("-in.txt/folder.gz")).unwrap();
    for name in names {
        std::fs::copy(place.path("corpus.txt"), place.path("-in.txt").join(name)).unwrap();
    }
    place.config("odd.toml", "-in.txt", "-out 'x'");
    let output = place.command(&["prep", "--config", "odd.toml"]).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.contains("6 files"), "{output:?}");
    assert!(place.path("-out 'x'/train/manifest.json").exists());
    place.done(&["inspect", "--verify", "--", "-out 'x'/train"]);
}

#[test]
fn a_temporary_outage_of_the_store_is_retried() {
    let place = TestDir::new(400);
    let server = Server::start(&place.path("bucket"), 0);
    let corpus = std::fs::read(place.path("corpus.txt")).unwrap();
    server.store("in").put("books/corpus.txt", corpus.into()).unwrap();
    let fault = |method: &str, contains, after, fault| {
        server.fail(Rule { method: method.parse().unwrap(), contains, after, times: 3, fault });
    };
    let down = Fault::Refuse(503, "SlowDown");
    fault("GET", "list-type", 0, down);
    fault("GET", "books/corpus.txt", 0, down);
    fault("GET", "books/corpus.txt", 1, Fault::CutBody);
    fault("PUT", "shard-00001", 0, down);
    fault("PUT", "manifest.json", 0, Fault::LoseAnswer);
    place.config("store.toml", "s3://runs/in/books/*.txt", "s3://runs/out");
    let prep = |what: &[&str]| {
        let mut command =
            place.command(&[&["prep", "--config", "store.toml", "--set", "output.work=work"], what].concat());
        command.env("AWS_ENDPOINT_URL", server.endpoint()).env("AWS_REGION", "us-east-1");
        command.env("AWS_ACCESS_KEY_ID", ACCESS_KEY).env("AWS_SECRET_ACCESS_KEY", SECRET_KEY).output().unwrap()
    };
    let output = prep(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(server.clear() >= 12, "faults were not hit");
    let store = server.store("out");
    for (name, bytes) in place.undisturbed() {
        let name = name.to_str().unwrap();
        assert!(store.get(name).unwrap() == bytes, "{name} differs");
    }
    // The datasets are up to date. The unchanged ETag identifies the object, so the object is not read again.
    server.requests();
    let again = prep(&[]);
    assert!(String::from_utf8_lossy(&again.stdout).contains("datasets are up to date"), "{again:?}");
    assert!(!server.requests().iter().any(|request| request.contains("books/corpus.txt")), "the object was read again");
}

#[test]
fn a_second_process_is_locked_out_and_parts_run_concurrently() {
    let place = TestDir::new(3_000);
    let mut first = place.command(&["prep", "--config", "prep.toml"]).stderr(Stdio::null()).spawn().unwrap();
    while !place.path("data.work/job.json").exists() {
        assert!(first.try_wait().unwrap().is_none(), "the first process ended too early");
        std::thread::sleep(Duration::from_millis(1));
    }
    let signal = |number: &str| {
        assert!(Command::new("kill").args([number, &first.id().to_string()]).status().unwrap().success());
    };
    signal("-STOP");
    for part in [&[][..], &["--part", "0/2"]] {
        let second = place.command(&[&["prep", "--config", "prep.toml"], part].concat()).output().unwrap();
        refused(&second, 1, &["another preparation is running in data.work (all parts)"]);
    }
    signal("-CONT");
    assert!(first.wait().unwrap().success());
    let whole = place.undisturbed();
    assert_same(&whole, &tree(&place.path("data")));

    let output = "output.url=parted";
    let part = |part: usize| {
        let part = format!("{part}/8");
        let arguments = ["prep", "--config", "prep.toml", "--set", output, "--threads", "1", "--part", &part];
        place.command(&arguments).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    };
    for part in (0..8).map(part).collect::<Vec<_>>() {
        let output = part.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    place.done(&["prep", "--config", "prep.toml", "--set", output]);
    assert_same(&whole, &tree(&place.path("parted")));
}

/// Compiles a library for LD_PRELOAD that emulates the file locks of other file systems.
fn odd_locks(place: &TestDir) -> PathBuf {
    let library = place.path("locks.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/support/odd_locks.c");
    let mut compiler = Command::new("cc");
    assert!(compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status().unwrap().success());
    library
}

#[test]
fn nfs_locks_and_missing_locks_are_supported() {
    let place = TestDir::new(100);
    let library = odd_locks(&place);
    let whole = place.undisturbed();
    let prep = |kind: &str, output: &str, more: &[&str]| {
        let set = format!("output.url={output}");
        let mut command = place.command(&[&["prep", "--config", "prep.toml", "--set", &set][..], more].concat());
        command.env("LD_PRELOAD", &library).env("ODD_LOCKS", kind).output().unwrap()
    };
    for kind in ["nfs", "none"] {
        // The second call checks the lock of the first call, and the third call checks the locks of both other calls.
        for more in [&["--part", "0/2"][..], &["--part", "1/2"], &[]] {
            let output = prep(kind, kind, more);
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{kind} {more:?}: {said}");
            assert_eq!(said.contains("no file locks on this file system"), kind == "none", "{kind}: {said}");
        }
        assert_same(&whole, &tree(&place.path(kind)));
    }
}

/// A process in another container may have the same process ID. The test creates the files of such a process.
#[test]
fn temporary_names_do_not_collide() {
    let place = TestDir::new(100);
    // `exec` keeps the process ID of the shell, so `$$` is the process ID of lambert.
    let script = "mkdir -p data.work/documents/run-000000-000000.unfinished data.work/job.json.$$.unfinished
        exec \"$0\" prep --config prep.toml";
    let ended = Command::new("sh").args(["-c", script, LAMBERT]).current_dir(place.0.path()).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    assert_same(&place.undisturbed(), &tree(&place.path("data")));
}

/// Prepares all development corpora at once. To run the test:
/// `cargo test --release -p lambert --test prep -- --ignored --nocapture`.
#[test]
#[ignore = "minutes long"]
fn thirty_kills_threads_and_parts_leave_the_datasets_unchanged() {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpora");
    if !corpora.is_dir() {
        eprintln!("SKIPPED: no development corpora at {}", corpora.display());
        return;
    }
    let place = TestDir(tempfile::tempdir().unwrap());
    let path = |name: &str| corpora.join(name).display().to_string();
    let text = format!(
        "[[source]]\npath = {:?}\n[[source]]\npath = {:?}\nformat = \"wikipedia\"\n[documents]\nremove_duplicates = true\n\
         [output]\nurl = \"data\"\nshards = 8\n[vocabulary]\nfile = {:?}\n[samples]\npasses = 3\n",
        path("books"),
        path("wiki/**/*.xml.bz2"),
        path("vocab/bert-base-uncased-vocab.txt")
    );
    std::fs::write(place.path("prep.toml"), text).unwrap();
    let start = Instant::now();
    let whole = place.undisturbed();
    let whole_time = start.elapsed();
    eprintln!("undisturbed, one thread: {whole_time:.1?}, {} files", whole.len());

    let prep = |threads: &str, more: &[&str]| {
        let mut command = place.command(&[&["prep", "--config", "prep.toml", "--threads", threads], more].concat());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    assert!(prep("2", &[]).status().unwrap().success());
    assert_same(&whole, &tree(&place.path("data")));
    std::fs::remove_dir_all(place.path("data")).unwrap();
    eprintln!("two threads: the same bytes");
    for parts in [1, 3, 7] {
        for part in 0..parts {
            assert!(prep("1", &["--part", &format!("{part}/{parts}")]).status().unwrap().success());
        }
        assert!(prep("2", &[]).status().unwrap().success());
        assert_same(&whole, &tree(&place.path("data")));
        std::fs::remove_dir_all(place.path("data")).unwrap();
        eprintln!("{parts} parts: the same bytes");
    }

    let mut rng = Key::new(start.elapsed().as_nanos() as u64).rng();
    let (mut kills, mut finished) = (0, 0);
    while kills < 30 {
        let allowed = whole_time.mul_f64(rng.unit_f64());
        let mut child = prep("2", &[]).spawn().unwrap();
        std::thread::sleep(allowed);
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "the preparation failed after a kill");
            assert_same(&whole, &tree(&place.path("data")));
            std::fs::remove_dir_all(place.path("data")).unwrap();
            finished += 1;
            continue;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    assert!(prep("2", &[]).status().unwrap().success());
    assert_same(&whole, &tree(&place.path("data")));
    eprintln!("{kills} kills, {} jobs brought to their end, each time the same bytes", finished + 1);
}
