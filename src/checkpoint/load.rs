//! Reads verified checkpoints into a training state or a model.

use std::sync::Arc;

use lambert_collective::Group;
use lambert_plan::architecture::Architecture;
use lambert_store::Store;
use lambert_store::checkpoint::VerifiedCheckpoint;

use super::EngineState;
use super::files::{self, ReadMode};
use crate::error::{self, Error};
use crate::kernels::Kernels;
use crate::state::{Parameters, TrainState};
use crate::torch;
use crate::worker::agreement;
use crate::worker::datasets::Datasets;
use crate::worker::session::Session;

/// Returns how the ranks read the objects of `store`, which rank 0 decides. Collective. They share the reads, unless the store is a folder and all ranks
/// are on one host: the host then reads the folder only once, because it keeps the files in memory.
pub fn read_mode<'a>(session: &Session, collective: &'a mut dyn Group, store: &Store) -> Result<ReadMode<'a>, Error> {
    let on_one_host = session.host.ranks == session.world;
    let alone = session.world == 1 || (on_one_host && store.is_local());
    Ok(match agreement::broadcast(collective, &alone)? {
        true => ReadMode::Alone,
        false => ReadMode::Shared(collective),
    })
}

/// Verifies a checkpoint of `store` on rank 0 and returns the result on all ranks. Collective.
///
/// # Errors
/// Rank 0 returns the error of `verify`. The other ranks return its message.
pub fn verify_on_first(
    collective: &mut dyn Group,
    store: &Store,
    verify: impl FnOnce() -> lambert_store::Result<VerifiedCheckpoint>,
) -> Result<VerifiedCheckpoint, Error> {
    let own = (collective.rank() == 0).then(verify).transpose();
    let sent: Result<Option<VerifiedCheckpoint>, String> = own.as_ref().cloned().map_err(|error| error::chain(error));
    let received = agreement::broadcast(collective, &sent)?;
    own?;
    let failed = |message| Error::Resume { url: store.url().to_owned(), message };
    received.map_err(failed)?.ok_or_else(|| failed("rank 0 sent no checkpoint".to_owned()))
}

/// Allocates a zeroed state for the model of the run with `layers` encoder layers.
pub fn empty(session: &Session, layers: usize, datasets: &Datasets) -> Result<TrainState, Error> {
    let architecture = Architecture::of_run(&session.config, layers, vocabulary(datasets));
    Ok(torch::guard(|| TrainState::new(Parameters::zeros(session.kernels.clone(), architecture)))?)
}

pub fn vocabulary(datasets: &Datasets) -> usize {
    datasets.first().manifest().vocabulary.size
}

/// Restores `state` from a checkpoint. `state` must have the parameters of the checkpoint.
pub fn read_state(
    store: &Store,
    verified: &VerifiedCheckpoint,
    state: &mut TrainState,
    mode: ReadMode<'_>,
) -> Result<(), Error> {
    let engine_state = EngineState::read(&verified.manifest)?;
    files::read(store, verified, state, mode)?;
    engine_state.apply(&verified.manifest, state);
    Ok(())
}

/// Loads the weights of a checkpoint. Names, shapes and types must match those of the model.
pub fn read_model(
    kernels: Arc<dyn Kernels>,
    store: &Store,
    verified: &VerifiedCheckpoint,
    architecture: Architecture,
    mode: ReadMode<'_>,
) -> Result<Parameters, Error> {
    let parameters = torch::guard(|| Parameters::zeros(kernels, architecture))?;
    files::read_weights(store, verified, &parameters, mode)?;
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use lambert_collective::local;
    use lambert_store::checkpoint as stored;

    use super::*;

    #[test]
    fn all_ranks_know_why_a_checkpoint_is_unusable() {
        let ranks = local::group(3).into_iter().map(|mut ends| {
            std::thread::spawn(move || {
                let store = Store::open("memory://load/run").unwrap();
                let verify = || stored::verify(&store, "step-000000007-a0001");
                verify_on_first(&mut *ends.group, &store, verify).map(drop).unwrap_err()
            })
        });
        let ranks: Vec<_> = ranks.collect();
        for error in ranks.into_iter().map(|rank| rank.join().unwrap()) {
            assert!(error.to_string().contains("no checkpoint step-000000007-a0001"), "{error}");
            assert_eq!(error.failure_kind(), lambert_control::FailureKind::Transient);
        }
    }
}
