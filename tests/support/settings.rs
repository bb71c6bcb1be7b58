//! Settings that `lambert run --check` accepts or refuses.

use super::{CommandOutput, TestDir, run};

fn check(dir: &TestDir, config: &str, set: &str) -> CommandOutput {
    run(&["run", "--check", "--config", config, "--run", &dir.path("none"), "--set", set])
}

/// Asserts that `config` with each of these settings is refused with its message.
pub fn assert_refused(dir: &TestDir, config: &str, settings: &[(&str, &str)]) {
    for (set, message) in settings {
        let checked = check(dir, config, set);
        assert_eq!(checked.code, 2, "{set}: {}", checked.err);
        assert!(checked.err.contains(message), "{set}: {}", checked.err);
    }
}

/// Asserts that `config` with this setting is accepted.
pub fn assert_accepted(dir: &TestDir, config: &str, set: &str) {
    let checked = check(dir, config, set);
    assert_eq!(checked.code, 0, "{set}: {}", checked.err);
}
