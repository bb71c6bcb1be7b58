//! What NCCL says about its choices: it tells them nowhere but in its log.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};

use super::library::set_default;

/// NCCL's log of this process, in memory: nothing of it is left when the process ends.
pub struct Log(File);

impl Log {
    /// What it has said so far.
    pub fn text(&self) -> String {
        let mut bytes = vec![0; self.0.metadata().map_or(0, |facts| facts.len() as usize)];
        let read = self.0.read_at(&mut bytes, 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }
}

/// Lets NCCL connect all ranks when they join and not in their first sum, whatever its length, and write its choices where
/// [`Log::text`] reads them. Variables that somebody has set stay; `None` where one of NCCL's log is among them.
///
/// # Safety
/// No other thread reads or writes the environment. NCCL reads it when it is first used.
pub unsafe fn begin_log() -> Option<Log> {
    let set = |name, value: &str| {
        // SAFETY: the caller promises it.
        unsafe { set_default(name, value) };
    };
    set("NCCL_RUNTIME_CONNECT", "0");
    if ["NCCL_DEBUG", "NCCL_DEBUG_FILE", "NCCL_DEBUG_SUBSYS"].iter().any(|name| std::env::var_os(name).is_some()) {
        return None;
    }
    let file = File::from(memfd_create("lambert-nccl", MemfdFlags::CLOEXEC).ok()?);
    set("NCCL_DEBUG_FILE", &format!("/proc/self/fd/{}", file.as_raw_fd()));
    set("NCCL_DEBUG_SUBSYS", "INIT,NET,GRAPH");
    set("NCCL_DEBUG", "INFO");
    Some(Log(file))
}
