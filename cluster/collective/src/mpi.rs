//! Ranks as processes joined by MPI.
//!
//! The functions of MPI are called directly: the safe layer of the `mpi` crate has no in-place reduction, ends
//! the process on errors, and finalizes MPI when a value is dropped, which makes a rank that unwinds wait for
//! the others for ever.
//!
//! When a rank dies, Open MPI's `mpirun` sees it (a process that ends by a signal, with a non-zero code, or
//! without [`Collective::finish`]) and ends all others of the job, also those inside an operation. No operation
//! needs a time limit of its own for that; a rank that hangs without dying is the coordinator's business.

use std::ffi::{c_char, c_int, c_void};
use std::marker::PhantomData;

use ::mpi::ffi;

use crate::collective::{Collective, Error, Result, check_root};

/// Elements or bytes moved by one MPI call: counts are 32-bit there. 2^28 f64 are 2 GiB.
const CHUNK: usize = 1 << 28;

/// This process as a rank of MPI's world.
///
/// There can be one in the life of a process. It may be moved to the thread that does the communication, and is
/// used by one thread at a time. Dropping it does not finalize MPI: see [`Collective::finish`].
#[derive(Debug)]
pub struct Mpi {
    rank: usize,
    world: usize,
    in_place: *const c_void,
    not_sync: PhantomData<std::cell::Cell<()>>,
}

// SAFETY: MPI is initialized with MPI_THREAD_SERIALIZED, so any thread may call it, one at a time; `in_place` is
// a marker value that is never read through. `&mut self` on every operation keeps the calls one at a time.
unsafe impl Send for Mpi {}

impl Mpi {
    /// Joins the world that `mpirun` or `srun` has started this process in. Blocks until all ranks have come.
    ///
    /// # Errors
    /// MPI is already initialized, gives no thread support, or is of an unknown make. (Some failures to start,
    /// such as a launcher that is gone, make Open MPI end the process by itself.)
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
        let (rank, world) = place_in_world()?;
        Ok(Self { rank, world, in_place, not_sync: PhantomData })
    }

    /// Ends all ranks of the job at once with exit code `code`. For failures that the others cannot see.
    pub fn abort(&self, code: i32) -> ! {
        // SAFETY: MPI is initialized for as long as `self` exists.
        unsafe { ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, code) };
        std::process::exit(code)
    }

    fn all_reduce<T>(&mut self, values: &mut [T], datatype: ffi::MPI_Datatype) -> Result<()> {
        for part in values.chunks_mut(CHUNK) {
            // SAFETY: `part` is valid for `len` elements of the type that `datatype` names (the two callers), and
            // the marker tells MPI to read from there too.
            let code = unsafe {
                ffi::MPI_Allreduce(
                    self.in_place.cast_mut(),
                    part.as_mut_ptr().cast(),
                    part.len() as c_int,
                    datatype,
                    ffi::RSMPI_SUM,
                    ffi::RSMPI_COMM_WORLD,
                )
            };
            check("MPI_Allreduce", code)?;
        }
        Ok(())
    }

    fn broadcast(&mut self, bytes: &mut [u8], root: usize) -> Result<()> {
        for part in bytes.chunks_mut(CHUNK) {
            // SAFETY: `part` is valid for `len` bytes, read on the root and written elsewhere.
            let code = unsafe {
                ffi::MPI_Bcast(
                    part.as_mut_ptr().cast(),
                    part.len() as c_int,
                    ffi::RSMPI_UINT8_T,
                    root as c_int,
                    ffi::RSMPI_COMM_WORLD,
                )
            };
            check("MPI_Bcast", code)?;
        }
        Ok(())
    }

    fn send(&mut self, bytes: &[u8], to: usize) -> Result<()> {
        for part in bytes.chunks(CHUNK) {
            // SAFETY: `part` is valid for `len` bytes and only read.
            let code = unsafe {
                ffi::MPI_Send(
                    part.as_ptr().cast(),
                    part.len() as c_int,
                    ffi::RSMPI_UINT8_T,
                    to as c_int,
                    TAG,
                    ffi::RSMPI_COMM_WORLD,
                )
            };
            check("MPI_Send", code)?;
        }
        Ok(())
    }

    fn receive(&mut self, bytes: &mut [u8], from: usize) -> Result<()> {
        for part in bytes.chunks_mut(CHUNK) {
            // SAFETY: `part` is valid for `len` bytes and this rank's own.
            let code = unsafe {
                ffi::MPI_Recv(
                    part.as_mut_ptr().cast(),
                    part.len() as c_int,
                    ffi::RSMPI_UINT8_T,
                    from as c_int,
                    TAG,
                    ffi::RSMPI_COMM_WORLD,
                    ffi::RSMPI_STATUS_IGNORE,
                )
            };
            check("MPI_Recv", code)?;
        }
        Ok(())
    }

    fn receive_all(&mut self, from: usize) -> Result<Vec<u8>> {
        let mut length = [0; 8];
        self.receive(&mut length, from)?;
        let mut bytes = buffer("gather", u64::from_le_bytes(length))?;
        self.receive(&mut bytes, from)?;
        Ok(bytes)
    }
}

