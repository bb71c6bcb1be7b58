//! Tests of runs that are killed repeatedly at random times. A kill hits one rank, all ranks or the coordinator. A
//! third of the kills are aimed at a save or a load. The run must end with the same bits or, if the world size changes,
//! with the same samples.
//!
//! The short tests run by default. CONTRIBUTING.md lists the long ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use crate::s3_server::{self, Fault, RandomFaults, Server};
use crate::support::{
    self, Running, TestDir, assert_same_bits, assert_same_weights, checkpoints, done, kill_if_there, open_mpi_5, tree,
    workers,
};
use lambert_control::StepRecord;
use lambert_dataset::random::{Key, Rng};

/// Number of steps between two checkpoints in the configuration of `support`.
const INTERVAL: u64 = 7;

/// A number of steps that no run completes before its last kill.
const ENDLESS: u64 = 1_000_000;

/// Run that is killed and restarted.
struct Trial<'a> {
    place: &'a TestDir,
    /// Total number of steps. `None` until the last kill.
    steps: Option<u64>,
    /// URL of the run.
    url: String,
    /// Local folder with the objects of the run.
    folder: PathBuf,
    /// World sizes of successive starts. The list is repeated.
    worlds: &'a [usize],
    rng: Rng,
    starts: usize,
    /// Additional arguments of `lambert run`.
    more: &'a [&'a str],
    /// Environment of every second start, which selects another MPI. Empty if all starts use the installed MPI.
    other_mpi: Vec<(&'static str, String)>,
    tally: BTreeMap<&'static str, usize>,
    /// Checkpoints with a flipped byte.
    damaged: BTreeSet<String>,
    log: String,
}

