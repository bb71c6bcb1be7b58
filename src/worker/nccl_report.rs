//! NCCL configuration of the ranks, which is logged at the start of an attempt and written to the store of the run.

use lambert_collective::Group;
use lambert_store::{Store, run};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::gpu::{DeviceError, Nccl, infiniband_devices};
use crate::worker::{agreement, start_line};

/// NCCL configuration of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct RankNccl {
    rank: usize,
    host: String,
    /// NCCL version. `library` is the path of the library.
    version: String,
    library: String,
    /// `NCCL_*` variables in effect, as `NAME=VALUE`.
    variables: Vec<String>,
    /// Transports to other ranks, from the NCCL log. `None` if the user redirected that log.
    transports: Option<String>,
    warnings: Vec<String>,
}

impl RankNccl {
    fn new(rank: usize, nccl: &Nccl) -> Self {
        let report = nccl.report();
        let warnings =
            report.transports.as_ref().map(|transports| transports.warnings(&infiniband_devices())).unwrap_or_default();
        Self {
            rank,
            host: lambert_store::host::name(),
            version: report.version,
            library: report.path,
            variables: report.variables,
            transports: report.transports.map(|transports| transports.to_string()),
            warnings,
        }
    }

    /// Merges the warnings of all ranks without repetitions, and adds warnings about version mismatches.
    fn warnings(all: &[Self]) -> Vec<String> {
        let mut merged: Vec<String> = Vec::new();
        for own in all {
            for warning in &own.warnings {
                if !merged.iter().any(|known| known.starts_with(warning)) {
                    merged.push(format!("{warning} (rank {}, host {})", own.rank, own.host));
                }
            }
        }
        let first = &all[0].version;
        if let Some(other) = all.iter().find(|own| own.version != *first) {
            merged.push(format!("rank {} has NCCL {}, rank {} has {first}", other.rank, other.version, all[0].rank));
        }
        merged
    }
}

/// Logs the NCCL configuration of this rank: at level debug, except on rank 0. Rank 0 writes the configurations of all ranks to the store of the run, and
/// returns warnings for the user. Collective.
///
/// # Errors
/// A failed collective, or a store error.
pub fn report(group: &mut dyn Group, nccl: &Nccl, store: &Store, attempt: u32) -> Result<Vec<String>, Error> {
    let own = RankNccl::new(group.rank(), nccl);
    let transports = own.transports.as_deref().unwrap_or("unknown (an NCCL_DEBUG variable is set; see NCCL's log)");
    let line = format!("rank {} uses NCCL {} from {}: {transports}", own.rank, own.version, own.library);
    start_line::log(own.rank, &line);
    let Some(all) = agreement::gather(group, &own)? else { return Ok(Vec::new()) };
    let warnings = RankNccl::warnings(&all);
    let text = serde_json::to_vec_pretty(&all).map_err(Error::Json)?;
    store.put(&run::nccl_report(attempt), text.into())?;
    Ok(warnings)
}

/// True if a rank that fails with `error` stores `log`, NCCL's log: a rank whose GPU, NCCL or network device has failed, and
/// otherwise the first rank of a host. The other ranks only wait for a rank, and their logs have the same network devices.
pub fn has_useful_log(error: &Error, local_rank: usize, log: &str) -> bool {
    match error {
        Error::GpuLost { .. } => true,
        Error::Collective(lambert_collective::Error::Nccl { code, .. }) => {
            *code != REMOTE_ERROR || local_rank == 0 || log.contains(NETWORK_WARNING)
        }
        Error::Collective(_) | Error::Device(DeviceError::Nccl(_)) => local_rank == 0,
        _ => false,
    }
}

/// Start of NCCL's messages about errors of a network device. A rank with such an error returns `ncclRemoteError`, too.
const NETWORK_WARNING: &str = "NCCL WARN NET/";

/// `ncclRemoteError`: another rank has failed or left.
const REMOTE_ERROR: i32 = 6;

/// Maximum length of a stored log, bytes.
const MAX_LOG: usize = 64 << 10;

