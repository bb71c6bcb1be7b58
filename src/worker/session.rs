//! Session of a rank: configuration, store, lease, device and control channel.

use std::sync::Arc;
use std::time::Duration;

use lambert_collective::{Endpoints, Group, local, mpi, nccl};
use lambert_config::run::{Backend, Cluster, ReduceDtype, TeacherInfo};
use lambert_config::{Layers, RunConfig, duration};
use lambert_control::EventKind;
use lambert_store::lease::Lease;
use lambert_store::run::{CONFIG, TEACHER_INFO};
use lambert_store::{RetryPolicy, Store};
use tch::Kind;

use super::matmul_peak;
use super::rank_devices::{self, DevicePolicy, DeviceRecords};
use crate::error::{self, Error};
use crate::gpu::conflicts::{DeviceSharing, GpuId, RankDevice};
use crate::gpu::{CommStream, ComputeDevice, DeviceError, Gpu, Nccl};
use crate::kernels::Kernels;
use crate::model;
use crate::torch;
use crate::worker::agreement;
use crate::worker::control::Control;
use crate::worker::cpu_affinity;
use crate::worker::datasets::SizeChecks;
use crate::worker::gpu_monitor;
use crate::worker::host_share::HostShare;
use crate::worker::leave;
use crate::worker::nccl_report;

/// Session of a rank in a run.
pub struct Session {
    /// The resolved configuration.
    pub config: RunConfig,
    /// SHA-256 of the resolved configuration file.
    pub config_sha256: String,
    /// Store of the run.
    pub store: Store,
    /// Lease of the attempt of this process.
    pub lease: Lease,
    /// Rank, from 0.
    pub rank: usize,
    /// World size.
    pub world: usize,
    /// CPUs and ranks of this host, counted before the rank was pinned.
    pub host: HostShare,
    /// NCCL, if it reduces gradients.
    pub nccl: Option<Nccl>,
    /// Channel to the coordinator.
    pub control: Arc<Control>,
    /// Kernels of the device of this rank.
    pub kernels: Arc<dyn Kernels>,
    /// GPU of this rank; `None` on a CPU.
    pub gpu: Option<Gpu>,
    /// Matmul throughput of all ranks together, FLOP/s.
    pub peak: f64,
}

impl Session {
    /// Joins attempt `attempt` of the run at `url`, on `device`. `world` is the expected number of ranks, if
    /// known. Also returns the collective endpoints.
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
        let nccl = device.take_nccl();
        let (kernels, gpu) = device.kernels(lambert_collective::world::detect().as_ref(), config.model.precision)?;
        let emulated = gpu_monitor::emulated_gpu(&config.test.gpu);
        let own = RankDevice::local(rank, emulated.clone().or_else(|| gpu.as_ref().map(GpuId::from)));
        let policy = DevicePolicy { kind: config.device.kind, sharing: sharing(config.device.share, nccl.is_some()) };
        let records = DeviceRecords { store: &store, attempt: lease.attempt() };
        let warning = rank_devices::check(&mut *ranks.group, &own, policy, records)?;
        gpu_monitor::start(gpu.as_ref(), &config.test.gpu, emulated, control.gpu_reporter());
        let kind = compute_kind(&config, gpu.as_ref())?;
        let host = HostShare::count();
        bind(config.device.threads, gpu.as_ref());
        let mut peak = [matmul_peak::measure(&*kernels, kind, gpu.is_some())?];
        kernels.reset_peak_memory();
        ranks.group.all_reduce_sum_f64(&mut peak)?;
        let peak = peak[0];
        let session =
            Self { config, config_sha256, store, lease, rank, world, host, nccl, control, kernels, gpu, peak };
        warning.into_iter().filter(|_| rank == 0).for_each(|warning| session.warn(warning));
        if let (Some(nccl), Some(gpu)) = (&session.nccl, &session.gpu) {
            let joined = use_nccl_reducer(ranks, nccl, gpu, nccl_options(&session.config.cluster));
            ranks = joined.inspect_err(|error| session.store_nccl_log(error))?;
            let attempt = session.lease.attempt();
            let warnings = nccl_report::report(&mut *ranks.group, nccl, &session.store, attempt)?;
            warnings.into_iter().for_each(|warning| session.warn(warning));
        }
        Ok((session, ranks))
    }

    /// Checks of datasets by this rank.
    pub fn size_checks(&self) -> SizeChecks {
        SizeChecks::of_rank(self.rank, local_rank(), self.control.is_connected())
    }

    /// True on rank 0.
    pub fn is_first(&self) -> bool {
        self.rank == 0
    }

    /// If the lease is lost, returns the error of the lost lease in place of a write error. Adds the name of the GPU to
    /// the error of a failed GPU.
    fn with_root_cause(&self, error: Error) -> Error {
        if let Some(gpu) = &self.gpu {
            // After a failed all-reduce, the GPU may compute forever.
            let kernels = Arc::clone(&self.kernels);
            let ask = move || torch::guard(|| kernels.wait()).err().map(Error::from);
            let asked = error.hides_gpu_failure().then(|| leave::run_with_timeout(2 * BRIEF, ask)?).flatten();
            if let Some(output) = error.gpu_failure().or_else(|| asked.as_ref()?.gpu_failure()) {
                return Error::GpuLost { gpu: gpu.name(), message: output.to_owned() };
            }
        }
        match error {
            Error::Save { .. } | Error::Store(_) => self.lost_lease().map_or(error, Error::Store),
            other => other,
        }
    }

    /// Writes the end of NCCL's log to the store of the run, if this rank, which fails with `error`, has a useful log. Does not
    /// wait for a hanging file system.
    fn store_nccl_log(&self, error: &Error) {
        let Some(log) = self.nccl.as_ref().map(Nccl::log) else { return };
        if nccl_report::has_useful_log(error, local_rank(), &log) {
            let (store, attempt, rank) = (self.store.clone(), self.lease.attempt(), self.rank);
            leave::run_with_timeout(BRIEF, move || nccl_report::store_log(&log, &store, attempt, rank));
        }
    }

    /// Returns the error of a lost lease, if the lease is lost. Does not wait for a hanging file system.
    fn lost_lease(&self) -> Option<lambert_store::Error> {
        let lease = self.lease.clone();
        leave::run_with_timeout(2 * BRIEF, move || lease_loss(&lease))?
    }

    /// Returns true on all ranks if a stop is requested on rank 0. The ranks then save a checkpoint, unless this step
    /// already has a checkpoint, and end the attempt. Collective.
    ///
    /// # Errors
    /// A failed collective.
    pub fn agree_on_stop(&self, collective: &mut dyn Group) -> Result<bool, Error> {
        agreement::broadcast(collective, &(self.is_first() && self.control.stop_is_requested()))
    }

    /// Reports the failure that ends this attempt, unless one was reported before. Returns the error with its root cause.
    /// Call this before dropping values: a drop can block forever while a GPU runs an all-reduce that cannot be aborted or
    /// a file system hangs. The process then exits after 10 s.
    pub fn report_failure(&self, error: Error) -> Error {
        if self.control.has_failed() {
            return error;
        }
        let error = self.with_root_cause(error);
        self.control.fail(error::chain(&error), error.failure_kind(), error.missing_ranks());
        self.control.flush();
        self.store_nccl_log(&error);
        leave::exit_after(2 * BRIEF, error.exit_code());
        error
    }

    /// Warns the user: through the coordinator, or in the log without a coordinator.
    pub fn warn(&self, message: String) {
        match self.control.is_connected() {
            true => self.control.report_event(EventKind::Warning { message }),
            false => tracing::warn!("{message}"),
        }
    }
}

