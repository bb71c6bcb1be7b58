//! Default environment variables for CUDA libraries. The libraries read these variables at initialization. The
//! coordinator sets the variables for its ranks, because a multi-threaded process must not change its own environment.

/// Returns the variables to set, as (name, value). `is_set` returns true for a variable that is already set in the
/// process.
///
/// - NCCL connects all ranks at initialization, and writes its choices to a log that lambert-worker reads.
/// - The libtorch allocator grows its segments (`ALLOCATOR`), because the shapes of micro-batches change. Segments of
///   fixed size would become fragmented.
/// - With `device.deterministic`, cuBLAS uses workspaces of fixed size, and NCCL does not use NVLink SHARP, whose order
///   of summation is not fixed (<https://github.com/NVIDIA/nccl/issues/1497>).
pub fn defaults(deterministic: bool, is_set: impl Fn(&str) -> bool) -> Vec<(&'static str, &'static str)> {
    let mut defaults = vec![("NCCL_RUNTIME_CONNECT", "0")];
    if !LOG.iter().any(|(name, _)| is_set(name)) {
        defaults.extend(LOG);
    }
    if !ALLOCATOR_NAMES.iter().any(|name| is_set(name)) {
        defaults.push(ALLOCATOR);
    }
    if deterministic {
        defaults.push(("CUBLAS_WORKSPACE_CONFIG", ":4096:8"));
        // A user who chooses the algorithms may choose NVLS.
        if !is_set("NCCL_ALGO") {
            defaults.extend([("NCCL_ALGO", "^NVLS,NVLSTree"), ("NCCL_NVLS_ENABLE", "0")]);
        }
    }
    defaults.retain(|(name, _)| !is_set(name));
    defaults
}

/// Log settings of NCCL. They are set only if the environment has none of them. NCCL writes to a file descriptor that
/// lambert-worker opens in memory (cluster/collective/src/nccl/log.rs). The number of this descriptor is higher than
/// the numbers of all descriptors that a rank has open when it loads NCCL.
const LOG: [(&str, &str); 3] =
    [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_FILE", "/proc/self/fd/250"), ("NCCL_DEBUG_SUBSYS", "INIT,NET,GRAPH")];

/// Settings of libtorch's allocator for GPUs.
const ALLOCATOR: (&str, &str) = ("PYTORCH_ALLOC_CONF", "expandable_segments:True");

/// Variables that libtorch reads the settings of the allocator from. [`ALLOCATOR`] is set only if the environment has
/// none of them.
const ALLOCATOR_NAMES: [&str; 3] = ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"];

#[cfg(test)]
mod tests {
    use super::*;

    fn names(deterministic: bool, set: &[&str]) -> String {
        let defaults = defaults(deterministic, |name| set.contains(&name));
        defaults.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn existing_variables_are_kept() {
        let log = "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/proc/self/fd/250 NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH";
        let segments = "PYTORCH_ALLOC_CONF=expandable_segments:True";
        assert_eq!(names(false, &[]), format!("NCCL_RUNTIME_CONNECT=0 {log} {segments}"));
        let fixed = "CUBLAS_WORKSPACE_CONFIG=:4096:8 NCCL_ALGO=^NVLS,NVLSTree NCCL_NVLS_ENABLE=0";
        assert_eq!(names(true, &[]), format!("NCCL_RUNTIME_CONNECT=0 {log} {segments} {fixed}"));
        assert_eq!(
            names(true, &["NCCL_DEBUG_SUBSYS"]),
            format!("NCCL_RUNTIME_CONNECT=0 {segments} {fixed}"),
            "the user configured the log"
        );
        for name in ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"] {
            assert_eq!(
                names(false, &[name]),
                format!("NCCL_RUNTIME_CONNECT=0 {log}"),
                "the user configured the allocator"
            );
        }
        let set = ["NCCL_RUNTIME_CONNECT", "NCCL_DEBUG", "NCCL_ALGO", "PYTORCH_ALLOC_CONF"];
        assert_eq!(names(true, &set), "CUBLAS_WORKSPACE_CONFIG=:4096:8");
        assert_eq!(names(false, &set), "");
    }
}
