//! Checks, submits and cancels Slurm jobs. `sbatch --test-only` accepts jobs that can never start, so this module
//! compares a job with the limits of the cluster before it submits the job.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use lambert_config::run::Slurm;

use super::programs::{SlurmError, query, text};

/// A job cannot be submitted.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A Slurm program failed.
    #[error(transparent)]
    Ask(#[from] SlurmError),
    /// The job could never start, or its output would be lost.
    #[error("{}", list(faults))]
    Faults {
        /// Errors, each with its configuration key.
        faults: Vec<String>,
    },
}

fn list(faults: &[String]) -> String {
    match faults {
        [one] => one.clone(),
        _ => format!(
            "the job has {} errors:{}",
            faults.len(),
            faults.iter().map(|fault| format!("\n  {fault}")).collect::<String>()
        ),
    }
}

/// Rejects a job that Slurm would accept, but that could never start or whose output would be lost.
pub fn check(slurm: &Slurm, folder: &Path) -> Result<(), ClusterError> {
    let partitions = partitions(&query("sinfo", &["--noheader", "--all", "--format=%P|%D|%l"])?);
    let mut faults = check_partitions(slurm, &partitions);
    faults.extend(check_association(slurm)?);
    // Slurm expands `%` patterns in the path. A directory whose name contains a pattern is not checked.
    let output = folder.join(&slurm.output);
    if let Some(parent) = output.parent().filter(|parent| !parent.to_string_lossy().contains('%'))
        && !parent.is_dir()
    {
        faults.push(format!(
            "slurm.output: directory {} does not exist; the output of the job would be lost",
            parent.display()
        ));
    }
    if faults.is_empty() { Ok(()) } else { Err(ClusterError::Faults { faults }) }
}

/// Returns the CPUs of the smallest node that the job can get. `None` if Slurm does not tell.
pub fn node_cpus(slurm: &Slurm) -> Option<usize> {
    let mut arguments = vec!["--noheader".to_owned(), "--exact".to_owned(), "--format=%P|%c".to_owned()];
    arguments.extend(slurm.partition.as_ref().map(|name| format!("--partition={name}")));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    smallest_node(&query("sinfo", &arguments).ok()?, slurm.partition.is_none())
}

/// Parses lines of `PARTITION|CPUS`. A star marks the default partition.
fn smallest_node(text: &str, only_default: bool) -> Option<usize> {
    let lines = text.lines().filter_map(|line| line.trim().split_once('|'));
    let meant = lines.filter(|(name, _)| !only_default || name.ends_with('*'));
    meant.filter_map(|(_, cpus)| cpus.trim().trim_end_matches('+').parse().ok()).min()
}

/// Checks the configured partitions, or the default partition if none is configured. If several partitions are
/// configured, the job has to fit only one of them.
fn check_partitions(slurm: &Slurm, partitions: &[Partition]) -> Vec<String> {
    let named: Vec<&str> = slurm.partition.iter().flat_map(|named| named.split(',')).collect();
    let is_meant = |partition: &&Partition| match named[..] {
        [] => partition.is_default,
        _ => named.contains(&partition.name.as_str()),
    };
    let meant: Vec<&Partition> = partitions.iter().filter(is_meant).collect();
    let unknown = named.iter().filter(|name| !partitions.iter().any(|partition| partition.name == **name));
    let mut faults: Vec<String> = unknown
        .map(|name| format!("slurm.partition: unknown partition {name:?}; expected one of {}", names(partitions)))
        .collect();
    if named.is_empty() && meant.is_empty() {
        faults.push(format!(
            "slurm.partition: is missing and the cluster has no default; expected one of {}",
            names(partitions)
        ));
    }
    let beyond: Vec<Vec<String>> = meant.iter().map(|partition| beyond(slurm, partition)).collect();
    if beyond.iter().all(|faults| !faults.is_empty()) {
        faults.extend(beyond.into_iter().flatten());
    }
    faults
}

/// A partition reported by sinfo.
#[derive(Debug, PartialEq, Eq)]
struct Partition {
    name: String,
    is_default: bool,
    nodes: usize,
    /// Time limit, seconds. `None`: unlimited.
    limit: Option<u64>,
}

