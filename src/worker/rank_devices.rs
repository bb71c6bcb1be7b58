//! Devices of the ranks: the check at the start of an attempt, and the record for later attempts.
//!
//! If a GPU drops off a host, CUDA counts the other GPUs from 0, and two ranks of the host get the same GPU. The record of
//! an earlier attempt tells this failure of a host from a wrong configuration.

use lambert_collective::{Group, world};
use lambert_config::RunConfig;
use lambert_config::run::DeviceKind;
use lambert_store::{Store, run};
use serde::{Deserialize, Serialize};

use crate::error::{Error, chain};
use crate::gpu::conflicts::{
    DeviceConflict, DeviceSharing, LostGpus, RankDevice, by_host, find_conflict, hosts_with_too_few_gpus,
};
use crate::gpu::{ComputeDevice, DeviceError};
use crate::worker::agreement;
use crate::worker::attempts;

/// Device settings of a run.
#[derive(Debug, Clone, Copy)]
pub struct DevicePolicy {
    pub kind: DeviceKind,
    pub sharing: DeviceSharing,
}

/// Records of the devices of a run, as seen by an attempt.
#[derive(Debug, Clone, Copy)]
pub struct DeviceRecords<'a> {
    /// Store of the run.
    pub store: &'a Store,
    /// Attempt of this process.
    pub attempt: u32,
}

/// Ranks of a host whose GPUs are compared with those of earlier attempts.
struct HostRanks<'a> {
    /// Devices of the ranks. There is at least one.
    now: Vec<&'a RankDevice>,
    /// Minimum number of ranks that an earlier attempt must have had on the host.
    ranks: usize,
    /// True if this attempt has other hosts, which may have no such problem. A host without an earlier attempt is then
    /// compared with other hosts.
    has_others: bool,
}

/// Result of the check, equal on all ranks.
#[derive(Serialize, Deserialize)]
enum DeviceCheck {
    /// The devices are usable.
    Passed {
        warning: Option<String>,
    },
    Conflict(DeviceConflict),
    Lost(LostGpus),
    /// Rank 0 has a store error.
    Unknown,
}

/// Loads the device of this rank ([`ComputeDevice::load`]). The error of a rank without a GPU is [`DeviceError::Lost`] if
/// an earlier attempt of the run at `url` used GPUs on this host.
///
/// # Errors
/// The device cannot be used.
pub fn load(url: &str, attempt: u32, config: &RunConfig) -> Result<ComputeDevice, Error> {
    match ComputeDevice::load(&config.device, config.cluster.all_reduce.backend) {
        Err(error) if error.is_without_gpu() => {
            let world = world::detect();
            let (rank, ranks, size) = world.map_or((0, 1, 1), |world| (world.rank, world.local_size, world.size));
            let store = Store::open(url)?;
            let records = DeviceRecords { store: &store, attempt };
            let own = RankDevice::local(rank, None);
            Err(explain(error, HostRanks { now: vec![&own], ranks, has_others: size > ranks }, records))
        }
        loaded => Ok(loaded?),
    }
}

/// Returns [`DeviceError::Lost`] in place of the error of a rank that sees no GPU, if earlier attempts show that its host
/// has lost its GPUs. `own` has only this rank.
fn explain(error: DeviceError, own: HostRanks<'_>, records: DeviceRecords<'_>) -> Error {
    match find_lost(vec![own], records) {
        Ok(Some(lost)) => {
            tracing::error!("{}", chain(&error));
            DeviceError::Lost(lost.seen_by_one_rank()).into()
        }
        Ok(None) => error.into(),
        Err(unread) => {
            tracing::warn!("cannot read the devices of earlier attempts: {}", chain(&unread));
            error.into()
        }
    }
}

