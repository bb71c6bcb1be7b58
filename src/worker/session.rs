//! What a rank holds while it trains, beside the training state.

use std::sync::Arc;
use std::time::Duration;

use lambert_collective::{Endpoints, Group, local, mpi, nccl};
use lambert_config::run::{Backend, Cluster, ReduceDtype};
use lambert_config::{Layers, RunConfig};
use lambert_control::EventKind;
use lambert_dataset::{Dataset, DatasetError, check_compatibility};
use lambert_plan::memory;
use lambert_store::lease::Lease;
use lambert_store::run::CONFIG;
use lambert_store::{Patience, Store};
use tch::Kind;

use super::agreement;
use super::peak;
use crate::error::Error;
use crate::gpu::conflicts::{DeviceSharing, RankDevice, find_conflict};
use crate::gpu::{CommStream, ComputeDevice, DeviceError, Gpu, Nccl};
use crate::kernels::Kernels;
use crate::model;
use crate::worker::control::Control;
use crate::worker::cpu_affinity;
use crate::worker::host_share::HostShare;
use crate::worker::leave;
use crate::worker::nccl_report;

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
    /// This rank's host, as it was before the rank was bound to some of its processors.
    pub host: HostShare,
    /// Whether NCCL sums gradients.
    pub nccl: bool,
    /// The coordinator.
    pub control: Arc<Control>,
    /// The device that this rank computes on.
    pub kernels: Arc<dyn Kernels>,
    /// The card, if it is one.
    pub card: Option<Gpu>,
    /// Floating-point operations a second of all ranks together, in a matrix product.
    pub peak: f64,
}

impl Session {
    /// Joins attempt `attempt` of the run at `url`, which has `world` ranks if that is known, to compute on `device`; also
    /// returns the way to the other ranks.
    pub fn open(
        url: &str,
        attempt: u32,
        world: Option<usize>,
        mut device: ComputeDevice,
        control: Arc<Control>,
    ) -> Result<(Self, Endpoints), Error> {
        let store = Store::open(url)?.require_folder();
        let (config, config_sha256) = read_config(&store)?;
        let lease = Lease::attach(&store, attempt)?;
        tch::set_num_threads(config.device.threads as i32);
        let mut ranks = join(&config, world)?;
        let (rank, world) = (ranks.group.rank(), ranks.group.world_size());
        let sums = device.take_nccl();
        let (kernels, card) = device.kernels(lambert_collective::world::detect().as_ref(), config.model.precision)?;
        check_devices(&mut *ranks.group, card.as_ref(), sharing(config.device.share, sums.is_some()))?;
        let kind = kind(&config, card.as_ref())?;
        let (host, nccl) = (HostShare::count(), sums.is_some());
        bind(rank, config.device.threads, card.as_ref());
        let mut peak = [peak::matmul_peak(&*kernels, kind, peak::peak_width(card.is_some()))?];
        ranks.group.all_reduce_sum_f64(&mut peak)?;
        let peak = peak[0];
        let session =
            Self { config, config_sha256, store, lease, rank, world, host, nccl, control, kernels, card, peak };
        if let (Some(sums), Some(card)) = (sums, &session.card) {
            ranks = sum_by_nccl(ranks, &sums, card, nccl_options(&session.config.cluster))?;
            let attempt = session.lease.attempt();
            let warnings = nccl_report::tell(&mut *ranks.group, &sums, &session.store, attempt)?;
            warnings.into_iter().for_each(|warning| session.warn(warning));
        }
        Ok((session, ranks))
    }

    /// Whether this rank speaks for all.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// Reports a lost lease instead of the error of a write that came of it, and names a card that is lost.
    pub fn explain(&self, error: Error) -> Error {
        if let (Some(said), Some(card)) = (error.gpu_failure(), &self.card) {
            return Error::GpuLost { gpu: card.name(), message: said.to_owned() };
        }
        match error {
            Error::Save { .. } | Error::Store(_) => self.lost_lease().map_or(error, Error::Store),
            other => other,
        }
    }

