//! Minimal wrapper of the MPI library. All unsafe code that calls MPI is in this module.
//!
//! The types of this module stay on the thread that called [`MpiLibrary::init`], because MPI handles are raw pointers
//! and therefore not `Send`. MPI accesses only buffers that this module owns, because each buffer is moved into its
//! [`Transfer`]. A transfer that is dropped before completion leaks its buffer, because MPI may still access it.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int};

use ::mpi::ffi;
use libloading::os::unix::Library;

use crate::{Error, Result};

/// MPI library, initialized by this thread.
pub struct MpiLibrary {
    rank: usize,
    size: usize,
    world: MpiCommunicator,
}

impl MpiLibrary {
    /// Initializes MPI.
    pub fn init() -> Result<Self> {
        let mut already: c_int = 0;
        // SAFETY: `already` lives for the call.
        check("MPI_Initialized", unsafe { ffi::MPI_Initialized(&mut already) })?;
        if already != 0 {
            return Err(Error::MpiUnavailable("MPI is already initialized in this process".into()));
        }
        init_with_threads()?;
        keep_libraries();
        require_open_mpi(&library_version()?)?;
        let (rank, size) = rank_and_size()?;
        // SAFETY: constant of the library, initialized before main.
        let world = MpiCommunicator { handle: unsafe { ffi::RSMPI_COMM_WORLD } };
        Ok(Self { rank, size, world })
    }

    /// Rank of this process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Duplicates the world communicator. Messages of the duplicate do not match messages of other communicators.
    /// Collective over all ranks.
    pub fn communicator(&self) -> Result<MpiCommunicator> {
        let mut handle = self.world.handle;
        // SAFETY: MPI is initialized; `handle` lives for the call.
        check("MPI_Comm_dup", unsafe { ffi::MPI_Comm_dup(self.world.handle, &mut handle) })?;
        Ok(MpiCommunicator { handle })
    }

    /// Finalizes MPI. Collective over all ranks.
    pub fn finalize(self) -> Result<()> {
        // SAFETY: MPI is initialized; remaining transfers keep their own memory and make no more MPI calls.
        check("MPI_Finalize", unsafe { ffi::MPI_Finalize() })
    }
}

/// MPI communicator of all ranks.
pub struct MpiCommunicator {
    handle: ffi::MPI_Comm,
}

impl MpiCommunicator {
    /// Starts sending the first `length` bytes of `buffer` to rank `to`.
    pub fn send(&self, buffer: Vec<u8>, length: usize, to: usize, tag: usize) -> Result<Transfer> {
        debug_assert!(length <= buffer.len());
        let mut transfer = Transfer::new(buffer);
        // SAFETY: the transfer owns the buffer, which has at least `length` bytes, until MPI has completed the send.
        let code = unsafe {
            let first = transfer.buffer.as_ptr().cast();
            let count = length.min(transfer.buffer.len()) as c_int;
            let (kind, request) = (ffi::RSMPI_UINT8_T, &mut transfer.request);
            ffi::MPI_Isend(first, count, kind, to as c_int, tag as c_int, self.handle, request)
        };
        check("MPI_Isend", code)?;
        Ok(transfer)
    }

    /// Starts receiving up to `buffer.len()` bytes from rank `from`.
    pub fn receive(&self, buffer: Vec<u8>, from: usize, tag: usize) -> Result<Transfer> {
        let mut transfer = Transfer::new(buffer);
        // SAFETY: as for `send`; nothing reads the buffer before the transfer is complete.
        let code = unsafe {
            let first = transfer.buffer.as_mut_ptr().cast();
            let count = transfer.buffer.len() as c_int;
            let (kind, request) = (ffi::RSMPI_UINT8_T, &mut transfer.request);
            ffi::MPI_Irecv(first, count, kind, from as c_int, tag as c_int, self.handle, request)
        };
        check("MPI_Irecv", code)?;
        Ok(transfer)
    }

    /// Returns the source rank of a pending message with tag `tag`, if there is one.
    pub fn probe(&self, tag: usize) -> Result<Option<usize>> {
        let mut is_pending: c_int = 0;
        // SAFETY: MPI is initialized; an all-zero status is valid; `status` and `is_pending` live for the call.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            let any = ffi::RSMPI_ANY_SOURCE;
            check("MPI_Iprobe", ffi::MPI_Iprobe(any, tag as c_int, self.handle, &mut is_pending, &mut status))?;
            Ok((is_pending != 0).then_some(status.MPI_SOURCE as usize))
        }
    }
}

/// Message in flight, with its buffer.
pub struct Transfer {
    buffer: Vec<u8>,
    request: ffi::MPI_Request,
    is_complete: bool,
}

impl Transfer {
    fn new(buffer: Vec<u8>) -> Self {
        // SAFETY: constant of the library, initialized before main.
        let request = unsafe { ffi::RSMPI_REQUEST_NULL };
        Self { buffer, request, is_complete: false }
    }

