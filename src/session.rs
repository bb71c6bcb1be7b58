//! What a rank holds while it trains, beside the training state.

use std::sync::Arc;

use lambert_collective::{Collective, local, mpi};
use lambert_config::control::EventKind;
use lambert_config::run::{Backend, Pair};
use lambert_config::{Fault, Layers, RunConfig};
use lambert_data_prep::dataset::Dataset;
use lambert_store::Store;
use lambert_store::lease::Lease;

use crate::control::Control;
use crate::error::Error;
use crate::metrics;

/// The resolved configuration of a run, in its store.
pub const CONFIG: &str = "run.toml";
/// The run's vocabulary, in its store.
pub const VOCABULARY: &str = "vocab.txt";

/// A rank's place in a run.
pub struct Session {
    /// The resolved configuration.
    pub config: RunConfig,
    /// sha256 of the resolved configuration's file.
    pub config_sha256: String,
    /// The run's store.
    pub store: Store,
    /// The attempt that this process belongs to.
    pub lease: Lease,
    /// This rank, from 0.
    pub rank: usize,
    /// All ranks.
    pub world: usize,
    /// The coordinator.
    pub control: Control,
    /// Floating-point operations a second of all ranks together, in a matrix product.
    pub peak: f64,
}

impl Session {
    /// Joins attempt `attempt` of the run at `url`; also returns the way to the other ranks.
    pub fn open(url: &str, attempt: u32) -> Result<(Self, Box<dyn Collective>), Error> {
        let store = Store::open(url)?;
        let (config, config_sha256) = read_config(&store)?;
        let lease = Lease::attach(&store, attempt)?;
        tch::set_num_threads(config.cluster.threads as i32);
        let mut collective = join(&config)?;
        let (rank, world) = (collective.rank(), collective.world());
        let control = Control::connect(rank);
        let mut peak = [metrics::matmul_peak()?];
        collective.all_reduce_sum_f64(&mut peak)?;
        Ok((Self { config, config_sha256, store, lease, rank, world, control, peak: peak[0] }, collective))
    }

    /// Whether this rank speaks for all.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// Tells people something, through the coordinator where there is one.
    pub fn warn(&self, message: String) {
        match self.control.is_connected() {
            true => self.control.event(EventKind::Warning { message }),
            false => tracing::warn!("{message}"),
        }
    }
}

/// The configuration that the coordinator laid down in the run's store, and its file's sha256.
pub fn read_config(store: &Store) -> Result<(RunConfig, String), Error> {
    let bytes = match store.get(CONFIG) {
        Err(lambert_store::Error::NotFound { .. }) => {
            return Err(Error::Usage(format!("{} is not a run: it has no {CONFIG}", store.url())));
        }
        other => other?,
    };
    let origin = format!("{}/{CONFIG}", store.url());
    let text = String::from_utf8(bytes.to_vec()).map_err(|_| Error::Usage(format!("{origin} is not UTF-8")))?;
    Ok((Layers::default().parse(&text, &origin)?, lambert_store::hash::sha256(&bytes)))
}

/// The world that the configuration asks for; that it is the one at hand is checked.
fn join(config: &RunConfig) -> Result<Box<dyn Collective>, Error> {
    let started_by_mpi = lambert_collective::world::detect().is_some();
    let cluster = &config.cluster;
    let use_mpi = match cluster.backend {
        Backend::Mpi => true,
        Backend::Local => false,
        Backend::Auto | Backend::Nccl => started_by_mpi,
    };
    let collective: Box<dyn Collective> = if use_mpi { Box::new(mpi::Mpi::init()?) } else { Box::new(local::alone()) };
    if collective.world() != cluster.ranks {
        return Err(Error::Usage(format!(
            "cluster.ranks is {}, but {} process(es) were started together",
            cluster.ranks,
            collective.world()
        )));
    }
    Ok(collective)
}

/// The datasets of a run.
pub struct Datasets {
    /// One a stage.
    pub stages: Vec<Arc<Dataset>>,
    /// The held-out samples, if any.
    pub evaluation: Option<Arc<Dataset>>,
}

impl Datasets {
    /// Opens all of them, and checks that the model and the objective fit; every fault is listed.
    pub fn open(config: &RunConfig) -> Result<Self, Error> {
        let mut faults = Vec::new();
        let mut stages: Vec<Arc<Dataset>> = Vec::new();
        for (index, stage) in config.stage.iter().enumerate() {
            let dataset = Arc::new(Dataset::open(&stage.data)?);
            check(config, &dataset, stages.first(), &format!("stage.{index}.data"), &mut faults);
            stages.push(dataset);
        }
        let mut evaluation = None;
        if !config.evaluation.data.is_empty() {
            let dataset = Arc::new(Dataset::open(&config.evaluation.data)?);
            check(config, &dataset, stages.first(), "evaluation.data", &mut faults);
            evaluation = Some(dataset);
        }
        if faults.is_empty() { Ok(Self { stages, evaluation }) } else { Err(Error::faults(CONFIG, faults)) }
    }

    /// Facts of the vocabulary that all datasets share.
    pub fn first(&self) -> &Dataset {
        &self.stages[0]
    }
}

/// Whether a dataset is one that this model can learn from.
pub fn check(config: &RunConfig, dataset: &Dataset, first: Option<&Arc<Dataset>>, key: &str, faults: &mut Vec<Fault>) {
    let manifest = dataset.manifest();
    let mut fault = |message: String| faults.push(Fault::new(key, message));
    if manifest.sequence_length > config.model.positions {
        fault(format!(
            "samples of up to {} tokens, but model.positions is {}",
            manifest.sequence_length, config.model.positions
        ));
    }
    if config.objective.pair != Pair::None && manifest.samples.pair != config.objective.pair {
        fault(format!(
            "was prepared with pair = {:?}, but objective.pair is {:?}",
            manifest.samples.pair, config.objective.pair
        ));
    }
    if dataset.rows() == 0 {
        fault("has no samples".to_owned());
    }
    if let Some(first) = first
        && first.manifest().vocabulary.sha256 != manifest.vocabulary.sha256
    {
        fault(format!("has another vocabulary than {}", first.url()));
    }
}
