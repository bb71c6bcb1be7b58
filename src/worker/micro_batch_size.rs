//! Micro-batch sizes of an attempt, in tokens. A size is configured, or it is the
//! largest size that fits into GPU memory.

use std::collections::BTreeMap;

use lambert_collective::Group;
use lambert_config::run::TokenBudget;
use lambert_control::EventKind;
use lambert_plan::memory::{DatasetShape, fit, fit::GpuBudget};
use lambert_store::run::{self, CONFIG};
use serde::{Deserialize, Serialize};

use crate::data::Mixture;
use crate::error::Error;
use crate::gpu::{DeviceError, Gpu};
use crate::worker::agreement;
use crate::worker::datasets::Datasets;
use crate::worker::session::Session;

/// Returns the maximum number of tokens of a micro-batch for each stage. Collective. Call this
/// function before any training state is on a GPU.
///
/// # Errors
/// A stage does not fit into GPU memory.
pub fn settle(session: &Session, group: &mut dyn Group, datasets: &Datasets) -> Result<Vec<usize>, Error> {
    let room = least_free_gpu(group, session.gpu.as_ref())?;
    let data: Vec<DatasetShape> = datasets.stages.iter().map(Mixture::shape).collect();
    let config = &session.config;
    let chosen = fit::micro_batches(config, &data, session.world, room.as_ref()).map_err(|short| {
        let (error, is_passing) = (Error::invalid_config(CONFIG, short.issues), short.is_transient);
        if is_passing { DeviceError::InsufficientFreeMemory(error.to_string()).into() } else { error }
    })?;
    if session.is_first() {
        report(session, &chosen)?;
    }
    Ok(chosen)
}

/// Reports the sizes of the stages with [`TokenBudget::Auto`], and writes them to the store of the run, as an object of
/// this attempt.
fn report(session: &Session, chosen: &[usize]) -> Result<(), Error> {
    let open = session.config.stage.iter().zip(chosen);
    let open: BTreeMap<&str, usize> = open
        .filter(|(stage, _)| stage.micro_batch_tokens == TokenBudget::Auto)
        .map(|(stage, tokens)| (&*stage.name, *tokens))
        .collect();
    for (stage, tokens) in &open {
        session.control.event(EventKind::MicroBatch { stage: (*stage).to_owned(), tokens: *tokens });
    }
    if !open.is_empty() {
        let text = serde_json::to_vec(&open).map_err(Error::Json)?;
        session.store.put(&run::micro_batches(session.lease.attempt()), text.into())?;
    }
    Ok(())
}

/// GPU memory of a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct GpuMemory {
    host: String,
    uuid: String,
    name: String,
    free: u64,
    memory: u64,
}

/// Returns the GPU with the least free memory per rank. The result is equal on all ranks;
/// `None` if no rank has a GPU. Collective.
fn least_free_gpu(group: &mut dyn Group, gpu: Option<&Gpu>) -> Result<Option<GpuBudget>, Error> {
    let own = gpu.map(|gpu| GpuMemory {
        host: lambert_store::host::name(),
        uuid: gpu.properties.uuid.clone(),
        name: gpu.name(),
        free: gpu.free_memory,
        memory: gpu.properties.memory,
    });
    agreement::gather_and_decide(group, &own, least_of)
}

/// Returns the GPU with the least free memory per rank. The memory of a GPU is divided
/// evenly between the ranks that share the GPU.
fn least_of(all: &[Option<GpuMemory>]) -> Option<GpuBudget> {
    let mut sharing = BTreeMap::<(&str, &str), u64>::new();
    for gpu in all.iter().flatten() {
        *sharing.entry((&gpu.host, &gpu.uuid)).or_default() += 1;
    }
    let rooms = all.iter().enumerate().filter_map(|(rank, gpu)| {
        let gpu = gpu.as_ref()?;
        let ranks = sharing[&(&*gpu.host, &*gpu.uuid)];
        let name = format!("GPU {} on host {}", gpu.name, gpu.host);
        Some(GpuBudget { rank, gpu: name, free: gpu.free / ranks, memory: gpu.memory / ranks })
    });
    rooms.min_by_key(|room| (room.free, room.rank))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{GpuProperties, Libtorch};

    fn memory(host: &str, uuid: &str, free: u64) -> Option<GpuMemory> {
        Some(GpuMemory { host: host.into(), uuid: uuid.into(), name: format!("0 (X, {uuid})"), free, memory: 100 })
    }

    #[test]
    fn the_least_memory_is_found_and_shared_gpus_are_divided() {
        assert_eq!(least_of(&[None, None]), None);
        let least = |all: &[Option<GpuMemory>]| least_of(all).map(|room| (room.rank, room.free, room.memory));
        assert_eq!(least(&[memory("a", "1", 90), None, memory("b", "1", 80)]), Some((2, 80, 100)));
        assert_eq!(least(&[memory("a", "1", 70), memory("a", "2", 60), memory("a", "1", 66)]), Some((2, 33, 50)));
        let room = least_of(&[memory("a", "1", 90)]).unwrap();
        assert_eq!(room.gpu, "GPU 0 (X, 1) on host a");
    }

    /// A GPU with `free` bytes of free memory and a unique UUID.
    fn gpu(free: u64) -> Gpu {
        let properties = GpuProperties {
            name: "X".into(),
            compute_capability: (9, 0),
            pci_bus_id: format!("bus {free}"),
            uuid: format!("uuid {free}"),
            memory: 100,
        };
        let libtorch = Libtorch { folder: "/x".into(), origin: "a test", version: String::new(), cuda: String::new() };
        Gpu { index: 1, properties, free_memory: free, libtorch, nvrtc_version: String::new(), kernels: None }
    }

    #[test]
    fn all_ranks_get_the_same_gpu() {
        let gpus = |free: [Option<u64>; 3]| {
            let ranks = lambert_collective::local::group(3).into_iter().zip(free);
            let threads: Vec<_> = ranks
                .map(|(mut ends, free)| {
                    std::thread::spawn(move || least_free_gpu(&mut *ends.group, free.map(gpu).as_ref()))
                })
                .collect();
            let mut rooms: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
            rooms.dedup();
            assert_eq!(rooms.len(), 1, "ranks disagree");
            rooms.remove(0).map(|room| (room.rank, room.free))
        };
        assert_eq!(gpus([None; 3]), None);
        assert_eq!(gpus([Some(80), None, Some(70)]), Some((2, 70)));
    }
}
