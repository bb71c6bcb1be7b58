//! Reads the checkpoint that a user names, or the newest intact checkpoint of a run, for inference.

use lambert_store::Store;
use lambert_store::checkpoint::{self as stored, VerifiedCheckpoint};

use super::EngineState;
use crate::error::Error;

/// Reads the checkpoint `name` of a run with `read`. Without `name`, reads the newest checkpoint that passes
/// verification. If that checkpoint is pruned while it is read, selects the newest checkpoint again.
pub fn read_chosen<T>(
    store: &Store,
    name: Option<&str>,
    read: impl Fn(&VerifiedCheckpoint, &EngineState) -> Result<T, Error>,
) -> Result<(VerifiedCheckpoint, EngineState, T), Error> {
    let is_pruned = |(verified, _): &(VerifiedCheckpoint, EngineState)| {
        Ok(name.is_none() && !stored::is_committed(store, &verified.manifest.name())?)
    };
    let select = || choose(store, name);
    let ((verified, engine_state), found) =
        stored::read_unless_pruned(select, |(verified, engine_state)| read(verified, engine_state), is_pruned)?;
    Ok((verified, engine_state, found))
}

fn choose(store: &Store, name: Option<&str>) -> Result<(VerifiedCheckpoint, EngineState), Error> {
    let verified = match name {
        Some(name) => stored::verify(store, name).map_err(|error| match error.is_no_checkpoint() {
            true => Error::Usage(error.to_string()),
            false => Error::Store(error),
        })?,
        None => match stored::newest_with_warnings(store)? {
            Some(verified) => verified,
            None => return Err(no_checkpoint(store)?),
        },
    };
    let engine_state = EngineState::read(&verified.manifest)?;
    Ok((verified, engine_state))
}

/// The error for a run without an intact checkpoint. A run that has none yet is a usage error. Damaged checkpoints are a
/// failure.
fn no_checkpoint(store: &Store) -> Result<Error, Error> {
    let url = store.url().to_owned();
    Ok(match stored::list(store)?.len() {
        0 => Error::Usage(format!("{url} has no checkpoint yet")),
        count => Error::NoIntactCheckpoint { url, count },
    })
}

#[cfg(test)]
mod tests {
    use lambert_config::exit;

    use super::*;

    #[test]
    fn a_run_without_checkpoints_is_a_usage_error_and_damaged_checkpoints_are_a_failure() {
        let store = Store::open("memory://chosen/run").unwrap();
        let chosen = |name: Option<&str>| {
            let error = choose(&store, name).unwrap_err();
            (error.exit_code(), error.to_string())
        };
        let url = store.url();
        let name = "step-000000007-a0001";
        assert_eq!(chosen(None), (exit::USAGE, format!("{url} has no checkpoint yet")));
        let missing = format!("no checkpoint {name} in {url}; `lambert checkpoint list {url}` lists them");
        assert_eq!(chosen(Some(name)), (exit::USAGE, missing));
        let manifest = lambert_store::run::in_checkpoint(name, lambert_store::run::MANIFEST);
        store.put(&manifest, "{\"format\": 99}".into()).unwrap();
        let (code, message) = chosen(None);
        assert!(code == exit::FAILED && message.contains("1 checkpoint, but none that verifies"), "{message}");
        let (code, message) = chosen(Some(name));
        assert!(code == exit::FAILED && message.contains("is damaged"), "{message}");
    }
}
