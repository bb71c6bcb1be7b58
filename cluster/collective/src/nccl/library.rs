//! Minimal wrapper of libnccl.so.2. All unsafe code that calls NCCL is in this module.
//!
//! Functions are documented at <https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html>. Types follow
//! nccl.h.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::os::unix::{Library as DynamicLibrary, RTLD_GLOBAL, RTLD_NOW};

use crate::{Error, Result};

/// File name of NCCL.
const NAME: &str = "libnccl.so.2";
/// File name prefix of the CUDA runtime. Some NCCL builds require that the CUDA runtime is loaded first.
const CUDA_RUNTIME_PREFIX: &str = "libcudart.so.";
/// Minimum version: 2.14, the first version with non-blocking communicators.
const MIN_VERSION: i32 = 21400;
/// Flag of `dlopen`: fail unless the library is already loaded.
const RTLD_NOLOAD: c_int = 4;

/// `ncclResult_t`.
type NcclResult = c_int;
/// `ncclComm_t`.
type RawComm = *mut c_void;

const SUCCESS: NcclResult = 0;
const IN_PROGRESS: NcclResult = 7;

/// `ncclUniqueId`: opaque ID that the ranks of a communicator share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId([u8; 128]);

impl UniqueId {
    /// Returns the ID as bytes, to be sent to other ranks.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// Creates the ID from the bytes of another rank. Returns `None` if the length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

/// `ncclConfig_t` of NCCL 2.14. Later versions recognize it by size and version and use defaults for newer fields.
#[repr(C)]
struct NcclConfig {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// `ncclDataType_t`: element type of an all-reduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataType {
    /// `ncclFloat32`.
    F32 = 7,
    /// `ncclBfloat16`.
    Bf16 = 9,
}

type InitFn = unsafe extern "C" fn(*mut RawComm, c_int, UniqueId, c_int, *mut NcclConfig) -> NcclResult;
type AllReduceFn =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, RawComm, *mut c_void) -> NcclResult;
type CommFn = unsafe extern "C" fn(RawComm) -> NcclResult;

/// NCCL library. It is never unloaded, because its threads and kernels may outlive this value.
pub struct NcclLibrary {
    path: PathBuf,
    version: i32,
    unique_id: unsafe extern "C" fn(*mut UniqueId) -> NcclResult,
    init: InitFn,
    get_async_error: unsafe extern "C" fn(RawComm, *mut NcclResult) -> NcclResult,
    all_reduce: AllReduceFn,
    finalize: CommFn,
    destroy: CommFn,
    abort: CommFn,
    error_string: unsafe extern "C" fn(NcclResult) -> *const c_char,
    last_error: unsafe extern "C" fn(RawComm) -> *const c_char,
}

impl NcclLibrary {
    /// Opens the copy of NCCL that this process has already loaded. If there is none, loads the first copy in
    /// `folders`.
    ///
    /// # Errors
    /// NCCL is missing, cannot be loaded, or is older than 2.14. The message names the searched folders.
    pub fn open(folders: &[PathBuf]) -> Result<Self> {
        if let Ok(loaded) = load(Path::new(NAME), RTLD_NOLOAD) {
            return Self::new(loaded, loaded_path().unwrap_or_else(|| NAME.into()));
        }
        let path = Self::find(folders)?;
        // Some NCCL builds find the CUDA runtime only if it is already loaded.
        for runtime in folders.iter().filter_map(|folder| find_by_prefix(folder, CUDA_RUNTIME_PREFIX)) {
            let _ = load(&runtime, RTLD_GLOBAL).map(std::mem::forget);
        }
        let loaded = load(&path, RTLD_GLOBAL);
        let loaded =
            loaded.map_err(|error| Error::NcclUnavailable(format!("cannot load {}: {error}", path.display())))?;
        Self::new(loaded, path)
    }

