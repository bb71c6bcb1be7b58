//! Environment variables that libraries of a GPU read when they begin, and that lambert sets where nobody else has. The
//! coordinator sets them for its ranks: a process must not change its own environment once it has threads.

/// The variables to set for a process whose environment has those for which `is_set`, as name and value.
///
/// - NCCL connects all ranks when they join, and writes its choices to its log, which lambert-worker reads.
/// - With `device.deterministic` cuBLAS has workspaces of one size, and NCCL leaves out the algorithms in which the switch
///   of an NVLink domain adds up, in an order that is not fixed (<https://github.com/NVIDIA/nccl/issues/1497>).
pub fn defaults(deterministic: bool, is_set: impl Fn(&str) -> bool) -> Vec<(&'static str, &'static str)> {
    let mut defaults = vec![("NCCL_RUNTIME_CONNECT", "0")];
    if !LOG.iter().any(|(name, _)| is_set(name)) {
        defaults.extend(LOG);
    }
    if deterministic {
        defaults.extend([("CUBLAS_WORKSPACE_CONFIG", ":4096:8"), ("NCCL_ALGO", "^NVLS,NVLSTree")]);
    }
    defaults.retain(|(name, _)| !is_set(name));
    defaults
}

/// NCCL's log: all of it or nothing. lambert-worker opens the descriptor in memory (cluster/collective/src/nccl/log.rs); its
/// number is above those that a rank has when it loads NCCL.
const LOG: [(&str, &str); 3] =
    [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_FILE", "/proc/self/fd/250"), ("NCCL_DEBUG_SUBSYS", "INIT,NET,GRAPH")];

#[cfg(test)]
mod tests {
    use super::*;

    fn names(deterministic: bool, set: &[&str]) -> String {
        let defaults = defaults(deterministic, |name| set.contains(&name));
        defaults.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_somebody_has_set_stays() {
        let log = "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/proc/self/fd/250 NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH";
        assert_eq!(names(false, &[]), format!("NCCL_RUNTIME_CONNECT=0 {log}"));
        let fixed = "CUBLAS_WORKSPACE_CONFIG=:4096:8 NCCL_ALGO=^NVLS,NVLSTree";
        assert_eq!(names(true, &[]), format!("NCCL_RUNTIME_CONNECT=0 {log} {fixed}"));
        assert_eq!(
            names(true, &["NCCL_DEBUG_SUBSYS"]),
            format!("NCCL_RUNTIME_CONNECT=0 {fixed}"),
            "somebody reads the log"
        );
        let set = ["NCCL_RUNTIME_CONNECT", "NCCL_DEBUG", "NCCL_ALGO"];
        assert_eq!(names(true, &set), "CUBLAS_WORKSPACE_CONFIG=:4096:8");
        assert_eq!(names(false, &set), "");
    }
}
