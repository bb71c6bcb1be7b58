//! Converts libtorch failures, which tch reports as panics, to errors.

use std::cell::RefCell;
use std::panic::AssertUnwindSafe;

thread_local! {
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A failed libtorch operation. The usual reason is a lack of memory.
#[derive(Debug, thiserror::Error)]
#[error("libtorch failed: {0}")]
pub struct TorchError(String);

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

/// Names of the CUDA errors after which the process cannot use the GPU any more: in the driver API after `CUDA_ERROR_`, and in
/// the runtime API after `cudaError`. cuda.h says of each that "the process must be terminated". `UNKNOWN` is not explained, but
/// follows failures of the hardware.
const LOST_NAMES: [[&str; 2]; 16] = [
    ["ECC_UNCORRECTABLE", "ECCUncorrectable"],
    ["NVLINK_UNCORRECTABLE", "NvlinkUncorrectable"],
    ["CONTAINED", "Contained"],
    ["ILLEGAL_ADDRESS", "IllegalAddress"],
    ["LAUNCH_TIMEOUT", "LaunchTimeout"],
    ["ASSERT", "Assert"],
    ["HARDWARE_STACK_ERROR", "HardwareStackError"],
    ["ILLEGAL_INSTRUCTION", "IllegalInstruction"],
    ["MISALIGNED_ADDRESS", "MisalignedAddress"],
    ["INVALID_ADDRESS_SPACE", "InvalidAddressSpace"],
    ["INVALID_PC", "InvalidPc"],
    ["LAUNCH_FAILED", "LaunchFailure"],
    ["TENSOR_MEMORY_LEAK", "TensorMemoryLeak"],
    ["EXTERNAL_DEVICE", "ExternalDevice"],
    ["UNKNOWN", "Unknown"],
    ["CONTEXT_IS_DESTROYED", "ContextIsDestroyed"],
];

/// Descriptions of these errors, for messages without a name.
const LOST: [&str; 14] = [
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
    "device-side assert triggered",
    "launch timed out",
    "GPU has fallen off the bus",
    "CUDA error: unknown error",
];

/// First words of the advice that follows the description of an error in a message of libtorch.
const ADVICE: [&str; 5] = [
    "Search for `cudaError",
    "CUDA kernel errors might be",
    "For debugging consider",
    "Compile with `TORCH_USE_CUDA_DSA`",
    "Exception raised from",
];

/// Returns the description of the error if a CUDA message says that the GPU is unusable in this process. Usually, this is one
/// line of the message. If only a later line has the name of the error, it is still the line that describes it.
pub fn lost_gpu(output: &str) -> Option<&str> {
    let described = |line: &&str| LOST.iter().any(|words| line.contains(words));
    let named = output.lines().find(|line| has_lost_name(line));
    let first = || output.lines().find(|line| line.contains("CUDA error:"));
    let line = output.lines().find(described).or_else(|| Some(first().unwrap_or(named?)))?;
    Some(description(line))
}

/// Returns the description in a line. The panic of a failed operation has the whole message in one line, with `\n` in place of
/// each end of a line.
fn description(line: &str) -> &str {
    let line = &line[line.find("CUDA error:").unwrap_or(0)..];
    let end = ADVICE.iter().filter_map(|advice| line.find(advice)).min().unwrap_or(line.len());
    let text = line[..end].trim_end();
    text.strip_suffix("\\n").unwrap_or(text)
}

/// True if `line` has one of [`LOST_NAMES`] as a whole word.
fn has_lost_name(line: &str) -> bool {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_lost = |word: &str| {
        let (driver, runtime) = (word.strip_prefix("CUDA_ERROR_"), word.strip_prefix("cudaError"));
        LOST_NAMES.iter().any(|[of_driver, of_runtime]| driver == Some(of_driver) || runtime == Some(of_runtime))
    };
    words.into_iter().any(is_lost)
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