/// Checks the devices of all ranks, and records them if they are usable and a rank has a GPU. Returns a warning for the user, if any.
/// Collective.
///
/// # Errors
/// - The devices of two ranks are incompatible.
/// - A host has lost GPUs: [`DeviceError::Lost`] on its ranks, [`Error::Peer`] on the others.
/// - A failed collective, or a store error.
pub fn check(
    group: &mut dyn Group,
    own: &RankDevice,
    policy: DevicePolicy,
    records: DeviceRecords<'_>,
) -> Result<Option<String>, Error> {
    let mut failed = None;
    let checked = agreement::gather_and_decide(group, own, |all: &[RankDevice]| {
        let checked = decide(all, policy, records).and_then(|checked| {
            let uses_gpus = all.iter().any(|device| device.gpu().is_some());
            if uses_gpus && matches!(checked, DeviceCheck::Passed { .. }) {
                let text = serde_json::to_vec_pretty(all).map_err(Error::Json)?;
                records.store.put(&run::devices(records.attempt), text.into())?;
            }
            Ok(checked)
        });
        checked.unwrap_or_else(|error| {
            failed = Some(error);
            DeviceCheck::Unknown
        })
    })?;
    match checked {
        DeviceCheck::Passed { warning } => Ok(warning),
        DeviceCheck::Conflict(conflict) => Err(DeviceError::Conflict(conflict).into()),
        DeviceCheck::Lost(lost) if lost.host == own.host => Err(DeviceError::Lost(lost).into()),
        DeviceCheck::Lost(_) => Err(Error::Peer("another host has lost a GPU")),
        DeviceCheck::Unknown => {
            Err(failed.unwrap_or(Error::Peer("rank 0 could not read or write the devices of the ranks")))
        }
    }
}

/// Checks the devices `all` of the ranks. Does not record them.
fn decide(all: &[RankDevice], policy: DevicePolicy, records: DeviceRecords<'_>) -> Result<DeviceCheck, Error> {
    let conflict = find_conflict(all, policy.sharing);
    // With "auto", ranks without GPUs are permitted. They must not be the result of a failure.
    let falls_back = policy.kind == DeviceKind::Auto && all.iter().all(|device| device.gpu().is_none());
    if conflict.is_some() || falls_back {
        let affected = hosts_with_too_few_gpus(all);
        let has_others = affected.len() < by_host(all).len();
        let hosts = affected.into_iter().map(|now| HostRanks { ranks: now.len(), now, has_others }).collect();
        if let Some(lost) = find_lost(hosts, records)? {
            return Ok(DeviceCheck::Lost(lost));
        }
    }
    match conflict {
        Some(conflict) => Ok(DeviceCheck::Conflict(conflict)),
        None if falls_back => Ok(DeviceCheck::Passed { warning: cpu_warning(records)? }),
        None => Ok(DeviceCheck::Passed { warning: None }),
    }
}

/// Returns the first host that has lost GPUs. For each host, compares with the newest earlier attempt that had as many
/// ranks there. If there is none, a requeued job may have got this host in place of another one: compares with the newest
/// attempt that had as many ranks on any host.
fn find_lost(mut hosts: Vec<HostRanks<'_>>, records: DeviceRecords<'_>) -> Result<Option<LostGpus>, Error> {
    let DeviceRecords { store, attempt } = records;
    for number in attempts::earlier(store, run::DEVICES, attempt)?.into_iter().rev() {
        if hosts.is_empty() {
            break;
        }
        let Some(all) = attempts::read::<Vec<RankDevice>>(store, run::DEVICES, number)? else { continue };
        let mut others = Vec::new();
        for host in hosts {
            let then: Vec<&RankDevice> = all.iter().filter(|device| device.host == host.now[0].host).collect();
            if then.len() < host.ranks {
                others.push(host);
            } else if let Some(lost) = LostGpus::find(&host.now, number, &then) {
                return Ok(Some(lost));
            }
        }
        hosts = others;
    }
    hosts.retain(|host| host.has_others);
    find_fewer_than_elsewhere(&hosts, records)
}

