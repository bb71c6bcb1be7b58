//! A bit flips in the weights of one rank. The next save must name the rank and must not be committed. The run must
//! resume from the previous checkpoint and end with the same result.

use crate::support::{Ended, Running, TestDir, assert_same_bits};

const STEPS: u64 = 21;

fn train(dir: &TestDir, name: &str, ranks: usize, sets: &[&str]) -> Ended {
    let sets: Vec<&str> = sets.iter().flat_map(|set| ["--set", set]).collect();
    let ended = Running::start_with(&dir.config(STEPS, ranks), &dir.path(name), &sets).end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    ended
}

#[test]
fn ranks_whose_weights_differ_are_found_at_the_next_save() {
    let dir = TestDir::new();
    // The configuration of `support` saves a checkpoint every seven steps.
    let flip = "test.flipped_weights=[[1, 10]]";
    for (ranks, expected) in [
        (3, "the weights of rank 1 differ from those of the majority (2 ranks)"),
        (2, "the weights of ranks 0, 1 differ, without a majority"),
    ] {
        let [clean, flipped] = ["clean", "flipped"].map(|name| format!("{name}-{ranks}"));
        train(&dir, &clean, ranks, &[]);
        let found = train(&dir, &flipped, ranks, &[flip]);
        // The error can name the rank with the flipped bit only if the other ranks are a majority.
        let who = if ranks == 3 { "rank 1 (pid" } else { "failed: " };
        let reported = |line: &str| line.contains(expected) && line.contains(who) && line.contains("failed: ");
        assert!(found.log.lines().any(reported), "{}", found.log);
        assert_eq!(found.log.matches("restarting all workers").count(), 1, "{}", found.log);
        // No checkpoint with the flipped bit was committed. On a slow disk there may be no earlier checkpoint.
        let resumes = found.log.contains("resuming from step-000000007-a0001");
        assert_eq!(resumes, found.log.contains("saved checkpoint step-000000007-a0001"), "{}", found.log);
        assert!(!found.log.contains("step-000000014-a0001"), "{}", found.log);
        assert_same_bits(&dir.path(&clean), &dir.path(&flipped));
    }
}
