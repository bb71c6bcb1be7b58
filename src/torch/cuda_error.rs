//! CUDA errors after which a process cannot use its GPU any more, in messages of libtorch, NCCL and the CUDA driver.

/// An error of the CUDA driver and of the CUDA runtime, which have the same codes.
struct CudaError {
    code: u32,
    /// Name in the driver API, after `CUDA_ERROR_`.
    driver: &'static str,
    /// Name in the runtime API, after `cudaError`.
    runtime: &'static str,
    /// Description that `cudaGetErrorString` returns.
    text: &'static str,
}

const fn error(code: u32, driver: &'static str, runtime: &'static str, text: &'static str) -> CudaError {
    CudaError { code, driver, runtime, text }
}

/// Errors of which cuda.h says that "the process must be terminated". It does not explain `UNKNOWN`, which follows failures of
/// the hardware.
const FATAL: [CudaError; 16] = [
    error(214, "ECC_UNCORRECTABLE", "ECCUncorrectable", "uncorrectable ECC error encountered"),
    error(
        220,
        "NVLINK_UNCORRECTABLE",
        "NvlinkUncorrectable",
        "uncorrectable NVLink error detected during the execution",
    ),
    error(226, "CONTAINED", "Contained", "Invalid access of peer GPU memory over nvlink or a hardware error"),
    error(700, "ILLEGAL_ADDRESS", "IllegalAddress", "an illegal memory access was encountered"),
    error(702, "LAUNCH_TIMEOUT", "LaunchTimeout", "the launch timed out and was terminated"),
    error(709, "CONTEXT_IS_DESTROYED", "ContextIsDestroyed", "context is destroyed"),
    error(710, "ASSERT", "Assert", "device-side assert triggered"),
    error(714, "HARDWARE_STACK_ERROR", "HardwareStackError", "hardware stack error"),
    error(715, "ILLEGAL_INSTRUCTION", "IllegalInstruction", "an illegal instruction was encountered"),
    error(716, "MISALIGNED_ADDRESS", "MisalignedAddress", "misaligned address"),
    error(
        717,
        "INVALID_ADDRESS_SPACE",
        "InvalidAddressSpace",
        "operation not supported on global/shared address space",
    ),
    error(718, "INVALID_PC", "InvalidPc", "invalid program counter"),
    error(719, "LAUNCH_FAILED", "LaunchFailure", "unspecified launch failure"),
    error(721, "TENSOR_MEMORY_LEAK", "TensorMemoryLeak", "tensor memory not completely freed"),
    error(911, "EXTERNAL_DEVICE", "ExternalDevice", "an async error has occured in external entity outside of CUDA"),
    error(999, "UNKNOWN", "Unknown", "unknown error"),
];

/// First words of the advice that follows the description of an error in a libtorch message.
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
    let named = output.lines().find(|line| has_fatal_name(line));
    let first = || output.lines().find(|line| line.contains("CUDA error:"));
    let described = |line: &&str| has_fatal_text(line) || has_fatal_code(line);
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

/// True if `line` has the name of a fatal error as a whole word.
fn has_fatal_name(line: &str) -> bool {
    let words = line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_fatal = |word: &str| {
        let (driver, runtime) = (word.strip_prefix("CUDA_ERROR_"), word.strip_prefix("cudaError"));
        FATAL.iter().any(|error| driver == Some(error.driver) || runtime == Some(error.runtime))
    };
    words.into_iter().any(is_fatal)
}

/// True if `line` has the description of a fatal error. The description of `UNKNOWN` is no evidence by itself: it must follow the
/// words with which libtorch and NCCL introduce a description.
fn has_fatal_text(line: &str) -> bool {
    FATAL.iter().any(|error| match error.code {
        999 => line.contains("CUDA error: unknown error") || line.contains("Cuda failure 'unknown error'"),
        _ => line.contains(error.text),
    })
}

/// True if `line` has the code of a fatal error, as NCCL (`Cuda failure 700 '...'`) and [`DriverError`](crate::gpu::DriverError)
/// (`CUDA driver call ... (700)`) write it.
fn has_fatal_code(line: &str) -> bool {
    let of_nccl = line.split_once("Cuda failure ").and_then(|(_, rest)| rest.split([' ', '\'']).next());
    let of_driver = line.split_once("CUDA driver call ").and_then(|(_, rest)| rest.trim_end().strip_suffix(')'));
    let of_driver = of_driver.and_then(|rest| rest.rsplit_once('(')).map(|(_, code)| code);
    let codes = [of_nccl, of_driver].into_iter().flatten().filter_map(|code| code.parse::<u32>().ok());
    codes.into_iter().any(|code| FATAL.iter().any(|error| error.code == code))
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, c_char, c_int};

    use libloading::os::unix::Library;

    use super::*;

    /// libtorch loads the CUDA runtime, which knows its errors without a GPU.
    #[test]
    fn names_and_descriptions_are_those_of_cuda() {
        type Describe = unsafe extern "C" fn(c_int) -> *const c_char;
        let process = Library::this();
        // SAFETY: both functions have this type.
        let [name, text] = [b"cudaGetErrorName".as_slice(), b"cudaGetErrorString"]
            .map(|function| unsafe { process.get::<Describe>(function) });
        let (Ok(name), Ok(text)) = (name, text) else { return eprintln!("SKIPPED: libtorch has no CUDA runtime") };
        // SAFETY: the functions return constant strings.
        let ask = |describe: Describe, code: u32| unsafe { CStr::from_ptr(describe(code as c_int)) }.to_str().unwrap();
        for error in &FATAL {
            assert_eq!(ask(*name, error.code), format!("cudaError{}", error.runtime));
            assert_eq!(ask(*text, error.code), error.text);
        }
    }

    #[test]
    fn fatal_errors_are_recognized_by_name_code_and_description() {
        for CudaError { code, driver, runtime, text } in &FATAL {
            for message in [
                format!("CUDA driver call cuEventQuery failed: CUDA_ERROR_{driver}: words of a later driver ({code})"),
                format!("CUDA driver call cuEventQuery failed:  ({code})"),
                format!("Cuda failure {code} 'words of a later version'"),
                format!("Cuda failure '{text}'"),
                format!("CUDA error: {text}"),
            ] {
                assert_eq!(lost_gpu(&message), Some(&*message));
            }
            let message = format!(
                "CUDA error: words of a later version\nSearch for `cudaError{runtime}' in https://docs.nvidia.com"
            );
            assert_eq!(lost_gpu(&message), Some("CUDA error: words of a later version"));
        }
    }

    #[test]
    fn other_errors_leave_the_gpu_usable() {
        for message in [
            "CUDA driver call cuLaunchKernel failed: CUDA_ERROR_INVALID_VALUE: invalid argument (1)",
            "CUDA driver call cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY: out of memory (2)",
            "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in https://docs.nvidia.com",
            "Cuda failure 2 'out of memory'",
            "Cuda failure 'out of memory'",
            "Cuda failure 7000 'words of a later version'",
            "cannot read shard 700 (719)",
            "unknown error",
        ] {
            assert_eq!(lost_gpu(message), None, "{message}");
        }
    }
}