    /// Lets MPI make progress. Returns the number of received bytes once the message is complete (0 for a send).
    pub fn poll(&mut self) -> Result<Option<usize>> {
        let (mut complete, mut count): (c_int, c_int) = (0, 0);
        // SAFETY: the request comes from MPI. The other arguments outlive the calls. An all-zero status is valid.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            check("MPI_Test", ffi::MPI_Test(&mut self.request, &mut complete, &mut status))?;
            if complete == 0 {
                return Ok(None);
            }
            self.is_complete = true;
            check("MPI_Get_count", ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut count))?;
        }
        Ok(Some(usize::try_from(count).unwrap_or(0)))
    }

    /// Returns the buffer of a complete message. Otherwise returns an empty buffer and leaks the original one to MPI.
    pub fn into_buffer(mut self) -> Vec<u8> {
        if self.is_complete { std::mem::take(&mut self.buffer) } else { Vec::new() }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.is_complete {
            std::mem::forget(std::mem::take(&mut self.buffer));
        }
    }
}

fn init_with_threads() -> Result<()> {
    let mut provided: c_int = 0;
    // SAFETY: MPI is not initialized yet; null arguments are allowed since MPI 2; `provided` lives for the calls.
    unsafe {
        let (none, required) = (std::ptr::null_mut(), ffi::RSMPI_THREAD_FUNNELED);
        check("MPI_Init_thread", ffi::MPI_Init_thread(none, none.cast(), required, &mut provided))?;
        check(
            "MPI_Comm_set_errhandler",
            ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN),
        )?;
        if provided < required {
            let message =
                format!("thread support level is {provided}, expected at least {required} (MPI_THREAD_FUNNELED)");
            return Err(Error::MpiUnavailable(message));
        }
    }
    Ok(())
}

/// Keeps all loaded libraries in memory until the process ends. `MPI_Finalize` would unload some of them, although
/// threads of PMIx still run their code, and destructors of this thread are in them. This has no effect on a library that
/// cannot be found again by its path.
fn keep_libraries() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let path_of = |line: &str| line.find('/').map(|start| line[start..].to_owned());
    let paths: BTreeSet<String> = maps.lines().filter_map(path_of).filter(|path| path.contains(".so")).collect();
    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    for path in paths {
        // SAFETY: with RTLD_NOLOAD, no library is loaded and no initializer runs.
        let _ = unsafe { Library::open(Some(path), flags) };
    }
}

fn rank_and_size() -> Result<(usize, usize)> {
    let (mut rank, mut size): (c_int, c_int) = (0, 0);
    // SAFETY: MPI is initialized; both integers live for the calls.
    unsafe {
        check("MPI_Comm_rank", ffi::MPI_Comm_rank(ffi::RSMPI_COMM_WORLD, &mut rank))?;
        check("MPI_Comm_size", ffi::MPI_Comm_size(ffi::RSMPI_COMM_WORLD, &mut size))?;
    }
    Ok((rank as usize, size as usize))
}

fn library_version() -> Result<String> {
    let mut text = [0u8; ffi::MPI_MAX_LIBRARY_VERSION_STRING as usize];
    let mut length: c_int = 0;
    // SAFETY: the buffer has the length that MPI requires.
    check("MPI_Get_library_version", unsafe {
        ffi::MPI_Get_library_version(text.as_mut_ptr().cast::<c_char>(), &mut length)
    })?;
    Ok(text_of(&text, length))
}

/// Returns the name and version of the MPI library, such as `Open MPI v4.1.4`, or an empty text if they are unknown.
/// Any thread may call this, even before MPI is initialized.
pub fn version() -> String {
    let version = library_version().unwrap_or_default();
    version.split([',', '\n']).next().unwrap_or_default().trim().to_owned()
}

/// Rejects libraries other than Open MPI, because they are not tested.
fn require_open_mpi(version: &str) -> Result<()> {
    if version.contains("Open MPI") {
        return Ok(());
    }
    Err(Error::MpiUnavailable(format!("the library is {version:?}, expected Open MPI")))
}

fn check(operation: &'static str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let mut text = [0u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length: c_int = 0;
    // SAFETY: the buffer has the length that MPI requires.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &mut length) };
    Err(Error::Mpi { operation, code, text: text_of(&text, length) })
}

fn text_of(text: &[u8], length: c_int) -> String {
    let length = usize::try_from(length).unwrap_or(0).min(text.len());
    String::from_utf8_lossy(&text[..length]).trim_end_matches('\0').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_mpi_libraries_are_rejected_by_name() {
        assert!(require_open_mpi("Open MPI v4.1.4, package: Debian OpenMPI").is_ok());
        let error = require_open_mpi("MPICH Version: 4.0.2").unwrap_err().to_string();
        assert!(error.contains("MPICH Version: 4.0.2"), "{error}");
    }
}
