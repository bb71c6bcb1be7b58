//! Process groups of children that do not belong to an attempt: they are neither ended nor waited for with it.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};

/// The groups, by process id of their first process.
static GROUPS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Locks the groups: no child of another group appears meanwhile.
pub fn lock() -> MutexGuard<'static, BTreeSet<u32>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a command in a group of its own. The program must be on a local file system: others wait for the start.
///
/// # Errors
/// The program cannot be started.
pub fn spawn(command: &mut Command) -> io::Result<Child> {
    let mut groups = lock();
    let child = command.process_group(0).spawn()?;
    groups.insert(child.id());
    Ok(child)
}

/// Kills the group of a child.
pub fn kill(child: &Child) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // There may be no process left.
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// Forgets the group of a child that has been waited for.
pub fn forget(child: &Child) {
    lock().remove(&child.id());
}
