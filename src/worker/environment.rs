//! The environment of this process, where no coordinator has prepared it.

use lambert_config::gpu_environment;
use lambert_control::URL_VARIABLE;

/// Sets what libraries of a GPU read ([`gpu_environment`]), and returns it. Ranks under a coordinator have it from there.
/// Only a process with one thread may do this: call it first in `main`. With more threads nothing is set.
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