    /// Returns the path of NCCL in the first of `folders` that contains it.
    ///
    /// # Errors
    /// No folder contains NCCL. The message names the folders.
    pub fn find(folders: &[PathBuf]) -> Result<PathBuf> {
        let found = folders.iter().map(|folder| folder.join(NAME)).find(|path| path.exists());
        found.ok_or_else(|| {
            let searched: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
            Error::NcclUnavailable(format!("{NAME} (NCCL) not found in {}", searched.join(", ")))
        })
    }

    fn new(dynamic: DynamicLibrary, path: PathBuf) -> Result<Self> {
        let symbols = Symbols { dynamic: &dynamic, path: &path };
        let version: unsafe extern "C" fn(*mut c_int) -> NcclResult = symbols.get("ncclGetVersion")?;
        let mut library = Self {
            version: 0,
            unique_id: symbols.get("ncclGetUniqueId")?,
            init: symbols.get("ncclCommInitRankConfig")?,
            get_async_error: symbols.get("ncclCommGetAsyncError")?,
            all_reduce: symbols.get("ncclAllReduce")?,
            finalize: symbols.get("ncclCommFinalize")?,
            destroy: symbols.get("ncclCommDestroy")?,
            abort: symbols.get("ncclCommAbort")?,
            error_string: symbols.get("ncclGetErrorString")?,
            last_error: symbols.get("ncclGetLastError")?,
            path: path.clone(),
        };
        // SAFETY: the integer lives for the call.
        let code = unsafe { version(&raw mut library.version) };
        library.check("ncclGetVersion", code, ptr::null_mut())?;
        std::mem::forget(dynamic);
        match library.version {
            old if old < MIN_VERSION => {
                let (path, old) = (path.display(), library.version());
                Err(Error::NcclUnavailable(format!("{path} is NCCL {old}, expected 2.14 or later")))
            }
            _ => Ok(library),
        }
    }