/// Maximum time for retries of a lease check, and for other work after a failure.
const BRIEF: Duration = Duration::from_secs(5);

/// Returns the error of a lost lease, if the lease is lost. Does not wait for an unreachable store.
pub fn lease_loss(lease: &Lease) -> Option<lambert_store::Error> {
    let brief = RetryPolicy { total_timeout: BRIEF, ..RetryPolicy::default() };
    lease.with_retry_policy(brief).check().err().filter(lambert_store::Error::is_lease_lost)
}

/// Rank of this process on its host, from 0.
fn local_rank() -> usize {
    lambert_collective::world::detect().map_or(0, |world| world.local_rank)
}

/// Returns the compute dtype of a rank.
fn compute_kind(config: &RunConfig, gpu: Option<&Gpu>) -> Result<Kind, Error> {
    match gpu {
        None if config.cluster.all_reduce.backend == Backend::Nccl => {
            Err(Error::Usage("cluster.all_reduce.backend is nccl, but this rank computes on the CPU".into()))
        }
        None => Ok(Kind::Float),
        Some(gpu) if config.cluster.all_reduce.canonical => Err(Error::Usage(format!(
            "cluster.all_reduce.canonical is true, but this rank computes on {gpu}, whose results depend on the world size; \
             set device.kind = \"cpu\""
        ))),
        Some(_) => match config.unpadded_gpu_issues().first() {
            Some(issue) => Err(Error::Usage(format!("device.unpadded = \"always\": {issue}"))),
            None => Ok(model::compute_dtype(&config.model)),
        },
    }
}

/// Pins this rank to its share of the CPUs of the host, and logs the binding.
fn bind(threads: usize, gpu: Option<&Gpu>) {
    let binding =
        cpu_affinity::bind(lambert_collective::world::detect().as_ref(), gpu.map(|gpu| &*gpu.properties.pci_bus_id));
    let device = gpu.map_or_else(String::new, |gpu| format!("{gpu}, "));
    let threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
    tracing::info!("{device}{threads}, {binding}");
}

