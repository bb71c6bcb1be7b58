//! What NCCL has chosen to sum with: told at the start of an attempt, and kept in the run's store.

use lambert_collective::Group;
use lambert_store::{Store, run};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::gpu::{Nccl, infiniband_devices};
use crate::worker::agreement;

/// One rank's NCCL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Sums {
    rank: usize,
    host: String,
    /// NCCL's version, and where it was loaded from.
    version: String,
    library: String,
    /// `NCCL_*` in force, as `NAME=VALUE`.
    variables: Vec<String>,
    /// How it reaches other ranks, in NCCL's words; absent where NCCL's log is somebody else's.
    transports: Option<String>,
    warnings: Vec<String>,
}

impl Sums {
    fn of(rank: usize, nccl: &Nccl) -> Self {
        let report = nccl.report();
        let warnings = report.transports.as_ref().map(|ways| ways.warnings(&infiniband_devices())).unwrap_or_default();
        Self {
            rank,
            host: lambert_store::host::name(),
            version: report.version,
            library: report.path,
            variables: report.variables,
            transports: report.transports.map(|ways| ways.to_string()),
            warnings,
        }
    }

    /// What is remarkable about all of them, each thing once.
    fn warnings(all: &[Self]) -> Vec<String> {
        let mut told: Vec<String> = Vec::new();
        for own in all {
            for warning in &own.warnings {
                if !told.iter().any(|known| known.starts_with(warning)) {
                    told.push(format!("{warning} (rank {}, host {})", own.rank, own.host));
                }
            }
        }
        let first = &all[0].version;
        if let Some(other) = all.iter().find(|own| own.version != *first) {
            told.push(format!("rank {} has NCCL {}, rank {} has {first}", other.rank, other.version, all[0].rank));
        }
        told
    }
}

/// Tells the log, and through rank 0 the run's store, what each rank sums with. All ranks call it together. Returns warnings for
/// people, on rank 0.
///
/// # Errors
/// They cannot exchange it, or the store cannot be written.
pub fn tell(group: &mut dyn Group, nccl: &Nccl, store: &Store, attempt: u32) -> Result<Vec<String>, Error> {
    let own = Sums::of(group.rank(), nccl);
    let ways = own.transports.as_deref().unwrap_or("not known: NCCL_DEBUG is set, see NCCL's own log");
    tracing::info!("rank {} sums by NCCL {} from {}: {ways}", own.rank, own.version, own.library);
    let (all, warnings) = agreement::together(group, &own, |all: &[Sums]| (all.to_vec(), Sums::warnings(all)))?;
    if own.rank > 0 {
        return Ok(Vec::new());
    }
    let text = serde_json::to_vec_pretty(&all).map_err(Error::Json)?;
    store.put(&run::sums(attempt), text.into())?;
    Ok(warnings)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(rank: usize, version: &str, warnings: &[&str]) -> Sums {
        Sums {
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
    fn a_warning_is_told_once_with_its_place() {
        let all = [sums(0, "2.28.9", &["slow"]), sums(1, "2.28.9", &["slow"]), sums(2, "2.27.3", &["late"])];
        let told = Sums::warnings(&all);
        assert_eq!(
            told,
            ["slow (rank 0, host n0)", "late (rank 2, host n1)", "rank 2 has NCCL 2.27.3, rank 0 has 2.28.9"]
        );
        assert_eq!(Sums::warnings(&all[..1]), ["slow (rank 0, host n0)"]);
    }
}
