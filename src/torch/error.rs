//! Failures of libtorch, which tch reports as panics, as errors.

use std::cell::RefCell;
use std::panic::AssertUnwindSafe;

thread_local! {
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// libtorch refused an operation (mostly: out of memory).
#[derive(Debug, thiserror::Error)]
#[error("libtorch failed: {0}")]
pub struct TorchError(String);

impl TorchError {
    /// How much memory was asked for in vain, in words, if that is what failed.
    pub fn memory(&self) -> Option<String> {
        let said = &self.0;
        let after = |words: &str| said.split_once(words).map(|(_, rest)| rest);
        // As the CPU's allocator says it, then as that of a GPU.
        if let Some(bytes) =
            after("you tried to allocate ").and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok())
        {
            return Some(format!("{:.2} GiB", bytes / f64::from(1 << 30)));
        }
        if let Some(rest) = after("Tried to allocate ") {
            return Some(rest.split(' ').take(2).collect::<Vec<_>>().join(" ").trim_end_matches('.').to_owned());
        }
        let unsaid = ["bad_alloc", "out of memory", "Cannot allocate memory"];
        unsaid.iter().any(|words| said.contains(words)).then(|| "more memory".to_owned())
    }
}

/// What CUDA says of a card that no call of the process reaches any more. Each is an error of
/// <https://docs.nvidia.com/cuda/cuda-runtime-api> after which "the process must be terminated".
const LOST: [&str; 13] = [
    "uncorrectable ECC error",
    "uncorrectable NVLink error",
    "Invalid access of peer GPU memory",
    "illegal memory access",
    "illegal instruction",
    "misaligned address",
    "invalid program counter",
    "hardware stack error",
    "invalid address space",
    "unspecified launch failure",
    "device-side assert",
    "launch timed out",
    "GPU has fallen off the bus",
];

/// Whether a card is lost to this process by what CUDA has `said`; then the line that tells.
pub fn lost_card(said: &str) -> Option<&str> {
    said.lines().find(|line| LOST.iter().any(|words| line.contains(words)))
}

impl TorchError {
    /// Whether a card is lost to this process; then what CUDA says of it, in one line.
    pub fn lost_card(&self) -> Option<&str> {
        lost_card(&self.0).filter(|line| line.contains("CUDA") || line.contains("driver"))
    }
}

/// Keeps panics quiet: their words go into the error of [`guard`], or to whoever asks [`last_panic`].
pub fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| {
        LAST_PANIC.with(|last| *last.borrow_mut() = Some(info.to_string().replace('\n', " ")));
    }));
}

/// What the last panic of this thread said, if one was caught since the last call.
pub fn last_panic() -> Option<String> {
    LAST_PANIC.with(|last| last.borrow_mut().take())
}

/// Runs tensor code. tch panics where libtorch reports an error; here that becomes an error again, so that model code
/// can be written as formulas.
pub fn guard<T>(work: impl FnOnce() -> T) -> Result<T, TorchError> {
    caught(work).map_err(TorchError)
}

/// Runs `work`; if it panics, what it said.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let said = payload.downcast_ref::<String>().cloned();
        let said = said.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        last_panic().or(said).unwrap_or_else(|| "no reason given".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    #[test]
    fn what_was_asked_for_is_read_from_the_messages_of_libtorch() {
        let asked = |said: &str| TorchError(said.to_owned()).memory();
        let cpu = "err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 3221225472 bytes. Error code 12";
        assert_eq!(asked(cpu).as_deref(), Some("3.00 GiB"));
        let gpu = "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.80 GiB";
        assert_eq!(asked(gpu).as_deref(), Some("20.00 MiB"));
        assert_eq!(asked("std::bad_alloc").as_deref(), Some("more memory"));
        assert_eq!(asked("mat1 and mat2 shapes cannot be multiplied"), None);
        let failed = guard(|| Tensor::zeros([1 << 50], (Kind::Float, Device::Cpu))).unwrap_err();
        assert_eq!(failed.memory().as_deref(), Some("4194304.00 GiB"), "{failed}");
    }

    #[test]
    fn a_lost_card_is_told_from_an_operation_that_failed() {
        let lost = |said: &str| TorchError(said.to_owned()).lost_card().map(str::to_owned);
        let said = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later";
        assert_eq!(lost(said).as_deref(), Some("CUDA error: an illegal memory access was encountered"));
        let said = "kernel adamw: the driver's cuLaunchKernel failed: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered (214)";
        assert!(lost(said).is_some());
        assert_eq!(lost("CUDA out of memory. Tried to allocate 20.00 MiB"), None);
        assert_eq!(lost("mat1 and mat2 shapes cannot be multiplied"), None);
    }
}
