//! Environment variables of a process without a coordinator.

use lambert_config::gpu_environment;
use lambert_control::URL_VARIABLE;

/// Sets the default environment variables of GPU libraries ([`gpu_environment`]) and returns them. Sets nothing under a
/// coordinator, because the ranks inherit the variables from it. Setting variables is sound only in a single-threaded
/// process, so call this function first in `main`. If the process has more threads, the function sets nothing.
pub fn prepare(deterministic: bool) -> Vec<(&'static str, &'static str)> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads != 1 || std::env::var_os(URL_VARIABLE).is_some() {
        return Vec::new();
    }
    let defaults = gpu_environment::defaults(deterministic, |name| std::env::var_os(name).is_some());
    for (name, value) in &defaults {
        // SAFETY: there is no other thread that could read or write the environment.
        unsafe { std::env::set_var(name, value) };
    }
    defaults
}
