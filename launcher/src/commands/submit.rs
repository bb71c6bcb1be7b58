//! `lambert submit`: submits a run to Slurm. Checks and stores the configuration before the submission, and rejects
//! jobs that could never start. A user thus sees such errors at once and not hours later in a log.

use std::path::Path;

use lambert_config::run::DeviceKind;
use lambert_config::{ConfigIssue, RunConfig, exit};
use lambert_progress::Progress;
use lambert_store::Store;
use serde_json::json;

use super::stored_run;
use super::submit_prep;
use crate::cli;
use crate::console;
use crate::decide::{HostPool, RestartHistory};
use crate::failure::{Failure, Outcome};
use crate::host::now;
use crate::run::open_datasets::OpenDatasets;
use crate::run::sources::STOP_OBJECT;
use crate::run::spec::RunSpec;
use crate::slurm::programs::SlurmError;
use crate::slurm::record::JobRecord;
use crate::slurm::submission_lock::SubmissionLock;
use crate::slurm::{cluster, script};
use crate::status::Status;
use crate::status::stored::{self, Liveness, before};

#[derive(Debug, thiserror::Error)]
enum SubmitError {
    #[error("cannot find {what}")]
    Place { what: &'static str, source: std::io::Error },
    #[error("{url} is already in the queue as job {job} ({state}); cancel it with `lambert stop {url}`")]
    Queued { url: String, job: String, state: String },
    #[error("{url} was submitted as job {job}, whose state is unknown: try again, or run `lambert stop {url}`")]
    Unknown { url: String, job: String, source: SlurmError },
    #[error(
        "{url} is running: its coordinator (pid {pid}, host {host}) wrote its status {age:.0} s ago; stop it with `lambert stop \
         {url}`, or wait a minute if it was killed"
    )]
    Coordinated { url: String, pid: u32, host: String, age: f64 },
    #[error(
        "slurm.lead_seconds = {lead}: must be at least {}: a checkpoint takes {save:.1} s (median) and a step {step:.1} s",
        (save + step).ceil()
    )]
    ShortLead { lead: u64, save: f64, step: f64 },
    #[error("{0}")]
    FewGpus(ConfigIssue),
    #[error("job {job} is queued, but cannot be recorded in the run's store: `lambert status` will not show it")]
    Record { job: String, source: lambert_store::Error },
}

/// Prints or submits the batch script.
pub fn submit(arguments: &cli::Submit) -> Outcome {
    let place = |what| move |source| Failure::failed(SubmitError::Place { what, source });
    let folder = std::env::current_dir().map_err(place("the working directory"))?;
    let lambert = std::env::current_exe().map_err(place("the path of this executable"))?;
    let _progress = Progress::start("submitting");
    match &arguments.run {
        Some(run) => submit_run(arguments, run, &folder, &lambert.to_string_lossy()),
        None => submit_prep::submit(arguments, &folder, &lambert.to_string_lossy()),
    }
}

fn submit_run(arguments: &cli::Submit, run: &str, folder: &Path, lambert: &str) -> Outcome {
    let host_pool = |_: &_| HostPool::Allocation(Vec::new());
    let validated = RunSpec::validate(&arguments.to_run(run), host_pool, &OpenDatasets::default())?;
    refuse_few_gpus(validated.config()).map_err(Failure::usage)?;
    warn_of_unused_gpus(validated.config());
    let folder_name = folder.to_string_lossy();
    let cpus_per_rank = cpus_per_rank(validated.config());
    let job = script::ScriptParams { run: validated.store().url(), lambert, folder: &folder_name, cpus_per_rank };
    let script = script::render(validated.config(), &job).map_err(Failure::usage)?;
    if arguments.dry_run {
        console::result(script.trim_end()).map_err(Failure::failed)?;
        return Ok(exit::DONE);
    }
    let (store, last) = (validated.store().clone(), before(validated.store()));
    refuse_coordinated(&store, &last)?;
    refuse_short_lead(validated.config().slurm.lead_seconds, &stored_run::history(&store)?, &last)
        .map_err(Failure::usage)?;
    cluster::check(&validated.config().slurm, folder).map_err(Failure::usage)?;
    let _lock = SubmissionLock::take(&store).map_err(Failure::failed)?;
    refuse_queued(&store)?;
    let spec = validated.commit()?;
    // A stop request for an earlier job does not apply to the new job.
    spec.store.delete(STOP_OBJECT).map_err(Failure::failed)?;
    let number = cluster::submit(&script).map_err(Failure::usage)?;
    let record = JobRecord { job: number.clone(), cluster: None };
    let untold = |source| Failure::failed(SubmitError::Record { job: number.clone(), source });
    record.write(&spec.store).map_err(untold)?;
    let text = if arguments.json { json!({ "job": number }).to_string() } else { number };
    console::result(&text).map_err(Failure::failed)?;
    Ok(exit::DONE)
}

