//! Report on NCCL for the user: version, settings and the transports found in its log.

use std::collections::BTreeSet;

use super::NcclLibrary;

/// Version, settings and transports of NCCL on one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NcclReport {
    /// Version, such as `2.28.9`.
    pub version: String,
    /// Path of the library.
    pub path: String,
    /// `NCCL_*` environment variables, as `NAME=VALUE`.
    pub variables: Vec<String>,
    /// Transports to other ranks. `None` if the NCCL log was not captured.
    pub transports: Option<Transports>,
}

impl NcclReport {
    /// Creates the report of `library` from the text of its log.
    pub fn new(library: &NcclLibrary, log: Option<&str>) -> Self {
        Self {
            version: library.version(),
            path: library.path().display().to_string(),
            variables: environment_variables(std::env::vars()),
            transports: log.map(Transports::parse),
        }
    }
}

/// Returns the `NCCL_*` environment variables as sorted `NAME=VALUE`.
pub fn environment_variables(environment: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let own = environment.filter(|(name, _)| name.starts_with("NCCL_"));
    let all: BTreeSet<String> = own.map(|(name, value)| format!("{name}={value}")).collect();
    all.into_iter().collect()
}

/// Transports that NCCL uses between ranks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transports {
    /// NCCL transport names, such as `P2P/CUMEM`, `SHM/direct/direct`, `NET/IB/0/GDRDMA`, `NET/Socket/0`.
    pub used: BTreeSet<String>,
    /// True if the GPUs of a host are connected by NVLink.
    pub has_nvlink: bool,
}

impl Transports {
    /// Parses the text of NCCL's log at level `INFO`.
    pub fn parse(log: &str) -> Self {
        // `Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM`; `... -> 0[0] [receive] via NET/IB/0/GDRDMA`.
        let transports =
            log.lines().filter(|line| line.contains("Channel ")).filter_map(|line| line.split_once(" via "));
        let used =
            transports.filter_map(|(_, transport)| transport.split_whitespace().next()).map(str::to_owned).collect();
        // `Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/PIX, sameChannels 1`.
        let patterns = log.lines().filter(|line| line.contains("Pattern ")).filter_map(|line| line.split_once("type "));
        let has_nvlink = patterns.into_iter().any(|(_, kind)| kind.starts_with("NVL") || kind.starts_with("NVB"));
        Self { used, has_nvlink }
    }

    fn uses(&self, prefix: &str) -> bool {
        self.used.iter().any(|transport| transport.starts_with(prefix))
    }

    /// Returns performance warnings for a host with the InfiniBand adapters `infiniband`.
    pub fn warnings(&self, infiniband: &[String]) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.uses("NET/Socket") && !infiniband.is_empty() {
            warnings.push(format!(
                "NCCL uses TCP sockets although this host has InfiniBand ({}): check NCCL_IB_HCA and NCCL_IB_DISABLE, and that libibverbs is installed",
                infiniband.join(", ")
            ));
        }
        if self.uses("NET/IB")
            && self.used.iter().any(|transport| transport.starts_with("NET/IB") && !transport.contains("GDRDMA"))
        {
            warnings.push(
                "NCCL uses InfiniBand without GPUDirect RDMA, through host memory: load the kernel module nvidia-peermem or enable DMA-BUF".into(),
            );
        }
        if self.uses("SHM") {
            warnings.push(
                "GPUs of this host communicate through host memory (SHM): no NVLink or PCIe peer access, or NCCL_P2P_DISABLE is set"
                    .into(),
            );
        }
        warnings
    }
}

impl std::fmt::Display for Transports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = self.used.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let link = if self.has_nvlink { ", NVLink" } else { "" };
        write!(f, "{}{link}", if used.is_empty() { "none" } else { &used })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_HOST: &str = "n1:71:71 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 12, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1\n\
        n1:71:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n\
        n1:71:90 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read\n";
    const TWO_HOSTS: &str = "n1:71:90 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA\n\
        n1:71:90 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA\n";

    #[test]
    fn transports_are_parsed_from_the_log() {
        let parsed = |log: &str| Transports::parse(log).to_string();
        assert_eq!(parsed(ONE_HOST), "P2P/CUMEM/read, NVLink");
        assert_eq!(parsed(TWO_HOSTS), "NET/IB/0/GDRDMA");
        assert_eq!(parsed("NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"), "none");
    }

    #[test]
    fn slow_transports_cause_a_warning() {
        let infiniband = ["mlx5_0".to_owned()];
        let warnings = |log: &str, infiniband: &[String]| Transports::parse(log).warnings(infiniband).join("; ");
        assert_eq!(warnings(ONE_HOST, &infiniband), "");
        assert_eq!(warnings(TWO_HOSTS, &infiniband), "");
        let sockets = TWO_HOSTS.replace("IB/0/GDRDMA", "Socket/0");
        assert!(
            warnings(&sockets, &infiniband)
                .starts_with("NCCL uses TCP sockets although this host has InfiniBand (mlx5_0)")
        );
        assert_eq!(warnings(&sockets, &[]), "");
        assert!(warnings(&TWO_HOSTS.replace("/GDRDMA", ""), &infiniband).contains("without GPUDirect RDMA"));
        let host = ONE_HOST.replace("P2P/CUMEM/read", "SHM/direct/direct");
        assert!(warnings(&host, &[]).contains("through host memory (SHM)"));
    }

    #[test]
    fn only_nccl_variables_are_returned() {
        let all = [("NCCL_IB_HCA", "mlx5"), ("HOME", "/root"), ("NCCL_DEBUG", "INFO")];
        let all = all.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(environment_variables(all), ["NCCL_DEBUG=INFO", "NCCL_IB_HCA=mlx5"]);
    }
}
