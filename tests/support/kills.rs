//! Runs that are killed at random steps.

use std::path::Path;

use lambert_dataset::random::Key;

use super::{Running, TestDir, assert_same_bits, wait_for_no_workers};

/// Trains the run of `config`, which has `steps` steps on two ranks, and trains it again with `kills` kills at random steps. A
/// kill hits rank 0, rank 1 or the coordinator. Asserts that both runs end with the same bits. Returns their folders, the killed
/// run last.
pub fn same_bits_after_kills(dir: &TestDir, config: &str, kills: u64, steps: u64) -> [String; 2] {
    let [calm, killed] = ["calm", "killed"].map(|name| dir.path(name));
    let ended = Running::start(config, &calm).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    let name = Path::new(config).file_name().unwrap().as_encoded_bytes();
    let mut rng = Key::new(kills).with_bytes(name).rng();
    let mut running = Running::start(config, &killed);
    let mut tally = [0; 3];
    for kill in 0..kills {
        // The kills are in equal parts of the run.
        running.reach((steps * (2 * kill + 1) / (2 * kills) + rng.below(4)).max(1));
        let victim = rng.below(3) as usize;
        tally[victim] += 1;
        if victim < 2 {
            running.kill_rank(victim, "-9");
            continue;
        }
        running.kill_coordinator("-9");
        assert_eq!(running.end().code, None, "the run ended before its last kill");
        wait_for_no_workers(&killed);
        running = Running::start(config, &killed);
    }
    let ended = running.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_same_bits(&calm, &killed);
    eprintln!("kills of rank 0, rank 1, coordinator: {tally:?}; the same bits after {steps} steps");
    [calm, killed]
}