fn find_fewer_than_elsewhere(hosts: &[HostRanks<'_>], records: DeviceRecords<'_>) -> Result<Option<LostGpus>, Error> {
    if hosts.is_empty() {
        return Ok(None);
    }
    let DeviceRecords { store, attempt } = records;
    let Some(newest) = attempts::earlier(store, run::DEVICES, attempt)?.pop() else { return Ok(None) };
    let all: Vec<RankDevice> = attempts::read(store, run::DEVICES, newest)?.unwrap_or_default();
    let then = by_host(&all);
    let find = |host: &HostRanks<'_>| {
        let same = then.iter().filter(|then| then.len() == host.ranks);
        same.filter_map(|then| LostGpus::find_elsewhere(&host.now, newest, then)).next()
    };
    Ok(hosts.iter().find_map(find))
}

/// Returns a warning if an earlier attempt used GPUs. This attempt computes on CPUs.
fn cpu_warning(DeviceRecords { store, attempt }: DeviceRecords<'_>) -> Result<Option<String>, Error> {
    let Some(newest) = attempts::earlier(store, run::DEVICES, attempt)?.pop() else { return Ok(None) };
    let all: Vec<RankDevice> = attempts::read(store, run::DEVICES, newest)?.unwrap_or_default();
    let gpus = all.iter().filter(|device| device.gpu().is_some()).count();
    let warning = format!(
        "no rank sees a GPU, and {gpus} ranks of attempt {newest} did: training continues on CPUs; set device.kind = \"cuda\" \
         to require GPUs"
    );
    Ok((gpus > 0).then_some(warning))
}

#[cfg(test)]
mod tests {
    use lambert_control::FailureKind;

    use super::*;
    use crate::gpu::conflicts::tests::{devices, with_visible_devices};

    const CUDA: DevicePolicy = DevicePolicy { kind: DeviceKind::Cuda, sharing: DeviceSharing::Forbidden };
    const AUTO: DevicePolicy = DevicePolicy { kind: DeviceKind::Auto, sharing: DeviceSharing::ForbiddenByNccl };
    /// Four ranks on two hosts.
    const FOUR: [(&str, &str); 4] = [("a", "1"), ("a", "2"), ("b", "1"), ("b", "2")];

    /// A run whose attempts have thread groups as ranks.
    struct TestRun {
        store: Store,
        _folder: tempfile::TempDir,
    }

    impl TestRun {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            Self { store: Store::open(folder.path().to_str().unwrap()).unwrap(), _folder: folder }
        }

        /// Checks the devices of an attempt. Returns the results of the ranks.
        fn check(
            &self,
            attempt: u32,
            devices: &[RankDevice],
            policy: DevicePolicy,
        ) -> Vec<Result<Option<String>, Error>> {
            let ranks = lambert_collective::local::group(devices.len()).into_iter().zip(devices);
            std::thread::scope(|scope| {
                let check = |(mut ends, own): (lambert_collective::Endpoints, &RankDevice)| {
                    check(&mut *ends.group, own, policy, DeviceRecords { store: &self.store, attempt })
                };
                let threads: Vec<_> = ranks.map(|rank| scope.spawn(move || check(rank))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            })
        }

        fn record(&self, attempt: u32) -> Option<Vec<RankDevice>> {
            attempts::read(&self.store, run::DEVICES, attempt).unwrap()
        }
    }

    fn kinds(results: &[Result<Option<String>, Error>]) -> Vec<Option<FailureKind>> {
        results.iter().map(|result| result.as_ref().err().map(Error::failure_kind)).collect()
    }

    fn message(result: &Result<Option<String>, Error>) -> String {
        result.as_ref().unwrap_err().to_string()
    }

