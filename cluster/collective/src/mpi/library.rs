//! The thinnest layer over the MPI library: the only unsafe code that calls it.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ::mpi::ffi;

use crate::{Error, Result};

/// Elements or bytes moved by one MPI call: counts are 32-bit there. 2^28 f64 are 2 GiB.
const CHUNK: usize = 1 << 28;

/// Messages between one pair of ranks arrive in order, so one tag serves.
const TAG: c_int = 1;

/// A number that MPI can add up.
pub trait Number {
    /// Its type's name in MPI.
    fn datatype() -> ffi::MPI_Datatype;
}

impl Number for f32 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: a constant of the library, set before main.
        unsafe { ffi::RSMPI_FLOAT }
    }
}

impl Number for f64 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: a constant of the library, set before main.
        unsafe { ffi::RSMPI_DOUBLE }
    }
}

/// All ranks, with an order of messages of their own.
pub struct Communicator {
    /// Held during each call; whether MPI is finalized.
    calls: Arc<Mutex<bool>>,
    in_place: *const c_void,
    handle: ffi::MPI_Comm,
    rank: usize,
    size: usize,
}

// SAFETY: MPI is initialized with MPI_THREAD_SERIALIZED, so any thread may call it, one at a time: every call is made under
// `calls`. `in_place` is a marker value that is never read through, `handle` belongs to the process.
unsafe impl Send for Communicator {}
// SAFETY: as above.
unsafe impl Sync for Communicator {}

impl Communicator {
    /// Initializes MPI; the communicator of all ranks.
    pub fn init() -> Result<Self> {
        // SAFETY: `already` lives for the call.
        let already = unsafe {
            let mut already: c_int = 0;
            check("MPI_Initialized", ffi::MPI_Initialized(&mut already))?;
            already
        };
        if already != 0 {
            return Err(Error::Unusable("it is already initialized in this process".into()));
        }
        start_with_threads()?;
        let in_place = in_place_marker(&library_version()?)?;
        let (rank, size) = place_in_world()?;
        // SAFETY: a constant of the library, set before main.
        let handle = unsafe { ffi::RSMPI_COMM_WORLD };
        Ok(Self { calls: Arc::new(Mutex::new(false)), in_place, handle, rank, size })
    }

    /// As long as this is held, no other thread calls MPI.
    fn call(&self) -> Result<MutexGuard<'_, bool>> {
        let finalized = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if *finalized { Err(Error::Unusable("it is finalized in this process".into())) } else { Ok(finalized) }
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The same ranks, whose messages are not taken for this one's. All ranks must call it.
    pub fn duplicate(&self) -> Result<Self> {
        let _call = self.call()?;
        let mut handle = self.handle;
        // SAFETY: MPI is initialized; `handle` lives for the call.
        check("MPI_Comm_dup", unsafe { ffi::MPI_Comm_dup(self.handle, &mut handle) })?;
        Ok(Self { calls: self.calls.clone(), in_place: self.in_place, handle, rank: self.rank, size: self.size })
    }

    /// Replaces `values` by their sum over all ranks.
    pub fn all_reduce<T: Number>(&self, values: &mut [T]) -> Result<()> {
        let _call = self.call()?;
        for part in values.chunks_mut(CHUNK) {
            // SAFETY: `part` is valid for `len` elements of the type that `datatype` names, and the marker tells MPI to
            // read from there too.
            let code = unsafe {
                ffi::MPI_Allreduce(
                    self.in_place.cast_mut(),
                    part.as_mut_ptr().cast(),
                    part.len() as c_int,
                    T::datatype(),
                    ffi::RSMPI_SUM,
                    self.handle,
                )
            };
            check("MPI_Allreduce", code)?;
        }
        Ok(())
    }