impl<'a> Trial<'a> {
    fn new(place: &'a TestDir, name: &str, worlds: &'a [usize]) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let seed = std::env::var("LAMBERT_TEST_SEED").map_or(now, |seed| seed.parse().unwrap());
        eprintln!("{name}: random kills from LAMBERT_TEST_SEED={seed}");
        let (url, folder) = (place.path(name), place.path(name).into());
        let (rng, tally, log) = (Key::new(seed).rng(), BTreeMap::new(), String::new());
        Self {
            place,
            steps: None,
            url,
            folder,
            worlds,
            rng,
            starts: 0,
            more: &[],
            other_mpi: Vec::new(),
            tally,
            damaged: BTreeSet::new(),
            log,
        }
    }

    fn start(&mut self) -> Running {
        let world = self.worlds[self.starts % self.worlds.len()];
        self.starts += 1;
        let config = self.place.config(self.steps.unwrap_or(ENDLESS), world);
        // Kills without progress are intended and must not exhaust the restart limit.
        let more = ["--set", "cluster.restart.limit=100000", "--allow-change", "stage"];
        let mpi = if self.starts.is_multiple_of(2) { &self.other_mpi[..] } else { &[] };
        Running::start_in(&config, &self.url, &[&CONSTANT_RATE[..], &more, self.more].concat(), mpi)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    /// Kills the run `kills` times and then lets it finish after a few more checkpoints. Returns the total number of
    /// steps of the run.
    fn kill_repeatedly(&mut self, kills: usize) -> u64 {
        let mut running = self.start();
        for kill in 0..kills {
            self.wait(&mut running, kill);
            running = self.kill(running);
        }
        running.kill_coordinator("-9");
        self.log += &running.end().log;
        support::wait_for_no_workers(&self.url);
        let newest = checkpoints(&self.url).first().map_or(0, |name| step_of(name));
        let steps = *self.steps.insert(newest + 5 * INTERVAL + 3);
        let ended = self.start().end();
        assert_eq!(ended.code, Some(0), "{}", ended.log);
        self.log += &ended.log;
        let resumes = self.log.matches("resuming from").count();
        let restarts_from_zero = self.log.matches("starting at step 0 of").count();
        let attempts = self.log.matches(": starting ").count();
        eprintln!("{kills} kills {:?}", self.tally);
        eprintln!("{attempts} attempts, {resumes} resumes, {restarts_from_zero} from nothing; {steps} steps");
        steps
    }

    fn count(&mut self, what: &'static str) {
        *self.tally.entry(what).or_default() += 1;
    }

    /// Waits for the time of the next kill. One kill in six is aimed at a save, and one in six at the start of the
    /// ranks.
    fn wait(&mut self, running: &mut Running, kill: usize) {
        match kill % 6 {
            0 => {
                let step = running.latest().map_or(0, |record| record.step);
                running.reach((step + 1 + self.below(2 * INTERVAL)).next_multiple_of(INTERVAL));
                std::thread::sleep(Duration::from_micros(self.below(20_000)));
                self.count("aimed at a save");
            }
            3 => {
                wait_for_workers(running, &self.url);
                std::thread::sleep(Duration::from_millis(self.below(500)));
                self.count("aimed at a load");
            }
            _ => {
                let step = running.latest().map_or(0, |record| record.step);
                running.reach(step + 1 + self.below(4 * INTERVAL));
                std::thread::sleep(Duration::from_millis(self.below(30)));
            }
        }
    }

    /// Kills one rank, all ranks, or the coordinator. Restarts a killed coordinator.
    fn kill(&mut self, mut running: Running) -> Running {
        wait_for_workers(&mut running, &self.url);
        let victims: Vec<u32> = workers(&self.url).into_values().collect();
        let choice = if self.worlds.len() > 1 { 5 } else { self.below(6) };
        match choice {
            0..3 => {
                let one = victims[self.below(victims.len() as u64) as usize];
                kill_if_there(one);
                self.count("of one rank");
                running
            }
            3..5 => {
                victims.into_iter().for_each(kill_if_there);
                self.count("of all ranks");
                running
            }
            _ => {
                running.kill_coordinator("-9");
                self.count("of the coordinator");
                let ended = running.end();
                assert_eq!(ended.code, None, "the run ended before its last kill: {}", ended.log);
                self.log += &ended.log;
                support::wait_for_no_workers(&self.url);
                self.restart()
            }
        }
    }

    /// Restarts the run. Sometimes flips a bit in the newest checkpoint first. The run must then skip this checkpoint.
    fn restart(&mut self) -> Running {
        let mut sound = checkpoints(&self.url);
        sound.retain(|name| !self.damaged.contains(name));
        if sound.len() < 2 || self.below(3) > 0 {
            return self.start();
        }
        self.damaged.insert(sound[0].clone());
        let folder = self.folder.join("checkpoints").join(&sound[0]);
        let files: Vec<_> = tree(&folder).into_iter().collect();
        let (name, mut bytes) = files[self.below(files.len() as u64) as usize].clone();
        let at = self.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << self.below(8);
        std::fs::write(folder.join(&name), bytes).unwrap();
        self.count("with damage");
        let mut running = self.start();
        let Some(_) = running.record() else { panic!("the run did not restart: {}", running.end().log) };
        running.kill_coordinator("-9");
        let ended = running.end();
        support::wait_for_no_workers(&self.url);
        let resumes_from = |name: &String| ended.log.contains(&format!("resuming from {name}"));
        assert!(resumes_from(&sound[1]) && !resumes_from(&sound[0]), "{} at {at}: {}", name.display(), ended.log);
        assert!(ended.log.contains(&format!("skipped checkpoint {}", sound[0])), "{}", ended.log);
        self.log += &ended.log;
        self.start()
    }

    /// Returns the step records that led to the final state: for each step, the record of the last attempt that
    /// executed it.
    fn history(&self) -> Vec<StepRecord> {
        let mut logs = tree(&self.folder.join("metrics"));
        logs.retain(|name, _| name.extension().is_some_and(|end| end == "jsonl"));
        let mut attempts = BTreeMap::<u64, Vec<(u64, Vec<u8>)>>::new();
        for (name, text) in logs {
            let name = name.to_str().unwrap();
            let (attempt, from) =
                name.trim_end_matches(".jsonl").trim_start_matches("attempt-").split_once("-from-").unwrap();
            attempts.entry(attempt.parse().unwrap()).or_default().push((from.parse().unwrap(), text));
        }
        let (mut history, mut bound) = (Vec::new(), u64::MAX);
        for logs in attempts.into_values().rev() {
            let lines = logs.iter().flat_map(|(_, text)| text.split(|byte| *byte == b'\n'));
            let records = lines.filter_map(|line| serde_json::from_slice::<StepRecord>(line).ok());
            history.extend(records.filter(|record| record.step <= bound));
            bound = bound.min(logs.iter().map(|(from, _)| *from).min().unwrap());
        }
        history.sort_by_key(|record| record.step);
        history
    }

    /// Asserts that the history contains every step once, with the same samples and masks as in the undisturbed run.
    fn assert_history(&self, undisturbed: &[StepRecord]) {
        let facts = |r: &StepRecord| (r.step, r.batch.digest, r.batch.samples, r.batch.masked_tokens);
        let (found, expected): (Vec<_>, Vec<_>) =
            (self.history().iter().map(facts).collect(), undisturbed.iter().map(facts).collect());
        assert_eq!(Some(found.len() as u64), self.steps, "missing or repeated steps");
        let other = found.iter().zip(&expected).find(|(found, expected)| found != expected);
        assert!(other.is_none(), "a batch differs: {other:?}");
    }

    /// Asserts that pruning leaves no unexpected files.
    fn assert_no_leftovers(&self) {
        for name in tree(&self.folder).keys().filter(|name| name.to_str().unwrap().contains('#')) {
            // Pruning removes partial files outside checkpoints only if they are old.
            let file = File::options().write(true).open(self.folder.join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(7200)).unwrap();
        }
        done(&["checkpoint", "prune", &self.url, "--keep", "1"]);
        let newest = &checkpoints(&self.url)[0];
        let belongs = |name: &str| {
            ["run.toml", "vocab.txt", "status.json", "coordinator.json"].contains(&name)
                || name.starts_with("lease-") && name.len() == "lease-000001".len()
                || name.starts_with("metrics/attempt-") && name.ends_with(".jsonl")
                || name.starts_with(&format!("checkpoints/{newest}/"))
        };
        let all = tree(&self.folder);
        let left: Vec<_> = all.keys().map(|name| name.to_str().unwrap()).filter(|name| !belongs(name)).collect();
        assert_eq!(left, [""; 0], "unexpected files");
        if self.folder == Path::new(&self.url) {
            // Folders are checked only in a local store. A bucket has no folders, but the S3 server may keep empty
            // ones.
            let folders = std::fs::read_dir(self.folder.join("checkpoints")).unwrap();
            let folders: Vec<_> = folders.map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(folders, [newest.as_str()], "unexpected files");
        }
        done(&["checkpoint", "verify", &self.url]);
    }
}