fn cpus_per_rank(config: &RunConfig) -> usize {
    let (slurm, ranks) = (&config.slurm, config.cluster.ranks);
    let available = || Some(cluster::node_cpus(slurm)? / slurm.ranks_per_node(ranks).max(1));
    config.cpus_per_rank(slurm.gpus_per_node, available)
}

/// Rejects a job whose nodes have fewer GPUs than ranks that need one. Slurm would accept it if nodes had enough CPUs.
fn refuse_few_gpus(config: &RunConfig) -> Result<(), SubmitError> {
    let issue = config.slurm.gpu_issue(config.cluster.ranks);
    match issue.filter(|_| !config.device.share && config.device.kind != DeviceKind::Cpu) {
        Some(issue) => Err(SubmitError::FewGpus(issue)),
        None => Ok(()),
    }
}

/// Warns if a job reserves GPUs but trains on CPUs.
fn warn_of_unused_gpus(config: &RunConfig) {
    if config.slurm.gpus_per_node > 0 && config.device.kind == DeviceKind::Cpu {
        let gpus = config.slurm.gpus_per_node;
        tracing::warn!("slurm.gpus_per_node = {gpus} reserves GPUs, but device.kind = \"cpu\" trains on CPUs");
    }
}

/// Rejects a second job for the same run, because the two jobs would take the run from each other.
fn refuse_queued(store: &Store) -> Result<(), Failure> {
    let url = store.url().to_owned();
    match stored_run::job_of(store)? {
        Some((_, Ok(Some(job)))) if job.is_alive() => {
            Err(Failure::usage(SubmitError::Queued { url, job: job.id, state: job.state }))
        }
        Some((record, Err(source))) => Err(Failure::failed(SubmitError::Unknown { url, job: record.job, source })),
        _ => Ok(()),
    }
}

/// Rejects a run with a live coordinator, because the job would take the run over from this coordinator.
fn refuse_coordinated(store: &Store, last: &Status) -> Result<(), Failure> {
    if stored::liveness(last) != Liveness::Alive {
        return Ok(());
    }
    let (url, age) = (store.url().to_owned(), now() - last.updated);
    let (pid, host) = (last.coordinator.pid, last.coordinator.host.clone());
    Err(Failure::usage(SubmitError::Coordinated { url, pid, host, age }))
}

/// Rejects a lead time that is shorter than the duration of the last step plus the median duration of a checkpoint.
/// Accepts any lead time if no checkpoint duration is known.
fn refuse_short_lead(lead: u64, history: &RestartHistory, last: &Status) -> Result<(), SubmitError> {
    let Some(save) = history.median_save() else { return Ok(()) };
    let step = last.latest.record.as_ref().map_or(0.0, |record| record.times.seconds);
    if lead as f64 >= save + step {
        return Ok(());
    }
    Err(SubmitError::ShortLead { lead, save, step })
}

#[cfg(test)]
mod tests {
    use lambert_control::{StepRecord, StepTimes};

    use super::*;
    use crate::status::LatestMetrics;

    #[test]
    fn ranks_on_gpus_need_enough_of_them() {
        let mut config = RunConfig::default();
        (config.cluster.ranks, config.slurm.gpus_per_node) = (1024, 8);
        let refused = refuse_few_gpus(&config).unwrap_err().to_string();
        assert_eq!(refused, "slurm.nodes: 1024 ranks need 128 nodes of 8 GPUs; set slurm.nodes = 128");
        config.device.share = true;
        assert!(refuse_few_gpus(&config).is_ok());
        (config.device.share, config.device.kind) = (false, DeviceKind::Cpu);
        assert!(refuse_few_gpus(&config).is_ok());
    }

    #[test]
    fn the_lead_time_covers_a_step_and_a_checkpoint() {
        let history = RestartHistory { recent_saves: vec![90.0, 110.0, 500.0], ..RestartHistory::default() };
        let times = StepTimes { seconds: 15.5, ..StepTimes::default() };
        let record = StepRecord { times, ..StepRecord::default() };
        let latest = LatestMetrics { record: Some(record), ..LatestMetrics::default() };
        let last = Status { latest, ..Status::default() };
        assert!(refuse_short_lead(126, &history, &last).is_ok());
        let output = refuse_short_lead(125, &history, &last).unwrap_err().to_string();
        assert!(output.starts_with("slurm.lead_seconds = 125: must be at least 126: "), "{output}");
        assert!(refuse_short_lead(110, &history, &Status::default()).is_ok(), "no step is known");
        assert!(refuse_short_lead(1, &RestartHistory::default(), &last).is_ok(), "no checkpoint is known");
    }
}
