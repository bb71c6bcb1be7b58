//! What NCCL is and has chosen, for people: read from its log.

use std::collections::BTreeSet;

use super::Library;

/// What one rank knows of NCCL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// As `2.28.9`.
    pub version: String,
    /// Where the library was loaded from.
    pub path: String,
    /// What it is set to, as `NAME=VALUE`.
    pub variables: Vec<String>,
    /// How it reaches the ranks that it sends to; `None` where the log is not ours.
    pub transports: Option<Transports>,
}

impl Record {
    /// That of `library`, from the text of its log.
    pub fn new(library: &Library, log: Option<&str>) -> Self {
        Self {
            version: library.version_text(),
            path: library.path().display().to_string(),
            variables: variables(std::env::vars()),
            transports: log.map(Transports::read),
        }
    }
}

/// The `NCCL_*` variables in force.
pub fn variables(environment: impl Iterator<Item = (String, String)>) -> Vec<String> {
    let own = environment.filter(|(name, _)| name.starts_with("NCCL_"));
    let all: BTreeSet<String> = own.map(|(name, value)| format!("{name}={value}")).collect();
    all.into_iter().collect()
}

/// How a rank reaches the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transports {
    /// As NCCL names them: `P2P/CUMEM`, `SHM/direct/direct`, `NET/IB/0/GDRDMA`, `NET/Socket/0`.
    pub used: BTreeSet<String>,
    /// Whether the cards of a host reach each other over NVLink.
    pub has_nvlink: bool,
}

impl Transports {
    /// From the text of NCCL's log, at `INFO`.
    pub fn read(log: &str) -> Self {
        // `Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM`; `... -> 0[0] [receive] via NET/IB/0/GDRDMA`.
        let ways = log.lines().filter(|line| line.contains("Channel ")).filter_map(|line| line.split_once(" via "));
        let used = ways.filter_map(|(_, way)| way.split_whitespace().next()).map(str::to_owned).collect();
        // `Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/PIX, sameChannels 1`.
        let patterns = log.lines().filter(|line| line.contains("Pattern ")).filter_map(|line| line.split_once("type "));
        let has_nvlink = patterns.into_iter().any(|(_, kind)| kind.starts_with("NVL") || kind.starts_with("NVB"));
        Self { used, has_nvlink }
    }

    fn uses(&self, prefix: &str) -> bool {
        self.used.iter().any(|way| way.starts_with(prefix))
    }

    /// What a person should know, on a host with these InfiniBand cards.
    pub fn warnings(&self, infiniband: &[String]) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.uses("NET/Socket") && !infiniband.is_empty() {
            warnings.push(format!(
                "NCCL sends over sockets although this host has InfiniBand ({}): NCCL_IB_HCA, NCCL_IB_DISABLE, or libibverbs is missing",
                infiniband.join(", ")
            ));
        }
        if self.uses("NET/IB") && self.used.iter().any(|way| way.starts_with("NET/IB") && !way.contains("GDRDMA")) {
            warnings.push(
                "NCCL uses InfiniBand without GPUDirect, by way of main memory: the module nvidia-peermem or DMA-BUF is missing".into(),
            );
        }
        if self.uses("SHM") {
            warnings.push(
                "cards of this host see each other only through main memory (SHM): NVLink and PCIe peer access are not available, or NCCL_P2P_DISABLE is set"
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
    fn the_log_tells_the_ways() {
        let of = |log: &str| Transports::read(log).to_string();
        assert_eq!(of(ONE_HOST), "P2P/CUMEM/read, NVLink");
        assert_eq!(of(TWO_HOSTS), "NET/IB/0/GDRDMA");
        assert_eq!(of("NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n"), "none");
    }

    #[test]
    fn a_detour_is_told() {
        let cards = ["mlx5_0".to_owned()];
        let warned = |log: &str, cards: &[String]| Transports::read(log).warnings(cards).join("; ");
        assert_eq!(warned(ONE_HOST, &cards), "");
        assert_eq!(warned(TWO_HOSTS, &cards), "");
        let sockets = TWO_HOSTS.replace("IB/0/GDRDMA", "Socket/0");
        assert!(
            warned(&sockets, &cards).starts_with("NCCL sends over sockets although this host has InfiniBand (mlx5_0)")
        );
        assert_eq!(warned(&sockets, &[]), "");
        assert!(warned(&TWO_HOSTS.replace("/GDRDMA", ""), &cards).contains("without GPUDirect"));
        let host = ONE_HOST.replace("P2P/CUMEM/read", "SHM/direct/direct");
        assert!(warned(&host, &[]).contains("only through main memory (SHM)"));
    }

    #[test]
    fn variables_are_those_of_nccl() {
        let all = [("NCCL_IB_HCA", "mlx5"), ("HOME", "/root"), ("NCCL_DEBUG", "INFO")];
        let all = all.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(variables(all), ["NCCL_DEBUG=INFO", "NCCL_IB_HCA=mlx5"]);
    }
}
