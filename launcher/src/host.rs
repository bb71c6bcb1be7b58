//! This host: its name, its clock, its processes.

use std::time::{SystemTime, UNIX_EPOCH};

pub use lambert_store::host::name;

/// Seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |passed| passed.as_secs_f64())
}

/// Whether a process of this number lives on this host.
pub fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).ok().as_deref().and_then(stat).is_some_and(|(s, _)| s != 'Z')
}

/// When the process of this number was started: this boot of the host, where it has a name, and the clock ticks since then. `None` if there
/// is none.
pub fn since(pid: u32) -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may hold anything; field 22 is the 20th behind it (proc_pid_stat(5)).
    let ticks = line.rsplit_once(')')?.1.split_whitespace().nth(19)?;
    Some(format!("{}+{ticks}", boot.trim()))
}

/// State and parent from a line of `/proc/PID/stat`; the name, in parentheses, may hold anything.
pub fn stat(text: &str) -> Option<(char, u32)> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_lines_with_odd_names() {
        assert_eq!(stat("12 (a) R 9 (b)) S 7 12 12 0"), Some(('S', 7)));
        assert_eq!(stat("12 (a"), None);
    }
}
