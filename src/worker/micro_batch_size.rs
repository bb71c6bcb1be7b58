//! How many tokens a micro-batch has, for this attempt: what the configuration says, or the largest that fits into the cards.

use std::collections::BTreeMap;

use lambert_collective::Group;
use lambert_config::run::TokenBudget;
use lambert_control::EventKind;
use lambert_plan::memory::{DatasetShape, fit, fit::GpuBudget};
use lambert_store::run::{self, CONFIG};
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::gpu::{DeviceError, Gpu};
use crate::worker::agreement;
use crate::worker::session::{Datasets, Session};

/// Tokens of a micro-batch at most, of each stage. All ranks call it together and come to the same end: before anything of the
/// training state is on a card.
///
/// # Errors
/// A stage does not fit into a card.
pub fn settle(session: &Session, group: &mut dyn Group, datasets: &Datasets) -> Result<Vec<usize>, Error> {
    let room = least(group, session.card.as_ref())?;
    let data: Vec<DatasetShape> = datasets.stages.iter().map(|dataset| dataset.sizes()).collect();
    let config = &session.config;
    let chosen = fit::micro_batches(config, &data, session.world, room.as_ref()).map_err(|short| {
        let (error, is_passing) = (Error::invalid_config(CONFIG, short.issues), short.is_transient);
        if is_passing { DeviceError::InsufficientFreeMemory(error.to_string()).into() } else { error }
    })?;
    if session.is_first() {
        tell(session, &chosen)?;
    }
    Ok(chosen)
}

/// Tells people what was chosen for the stages that leave it open, and the run's store, by attempt.
fn tell(session: &Session, chosen: &[usize]) -> Result<(), Error> {
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

/// What a rank tells of its card.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct CardRoom {
    host: String,
    bus: String,
    name: String,
    free: u64,
    memory: u64,
}

/// The card that has the least room for a rank; the same on all ranks. `None` if none has a card.
fn least(group: &mut dyn Group, card: Option<&Gpu>) -> Result<Option<GpuBudget>, Error> {
    let own = card.map(|card| CardRoom {
        host: lambert_store::host::name(),
        bus: card.properties.pci_bus_id.clone(),
        name: card.name(),
        free: card.free_memory,
        memory: card.properties.memory,
    });
    agreement::together(group, &own, least_of)
}

/// Ranks that share a card have equal parts of what is free.
fn least_of(all: &[Option<CardRoom>]) -> Option<GpuBudget> {
    let mut sharing = BTreeMap::<(&str, &str), u64>::new();
    for card in all.iter().flatten() {
        *sharing.entry((&card.host, &card.bus)).or_default() += 1;
    }
    let rooms = all.iter().enumerate().filter_map(|(rank, card)| {
        let card = card.as_ref()?;
        let ranks = sharing[&(&*card.host, &*card.bus)];
        let name = format!("card {} of host {}", card.name, card.host);
        Some(GpuBudget { rank, gpu: name, free: card.free / ranks, memory: card.memory / ranks })
    });
    rooms.min_by_key(|room| (room.free, room.rank))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{GpuProperties, Libtorch};

    fn told(host: &str, bus: &str, free: u64) -> Option<CardRoom> {
        Some(CardRoom { host: host.into(), bus: bus.into(), name: format!("0 (X, {bus})"), free, memory: 100 })
    }

    #[test]
    fn the_least_room_is_found_and_shared_cards_are_divided() {
        assert_eq!(least_of(&[None, None]), None);
        let least = |all: &[Option<CardRoom>]| least_of(all).map(|room| (room.rank, room.free, room.memory));
        assert_eq!(least(&[told("a", "1", 90), None, told("b", "1", 80)]), Some((2, 80, 100)));
        assert_eq!(least(&[told("a", "1", 70), told("a", "2", 60), told("a", "1", 66)]), Some((2, 33, 50)));
        let room = least_of(&[told("a", "1", 90)]).unwrap();
        assert_eq!(room.gpu, "card 0 (X, 1) of host a");
    }

    /// A card with so many bytes free, on a bus of its own.
    fn card(free: u64) -> Gpu {
        let properties = GpuProperties {
            name: "X".into(),
            compute_capability: (9, 0),
            pci_bus_id: format!("bus {free}"),
            memory: 100,
        };
        let libtorch = Libtorch { folder: "/x".into(), origin: "a test", version: String::new(), cuda: String::new() };
        Gpu { index: 1, properties, free_memory: free, libtorch, nvrtc_version: String::new(), kernels: None }
    }

    #[test]
    fn all_ranks_know_the_same() {
        let rooms = |free: [Option<u64>; 3]| {
            let ranks = lambert_collective::local::group(3).into_iter().zip(free);
            let threads: Vec<_> = ranks
                .map(|(mut ends, free)| std::thread::spawn(move || least(&mut *ends.group, free.map(card).as_ref())))
                .collect();
            let mut rooms: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
            rooms.dedup();
            assert_eq!(rooms.len(), 1, "ranks know different things");
            rooms.remove(0).map(|room| (room.rank, room.free))
        };
        assert_eq!(rooms([None; 3]), None);
        assert_eq!(rooms([Some(80), None, Some(70)]), Some((2, 70)));
    }
}
