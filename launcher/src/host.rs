//! Host name, clock, processes and GPUs of this host.

use std::time::{SystemTime, UNIX_EPOCH};

pub use lambert_store::host::name;

/// Environment variable that selects GPUs.
pub const GPU_VARIABLE: &str = "CUDA_VISIBLE_DEVICES";

/// Seconds since the Unix epoch.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |passed| passed.as_secs_f64())
}

/// True if process `pid` exists on this host and is not a zombie.
pub fn lives(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).ok().as_deref().and_then(stat).is_some_and(|(s, _)| s != 'Z')
}

/// Returns the boot ID and the start time of process `pid` in clock ticks. They distinguish the process from a later
/// process with the same ID. Returns `None` if there is no such process.
pub fn since(pid: u32) -> Option<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(format!("{}+{}", boot.trim(), start_ticks(&line)?))
}

/// Returns the ID of the PID namespace of this process, or an empty string. A process of another namespace, such as a container,
/// has other process IDs.
pub fn pid_namespace() -> String {
    let link = std::fs::read_link("/proc/self/ns/pid");
    link.map_or(String::new(), |target| target.to_string_lossy().into_owned())
}

/// True if process IDs of `namespace` are those of this process. An earlier version recorded no namespace.
pub fn has_processes_of(namespace: &str) -> bool {
    namespace.is_empty() || namespace == pid_namespace()
}

/// Parses the start time from `/proc/PID/stat`, clock ticks since the boot. The start time, field 22, is the 20th field
/// after the name (proc_pid_stat(5)).
pub fn start_ticks(text: &str) -> Option<u64> {
    text.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

/// Parses state and parent PID from `/proc/PID/stat`. The command name is in parentheses and may contain any character.
pub fn stat(text: &str) -> Option<(char, u32)> {
    let mut fields = text.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// Parses the process group from `/proc/PID/stat`.
pub fn process_group(text: &str) -> Option<u32> {
    text.rsplit_once(')')?.1.split_whitespace().nth(2)?.parse().ok()
}

/// Lists the GPUs that a process on this host may use, as in [`GPU_VARIABLE`].
pub fn gpus() -> Vec<String> {
    std::env::var(GPU_VARIABLE).map_or_else(|_| devices(), |list| visible(&list))
}

/// Parses a list of GPUs like the CUDA driver, which ignores the first invalid entry and all entries after it.
fn visible(list: &str) -> Vec<String> {
    let is_one = |gpu: &&str| !gpu.is_empty() && !gpu.starts_with('-');
    list.split(',').map(str::trim).take_while(is_one).map(str::to_owned).collect()
}

/// Lists the GPUs with a device node in /dev.
fn devices() -> Vec<String> {
    let entries = std::fs::read_dir("/dev").into_iter().flatten().flatten();
    let number = |name: String| name.strip_prefix("nvidia")?.parse::<usize>().ok();
    let count = entries.filter_map(|entry| number(entry.file_name().to_string_lossy().into_owned())).count();
    (0..count).map(|index| index.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_names_may_contain_any_character() {
        assert_eq!(stat("12 (a) R 9 (b)) S 7 12 12 0"), Some(('S', 7)));
        assert_eq!(process_group("12 (a) R 9 (b)) S 7 13 12 0"), Some(13));
        assert_eq!(stat("12 (a"), None);
        let fields = (3..=22).map(|field| field.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(start_ticks(&format!("12 (a) R 9 (b)) {fields} 23")), Some(22));
    }

    #[test]
    fn an_invalid_entry_ends_the_list_of_gpus() {
        assert_eq!(visible("2, GPU-4af1"), ["2", "GPU-4af1"]);
        assert_eq!(visible("0,-1,1"), ["0"]);
        assert!(visible("-1").is_empty() && visible("").is_empty());
    }
}
