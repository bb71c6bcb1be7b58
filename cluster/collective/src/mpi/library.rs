//! The thinnest layer over the MPI library: the only unsafe code that calls it.
//!
//! Everything here but [`version`] is bound to the thread that called [`Library::init`]: MPI's handles are raw pointers, which
//! Rust sends to no other thread. MPI reads and writes memory of this module only: a buffer is moved into its [`Transfer`], and
//! a transfer that is dropped before it is complete leaks it.

use std::ffi::{c_char, c_int};

use ::mpi::ffi;

use crate::{Error, Result};

/// MPI, initialized by this thread.
pub struct Library {
    rank: usize,
    size: usize,
    world: Communicator,
}

impl Library {
    /// Initializes MPI.
    pub fn init() -> Result<Self> {
        let mut already: c_int = 0;
        // SAFETY: `already` lives for the call.
        check("MPI_Initialized", unsafe { ffi::MPI_Initialized(&mut already) })?;
        if already != 0 {
            return Err(Error::Unusable("it is already initialized in this process".into()));
        }
        start_with_threads()?;
        check_make(&library_version()?)?;
        let (rank, size) = place_in_world()?;
        // SAFETY: a constant of the library, set before main.
        let world = Communicator { handle: unsafe { ffi::RSMPI_COMM_WORLD } };
        Ok(Self { rank, size, world })
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// All ranks, with messages that are not taken for another communicator's. All ranks must call it.
    pub fn communicator(&self) -> Result<Communicator> {
        let mut handle = self.world.handle;
        // SAFETY: MPI is initialized; `handle` lives for the call.
        check("MPI_Comm_dup", unsafe { ffi::MPI_Comm_dup(self.world.handle, &mut handle) })?;
        Ok(Communicator { handle })
    }

    /// Ends MPI in this process, with all other ranks.
    pub fn finalize(self) -> Result<()> {
        // SAFETY: MPI is initialized; transfers that are left keep their own memory and call MPI no more.
        check("MPI_Finalize", unsafe { ffi::MPI_Finalize() })
    }
}

/// All ranks, with an order of messages of their own.
pub struct Communicator {
    handle: ffi::MPI_Comm,
}

impl Communicator {
    /// Begins to send the first `length` bytes of `buffer` to rank `to`.
    pub fn send(&self, buffer: Vec<u8>, length: usize, to: usize, tag: usize) -> Result<Transfer> {
        debug_assert!(length <= buffer.len());
        let mut transfer = Transfer::of(buffer);
        // SAFETY: the buffer, which has at least `length` bytes, belongs to the transfer until MPI is done with it.
        let code = unsafe {
            let first = transfer.buffer.as_ptr().cast();
            let count = length.min(transfer.buffer.len()) as c_int;
            let (kind, request) = (ffi::RSMPI_UINT8_T, &mut transfer.request);
            ffi::MPI_Isend(first, count, kind, to as c_int, tag as c_int, self.handle, request)
        };
        check("MPI_Isend", code)?;
        Ok(transfer)
    }

    /// Begins to receive up to `buffer`'s length from rank `from`.
    pub fn receive(&self, buffer: Vec<u8>, from: usize, tag: usize) -> Result<Transfer> {
        let mut transfer = Transfer::of(buffer);
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

    /// The rank that a message of this tag has come from, if one is there to be received.
    pub fn probe(&self, tag: usize) -> Result<Option<usize>> {
        let mut there: c_int = 0;
        // SAFETY: MPI is initialized; an all-zero status is a valid one, and it lives for the call, as `there` does.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            let any = ffi::RSMPI_ANY_SOURCE;
            check("MPI_Iprobe", ffi::MPI_Iprobe(any, tag as c_int, self.handle, &mut there, &mut status))?;
            Ok((there != 0).then_some(status.MPI_SOURCE as usize))
        }
    }
}

/// A message under way, with its memory.
pub struct Transfer {
    buffer: Vec<u8>,
    request: ffi::MPI_Request,
    complete: bool,
}

impl Transfer {
    fn of(buffer: Vec<u8>) -> Self {
        // SAFETY: a constant of the library, set before main.
        let request = unsafe { ffi::RSMPI_REQUEST_NULL };
        Self { buffer, request, complete: false }
    }

