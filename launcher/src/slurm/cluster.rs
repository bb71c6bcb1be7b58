//! What Slurm says of itself, and how a job is handed to it. `sbatch --test-only` lets much pass that never starts, so what
//! can be known is asked first.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use lambert_config::run::Slurm;

use super::ask::{AskError, ask, text};

/// Why nothing is queued.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// Slurm gives no answer.
    #[error(transparent)]
    Ask(#[from] AskError),
    /// The job could never start, or would lose what it prints.
    #[error("{}", list(faults))]
    Faults {
        /// Key and message of each fault.
        faults: Vec<String>,
    },
}

fn list(faults: &[String]) -> String {
    match faults {
        [one] => one.clone(),
        _ => format!(
            "the job has {} faults:{}",
            faults.len(),
            faults.iter().map(|fault| format!("\n  {fault}")).collect::<String>()
        ),
    }
}

/// Refuses a job that Slurm would take and that could never start.
pub fn check(slurm: &Slurm, folder: &Path) -> Result<(), ClusterError> {
    let mut faults = Vec::new();
    let partitions = partitions(&ask("sinfo", &["--noheader", "--all", "--format=%R|%D|%l"])?);
    for name in slurm.partition.iter().flat_map(|named| named.split(',')) {
        match partitions.iter().find(|partition| partition.name == name) {
            Some(partition) => faults.extend(beyond(slurm, partition)),
            None => {
                faults.push(format!("slurm.partition: there is no {name:?}; there are {}", names(&partitions)));
            }
        }
    }
    faults.extend(check_association(slurm)?);
    // A pattern in the folder's own name is for Slurm to fill in.
    let output = folder.join(&slurm.output);
    if let Some(parent) = output.parent().filter(|parent| !parent.to_string_lossy().contains('%'))
        && !parent.is_dir()
    {
        faults
            .push(format!("slurm.output: there is no folder {}; what the job prints would be lost", parent.display()));
    }
    if faults.is_empty() { Ok(()) } else { Err(ClusterError::Faults { faults }) }
}

/// A partition, as sinfo says.
#[derive(Debug, PartialEq, Eq)]
struct Partition {
    name: String,
    nodes: usize,
    /// Seconds; `None` for no limit.
    limit: Option<u64>,
}

/// Lines of `NAME|NODES|LIMIT`, several a partition where its nodes differ.
fn partitions(text: &str) -> Vec<Partition> {
    let mut found: Vec<Partition> = Vec::new();
    for line in text.lines() {
        let mut fields = line.split('|');
        let (Some(name), Some(nodes), Some(limit)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let nodes = nodes.trim().parse().unwrap_or(0);
        match found.iter_mut().find(|partition| partition.name == name) {
            Some(partition) => partition.nodes += nodes,
            None => {
                let limit = Slurm { time: Some(limit.trim().to_owned()), ..Slurm::default() }.time_seconds();
                found.push(Partition { name: name.to_owned(), nodes, limit });
            }
        }
    }
    found
}

fn names(partitions: &[Partition]) -> String {
    partitions.iter().map(|partition| partition.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// What a job asks for beyond a partition.
fn beyond(slurm: &Slurm, partition: &Partition) -> Vec<String> {
    let (mut faults, name) = (Vec::new(), &partition.name);
    if slurm.nodes > partition.nodes {
        faults.push(format!("slurm.nodes: {} are asked for; partition {name} has {}", slurm.nodes, partition.nodes));
    }
    if let (Some(time), Some(limit), Some(text)) = (slurm.time_seconds(), partition.limit, &slurm.time)
        && time > limit
    {
        faults.push(format!("slurm.time: {text} is more than the {limit} s that partition {name} allows"));
    }
    faults
}

/// Whether the user may charge the account and has the quality of service, where Slurm keeps accounts.
fn check_association(slurm: &Slurm) -> Result<Vec<String>, ClusterError> {
    if slurm.account.is_none() && slurm.qos.is_none() {
        return Ok(Vec::new());
    }
    let user = format!("user={}", user());
    let Ok(said) = ask("sacctmgr", &["--noheader", "--parsable2", "show", "association", &user, "format=account,qos"])
    else {
        // Without accounting there is nothing to compare with: sbatch has the last word.
        return Ok(Vec::new());
    };
    let held: Vec<(&str, &str)> = said.lines().filter_map(|line| line.trim().split_once('|')).collect();
    if held.is_empty() {
        return Ok(Vec::new());
    }
    let mut faults = Vec::new();
    if let Some(account) = &slurm.account
        && !held.iter().any(|(held, _)| held == account)
    {
        let accounts: Vec<&str> = held.iter().map(|(account, _)| *account).collect();
        faults.push(format!("slurm.account: you have no {account:?}; you have {}", accounts.join(", ")));
    }
    let own = |(account, _): &&(&str, &str)| slurm.account.as_deref().is_none_or(|own| own == *account);
    let qos: Vec<&str> = held.iter().filter(own).flat_map(|(_, qos)| qos.split(',')).collect();
    if let Some(wanted) = &slurm.qos
        && !qos.is_empty()
        && !qos.contains(&wanted.as_str())
    {
        faults.push(format!("slurm.qos: you have no {wanted:?}; you have {}", qos.join(", ")));
    }
    Ok(faults)
}

/// The user's name, or number where it has none.
fn user() -> String {
    let named = Command::new("id").arg("-un").output();
    let name = named.ok().filter(|output| output.status.success()).map(|output| text(&output.stdout));
    name.unwrap_or_else(|| rustix::process::geteuid().as_raw().to_string())
}

/// Cancels a job that waits in the queue; one that runs is left alone.
pub fn cancel_pending(job: &str) -> Result<(), AskError> {
    ask("scancel", &["--state=PENDING", job]).map(drop)
}

/// Hands a script to sbatch; the job's number.
pub fn submit(script: &str) -> Result<String, ClusterError> {
    let program = "sbatch";
    let absent = |source| AskError::Absent { program, source };
    let mut command = Command::new(program);
    command.arg("--parsable").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut sbatch = command.spawn().map_err(absent)?;
    // One that refuses before it has read everything says why.
    let _ = sbatch.stdin.take().map(|mut stdin| stdin.write_all(script.as_bytes()));
    let output = sbatch.wait_with_output().map_err(absent)?;
    if !output.status.success() {
        return Err(AskError::Refused { program, says: text(&output.stderr) }.into());
    }
    // With federations the cluster's name follows.
    Ok(text(&output.stdout).split(';').next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_partition_does_not_have_is_said() {
        // sinfo's own lines; nodes of two states have one each.
        let found = partitions("batch|2|1:00:00\nbatch|1|1:00:00\ngpu|4|infinite\n");
        let partition = |name: &str, nodes, limit| Partition { name: name.to_owned(), nodes, limit };
        assert_eq!(found, [partition("batch", 3, Some(3600)), partition("gpu", 4, None)]);
        let asked = Slurm { nodes: 4, time: Some("1:00:01".into()), ..Slurm::default() };
        assert_eq!(
            beyond(&asked, &found[0]),
            [
                "slurm.nodes: 4 are asked for; partition batch has 3",
                "slurm.time: 1:00:01 is more than the 3600 s that partition batch allows"
            ]
        );
        assert_eq!(beyond(&asked, &found[1]), [""; 0]);
    }
}
