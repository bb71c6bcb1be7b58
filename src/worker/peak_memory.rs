//! Peak memory of a rank.

use crate::kernels::Kernels;

/// Returns the peak memory of this rank, bytes: the peak of the libtorch allocator on a GPU, otherwise the peak resident
/// memory of this process.
pub fn peak_memory(kernels: &dyn Kernels) -> Option<u64> {
    kernels.peak_memory().or_else(resident)
}

/// Peak resident memory of this program. Unlike `ru_maxrss`, `VmHWM` does not include the program that called `exec`.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Host;

    #[test]
    fn peak_memory_includes_memory_that_was_freed() {
        let before = peak_memory(&Host).unwrap();
        drop(std::hint::black_box(vec![1_u8; 64 << 20]));
        let after = peak_memory(&Host).unwrap();
        assert!(after >= 64 << 20 && after >= before, "{before}, {after}");
    }
}
