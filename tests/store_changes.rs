//! Changes to the store of a run while the store is in use: the folder is moved, names are forged, checkpoints are
//! pruned during reads, and deletions are slow.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::s3_server::{BUCKET, Fault, Rule, Server};
use crate::support::{self, Running, TestDir, assert_same_bits, checkpoints, done, run_in, wait_for_no_workers};

/// Moving the folder of a run moves the run. Nothing may be created at the old path, and the run must resume at the new
/// path.
#[test]
fn a_run_moved_during_training_ends() {
    let dir = TestDir::new();
    let (config, run, moved) = (dir.config(1_000_000, 2), dir.path("run"), dir.path("moved"));
    let mut running = Running::start(&config, &run);
    running.reach(9);
    while checkpoints(&run).is_empty() {
        running.reach_now(1);
    }
    let start = Instant::now();
    std::fs::rename(&run, &moved).unwrap();
    let ended = running.end_within(Duration::from_secs(60));
    eprintln!("{:.1} s from the move to the end", start.elapsed().as_secs_f64());
    assert_eq!(ended.code, Some(77), "{}", ended.log);
    assert!(ended.log.contains("has lost the lease") && ended.log.contains("lease-000001"), "{}", ended.log);
    assert!(!Path::new(&run).exists(), "{:?}", support::tree(Path::new(&run)).keys());
    wait_for_no_workers(&run);
    let newest = checkpoints(&moved).remove(0);
    done(&["checkpoint", "verify", &moved]);
    let mut second = Running::start(&config, &moved);
    second.reach_now(1);
    second.kill_coordinator("-TERM");
    let ended = second.end();
    assert_eq!(ended.code, Some(75), "{}", ended.log);
    assert!(ended.log.contains(&newest), "{}", ended.log);
}

/// Object names can be forged. No thread may panic because of a forged name.
#[test]
fn an_attempt_number_without_successor_is_an_error() {
    let dir = TestDir::new();
    for (name, object) in [("a", "lease-4294967295"), ("b", "checkpoints/step-000000001-a4294967295/model.safetensors")]
    {
        let run = dir.path(name);
        dir.file(&format!("{name}/{object}"), "x");
        let mut running = Running::start(&dir.config(7, 1), &run);
        let start = Instant::now();
        let text = loop {
            if let Some(text) = running.log_if_ended() {
                break text;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "the coordinator hangs");
            std::thread::sleep(Duration::from_millis(20));
        };
        let object = object.trim_end_matches("/model.safetensors");
        assert!(
            text.contains("exit status: 1") && text.contains(object) && text.contains("delete or move it"),
            "{text}"
        );
        assert!(!text.contains("panicked"), "{text}");
    }
}

/// Checkpoints are pruned while another process reads them. This must not be reported as damage. The reader must
/// continue with a newer checkpoint.
#[test]
fn a_checkpoint_pruned_during_a_read_is_not_damaged() {
    let dir = TestDir::new();
    let server = Server::start(Path::new(&dir.path("s3")), 0);
    let url = format!("s3://{BUCKET}/run");
    let environment = server.environment();
    let ended = Running::start_in(&dir.config(14, 1), &url, &[], &environment).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let folder = Path::new(&dir.path("s3")).join(BUCKET).join("run");
    let (older, newer) = ("step-000000007-a0001", "step-000000014-a0001");
    let spare = Path::new(&dir.path("spare")).to_owned();
    support::copy(&folder, &spare);
    let existing = |names: &[&str]| {
        let _ = std::fs::remove_dir_all(folder.join("checkpoints"));
        for name in names {
            let name = Path::new("checkpoints").join(name);
            support::copy(&spare.join(&name), &folder.join(&name));
        }
    };
    // Removes the whole checkpoint `from`, as pruning does. Then adds the checkpoint `to`, if there is one.
    let replace = |from: &'static str, to: Option<&'static str>| {
        let (folder, spare) = (folder.join("checkpoints"), spare.join("checkpoints"));
        move || {
            std::fs::remove_dir_all(folder.join(from)).unwrap();
            to.iter().for_each(|to| support::copy(&spare.join(to), &folder.join(to)));
        }
    };
    existing(&[older, newer]);
    server.before("GET /runs/run/checkpoints/step-000000007-a0001/model", 0, replace(older, None));
    let verified = run_in(&["checkpoint", "verify", &url, "--json"], &environment);
    assert_eq!((verified.code, verified.out.lines().count()), (0, 1), "{}{}", verified.out, verified.err);
    assert!(
        verified.out.contains(newer) && verified.err.contains("was deleted during verification"),
        "{}",
        verified.err
    );
    // Real damage must still be reported.
    existing(&[older, newer]);
    std::fs::remove_file(folder.join("checkpoints").join(older).join("model.safetensors")).unwrap();
    let verified = run_in(&["checkpoint", "verify", &url], &environment);
    assert_eq!((verified.code, verified.out.lines().count()), (1, 2), "{}{}", verified.out, verified.err);
    // The first read verifies the object. The second read loads it.
    for after in [0, 1] {
        let exported = dir.path(&format!("exported-{after}"));
        for arguments in [&["export", &url, "--output", &exported][..], &["fill-mask", &url, "the [MASK] ."]] {
            existing(&[older]);
            server.before("GET /runs/run/checkpoints/step-000000007-a0001/model", after, replace(older, Some(newer)));
            let ran = run_in(arguments, &environment);
            assert_eq!(ran.code, 0, "{arguments:?}: {}", ran.err);
            assert!(!server.has_hook(), "{arguments:?}");
        }
    }
}