/// Reads the configuration that the coordinator stored in the run, and the SHA-256 of its file.
pub fn read_config(store: &Store) -> Result<(RunConfig, String), Error> {
    let bytes = match store.get(CONFIG) {
        Err(lambert_store::Error::NotFound { .. }) => {
            return Err(Error::Usage(format!("{} is not a run: {CONFIG} not found", store.url())));
        }
        other => other?,
    };
    let origin = format!("{}/{CONFIG}", store.url());
    let text = String::from_utf8(bytes.to_vec()).map_err(|_| Error::Usage(format!("{origin} is not UTF-8")))?;
    let mut config: RunConfig = Layers::default().parse(&text, &origin)?;
    if let Some(teacher) = &mut config.objective.teacher {
        teacher.info = teacher_info(store)?.map(Box::new);
    }
    Ok((config, lambert_store::hash::sha256(&bytes)))
}

/// Reads the description of the teacher of a run. `None` if the run has not been started yet.
fn teacher_info(store: &Store) -> Result<Option<TeacherInfo>, Error> {
    let bytes = match store.get(TEACHER_INFO) {
        Err(error) if error.is_not_found() => return Ok(None),
        found => found?,
    };
    let origin = format!("{}/{TEACHER_INFO}", store.url());
    Ok(Some(TeacherInfo::parse(&String::from_utf8_lossy(&bytes), &origin)?))
}

/// Joins the ranks that the launcher started, and checks that their number is `world`.
fn join(config: &RunConfig, world: Option<usize>) -> Result<Endpoints, Error> {
    if let Some(launcher) = lambert_collective::world::unsupported_launcher() {
        return Err(Error::Usage(format!("{launcher}; use `lambert run`")));
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
        return Err(Error::Usage(format!("expected {world} workers in this attempt, but MPI started {here}")));
    }
    Ok(ranks)
}

/// Replaces the reducer by NCCL, which all-reduces between GPUs. MPI still detects absent ranks.
fn use_nccl_reducer(ranks: Endpoints, nccl: &Nccl, gpu: &Gpu, options: nccl::NcclOptions) -> Result<Endpoints, Error> {
    let Endpoints { mut group, reducer } = ranks;
    let refused = |error: lambert_collective::Error| match error.is_nccl_unsupported() {
        true => Error::Device(DeviceError::Nccl(error)),
        false => Error::Collective(error),
    };
    let kernels = gpu.kernels.clone().ok_or_else(|| Error::Usage(format!("{gpu} has no kernels")))?;
    let stream = CommStream::new(gpu.index, kernels).map_err(DeviceError::Driver)?;
    let reducer = nccl::init(&mut *group, reducer, &nccl.library, stream, options).map_err(refused)?;
    Ok(Endpoints { group, reducer })
}

/// Returns the sharing rule of GPUs.
fn sharing(is_allowed: bool, over_nccl: bool) -> DeviceSharing {
    match (is_allowed, over_nccl) {
        (false, false) => DeviceSharing::Forbidden,
        (true, false) => DeviceSharing::Allowed,
        (false, true) => DeviceSharing::ForbiddenByNccl,
        (true, true) => DeviceSharing::AllowedAcrossNcclHosts,
    }
}

/// MPI options.
fn options(cluster: &Cluster) -> mpi::MpiOptions {
    // No straggler timeout is needed, because the coordinator limits the time of live ranks.
    mpi::MpiOptions { stall_timeout: stall(cluster), straggler_timeout: NEVER, wire: wire(cluster) }
}

/// NCCL options.
fn nccl_options(cluster: &Cluster) -> nccl::NcclOptions {
    let (stall_timeout, join) = (stall(cluster), cluster.limits.join_seconds);
    // The coordinator ends ranks that have not joined after `join_seconds`. The NCCL error says more, so it comes earlier.
    let connect_timeout = limit(join / 2.0).max(stall_timeout);
    nccl::NcclOptions { connect_timeout, stall_timeout, wire: wire(cluster), ..nccl::NcclOptions::default() }
}

fn stall(cluster: &Cluster) -> Duration {
    limit(cluster.limits.stall_seconds)
}

/// Converts a limit of the configuration. 0 is no limit.
fn limit(seconds: f64) -> Duration {
    if seconds > 0.0 { duration::seconds(seconds) } else { NEVER }
}

fn wire(cluster: &Cluster) -> mpi::WireFormat {
    match cluster.all_reduce.dtype {
        ReduceDtype::Fp32 => mpi::WireFormat::F32,
        ReduceDtype::Bf16 => mpi::WireFormat::Bf16,
    }
}

/// Ten years: effectively no timeout.
const NEVER: Duration = Duration::from_secs(315_360_000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nccl_fails_to_connect_before_the_coordinator_gives_up() {
        let timeouts = |join_seconds, stall_seconds| {
            let mut cluster = Cluster::default();
            (cluster.limits.join_seconds, cluster.limits.stall_seconds) = (join_seconds, stall_seconds);
            let options = nccl_options(&cluster);
            [options.connect_timeout, options.stall_timeout].map(|timeout| timeout.as_secs())
        };
        assert_eq!(timeouts(300.0, 60.0), [150, 60]);
        assert_eq!(timeouts(80.0, 60.0), [60, 60], "no shorter than a sum");
        assert_eq!(timeouts(0.0, 0.0), [NEVER.as_secs(); 2], "0 is no limit");
    }
}