/// Parses lines of `NAME|NODES|LIMIT`. A partition has several lines if its nodes differ. A star marks the default
/// partition.
fn partitions(text: &str) -> Vec<Partition> {
    let mut found: Vec<Partition> = Vec::new();
    for line in text.lines() {
        let mut fields = line.split('|');
        let (Some(name), Some(nodes), Some(limit)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let nodes = nodes.trim().parse().unwrap_or(0);
        let (name, is_default) = name.strip_suffix('*').map_or((name, false), |name| (name, true));
        match found.iter_mut().find(|partition| partition.name == name) {
            Some(partition) => partition.nodes += nodes,
            None => {
                let limit = Slurm { time: Some(limit.trim().to_owned()), ..Slurm::default() }.time_seconds();
                found.push(Partition { name: name.to_owned(), is_default, nodes, limit });
            }
        }
    }
    found
}

fn names(partitions: &[Partition]) -> String {
    partitions.iter().map(|partition| partition.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// Returns an error message for each limit of the partition that the job exceeds.
fn beyond(slurm: &Slurm, partition: &Partition) -> Vec<String> {
    let (mut faults, name) = (Vec::new(), &partition.name);
    if slurm.nodes > partition.nodes {
        faults.push(format!("slurm.nodes: is {}; partition {name} has {}", slurm.nodes, partition.nodes));
    }
    if let (Some(time), Some(limit), Some(text)) = (slurm.time_seconds(), partition.limit, &slurm.time)
        && time > limit
    {
        faults.push(format!("slurm.time: is {text}; partition {name} allows at most {limit} s"));
    }
    faults
}

/// Checks that the user has access to the configured account and QOS, if Slurm has accounting.
fn check_association(slurm: &Slurm) -> Result<Vec<String>, ClusterError> {
    if slurm.account.is_none() && slurm.qos.is_none() {
        return Ok(Vec::new());
    }
    let user = format!("user={}", user());
    let Ok(printed) =
        query("sacctmgr", &["--noheader", "--parsable2", "show", "association", &user, "format=account,qos"])
    else {
        // Without accounting there is nothing to check. sbatch accepts or rejects the job.
        return Ok(Vec::new());
    };
    let held: Vec<(&str, &str)> = printed.lines().filter_map(|line| line.trim().split_once('|')).collect();
    if held.is_empty() {
        return Ok(Vec::new());
    }
    let mut faults = Vec::new();
    if let Some(account) = &slurm.account
        && !held.iter().any(|(held, _)| held == account)
    {
        let accounts: Vec<&str> = held.iter().map(|(account, _)| *account).collect();
        faults.push(format!("slurm.account: no access to {account:?}; expected one of {}", accounts.join(", ")));
    }
    let own = |(account, _): &&(&str, &str)| slurm.account.as_deref().is_none_or(|own| own == *account);
    let qos: Vec<&str> = held.iter().filter(own).flat_map(|(_, qos)| qos.split(',')).collect();
    if let Some(wanted) = &slurm.qos
        && !qos.is_empty()
        && !qos.contains(&wanted.as_str())
    {
        faults.push(format!("slurm.qos: no access to {wanted:?}; expected one of {}", qos.join(", ")));
    }
    Ok(faults)
}

/// Name of the current user, or the numeric user ID if the user has no name.
fn user() -> String {
    let named = Command::new("id").arg("-un").output();
    let name = named.ok().filter(|output| output.status.success()).map(|output| text(&output.stdout));
    name.unwrap_or_else(|| rustix::process::geteuid().as_raw().to_string())
}

/// Cancels a job in any state.
pub fn cancel(job: &str) -> Result<(), SlurmError> {
    query("scancel", &[job]).map(drop)
}

/// Cancels a job only if the job is pending.
pub fn cancel_pending(job: &str) -> Result<(), SlurmError> {
    query("scancel", &["--state=PENDING", job]).map(drop)
}

/// Submits a script with sbatch. Returns the job ID.
pub fn submit(script: &str) -> Result<String, ClusterError> {
    let program = "sbatch";
    let absent = |source| SlurmError::Absent { program, source };
    let mut command = Command::new(program);
    command.arg("--parsable");
    // SBATCH_ variables override the script. For example, SBATCH_EXPORT=ALL would pass every secret in the environment
    // to Slurm.
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| name.as_encoded_bytes().starts_with(b"SBATCH_")) {
        command.env_remove(name);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut sbatch = command.spawn().map_err(absent)?;
    // If sbatch exits before it has read the whole script, its stderr states the reason.
    let _ = sbatch.stdin.take().map(|mut stdin| stdin.write_all(script.as_bytes()));
    let output = sbatch.wait_with_output().map_err(absent)?;
    if !output.status.success() {
        return Err(SlurmError::Refused { program, stderr: text(&output.stderr) }.into());
    }
    // In a federation, the cluster name follows the job ID.
    Ok(text(&output.stdout).split(';').next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_of_the_smallest_node_of_the_partition() {
        let text = "batch*|64\nbatch*|32\ngpu|16+\n";
        assert_eq!(smallest_node(text, true), Some(32));
        assert_eq!(smallest_node(text, false), Some(16));
        assert_eq!(smallest_node("gpu|16\n", true), None, "no default partition");
        assert_eq!(smallest_node("", false), None);
    }

    #[test]
    fn missing_resources_of_a_partition_are_reported() {
        // Output of sinfo, with one line per node state of a partition.
        let found = partitions("batch*|2|1:00:00\nbatch*|1|1:00:00\ngpu|4|infinite\n");
        let partition =
            |name: &str, is_default, nodes, limit| Partition { name: name.to_owned(), is_default, nodes, limit };
        assert_eq!(found, [partition("batch", true, 3, Some(3600)), partition("gpu", false, 4, None)]);
        let asked = Slurm { nodes: 4, time: Some("1:00:01".into()), ..Slurm::default() };
        assert_eq!(
            beyond(&asked, &found[0]),
            [
                "slurm.nodes: is 4; partition batch has 3",
                "slurm.time: is 1:00:01; partition batch allows at most 3600 s"
            ]
        );
        assert_eq!(beyond(&asked, &found[1]), [""; 0]);
        let of = |named: Option<&str>, found: &[Partition]| {
            check_partitions(&Slurm { partition: named.map(str::to_owned), ..asked.clone() }, found)
        };
        assert_eq!(of(None, &found).len(), 2, "the default");
        assert_eq!(of(Some("batch,gpu"), &found), [""; 0], "one of them will do");
        assert_eq!(of(Some("gpu,x"), &found), ["slurm.partition: unknown partition \"x\"; expected one of batch, gpu"]);
        assert_eq!(
            of(None, &found[1..]),
            ["slurm.partition: is missing and the cluster has no default; expected one of gpu"]
        );
    }
}