    /// That another attempt has taken the run. A folder that hangs is not waited for.
    fn lost_lease(&self) -> Option<lambert_store::Error> {
        let lease = self.lease.clone();
        leave::within(2 * BRIEF, move || loss(&lease))?
    }

    /// Whether all ranks end now, with what is saved: rank 0 knows that a stop is requested. All call it together.
    ///
    /// # Errors
    /// They cannot exchange it.
    pub fn agree_on_stop(&self, collective: &mut dyn Group) -> Result<bool, Error> {
        let mut word = vec![u8::from(self.is_first() && self.control.stop_is_requested())];
        collective.broadcast_bytes(&mut word, 0)?;
        Ok(word == [1])
    }

    /// Tells people something, through the coordinator where there is one.
    pub fn warn(&self, message: String) {
        match self.control.is_connected() {
            true => self.control.event(EventKind::Warning { message }),
            false => tracing::warn!("{message}"),
        }
    }
}

/// How long a store that is away is asked for a lease.
const BRIEF: Duration = Duration::from_secs(5);

/// Whether a lease is lost, as an error that says so. A store that is away is not waited for.
pub fn loss(lease: &Lease) -> Option<lambert_store::Error> {
    let brief = Patience { total: BRIEF, ..Patience::default() };
    lease.with_patience(brief).check().err().filter(lambert_store::Error::is_lease_lost)
}

/// What a rank computes in.
fn kind(config: &RunConfig, card: Option<&Gpu>) -> Result<Kind, Error> {
    match card {
        None if config.cluster.all_reduce.backend == Backend::Nccl => {
            Err(Error::Usage("cluster.all_reduce.backend is nccl, and this rank computes on a processor".into()))
        }
        None => Ok(Kind::Float),
        Some(card) if config.cluster.all_reduce.canonical => Err(Error::Usage(format!(
            "cluster.all_reduce.canonical is true and this rank computes on {card}, whose products are not the same in every world: \
             device.kind = \"cpu\" computes on the processor"
        ))),
        Some(_) => Ok(model::compute_dtype(&config.model)),
    }
}