/// Pruning must block neither saves nor stages, and may delay the end of the run only by seconds.
#[test]
fn slow_deletions_delay_no_step() {
    let dir = TestDir::new();
    let server = Server::start(Path::new(&dir.path("s3")), 0);
    let url = format!("s3://{BUCKET}/run");
    let environment = server.environment();
    let more = ["--set", "checkpoint.keep=1"];
    let mut running = Running::start_in(&dir.config(28, 2), &url, &more, &environment);
    // The deletions that the coordinator makes at startup are complete. The next object to be deleted belongs to the
    // first checkpoint.
    running.reach(3);
    let (fault, start) = (Fault::Stall(Duration::from_secs(40)), Instant::now());
    server.fail(Rule { method: "POST".parse().unwrap(), contains: "delete", after: 0, times: 1, fault });
    let ended = running.end();
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_eq!(server.hits(), 1, "the fault was not hit");
    assert!(seconds < 35.0, "{seconds:.1} s: {}", ended.log);
    eprintln!("{seconds:.1} s to the end, of which at most 10 s are for what was being removed");
    // The remaining checkpoints can be removed later.
    server.clear();
    let pruned = run_in(&["checkpoint", "prune", &url, "--json"], &environment);
    assert_eq!(pruned.code, 0, "{}", pruned.err);
    let left = run_in(&["checkpoint", "list", &url], &environment).out;
    assert!(left.lines().count() == 1 && left.contains("step-000000028-a0001"), "{left}");
}

/// Ranks that restart share the reads of a checkpoint in a bucket: rank 0 verifies it, and then each rank reads a part for
/// all ranks. The ranks of a run that starts from the checkpoint do the same with the weights.
#[test]
fn ranks_together_read_a_checkpoint_once() {
    const RANKS: usize = 4;
    let dir = TestDir::new();
    let server = Server::start(Path::new(&dir.path("s3")), 0);
    let (url, folder) = (format!("s3://{BUCKET}/run"), dir.path(&format!("s3/{BUCKET}/run")));
    let environment = server.environment();
    // Number of reads of objects whose names contain `what`.
    let reads = |requests: &[String], what: &str| {
        requests.iter().filter(|request| request.starts_with("GET") && request.contains(what)).count()
    };
    let config = dir.config(40, RANKS);
    let mut running = Running::start_in(&config, &url, &[], &environment);
    running.reach(16);
    server.requests();
    running.kill_rank(2, "-9");
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let requests = server.requests();
    // Each object once to verify it, and once for all ranks.
    assert_eq!(reads(&requests, "/model.safetensors"), 2, "{requests:#?}");
    assert_eq!(reads(&requests, "/optimizer-"), 2 * RANKS, "{requests:#?}");
    let undisturbed = dir.path("undisturbed");
    let ended = Running::start(&config, &undisturbed).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_same_bits(&folder, &undisturbed);

    let from = format!("run.from={url}/checkpoints/{}", checkpoints(&folder)[0]);
    let ended = Running::start_in(&dir.config(2, RANKS), &dir.path("other"), &["--set", &from], &environment).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let requests = server.requests();
    assert_eq!(reads(&requests, "/model.safetensors"), 2, "{requests:#?}");
    assert_eq!(reads(&requests, "/optimizer-"), 0, "{requests:#?}");
}
