//! Descendants of this process that belong to an attempt. These are all descendants except:
//!
//! - processes that existed before the first attempt: this program may have replaced a shell that had started them
//! - processes in the process group of this process: programs that the coordinator runs itself, such as squeue
//! - [`child_groups`]

use std::collections::HashSet;
use std::io;
use std::sync::{Mutex, PoisonError};

use crate::child_groups;
use crate::host::{process_group, start_ticks, stat};

/// Descendants that existed before the first attempt.
static EARLIER: Mutex<Option<EarlierProcesses>> = Mutex::new(None);

/// Processes that belong to no attempt.
#[derive(Debug)]
struct EarlierProcesses {
    /// Process IDs and start times.
    processes: HashSet<(u32, u64)>,
    /// Their process groups, in which they may start more processes.
    groups: HashSet<u32>,
}

/// A process in /proc.
#[derive(Debug, Clone, Copy)]
pub struct ProcessEntry {
    pub pid: u32,
    pub parent: u32,
    pub state: char,
    group: u32,
    /// Start time, clock ticks since the boot.
    started: u64,
}

/// Remembers the current descendants as processes that belong to no attempt. Call this function before the first
/// attempt.
pub fn remember_earlier() -> io::Result<()> {
    let own = std::process::id();
    let all = processes()?;
    let mut groups: HashSet<u32> = all.iter().filter(|process| process.pid == own).map(|own| own.group).collect();
    let family = family(all);
    groups.extend(family.iter().map(|process| process.group));
    let processes = family.into_iter().map(|process| (process.pid, process.started)).collect();
    *EARLIER.lock().unwrap_or_else(PoisonError::into_inner) = Some(EarlierProcesses { processes, groups });
    Ok(())
}

/// Registers the first process of a new process group as part of an attempt. Its ID may be that of an earlier group
/// whose processes have all ended.
pub fn begin_group(leader: u32) {
    if let Some(earlier) = EARLIER.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
        earlier.groups.remove(&leader);
    }
}

/// Returns the descendants of this process that belong to an attempt, with zombies.
pub fn of_attempts() -> io::Result<Vec<ProcessEntry>> {
    let other = child_groups::lock();
    let mut all = processes()?;
    all.retain(|process| !other.contains(&process.group));
    drop(other);
    if let Some(earlier) = EARLIER.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
        let is_earlier = |process: &ProcessEntry| {
            earlier.groups.contains(&process.group) || earlier.processes.contains(&(process.pid, process.started))
        };
        all.retain(|process| !is_earlier(process));
    }
    Ok(family(all))
}

/// Reads all processes from /proc.
fn processes() -> io::Result<Vec<ProcessEntry>> {
    let mut processes = Vec::new();
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(text) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
        let (Some((state, parent)), Some(group), Some(started)) =
            (stat(&text), process_group(&text), start_ticks(&text))
        else {
            continue;
        };
        processes.push(ProcessEntry { pid, parent, state, group, started });
    }
    Ok(processes)
}

/// Returns the descendants of this process among `processes`.
fn family(mut processes: Vec<ProcessEntry>) -> Vec<ProcessEntry> {
    let own = std::process::id();
    let mut family = HashSet::from([own]);
    // The search repeats, because a child may precede its parent in the list.
    loop {
        let is_new = |process: &&ProcessEntry| family.contains(&process.parent) && !family.contains(&process.pid);
        let next: Vec<u32> = processes.iter().filter(is_new).map(|process| process.pid).collect();
        if next.is_empty() {
            break;
        }
        family.extend(next);
    }
    processes.retain(|process| process.pid != own && family.contains(&process.pid));
    processes
}