    #[test]
    fn a_lost_gpu_is_a_failure_of_its_host_only() {
        let run = TestRun::new();
        assert_eq!(kinds(&run.check(1, &devices(&FOUR), CUDA)), [None; 4]);
        assert_eq!(run.record(1), Some(devices(&FOUR)));
        // Host b has lost GPU 2, so both its ranks use GPU 1. A failed attempt is not recorded, so later ones fail alike.
        let lost = devices(&[("a", "1"), ("a", "2"), ("b", "1"), ("b", "1")]);
        for attempt in [2, 3] {
            let failed = run.check(attempt, &lost, CUDA);
            let (host, peer) = (Some(FailureKind::Host), Some(FailureKind::Transient));
            assert_eq!(kinds(&failed), [peer, peer, host, host]);
            let expected = "host b has lost GPU 2 (UUID uuid of 2): attempt 1 used 2 there, and this attempt finds 1";
            assert!(message(&failed[2]).starts_with(expected), "{}", message(&failed[2]));
            assert_eq!(run.record(attempt), None);
        }
        // The run continues on another host, or with one rank on host b.
        let elsewhere = devices(&[("a", "1"), ("a", "2"), ("c", "1"), ("c", "2")]);
        assert_eq!(kinds(&run.check(4, &elsewhere, CUDA)), [None; 4]);
        assert_eq!(kinds(&run.check(5, &devices(&[("a", "1"), ("a", "2"), ("b", "1")]), CUDA)), [None; 3]);
        // Attempt 5 had fewer ranks on host b, so attempt 1 is the one to compare with.
        assert!(message(&run.check(6, &lost, CUDA)[3]).contains("attempt 1 used 2 there"));
        assert_eq!(kinds(&run.check(7, &devices(&FOUR), CUDA)), [None; 4]);
    }

    #[test]
    fn conflicts_without_a_loss_are_errors_of_the_configuration() {
        let run = TestRun::new();
        let usage = [Some(FailureKind::Usage); 2];
        let (two, shared) = (devices(&[("a", "1"), ("a", "2")]), devices(&[("a", "1"), ("a", "1")]));
        let first = run.check(1, &shared, CUDA);
        assert_eq!(kinds(&first), usage);
        assert!(message(&first[0]).starts_with("ranks 0 and 1 share GPU 1 on host a"), "{}", message(&first[0]));
        // More ranks than before.
        assert_eq!(kinds(&run.check(2, &devices(&[("a", "1")]), CUDA)), [None]);
        assert_eq!(kinds(&run.check(3, &shared, CUDA)), usage);
        // The user or the launcher has hidden a GPU.
        let visible = |devices: &[RankDevice], value| with_visible_devices(devices.to_vec(), &[value; 2]);
        assert_eq!(kinds(&run.check(4, &visible(&two, "0,1"), CUDA)), [None; 2]);
        assert_eq!(kinds(&run.check(5, &visible(&shared, "0"), CUDA)), usage);
        assert_eq!(kinds(&run.check(6, &visible(&shared, "0,1"), CUDA)), [Some(FailureKind::Host); 2]);
        // The user permits ranks to share a GPU.
        let sharing = DevicePolicy { sharing: DeviceSharing::Allowed, ..CUDA };
        assert_eq!(kinds(&run.check(7, &visible(&shared, "0,1"), sharing)), [None; 2]);
    }

