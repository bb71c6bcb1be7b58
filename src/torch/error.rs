//! Converts libtorch failures, which tch reports as panics, to errors.

use std::cell::RefCell;
use std::panic::AssertUnwindSafe;

use super::cuda_error::lost_gpu;

thread_local! {
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A failed libtorch operation. The usual reason is a lack of memory.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {0}", what = failed(.0))]
pub struct TorchError(String);

/// Says what failed. tch, like all dependencies, is compiled with absolute paths, and this workspace with relative ones.
fn failed(message: &str) -> &'static str {
    let location = message.strip_prefix("panicked at ").unwrap_or("/");
    if location.starts_with('/') { "libtorch failed" } else { "internal error; please report it" }
}

impl TorchError {
    /// Size of the allocation that failed, for messages; `None` for other errors.
    pub fn memory(&self) -> Option<String> {
        let output = &self.0;
        let after = |words: &str| output.split_once(words).map(|(_, rest)| rest);
        // First try the message format of the CPU allocator, then the format of the GPU allocator.
        if let Some(bytes) =
            after("you tried to allocate ").and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok())
        {
            return Some(format!("{:.2} GiB", bytes / f64::from(1 << 30)));
        }
        if let Some(rest) = after("Tried to allocate ") {
            return Some(rest.split(' ').take(2).collect::<Vec<_>>().join(" ").trim_end_matches('.').to_owned());
        }
        let without_size = ["bad_alloc", "out of memory", "Cannot allocate memory"];
        without_size.iter().any(|words| output.contains(words)).then(|| "more memory".to_owned())
    }
}

impl TorchError {
    /// Returns the CUDA message if it says that the GPU is unusable in this process.
    pub fn lost_gpu(&self) -> Option<&str> {
        lost_gpu(&self.0).filter(|line| ["CUDA", "cuda", "driver"].iter().any(|word| line.contains(word)))
    }
}

/// Silences panics. The message of a panic becomes the error of [`guard`], or is available from [`last_panic`].
pub fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| {
        LAST_PANIC.with(|last| *last.borrow_mut() = Some(info.to_string().replace('\n', " ")));
    }));
}

/// Returns the message of the last panic of this thread, if there was a panic since the last call.
pub fn last_panic() -> Option<String> {
    LAST_PANIC.with(|last| last.borrow_mut().take())
}

/// Runs tensor code and converts panics of tch to errors, so that model code can be written as formulas.
pub fn guard<T>(work: impl FnOnce() -> T) -> Result<T, TorchError> {
    caught(work).map_err(TorchError)
}

/// Runs `work`. Returns the panic message if `work` panics.
pub fn caught<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|payload| {
        let output = payload.downcast_ref::<String>().cloned();
        let output = output.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        last_panic().or(output).unwrap_or_else(|| "no reason given".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind, Tensor};

    use super::*;

    #[test]
    fn a_panic_of_this_workspace_is_an_internal_error() {
        let shown = |text: &str| TorchError(text.to_owned()).to_string();
        let own = shown("panicked at configs/plan/src/timeline.rs:37:13: attempt to multiply with overflow");
        assert!(own.starts_with("internal error; please report it: panicked at "), "{own}");
        let tch = "panicked at /registry/tch-0.24.0/src/wrappers/tensor.rs:1:2: Torch(..)";
        for other in [tch, "out of memory"] {
            assert!(shown(other).starts_with("libtorch failed: "), "{other}");
        }
    }

    #[test]
    fn the_size_of_a_failed_allocation_is_parsed() {
        let asked = |output: &str| TorchError(output.to_owned()).memory();
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
    fn a_lost_gpu_is_distinguished_from_a_failed_operation() {
        let lost = |output: &str| TorchError(output.to_owned()).lost_gpu().map(str::to_owned);
        let output = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later";
        assert_eq!(lost(output).as_deref(), Some("CUDA error: an illegal memory access was encountered"));
        // Panics of tch.
        let panic = |error: &str, name: &str| {
            format!(
                "panicked at tensor_generated.rs:9:5: called `Result::unwrap()` on an `Err` value: Torch(\"CUDA error: {error}\\nSearch \
                 for `{name}' in https://docs.nvidia.com/cuda for more information.\\nCUDA kernel errors might be asynchronously \
                 reported at some other API call\\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\\n\\nException \
                 raised from c10_cuda_check_implementation at CUDAException.cpp:44\\nframe #0: c10::Error::Error\")"
            )
        };
        for (error, name) in [
            ("an illegal memory access was encountered", "cudaErrorIllegalAddress"),
            ("an illegal instruction", "cudaErrorIllegalInstruction"),
            ("device-side assert triggered", "cudaErrorAssert"),
            ("words of a later version", "cudaErrorTensorMemoryLeak"),
        ] {
            assert_eq!(lost(&panic(error, name)), Some(format!("CUDA error: {error}")));
        }
        for (error, name) in [
            ("invalid configuration argument", "cudaErrorInvalidConfiguration"),
            ("no kernel image is available for execution on the device", "cudaErrorNoKernelImageForDevice"),
            ("out of memory", "cudaErrorMemoryAllocation"),
        ] {
            assert_eq!(lost(&panic(error, name)), None, "{error}");
        }
        let output = "kernel adamw: the driver's cuLaunchKernel failed: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered (214)";
        assert!(lost(output).is_some());
        for name in [
            "CUDA_ERROR_INVALID_ADDRESS_SPACE",
            "CUDA_ERROR_CONTAINED",
            "CUDA_ERROR_UNKNOWN",
            "CUDA_ERROR_LAUNCH_FAILED",
        ] {
            let output =
                format!("kernel adamw: CUDA driver call cuLaunchKernel failed: {name}: words of a later driver (1)");
            assert_eq!(lost(&output).as_deref(), Some(&*output));
        }
        let output = "CUDA error: words of a later version\nSearch for `cudaErrorTensorMemoryLeak' in https://docs.nvidia.com/cuda";
        assert_eq!(lost(output).as_deref(), Some("CUDA error: words of a later version"));
        assert!(lost("CUDA error: unknown error\nCUDA kernel errors might be reported later").is_some());
        let output =
            "kernel adamw: CUDA driver call cuLaunchKernel failed: CUDA_ERROR_INVALID_VALUE: invalid argument (1)";
        assert_eq!(lost(output), None);
        assert_eq!(
            lost("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com"),
            None
        );
        assert_eq!(lost("CUDA out of memory. Tried to allocate 20.00 MiB"), None);
        assert_eq!(lost("mat1 and mat2 shapes cannot be multiplied"), None);
    }
}