    /// Path of the library.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Version, such as `2.28.9`.
    pub fn version(&self) -> String {
        let version = self.version;
        format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)
    }

    /// Creates a unique ID for a new communicator (`ncclGetUniqueId`).
    ///
    /// # Errors
    /// NCCL finds no usable network interface.
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: the 128 bytes live for the call.
        self.check("ncclGetUniqueId", unsafe { (self.unique_id)(&raw mut id) }, ptr::null_mut())?;
        Ok(id)
    }

    /// Starts the initialization of a communicator for this rank, on the current device of the calling thread.
    pub fn start_init(&self, (rank, world_size): (usize, usize), id: UniqueId) -> Result<CommHandle> {
        let (size, blocking) = (size_of::<NcclConfig>(), 0);
        let mut config = NcclConfig { size, magic: 0xcafe_beef, version: MIN_VERSION as c_uint, blocking };
        // Leaked, because a thread of NCCL writes the handle again at the end of the initialization.
        let handle = CommHandle(Box::leak(Box::new(AtomicPtr::new(ptr::null_mut()))));
        // SAFETY: the configuration lives for the call, which copies it; the memory of the handle is never freed.
        let code = unsafe { (self.init)(handle.0.as_ptr(), world_size as c_int, id, rank as c_int, &raw mut config) };
        match code {
            IN_PROGRESS => Ok(handle),
            _ => self.check("ncclCommInitRankConfig", code, ptr::null_mut()).map(|()| handle),
        }
    }

    /// True if the pending call on `handle` has completed. Fails if the call failed or an asynchronous error has
    /// occurred.
    pub fn is_complete(&self, operation: &'static str, handle: CommHandle) -> Result<bool> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is alive; the integer lives for the call.
        let code = unsafe { (self.get_async_error)(handle.get(), &raw mut state) };
        self.check("ncclCommGetAsyncError", code, handle.get())?;
        match state {
            IN_PROGRESS => Ok(false),
            state => self.check(operation, state, handle.get()).map(|()| true),
        }
    }

    /// Enqueues on `stream` the in-place sum of `count` elements at `address` over all ranks.
    ///
    /// # Safety
    /// `stream` belongs to the device of the communicator. The elements are valid for reads and writes until the stream
    /// has completed the all-reduce.
    pub unsafe fn all_reduce(
        &self,
        handle: CommHandle,
        address: u64,
        (count, element): (usize, DataType),
        stream: *mut c_void,
    ) -> Result<()> {
        const SUM: c_int = 0;
        let buffer = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the communicator is alive. The caller guarantees the other conditions.
        let code = unsafe { (self.all_reduce)(buffer, buffer, count, element as c_int, SUM, handle.get(), stream) };
        match code {
            IN_PROGRESS => Ok(()),
            _ => self.check("ncclAllReduce", code, handle.get()),
        }
    }

    /// Starts finalizing a communicator. Collective over all ranks.
    pub fn finalize(&self, handle: CommHandle) -> Result<()> {
        // SAFETY: the communicator is alive.
        match unsafe { (self.finalize)(handle.get()) } {
            IN_PROGRESS => Ok(()),
            code => self.check("ncclCommFinalize", code, handle.get()),
        }
    }

    /// Destroys a finalized communicator. The communicator must not be used afterwards.
    pub fn destroy(&self, handle: CommHandle) -> Result<()> {
        // SAFETY: the communicator is released only once.
        self.check("ncclCommDestroy", unsafe { (self.destroy)(handle.get()) }, ptr::null_mut())
    }

    /// Aborts a communicator and its kernels, independently of the other ranks. The communicator must not be used
    /// afterwards. This call may block for a long time.
    pub fn abort(&self, handle: CommHandle) -> Result<()> {
        // SAFETY: the communicator is released only once.
        match unsafe { (self.abort)(handle.get()) } {
            IN_PROGRESS => Ok(()),
            code => self.check("ncclCommAbort", code, ptr::null_mut()),
        }
    }

    fn check(&self, operation: &'static str, code: NcclResult, handle: RawComm) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: both functions return a NUL-terminated string or null; the second string is valid until NCCL's next
        // error.
        let texts = unsafe { [(self.error_string)(code), (self.last_error)(handle)] };
        let [text, last] = texts.map(|text| match text.is_null() {
            true => String::new(),
            // SAFETY: as above.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned(),
        });
        Err(Error::Nccl { operation, code, text, last })
    }
}

/// Handle of a communicator.
#[derive(Clone, Copy)]
pub struct CommHandle(&'static AtomicPtr<c_void>);

impl CommHandle {
    fn get(self) -> RawComm {
        self.0.load(Ordering::Acquire)
    }
}

struct Symbols<'a> {
    dynamic: &'a DynamicLibrary,
    path: &'a Path,
}

impl Symbols<'_> {
    fn get<T: Copy>(&self, name: &'static str) -> Result<T> {
        // SAFETY: each caller passes the type that nccl.h declares for this name.
        let symbol = unsafe { self.dynamic.get::<T>(name.as_bytes()) };
        symbol.map(|symbol| *symbol).map_err(|_| {
            Error::NcclUnavailable(format!("{} has no {name}, expected NCCL 2.14 or later", self.path.display()))
        })
    }
}

fn load(path: &Path, flags: c_int) -> Result<DynamicLibrary, libloading::Error> {
    // SAFETY: the initializers of NVIDIA's libraries have no preconditions.
    unsafe { DynamicLibrary::open(Some(path), RTLD_NOW | flags) }
}

fn find_by_prefix(folder: &Path, prefix: &str) -> Option<PathBuf> {
    let mut files = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    files.find(|file| file.file_name().is_some_and(|file| file.to_string_lossy().starts_with(prefix)))
}

/// Returns the path of NCCL in the memory map of this process, if it is loaded.
fn loaded_path() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|line| line.find('/').map(|start| &line[start..]));
    paths.map(PathBuf::from).find(|path| path.file_name().is_some_and(|name| name == NAME))
}
