//! Records that the attempts of a run leave for later attempts, one object per attempt.

use lambert_store::{Store, run};
use serde::de::DeserializeOwned;

use crate::error::Error;

/// Returns the attempts before `attempt` that have a record below `prefix`, in ascending order.
///
/// # Errors
/// A store error.
pub fn earlier(store: &Store, prefix: &str, attempt: u32) -> Result<Vec<u32>, Error> {
    let objects = store.list(prefix)?;
    let numbers = objects.iter().filter_map(|object| run::attempt_of_record(prefix, &object.path));
    let mut earlier: Vec<u32> = numbers.filter(|number| *number < attempt).collect();
    earlier.sort_unstable();
    Ok(earlier)
}

/// Reads the record of an attempt below `prefix`. Returns `None` and logs a warning if it is missing, damaged or from
/// another version.
///
/// # Errors
/// A store error.
pub fn read<T: DeserializeOwned>(store: &Store, prefix: &str, attempt: u32) -> Result<Option<T>, Error> {
    let name = run::attempt_record(prefix, attempt);
    let parsed = match store.get(&name) {
        Err(error) if error.is_not_found() => Err(error.to_string()),
        read => serde_json::from_slice(&read?).map_err(|error| format!("{}/{name}: {error}", store.url())),
    };
    parsed.inspect_err(|error| tracing::warn!("ignoring a record of attempt {attempt}: {error}")).map_or(Ok(None), Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_records_are_listed_in_order_and_damaged_ones_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().to_str().unwrap()).unwrap();
        assert_eq!(earlier(&store, run::DEVICES, 7).unwrap(), [0; 0]);
        for (attempt, text) in [(10_000, "[1]"), (7, "[2]"), (9999, "{"), (10_001, "[3]")] {
            store.put(&run::devices(attempt), text.into()).unwrap();
        }
        store.put("devices/notes.txt", "x".into()).unwrap();
        assert_eq!(earlier(&store, run::DEVICES, 10_001).unwrap(), [7, 9999, 10_000]);
        let read = |attempt| read::<Vec<u32>>(&store, run::DEVICES, attempt).unwrap();
        assert_eq!([7, 8, 9999, 10_000].map(read), [Some(vec![2]), None, None, Some(vec![1])]);
    }
}