    /// The bytes that were received, once the message is complete (0 for one that was sent); lets MPI make progress.
    pub fn poll(&mut self) -> Result<Option<usize>> {
        let (mut complete, mut count): (c_int, c_int) = (0, 0);
        // SAFETY: the request is one of MPI's; the other arguments live for the calls; an all-zero status is a valid one.
        unsafe {
            let mut status: ffi::MPI_Status = std::mem::zeroed();
            check("MPI_Test", ffi::MPI_Test(&mut self.request, &mut complete, &mut status))?;
            if complete == 0 {
                return Ok(None);
            }
            self.complete = true;
            check("MPI_Get_count", ffi::MPI_Get_count(&status, ffi::RSMPI_UINT8_T, &mut count))?;
        }
        Ok(Some(usize::try_from(count).unwrap_or(0)))
    }

    /// The memory of a message that is complete; MPI keeps that of any other.
    pub fn into_buffer(mut self) -> Vec<u8> {
        if self.complete { std::mem::take(&mut self.buffer) } else { Vec::new() }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if !self.complete {
            std::mem::forget(std::mem::take(&mut self.buffer));
        }
    }
}

fn start_with_threads() -> Result<()> {
    let mut given: c_int = 0;
    // SAFETY: MPI is not initialized yet; null arguments are allowed since MPI 2; `given` lives for the calls.
    unsafe {
        let (none, wanted) = (std::ptr::null_mut(), ffi::RSMPI_THREAD_FUNNELED);
        check("MPI_Init_thread", ffi::MPI_Init_thread(none, none.cast(), wanted, &mut given))?;
        check(
            "MPI_Comm_set_errhandler",
            ffi::MPI_Comm_set_errhandler(ffi::RSMPI_COMM_WORLD, ffi::RSMPI_ERRORS_RETURN),
        )?;
        if given < wanted {
            return Err(Error::Unusable(format!("it gives thread support {given}, {wanted} is needed")));
        }
    }
    Ok(())
}

fn place_in_world() -> Result<(usize, usize)> {
    let (mut rank, mut world): (c_int, c_int) = (0, 0);
    // SAFETY: MPI is initialized; both integers live for the calls.
    unsafe {
        check("MPI_Comm_rank", ffi::MPI_Comm_rank(ffi::RSMPI_COMM_WORLD, &mut rank))?;
        check("MPI_Comm_size", ffi::MPI_Comm_size(ffi::RSMPI_COMM_WORLD, &mut world))?;
    }
    Ok((rank as usize, world as usize))
}

fn library_version() -> Result<String> {
    let mut text = [0u8; ffi::MPI_MAX_LIBRARY_VERSION_STRING as usize];
    let mut length: c_int = 0;
    // SAFETY: the buffer has the length that MPI demands.
    check("MPI_Get_library_version", unsafe {
        ffi::MPI_Get_library_version(text.as_mut_ptr().cast::<c_char>(), &mut length)
    })?;
    Ok(words(&text, length))
}

/// The MPI library's name and version, as `Open MPI v4.1.4`; empty where it does not tell. It may be asked before MPI is
/// initialized, by any thread.
pub fn version() -> String {
    let version = library_version().unwrap_or_default();
    version.split([',', '\n']).next().unwrap_or_default().trim().to_owned()
}

/// Only Open MPI was tested.
fn check_make(version: &str) -> Result<()> {
    if version.contains("Open MPI") {
        return Ok(());
    }
    Err(Error::Unusable(format!("the library is {version:?}; Open MPI is expected")))
}

fn check(operation: &'static str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let mut text = [0u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length: c_int = 0;
    // SAFETY: the buffer has the length that MPI demands.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &mut length) };
    Err(Error::Mpi { operation, code, text: words(&text, length) })
}

fn words(text: &[u8], length: c_int) -> String {
    let length = usize::try_from(length).unwrap_or(0).min(text.len());
    String::from_utf8_lossy(&text[..length]).trim_end_matches('\0').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_open_mpi_is_refused_by_name() {
        assert!(check_make("Open MPI v4.1.4, package: Debian OpenMPI").is_ok());
        let refused = check_make("MPICH Version: 4.0.2").unwrap_err().to_string();
        assert!(refused.contains("MPICH Version: 4.0.2"), "{refused}");
    }
}