    /// Replaces `bytes` by those of `root`, of the same length.
    pub fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        let _call = self.call()?;
        for part in bytes.chunks_mut(CHUNK) {
            // SAFETY: `part` is valid for `len` bytes, read on the root and written elsewhere.
            let code = unsafe {
                ffi::MPI_Bcast(
                    part.as_mut_ptr().cast(),
                    part.len() as c_int,
                    ffi::RSMPI_UINT8_T,
                    root as c_int,
                    self.handle,
                )
            };
            check("MPI_Bcast", code)?;
        }
        Ok(())
    }

    /// Sends `bytes` to rank `to`.
    pub fn send(&self, bytes: &[u8], to: usize) -> Result<()> {
        let _call = self.call()?;
        for part in bytes.chunks(CHUNK) {
            // SAFETY: `part` is valid for `len` bytes and only read.
            let code = unsafe {
                ffi::MPI_Send(
                    part.as_ptr().cast(),
                    part.len() as c_int,
                    ffi::RSMPI_UINT8_T,
                    to as c_int,
                    TAG,
                    self.handle,
                )
            };
            check("MPI_Send", code)?;
        }
        Ok(())
    }

    /// Fills `bytes` with what rank `from` sends.
    pub fn receive(&self, bytes: &mut [u8], from: usize) -> Result<()> {
        let _call = self.call()?;
        for part in bytes.chunks_mut(CHUNK) {
            // SAFETY: `part` is valid for `len` bytes and this rank's own.
            let code = unsafe {
                ffi::MPI_Recv(
                    part.as_mut_ptr().cast(),
                    part.len() as c_int,
                    ffi::RSMPI_UINT8_T,
                    from as c_int,
                    TAG,
                    self.handle,
                    ffi::RSMPI_STATUS_IGNORE,
                )
            };
            check("MPI_Recv", code)?;
        }
        Ok(())
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&self) -> Result<()> {
        let _call = self.call()?;
        // SAFETY: MPI is initialized, and not finalized.
        check("MPI_Barrier", unsafe { ffi::MPI_Barrier(self.handle) })
    }

    /// Returns when all ranks have called it, or fails at `deadline`; the group is of no use then.
    pub fn arrive(&self, operation: &'static str, deadline: Instant) -> Result<()> {
        // SAFETY: MPI is initialized and not finalized; the request lives until it is complete or given up; it refers to no memory of ours.
        unsafe {
            let mut request = std::mem::zeroed();
            let call = self.call()?;
            check("MPI_Ibarrier", ffi::MPI_Ibarrier(self.handle, &mut request))?;
            drop(call);
            loop {
                let mut complete: c_int = 0;
                let call = self.call()?;
                check("MPI_Test", ffi::MPI_Test(&mut request, &mut complete, ffi::RSMPI_STATUS_IGNORE))?;
                drop(call);
                if complete != 0 {
                    return Ok(());
                }
                if Instant::now() >= deadline {
                    return Err(Error::Deadline { operation, missing: Vec::new() });
                }
                std::thread::yield_now();
            }
        }
    }

    /// Ends MPI in this process, with all other ranks.
    pub fn finalize(self) -> Result<()> {
        let mut finalized = self.call()?;
        *finalized = true;
        // SAFETY: MPI is initialized, and nothing calls it after this.
        check("MPI_Finalize", unsafe { ffi::MPI_Finalize() })
    }
}

fn start_with_threads() -> Result<()> {
    let mut given: c_int = 0;
    // SAFETY: MPI is not initialized yet; null arguments are allowed since MPI 2; `given` lives for the calls.
    unsafe {
        let (none, wanted) = (std::ptr::null_mut(), ffi::RSMPI_THREAD_SERIALIZED);
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
/// initialized.
pub fn version() -> String {
    let version = library_version().unwrap_or_default();
    version.split([',', '\n']).next().unwrap_or_default().trim().to_owned()
}

/// MPI_IN_PLACE is a cast in a C macro, which bindings cannot carry over; its value belongs to the ABI.
fn in_place_marker(version: &str) -> Result<*const c_void> {
    if !version.contains("Open MPI") {
        return Err(Error::Unusable(format!("the library is {version:?}; Open MPI is expected")));
    }
    Ok(std::ptr::without_provenance(1))
}

/// `length` zeros, for what another rank sends.
pub fn buffer(operation: &'static str, length: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let refused = |_| Error::Mismatch { operation, what: format!("no memory for {length} bytes") };
    bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX)).map_err(refused)?;
    bytes.resize(length as usize, 0);
    Ok(bytes)
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
        assert_eq!(in_place_marker("Open MPI v4.1.4, package: Debian OpenMPI").unwrap() as isize, 1);
        let refused = in_place_marker("MPICH Version: 4.0.2").unwrap_err().to_string();
        assert!(refused.contains("MPICH Version: 4.0.2"), "{refused}");
    }
}