/// Messages between one pair of ranks arrive in order, so one tag serves.
const TAG: c_int = 1;

impl Collective for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.world
    }

    fn name(&self) -> &'static str {
        "mpi"
    }

    fn all_reduce_sum_f32(&mut self, values: &mut [f32]) -> Result<()> {
        // SAFETY: a constant of the library, set before main.
        self.all_reduce(values, unsafe { ffi::RSMPI_FLOAT })
    }

    fn all_reduce_sum_f64(&mut self, values: &mut [f64]) -> Result<()> {
        // SAFETY: a constant of the library, set before main.
        self.all_reduce(values, unsafe { ffi::RSMPI_DOUBLE })
    }

    fn broadcast_bytes(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<()> {
        check_root("broadcast", root, self.world)?;
        let mut length = (bytes.len() as u64).to_le_bytes();
        self.broadcast(&mut length, root)?;
        if self.rank != root {
            *bytes = buffer("broadcast", u64::from_le_bytes(length))?;
        }
        self.broadcast(bytes, root)
    }

    fn gather_bytes(&mut self, bytes: &[u8], root: usize) -> Result<Option<Vec<Vec<u8>>>> {
        check_root("gather", root, self.world)?;
        if self.rank != root {
            self.send(&(bytes.len() as u64).to_le_bytes(), root)?;
            self.send(bytes, root)?;
            return Ok(None);
        }
        let all = (0..self.world).map(|from| if from == root { Ok(bytes.to_vec()) } else { self.receive_all(from) });
        all.collect::<Result<_>>().map(Some)
    }

    fn barrier(&mut self) -> Result<()> {
        // SAFETY: MPI is initialized for as long as `self` exists.
        check("MPI_Barrier", unsafe { ffi::MPI_Barrier(ffi::RSMPI_COMM_WORLD) })
    }

    fn finish(self: Box<Self>) -> Result<()> {
        // SAFETY: MPI is initialized, and with `self` goes the only way to call it again.
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
pub fn library() -> String {
    let version = library_version().unwrap_or_default();
    version.split([',', '\n']).next().unwrap_or_default().trim().to_owned()
}

/// MPI_IN_PLACE is a cast in a C macro, which bindings cannot carry over; its value belongs to the ABI.
fn in_place_marker(version: &str) -> Result<*const c_void> {
    let value: isize = if version.contains("Open MPI") {
        1
    } else if version.contains("MPICH") || version.contains("Intel(R) MPI") {
        -1
    } else {
        return Err(Error::Unusable(format!("unknown library {version:?}; Open MPI and MPICH are known")));
    };
    Ok(value as *const c_void)
}

fn buffer(operation: &'static str, length: u64) -> Result<Vec<u8>> {
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
    fn the_marker_is_known_for_known_libraries_only() {
        assert_eq!(in_place_marker("Open MPI v4.1.4, package: Debian OpenMPI").unwrap() as isize, 1);
        assert_eq!(in_place_marker("MPICH Version: 4.0.2").unwrap() as isize, -1);
        assert!(in_place_marker("SomethingElse MPI 1.0").is_err());
    }
}
