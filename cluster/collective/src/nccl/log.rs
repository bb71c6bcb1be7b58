//! NCCL's log: the only place where NCCL reports its choice of transports.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::fcntl_dupfd_cloexec;

/// Environment variable with the path of NCCL's log.
const VARIABLE: &str = "NCCL_DEBUG_FILE";
/// Prefix of a path that names a file descriptor of this process.
const DESCRIPTOR_PREFIX: &str = "/proc/self/fd/";

/// NCCL's log of this process, in an in-memory file that disappears when the process exits.
pub struct NcclLog(File);

impl NcclLog {
    /// Creates the in-memory file under the file descriptor that `NCCL_DEBUG_FILE` names. NCCL opens the file by that
    /// path when it first writes to its log. Returns `None` if the variable is unset or does not name a descriptor, or
    /// if the descriptor is in use.
    pub fn open() -> Option<Self> {
        let name = std::env::var(VARIABLE).ok()?;
        let number: RawFd = name.strip_prefix(DESCRIPTOR_PREFIX)?.parse().ok()?;
        let memory = memfd_create("lambert-nccl", MemfdFlags::CLOEXEC).ok()?;
        let file = File::from(fcntl_dupfd_cloexec(memory, number).ok()?);
        (file.as_raw_fd() == number).then_some(Self(file))
    }

    /// Reads the log written so far.
    pub fn read(&self) -> String {
        let mut bytes = vec![0; self.0.metadata().map_or(0, |metadata| metadata.len() as usize)];
        let read = self.0.read_at(&mut bytes, 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }
}