/// Writes the end of NCCL's log of this rank to the store of the run, after NCCL has failed: the log names the network
/// devices and their errors, and disappears with the process. Errors of the store are logged.
pub fn store_log(log: &str, store: &Store, attempt: u32, rank: usize) {
    let name = run::nccl_log(attempt, rank);
    let end = log.ceil_char_boundary(log.len().saturating_sub(MAX_LOG));
    if log.is_empty() {
        return;
    }
    match store.put(&name, log[end..].to_owned().into()) {
        Ok(()) => tracing::info!("NCCL's log of rank {rank} is in {}/{name}", store.url()),
        Err(error) => tracing::warn!("cannot store NCCL's log of rank {rank}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_log_is_stored() {
        let store = Store::open("memory://nccl-report/log").unwrap();
        store_log("", &store, 1, 0);
        assert!(store.head(&run::nccl_log(1, 0)).unwrap().is_none());
        let log = format!("{}\nNET/IB: error 12\n", "\u{e4}".repeat(MAX_LOG));
        store_log(&log, &store, 1, 3);
        let stored = store.get("nccl/attempt-0001-rank-0003.log").unwrap();
        assert!(stored.len() <= MAX_LOG && stored.len() > MAX_LOG - 2, "{}", stored.len());
        assert!(std::str::from_utf8(&stored).unwrap().ends_with("NET/IB: error 12\n"));
    }

    #[test]
    fn only_some_ranks_store_the_log() {
        let nccl = |code| {
            let (text, last) = (String::new(), String::new());
            Error::Collective(lambert_collective::Error::Nccl { operation: "all-reduce", code, text, last })
        };
        let gone = Error::Collective(lambert_collective::Error::RankGone { operation: "barrier", rank: 9 });
        let lost = Error::GpuLost { gpu: String::new(), message: String::new() };
        let stores = |error: &Error| [0, 1].map(|local_rank| has_useful_log(error, local_rank, "NCCL INFO NET/IB"));
        assert_eq!([stores(&gone), stores(&nccl(6))], [[true, false]; 2]);
        // ncclUnhandledCudaError and ncclSystemError.
        assert_eq!([stores(&lost), stores(&nccl(1)), stores(&nccl(2))], [[true, true]; 3]);
        assert_eq!(stores(&Error::Peer("another host has lost a GPU")), [false, false]);
        let bad_device = "n1:7:9 [1] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer, status=12";
        assert!(has_useful_log(&nccl(6), 1, bad_device));
    }

    #[test]
    fn only_rank_0_gets_the_reports() {
        let ranks = lambert_collective::local::group(3).into_iter().enumerate();
        let rank = |(rank, mut ends): (usize, lambert_collective::Endpoints)| {
            std::thread::spawn(move || agreement::gather(&mut *ends.group, &sums(rank, "2.28.9", &[])).unwrap())
        };
        let threads: Vec<_> = ranks.map(rank).collect();
        let all: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let expected = [0, 1, 2].map(|rank| sums(rank, "2.28.9", &[])).to_vec();
        assert_eq!(all, [Some(expected), None, None]);
    }

    fn sums(rank: usize, version: &str, warnings: &[&str]) -> RankNccl {
        RankNccl {
            rank,
            host: format!("n{}", rank / 2),
            version: version.to_owned(),
            library: String::new(),
            variables: Vec::new(),
            transports: None,
            warnings: warnings.iter().map(|&warning| warning.to_owned()).collect(),
        }
    }

    #[test]
    fn a_warning_is_reported_once_with_its_rank() {
        let all = [sums(0, "2.28.9", &["slow"]), sums(1, "2.28.9", &["slow"]), sums(2, "2.27.3", &["late"])];
        let merged = RankNccl::warnings(&all);
        assert_eq!(
            merged,
            ["slow (rank 0, host n0)", "late (rank 2, host n1)", "rank 2 has NCCL 2.27.3, rank 0 has 2.28.9"]
        );
        assert_eq!(RankNccl::warnings(&all[..1]), ["slow (rank 0, host n0)"]);
    }
}