/// Binds this rank to its share of the host, and says so.
fn bind(rank: usize, threads: usize, card: Option<&Gpu>) {
    let binding =
        cpu_affinity::bind(lambert_collective::world::detect().as_ref(), card.map(|card| &*card.properties.pci_bus_id));
    let place = card.map_or_else(String::new, |card| format!(" on {card},"));
    tracing::info!("rank {rank} computes{place} with {threads} threads, {binding}");
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

/// The world at hand; that it is the attempt's is checked.
fn join(config: &RunConfig, world: Option<usize>) -> Result<Endpoints, Error> {
    if let Some(launcher) = lambert_collective::world::unsupported_launcher() {
        return Err(Error::Usage(format!("{launcher}: `lambert run` starts them")));
    }
    let started_by_mpi = lambert_collective::world::detect().is_some();
    let cluster = &config.cluster;
    let use_mpi = match cluster.all_reduce.backend {
        Backend::Mpi | Backend::Nccl => true,
        Backend::Local => false,
        Backend::Auto => started_by_mpi,
    };
    let ranks = if use_mpi { mpi::init(options(cluster))? } else { local::single() };
    let here = ranks.group.world_size();
    if let Some(world) = world.filter(|world| *world != here) {
        return Err(Error::Usage(format!(
            "the attempt has {world} ranks, but {here} process(es) were started together"
        )));
    }
    Ok(ranks)
}

/// The same ranks with sums between their cards; MPI's own sum tells who has come.
fn sum_by_nccl(ranks: Endpoints, sums: &Nccl, card: &Gpu, options: nccl::NcclOptions) -> Result<Endpoints, Error> {
    let Endpoints { mut group, reducer } = ranks;
    let refused = |error: lambert_collective::Error| match error.is_nccl_unsupported() {
        true => Error::Device(DeviceError::Nccl(error)),
        false => Error::Collective(error),
    };
    let kernels = card.kernels.clone().ok_or_else(|| Error::Usage(format!("{card} has no kernels")))?;
    let stream = CommStream::new(card.index, kernels).map_err(DeviceError::Driver)?;
    let reducer = nccl::init(&mut *group, reducer, &sums.library, stream, options).map_err(refused)?;
    Ok(Endpoints { group, reducer })
}

/// Checks the devices of all ranks, which call this together; `sharing` says whether they may share one.
fn check_devices(group: &mut dyn Group, card: Option<&Gpu>, sharing: DeviceSharing) -> Result<(), Error> {
    match agreement::together(group, &RankDevice::local(card), |all: &[RankDevice]| find_conflict(all, sharing))? {
        Some(conflict) => Err(DeviceError::Conflict(conflict).into()),
        None => Ok(()),
    }
}

/// Whether ranks may have one card together.
fn sharing(is_allowed: bool, over_nccl: bool) -> DeviceSharing {
    match (is_allowed, over_nccl) {
        (false, false) => DeviceSharing::Forbidden,
        (true, false) => DeviceSharing::Allowed,
        (false, true) => DeviceSharing::ForbiddenByNccl,
        (true, true) => DeviceSharing::AllowedAcrossNcclHosts,
    }
}

/// How the ranks deal with each other over MPI.
fn options(cluster: &Cluster) -> mpi::MpiOptions {
    // The coordinator knows how long a rank that lives may take.
    mpi::MpiOptions { stall_timeout: stall(cluster), straggler_timeout: NEVER, wire: wire(cluster) }
}

/// How their cards do over NCCL.
fn nccl_options(cluster: &Cluster) -> nccl::NcclOptions {
    nccl::NcclOptions { stall_timeout: stall(cluster), wire: wire(cluster) }
}

fn stall(cluster: &Cluster) -> Duration {
    let stall = cluster.limits.stall_seconds;
    if stall > 0.0 { Duration::from_secs_f64(stall.min(NEVER.as_secs_f64())) } else { NEVER }
}

fn wire(cluster: &Cluster) -> mpi::WireFormat {
    match cluster.all_reduce.dtype {
        ReduceDtype::Fp32 => mpi::WireFormat::F32,
        ReduceDtype::Bf16 => mpi::WireFormat::Bf16,
    }
}

/// Ten years.
const NEVER: Duration = Duration::from_secs(315_360_000);

/// The datasets of a run.
pub struct Datasets {
    /// One a stage.
    pub stages: Vec<Arc<Dataset>>,
    /// The held-out samples, if any.
    pub evaluation: Option<Arc<Dataset>>,
}

impl Datasets {
    /// Opens all of them, and checks that the model, the objective and this host's memory fit; every fault is listed.
    pub fn open(config: &RunConfig) -> Result<Self, Error> {
        let cache = &config.cluster.dataset_cache;
        let open = |url: &String| Ok(Arc::new(Dataset::open(url)?.with_cache(cache)));
        let stages = config.stage.iter().map(|stage| open(&stage.data)).collect::<Result<Vec<_>, DatasetError>>()?;
        let held_out = Some(&config.evaluation.data).filter(|url| !url.is_empty());
        let evaluation = held_out.map(open).transpose()?;
        let mut used: Vec<(String, &Dataset)> =
            stages.iter().enumerate().map(|(index, dataset)| (format!("stage.{index}.data"), &**dataset)).collect();
        used.extend(evaluation.as_deref().map(|dataset| ("evaluation.data".to_owned(), dataset)));
        let mut faults = Vec::new();
        check_compatibility(config, &used, None, &mut faults);
        let data: Vec<memory::DatasetShape> = stages.iter().map(|dataset| dataset.sizes()).collect();
        memory::check(config, &data, HostShare::count().ranks, &mut faults);
        if faults.is_empty() { Ok(Self { stages, evaluation }) } else { Err(Error::invalid_config(CONFIG, faults)) }
    }

    /// Facts of the vocabulary that all datasets share.
    pub fn first(&self) -> &Dataset {
        &self.stages[0]
    }
}
