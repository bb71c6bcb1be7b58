//! Micro-batch sizes of an attempt, in tokens. A size is configured, or it is the
//! largest size that fits into GPU memory. If the results depend on it, later attempts keep the size of the first one.

use std::collections::BTreeMap;

use lambert_collective::Group;
use lambert_config::RunConfig;
use lambert_config::run::{Stage, TokenBudget};
use lambert_control::EventKind;
use lambert_plan::memory::{self, DatasetShape, fit, fit::GpuBudget};
use lambert_store::Store;
use lambert_store::run::{self, CONFIG, MICRO_BATCHES};
use serde::{Deserialize, Serialize};

use crate::data::Mixture;
use crate::error::Error;
use crate::gpu::{DeviceError, Gpu};
use crate::worker::agreement;
use crate::worker::attempts;
use crate::worker::datasets::Datasets;
use crate::worker::session::Session;

/// Returns the maximum number of tokens of a micro-batch for each stage. Collective. Call this
/// function before any training state is on a GPU.
///
/// # Errors
/// A stage does not fit into GPU memory.
pub fn choose_for_stages(session: &Session, group: &mut dyn Group, datasets: &Datasets) -> Result<Vec<usize>, Error> {
    let budget = least_free_gpu(group, session.gpu.as_ref())?;
    let data: Vec<DatasetShape> = datasets.stages.iter().map(Mixture::shape).collect();
    let (config, world, store) = (&session.config, session.world, &session.store);
    let sizes = AttemptSizes { config, data: &data, world, store, attempt: session.lease.attempt() };
    let (chosen, warnings) = sizes.choose(group, budget.as_ref())?;
    if session.is_first() {
        warnings.into_iter().for_each(|warning| session.warn(warning));
        let recorded = sizes.record(&chosen, budget.is_some())?;
        let event = |(stage, tokens)| session.control.report_event(EventKind::MicroBatch { stage, tokens });
        recorded.into_iter().for_each(event);
    }
    Ok(chosen)
}

/// Record of the sizes that an attempt chose for the stages with [`TokenBudget::Auto`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct SizeRecord {
    /// Number of ranks that compute on a GPU.
    gpus: usize,
    /// Maximum tokens per micro-batch, by the name of the stage.
    tokens: BTreeMap<String, usize>,
}

/// Stored record of an attempt.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredSizes {
    Now(SizeRecord),
    /// Sizes by the name of the stage, from a version that did not record the number of GPUs.
    Earlier(#[allow(dead_code, reason = "only tells the format from a damaged record")] BTreeMap<String, usize>),
}

/// Choice of the sizes of an attempt.
struct AttemptSizes<'a> {
    config: &'a RunConfig,
    /// Datasets of the stages.
    data: &'a [DatasetShape],
    world: usize,
    store: &'a Store,
    attempt: u32,
}

