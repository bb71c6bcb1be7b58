//! The memory that a preparation may take, and what it is for.

use super::PrepError;

/// Bytes that the program has for itself, whatever the corpus: code, vocabulary, tables of characters.
const FIXED: u64 = 96 << 20;
/// The least that anything can be done with.
const LEAST: u64 = 256 << 20;
/// Token ids that are kept before they are written down, at the most: more makes nothing faster.
const MOST_KEPT: u64 = 128 << 20;

/// A budget in bytes, for all threads together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    bytes: u64,
    threads: u64,
}

impl Memory {
    /// `bytes` for `threads` threads.
    ///
    /// # Errors
    /// It is too little for anything.
    pub fn new(bytes: u64, threads: usize) -> Result<Self, PrepError> {
        if bytes < LEAST {
            let message = format!("must be at least {} MiB", LEAST >> 20);
            return Err(PrepError::Setting { key: "--memory".to_owned(), message });
        }
        Ok(Self { bytes, threads: threads.max(1) as u64 })
    }

    const fn variable(self) -> u64 {
        self.bytes - FIXED
    }

    /// Bytes of token ids that each thread keeps before it writes them down.
    pub fn kept(self) -> usize {
        ((self.variable() / 4).min(MOST_KEPT) / self.threads) as usize
    }

    /// Bytes for the window of a decompressor; each thread has one.
    pub const fn window(self) -> u64 {
        self.variable() / 2 / self.threads
    }

    /// Bytes for what is sorted by one thread while the others wait.
    pub const fn sorted(self) -> u64 {
        self.variable() / 2
    }

    /// How many threads may work at the same time if each needs so many bytes.
    pub fn workers(self, each: u64) -> usize {
        (self.variable() / each.max(1)).clamp(1, self.threads) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_is_refused_and_all_shares_together_stay_within_the_budget() {
        let error = Memory::new(LEAST - 1, 2).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("--memory: must be at least 256 MiB"), "{error}");
        for (bytes, threads) in [(LEAST, 1), (LEAST, 64), (512 << 20, 2), (64 << 30, 16)] {
            let memory = Memory::new(bytes, threads).unwrap();
            let shares = (memory.kept() as u64 + memory.window()) * threads as u64;
            assert!(FIXED + shares <= bytes && FIXED + memory.sorted() <= bytes, "{bytes} bytes, {threads} threads");
            for each in [1 << 20, 40 << 20, 1 << 30] {
                let workers = memory.workers(each);
                assert!((1..=threads).contains(&workers) && (workers == 1 || workers as u64 * each + FIXED <= bytes));
            }
        }
    }
}
