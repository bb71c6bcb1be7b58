//! Memory budget of a preparation job.

use super::PrepError;

/// Memory of the program itself, bytes: code, vocabulary and character tables.
const PROGRAM_BYTES: u64 = 96 << 20;
/// Smallest usable budget, bytes.
const MIN_BYTES: u64 = 256 << 20;
/// Upper limit on the size of the spill buffers of all threads together, bytes. Larger buffers are no faster.
const MAX_TOTAL_SPILL_BYTES: u64 = 128 << 20;

/// A memory budget in bytes, shared by all threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrepMemory {
    bytes: u64,
    threads: u64,
}

impl PrepMemory {
    /// Creates a budget of `bytes` for `threads` threads.
    ///
    /// # Errors
    /// The budget is below 256 MiB.
    pub fn new(bytes: u64, threads: usize) -> Result<Self, PrepError> {
        if bytes < MIN_BYTES {
            let message = format!("must be at least {} MiB", MIN_BYTES >> 20);
            return Err(PrepError::InvalidSetting { key: "--memory".to_owned(), message });
        }
        Ok(Self { bytes, threads: threads.max(1) as u64 })
    }

    const fn available(self) -> u64 {
        self.bytes - PROGRAM_BYTES
    }

    /// Bytes of tokenized documents that each thread buffers before it writes a spill file.
    pub fn spill_buffer(self) -> usize {
        ((self.available() / 4).min(MAX_TOTAL_SPILL_BYTES) / self.threads) as usize
    }

    /// Largest decompression window per thread, bytes.
    pub const fn decompressor_window(self) -> u64 {
        self.available() / 2 / self.threads
    }

    /// Memory for a sort that runs on one thread, bytes. The other threads wait meanwhile.
    pub const fn sort_buffer(self) -> u64 {
        self.available() / 2
    }

    /// Returns the number of threads that can run at once if each thread needs `bytes_per_thread`. The minimum is 1.
    pub fn max_threads(self, bytes_per_thread: u64) -> usize {
        (self.available() / bytes_per_thread.max(1)).clamp(1, self.threads) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_budget_is_refused_and_all_buffers_fit_in_the_budget() {
        let error = PrepMemory::new(MIN_BYTES - 1, 2).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("--memory: must be at least 256 MiB"), "{error}");
        for (bytes, threads) in [(MIN_BYTES, 1), (MIN_BYTES, 64), (512 << 20, 2), (64 << 30, 16)] {
            let memory = PrepMemory::new(bytes, threads).unwrap();
            let shares = (memory.spill_buffer() as u64 + memory.decompressor_window()) * threads as u64;
            assert!(
                PROGRAM_BYTES + shares <= bytes && PROGRAM_BYTES + memory.sort_buffer() <= bytes,
                "{bytes} bytes, {threads} threads"
            );
            for bytes_per_thread in [1 << 20, 40 << 20, 1 << 30] {
                let workers = memory.max_threads(bytes_per_thread);
                assert!(
                    (1..=threads).contains(&workers)
                        && (workers == 1 || workers as u64 * bytes_per_thread + PROGRAM_BYTES <= bytes)
                );
            }
        }
    }
}
