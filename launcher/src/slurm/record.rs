//! `job.json` in the store of a run: the Slurm job that trains the run.

use lambert_store::Store;
use lambert_store::run::JOB;
use serde::{Deserialize, Serialize};

/// Maximum size of the object, bytes.
const MAX_RECORD_BYTES: u64 = 1 << 16;

/// Slurm job that was last submitted for a run, or in which a coordinator last started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// Job ID.
    pub job: String,
    /// Cluster name, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
}

/// Environment variable set in Slurm jobs.
const JOB_VARIABLE: &str = "SLURM_JOB_ID";

/// True if this process runs in a Slurm job.
pub fn is_in_job() -> bool {
    std::env::var_os(JOB_VARIABLE).is_some()
}

impl JobRecord {
    /// Returns the Slurm job in which this process runs, if any.
    pub fn of_process() -> Option<Self> {
        let named = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Some(Self { job: named(JOB_VARIABLE)?, cluster: named("SLURM_CLUSTER_NAME") })
    }

    /// Reads the record. Returns `None` if the run has no record. Invalid content also returns `None`, with a warning.
    pub fn read(store: &Store) -> Result<Option<Self>, lambert_store::Error> {
        let bytes = match store.get_at_most(JOB, MAX_RECORD_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_number = |record: &Self| record.job.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        let record = serde_json::from_slice(&bytes).ok().filter(is_number);
        if record.is_none() {
            tracing::warn!("{}/{JOB} is not a record of a Slurm job", store.url());
        }
        Ok(record)
    }

    /// Writes the record.
    pub fn write(&self, store: &Store) -> Result<(), lambert_store::Error> {
        store.put(JOB, serde_json::json!(self).to_string().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_round_trips_and_invalid_text_is_rejected() {
        let store = Store::open("memory://record/run").unwrap();
        assert_eq!(JobRecord::read(&store).unwrap(), None);
        let record = JobRecord { job: "12".into(), cluster: None };
        record.write(&store).unwrap();
        assert_eq!(JobRecord::read(&store).unwrap(), Some(record));
        for nonsense in ["", "{}", "{\"job\": \"12 --all\"}"] {
            store.put(JOB, nonsense.into()).unwrap();
            assert_eq!(JobRecord::read(&store).unwrap(), None, "{nonsense}");
        }
    }
}
