//! What NCCL says about its choices: it tells them nowhere but in its log.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::fcntl_dupfd_cloexec;

/// Names NCCL's log. Where it is a descriptor of this process, [`Log::begin`] opens it.
const VARIABLE: &str = "NCCL_DEBUG_FILE";
const OWN: &str = "/proc/self/fd/";

/// NCCL's log of this process, in memory: nothing of it is left when the process ends.
pub struct Log(File);

impl Log {
    /// Opens the log for NCCL, which opens it once more, by its name, when it is first used. `None` where `NCCL_DEBUG_FILE` is
    /// not set or names another file, or where its descriptor is in use.
    pub fn begin() -> Option<Self> {
        let name = std::env::var(VARIABLE).ok()?;
        let number: RawFd = name.strip_prefix(OWN)?.parse().ok()?;
        let memory = memfd_create("lambert-nccl", MemfdFlags::CLOEXEC).ok()?;
        let file = File::from(fcntl_dupfd_cloexec(memory, number).ok()?);
        (file.as_raw_fd() == number).then_some(Self(file))
    }

    /// What it has said so far.
    pub fn text(&self) -> String {
        let mut bytes = vec![0; self.0.metadata().map_or(0, |facts| facts.len() as usize)];
        let read = self.0.read_at(&mut bytes, 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }
}