    #[test]
    fn auto_does_not_replace_lost_gpus_by_cpus() {
        let run = TestRun::new();
        let cpus = devices(&[("a", ""), ("a", ""), ("b", ""), ("b", "")]);
        let warnings = |results: &[Result<Option<String>, Error>]| {
            results.iter().filter_map(|result| result.as_ref().ok()?.clone()).collect::<Vec<_>>()
        };
        assert_eq!(warnings(&run.check(1, &cpus, AUTO)), [""; 0]);
        assert_eq!(run.store.list("devices").unwrap().len(), 0, "CPUs are not recorded");
        assert_eq!(kinds(&run.check(2, &devices(&FOUR), AUTO)), [None; 4]);
        // All hosts, then one host, see no GPU any more.
        let failed = run.check(3, &cpus, AUTO);
        assert_eq!(kinds(&failed)[0], Some(FailureKind::Host));
        assert!(
            message(&failed[0]).starts_with("host a has lost GPUs 1 (UUID uuid of 1), 2"),
            "{}",
            message(&failed[0])
        );
        let mixed = run.check(4, &devices(&[("a", "1"), ("a", "2"), ("b", ""), ("b", "")]), AUTO);
        assert_eq!(kinds(&mixed)[3], Some(FailureKind::Host), "{}", message(&mixed[3]));
        // The user hides the GPUs, or chooses the CPU.
        let hidden = run.check(5, &with_visible_devices(cpus.clone(), &[""; 4]), AUTO);
        assert!(warnings(&hidden)[0].contains("4 ranks of attempt 2 did: training continues on CPUs"));
        assert_eq!(kinds(&run.check(6, &devices(&FOUR), AUTO)), [None; 4]);
        let cpu = DevicePolicy { kind: DeviceKind::Cpu, ..AUTO };
        assert_eq!(warnings(&run.check(7, &cpus, cpu)), [""; 0]);
    }

    #[test]
    fn a_rank_without_a_gpu_compares_before_it_joins() {
        let run = TestRun::new();
        let explain_on = |host: &str, has_others, attempt, ranks| {
            let own = &devices(&[(host, "")])[0];
            let own = HostRanks { now: vec![own], ranks, has_others };
            explain(DeviceError::NoGpu, own, DeviceRecords { store: &run.store, attempt })
        };
        let explain = |attempt, ranks| explain_on("a", false, attempt, ranks).failure_kind();
        assert_eq!(explain(1, 2), FailureKind::Usage, "no earlier attempt");
        assert_eq!(kinds(&run.check(1, &devices(&FOUR), CUDA)), [None; 4]);
        assert_eq!(explain(2, 2), FailureKind::Host);
        let lost = explain_on("a", false, 2, 2);
        let expected = "host a has lost a GPU: attempt 1 used 2 there, and a rank sees none now; check the host";
        assert!(chain(&lost).contains(expected), "{}", chain(&lost));
        assert_eq!(explain(2, 3), FailureKind::Usage, "more ranks than before");
        let new = explain_on("c", true, 2, 2);
        let expected = "host c has too few GPUs: attempt 1 used 2 on host a, and a rank sees none now; check the host";
        assert!(chain(&new).contains(expected), "{}", chain(&new));
        assert_eq!(explain_on("c", false, 2, 2).failure_kind(), FailureKind::Usage, "there is no other host");
    }

    /// A requeued job has other hosts than before.
    #[test]
    fn a_new_host_with_fewer_gpus_than_others_had_is_at_fault() {
        let run = TestRun::new();
        assert_eq!(kinds(&run.check(1, &devices(&FOUR), CUDA)), [None; 4]);
        let (host, peer, usage) = (Some(FailureKind::Host), Some(FailureKind::Transient), Some(FailureKind::Usage));
        let failed = run.check(2, &devices(&[("a", "1"), ("a", "2"), ("c", "1"), ("c", "1")]), CUDA);
        assert_eq!(kinds(&failed), [peer, peer, host, host]);
        let expected = "host c has too few GPUs: attempt 1 used 2 on host a, and this attempt finds 1; check the host";
        assert!(message(&failed[2]).starts_with(expected), "{}", message(&failed[2]));
        let all = run.check(3, &devices(&[("c", "1"), ("c", "1"), ("d", "1"), ("d", "1")]), CUDA);
        assert_eq!(kinds(&all), [usage; 4], "the configuration may not fit to these hosts");
        let more = [("a", "1"), ("c", "1"), ("c", "2"), ("c", "2")];
        assert_eq!(kinds(&run.check(4, &devices(&more), CUDA)), [usage; 4], "more ranks than on any host before");
    }
}