impl AttemptSizes<'_> {
    /// Returns the size of each stage, and warnings about sizes of earlier attempts that do not fit. `budget` is the GPU
    /// with the least free memory; `None` on CPUs. Collective.
    fn choose(&self, group: &mut dyn Group, budget: Option<&GpuBudget>) -> Result<(Vec<usize>, Vec<String>), Error> {
        let changes_results =
            self.config.device.deterministic || memory::gpu::dropout_depends_on_micro_batches(self.config);
        let earlier = match budget {
            Some(_) if changes_results => self.earlier(group)?,
            _ => Vec::new(),
        };
        let chosen = fit::micro_batches(self.config, self.data, self.world, budget, &earlier);
        let chosen = chosen.map_err(|short| {
            let (error, is_passing) = (Error::invalid_config(CONFIG, short.issues), short.is_transient);
            if is_passing { DeviceError::InsufficientFreeMemory(error.to_string()).into() } else { error }
        })?;
        let stages = earlier.iter().zip(&chosen).enumerate();
        let warnings = stages.filter_map(|(index, (earlier, tokens))| {
            let earlier = earlier.filter(|earlier| earlier != tokens)?;
            let (gpu, free) = budget.map(|budget| (&budget.gpu, budget.free as f64 / f64::from(1 << 30)))?;
            let longest = self.data[index].sequence_length;
            let why = match earlier < longest {
                true => format!("are shorter than the samples of {longest} tokens"),
                false => format!("do not fit into {gpu}, which has {free:.1} GiB free"),
            };
            Some(format!(
                "stage.{index}.micro_batch_tokens: micro-batches of {earlier} tokens, the size of an earlier attempt, {why}; this \
                 attempt uses {tokens}, so the results differ from those of an uninterrupted run; set a number to prevent this"
            ))
        });
        let warnings = warnings.collect();
        Ok((chosen, warnings))
    }

    /// Returns for each stage the size that the first attempt with as many GPUs has recorded. Collective.
    fn earlier(&self, group: &mut dyn Group) -> Result<Vec<Option<usize>>, Error> {
        let mut failed = None;
        let sizes = agreement::gather_and_decide(group, &(), |_: &[()]| {
            self.read_earlier().map_err(|error| failed = Some(error)).ok()
        })?;
        let peer = Error::Peer("rank 0 could not read the micro-batch sizes of earlier attempts");
        sizes.ok_or_else(|| failed.unwrap_or(peer))
    }

    /// Reads the records of earlier attempts until each stage has a size.
    fn read_earlier(&self) -> Result<Vec<Option<usize>>, Error> {
        let mut sizes = vec![None; self.config.stage.len()];
        let is_open =
            |size: &Option<usize>, stage: &Stage| size.is_none() && stage.micro_batch_tokens == TokenBudget::Auto;
        for attempt in attempts::earlier(self.store, MICRO_BATCHES, self.attempt)? {
            if !sizes.iter().zip(&self.config.stage).any(|(size, stage)| is_open(size, stage)) {
                break;
            }
            let record = attempts::read::<StoredSizes>(self.store, MICRO_BATCHES, attempt)?;
            let Some(StoredSizes::Now(record)) = record else { continue };
            if record.gpus != self.world {
                continue;
            }
            for (index, (size, stage)) in sizes.iter_mut().zip(&self.config.stage).enumerate() {
                if is_open(size, stage) {
                    *size = record.tokens.get(&self.stage_key(index)).copied();
                }
            }
        }
        Ok(sizes)
    }

    /// Key of a stage in a record: its name, with its index if an earlier stage has the same name.
    fn stage_key(&self, index: usize) -> String {
        let name = &self.config.stage[index].name;
        match self.config.stage[..index].iter().any(|stage| stage.name == *name) {
            true => format!("{name} (stage.{index})"),
            false => name.clone(),
        }
    }

    /// Writes the sizes of the stages with [`TokenBudget::Auto`] to the store of the run. Returns them.
    fn record(&self, chosen: &[usize], uses_gpus: bool) -> Result<BTreeMap<String, usize>, Error> {
        let stages = self.config.stage.iter().zip(chosen).enumerate();
        let open = stages.filter(|(_, (stage, _))| stage.micro_batch_tokens == TokenBudget::Auto);
        let tokens: BTreeMap<String, usize> =
            open.map(|(index, (_, tokens))| (self.stage_key(index), *tokens)).collect();
        let record = SizeRecord { gpus: if uses_gpus { self.world } else { 0 }, tokens };
        if !record.tokens.is_empty() {
            let text = serde_json::to_vec(&record).map_err(Error::Json)?;
            self.store.put(&run::micro_batches(self.attempt), text.into())?;
        }
        Ok(record.tokens)
    }
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
    use lambert_collective::Endpoints;
    use lambert_config::run::Attention;

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

    /// A run whose stage has `micro_batch_tokens = "auto"`.
    struct AutoRun {
        config: RunConfig,
        store: Store,
        _folder: tempfile::TempDir,
    }

    impl AutoRun {
        /// Creates a run of BERT-base.
        fn new(attention: Attention, deterministic: bool) -> Self {
            let stage = Stage {
                name: "one".to_owned(),
                micro_batch_tokens: TokenBudget::Auto,
                global_batch: 1 << 16,
                ..Stage::default()
            };
            let mut config = RunConfig { stage: vec![stage], ..RunConfig::default() };
            (config.model.attention, config.device.deterministic) = (attention, deterministic);
            let folder = tempfile::tempdir().unwrap();
            Self { config, store: Store::open(folder.path().to_str().unwrap()).unwrap(), _folder: folder }
        }

        /// Chooses and records the size of an attempt of `world` ranks on GPUs with `free` GiB. Without `free`, the ranks
        /// use CPUs. Returns the size and the warnings.
        fn attempt(&self, attempt: u32, world: usize, free: Option<u64>) -> (usize, Vec<String>) {
            const DATA: DatasetShape = DatasetShape {
                vocabulary: 30522,
                sequence_length: 128,
                mean_length: 128,
                rows: 1 << 20,
                row_group: 1024,
            };
            let budget =
                free.map(|free| GpuBudget { rank: 0, gpu: "GPU 0".into(), free: free << 30, memory: 139 << 30 });
            let sizes = AttemptSizes { config: &self.config, data: &[DATA], world, store: &self.store, attempt };
            let (sizes, budget) = (&sizes, budget.as_ref());
            let mut chosen = std::thread::scope(|scope| {
                let ranks = lambert_collective::local::group(world).into_iter();
                let choose = |mut rank: Endpoints| scope.spawn(move || sizes.choose(&mut *rank.group, budget).unwrap());
                let threads: Vec<_> = ranks.map(choose).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            });
            chosen.dedup();
            assert_eq!(chosen.len(), 1, "ranks disagree");
            let (tokens, warnings) = chosen.remove(0);
            sizes.record(&tokens, budget.is_some()).unwrap();
            (tokens[0], warnings)
        }
    }

    #[test]
    fn attempts_keep_the_size_of_the_first_attempt_if_results_depend_on_it() {
        for (attention, deterministic) in [(Attention::Auto, false), (Attention::Fused, true), (Attention::Keyed, true)]
        {
            let run = AutoRun::new(attention, deterministic);
            assert_eq!(run.attempt(1, 2, None), (TokenBudget::AUTO_ON_CPU, Vec::new()));
            let (first, _) = run.attempt(2, 2, Some(12));
            assert!(first > TokenBudget::AUTO_ON_CPU);
            assert_eq!(run.attempt(3, 2, Some(20)), (first, Vec::new()), "more memory");
            // With another number of GPUs, another attempt is the first one.
            let (three, _) = run.attempt(4, 3, Some(16));
            assert!(three > first);
            assert_eq!(run.attempt(5, 3, Some(20)), (three, Vec::new()));
            // The size does not fit: a smaller one and a warning. The next attempt uses the first size again.
            let (less, warnings) = run.attempt(6, 2, Some(8));
            assert!(less < first && warnings.len() == 1, "{warnings:?}");
            let begin = format!(
                "stage.0.micro_batch_tokens: micro-batches of {first} tokens, the size of an earlier attempt, do not fit into \
                 GPU 0, which has 8.0 GiB free; this attempt uses {less},"
            );
            assert!(warnings[0].starts_with(&begin), "{warnings:?}");
            assert_eq!(run.attempt(7, 2, Some(12)), (first, Vec::new()));
        }
    }

    #[test]
    fn keyed_attempts_choose_again() {
        let run = AutoRun::new(Attention::Keyed, false);
        let (first, _) = run.attempt(1, 2, Some(8));
        let (second, warnings) = run.attempt(2, 2, Some(12));
        assert!(second > first && warnings.is_empty(), "{first} and {second}");
        let record: SizeRecord = attempts::read(&run.store, MICRO_BATCHES, 2).unwrap().unwrap();
        assert_eq!(record, SizeRecord { gpus: 2, tokens: BTreeMap::from([("one".to_owned(), second)]) });
    }

    #[test]
    fn records_without_the_number_of_gpus_are_ignored() {
        let run = AutoRun::new(Attention::Fused, false);
        run.store.put(&run::micro_batches(1), r#"{"one":256}"#.into()).unwrap();
        assert!(run.attempt(2, 2, Some(80)).0 > TokenBudget::AUTO_ON_CPU);
    }
}