fn wait_for_workers(running: &mut Running, url: &str) {
    let start = Instant::now();
    while workers(url).is_empty() {
        if let Some(words) = running.log_if_ended() {
            panic!("the run ended before its last kill: {words}");
        }
        assert!(start.elapsed() < Duration::from_secs(120), "no worker of {url} has started");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Learning rate schedule that does not depend on the total number of steps. This number is known only after the last
/// kill.
const CONSTANT_RATE: [&str; 4] = ["--set", "stage.0.warmup=0.0", "--set", "stage.0.decay=constant"];

/// Returns the step in a checkpoint name.
fn step_of(name: &str) -> u64 {
    name.split('-').nth(1).unwrap().parse().unwrap()
}

fn undisturbed(place: &TestDir, steps: u64, more: &[&str]) -> (String, Vec<StepRecord>) {
    let run = place.path("undisturbed");
    let ended = Running::start_with(&place.config(steps, 2), &run, &[&CONSTANT_RATE[..], more].concat()).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_eq!(ended.records.len() as u64, steps, "the reference run was restarted: {}", ended.log);
    (run, ended.records)
}

/// Kills a run of two ranks in a folder, alternating between Open MPI 4 and 5. The final bits must be the same.
fn kill_in_a_folder(kills: usize) {
    let place = TestDir::new();
    let mut trial = Trial::new(&place, "killed", &[2]);
    trial.other_mpi = open_mpi_5().into_iter().flatten().collect();
    let steps = trial.kill_repeatedly(kills);
    let (reference, records) = undisturbed(&place, steps, &[]);
    trial.assert_history(&records);
    assert_same_bits(&reference, &trial.url);
    trial.assert_no_leftovers();
}

/// Kills a run whose world size changes at each restart. Every global batch must have the same samples.
fn kill_with_changing_worlds(kills: usize) {
    let place = TestDir::new();
    let mut trial = Trial::new(&place, "worlds", &[2, 3, 1]);
    let steps = trial.kill_repeatedly(kills);
    let (_, records) = undisturbed(&place, steps, &[]);
    trial.assert_history(&records);
    trial.assert_no_leftovers();
}

/// Like [`kill_with_changing_worlds`], in canonical mode. The final bits must be the same.
fn kill_with_canonical_worlds(kills: usize) {
    const CANONICAL: [&str; 2] = ["--set", "cluster.all_reduce.canonical=true"];
    let place = TestDir::new();
    let mut trial = Trial::new(&place, "canonical", &[2, 3, 1]);
    trial.more = &CANONICAL;
    let steps = trial.kill_repeatedly(kills);
    let (reference, records) = undisturbed(&place, steps, &CANONICAL);
    trial.assert_history(&records);
    assert_same_weights(&reference, &trial.url);
    trial.assert_no_leftovers();
}

/// Kills a run in a bucket. A proxy makes every tenth request fail on average.
fn kill_in_a_bucket(kills: usize) {
    let place = TestDir::new();
    let server = Server::start(Path::new(&place.path("s3")), 0);
    support::ENVIRONMENT.set(server.environment());
    let faults = vec![
        Fault::Refuse(500, "InternalError"),
        Fault::Refuse(503, "SlowDown"),
        Fault::Reset,
        Fault::LoseAnswer,
        Fault::CutBody,
        Fault::Stall(Duration::from_millis(700)),
    ];
    server.random_faults(Some(RandomFaults { per_mille: 100, faults, seed: 7 }));
    let mut trial = Trial::new(&place, "bucket", &[2]);
    trial.url = format!("s3://{}/killed", s3_server::BUCKET);
    trial.folder = Path::new(&place.path("s3")).join(s3_server::BUCKET).join("killed");
    let steps = trial.kill_repeatedly(kills);
    eprintln!("{} requests were spoilt", server.clear());
    let (reference, records) = undisturbed(&place, steps, &[]);
    trial.assert_history(&records);
    let local = place.path("copy");
    support::copy(&trial.folder, Path::new(&local));
    assert_same_bits(&reference, &local);
    trial.assert_no_leftovers();
}

#[test]
fn a_few_kills_leave_the_result_unchanged() {
    kill_in_a_folder(6);
}

#[test]
#[ignore = "an hour: CONTRIBUTING.md"]
fn many_kills_leave_the_result_unchanged() {
    kill_in_a_folder(std::env::var("LAMBERT_TEST_KILLS").map_or(500, |kills| kills.parse().unwrap()));
}

#[test]
#[ignore = "minutes: CONTRIBUTING.md"]
fn forty_kills_with_changing_worlds_leave_the_batches_unchanged() {
    kill_with_changing_worlds(40);
}

#[test]
fn a_few_kills_with_canonical_worlds_leave_the_result_unchanged() {
    kill_with_canonical_worlds(4);
}

#[test]
#[ignore = "minutes: CONTRIBUTING.md"]
fn forty_kills_with_canonical_worlds_leave_the_result_unchanged() {
    kill_with_canonical_worlds(40);
}

#[test]
#[ignore = "minutes: CONTRIBUTING.md"]
fn forty_kills_with_store_faults_leave_the_result_unchanged() {
    kill_in_a_bucket(40);
}
