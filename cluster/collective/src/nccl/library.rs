//! The thinnest layer over libnccl.so.2: the only unsafe code that calls it.
//!
//! Every function here is one of <https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html>; the types are those of its
//! header nccl.h.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::os::unix::{Library as Shared, RTLD_GLOBAL, RTLD_NOW};

use crate::{Error, Result};

/// What it is called.
const NAME: &str = "libnccl.so.2";
/// What it may need loaded before it.
const RUNTIME: &str = "libcudart.so.";
/// The oldest that knows non-blocking communicators.
const OLDEST: i32 = 21400;
/// `RTLD_NOLOAD`: only what is loaded already.
const NO_LOAD: c_int = 4;

type Code = c_int;
type Handle = *mut c_void;

const SUCCESS: Code = 0;
const IN_PROGRESS: Code = 7;

/// What makes ranks one communicator: 128 bytes, which only NCCL reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId([u8; 128]);

impl UniqueId {
    /// As bytes, for other ranks.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.0.to_vec()
    }

    /// From another rank's bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }
}

/// `ncclConfig_t` as it began, in NCCL 2.14; later versions take it by its size and version, and their defaults for the rest.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
}

/// What the elements of a sum are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// `ncclFloat32`.
    F32 = 7,
    /// `ncclBfloat16`.
    Bf16 = 9,
}

type Init = unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int, *mut Config) -> Code;
type AllReduce = unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> Code;
type OfHandle = unsafe extern "C" fn(Handle) -> Code;

/// NCCL, loaded for good: its threads and kernels may outlive any value.
pub struct Library {
    path: PathBuf,
    version: i32,
    unique_id: unsafe extern "C" fn(*mut UniqueId) -> Code,
    init: Init,
    async_error: unsafe extern "C" fn(Handle, *mut Code) -> Code,
    all_reduce: AllReduce,
    finalize: OfHandle,
    destroy: OfHandle,
    abort: OfHandle,
    error_string: unsafe extern "C" fn(Code) -> *const c_char,
    last_error: unsafe extern "C" fn(Handle) -> *const c_char,
}

impl Library {
    /// The one that this process has loaded, so that there are not two; else the first in `folders`.
    ///
    /// # Errors
    /// There is none, it cannot be loaded, or it is too old. The message says where it was looked for.
    pub fn open(folders: &[PathBuf]) -> Result<Self> {
        if let Ok(loaded) = load(Path::new(NAME), NO_LOAD) {
            return Self::of(loaded, loaded_path().unwrap_or_else(|| NAME.into()));
        }
        let path = Self::find(folders)?;
        // Some builds of NCCL find CUDA's runtime only where it is loaded.
        for runtime in folders.iter().filter_map(|folder| begins_with(folder, RUNTIME)) {
            let _ = load(&runtime, RTLD_GLOBAL).map(std::mem::forget);
        }
        let loaded = load(&path, RTLD_GLOBAL);
        let loaded = loaded.map_err(|error| Error::NoNccl(format!("cannot load {}: {error}", path.display())))?;
        Self::of(loaded, path)
    }

    /// Its file in the first of `folders` that has it.
    ///
    /// # Errors
    /// None has; they are named.
    pub fn find(folders: &[PathBuf]) -> Result<PathBuf> {
        let found = folders.iter().map(|folder| folder.join(NAME)).find(|path| path.exists());
        found.ok_or_else(|| {
            let looked: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
            Error::NoNccl(format!(
                "there is no {NAME} here, which sums between cards; it is not in {}",
                looked.join(", ")
            ))
        })
    }

    fn of(shared: Shared, path: PathBuf) -> Result<Self> {
        let symbols = Symbols { shared: &shared, path: &path };
        let version: unsafe extern "C" fn(*mut c_int) -> Code = symbols.get("ncclGetVersion")?;
        let mut library = Self {
            version: 0,
            unique_id: symbols.get("ncclGetUniqueId")?,
            init: symbols.get("ncclCommInitRankConfig")?,
            async_error: symbols.get("ncclCommGetAsyncError")?,
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
        std::mem::forget(shared);
        match library.version {
            old if old < OLDEST => {
                let (path, old) = (path.display(), library.version_text());
                Err(Error::NoNccl(format!("{path} is NCCL {old}; 2.14 or later is needed")))
            }
            _ => Ok(library),
        }
    }

    /// Where it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its version, as `2.28.9`.
    pub fn version_text(&self) -> String {
        let version = self.version;
        format!("{}.{}.{}", version / 10000, version / 100 % 100, version % 100)
    }

    /// A new id, for all ranks of a communicator.
    ///
    /// # Errors
    /// NCCL refuses: it finds no network interface that it may use.
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: 128 bytes that live for the call.
        self.check("ncclGetUniqueId", unsafe { (self.unique_id)(&raw mut id) }, ptr::null_mut())?;
        Ok(id)
    }

    /// Begins to connect this rank of `world`, on the device that this thread's calls go to.
    pub fn begin(&self, (rank, world): (usize, usize), id: UniqueId) -> Result<Raw> {
        let (size, blocking) = (size_of::<Config>(), 0);
        let mut config = Config { size, magic: 0xcafe_beef, version: OLDEST as c_uint, blocking };
        // A thread of NCCL's writes the handle once more when it is done, so it stays for good.
        let raw = Raw(Box::leak(Box::new(AtomicPtr::new(ptr::null_mut()))));
        // SAFETY: the configuration lives for the call, which copies it, and the handle's place for good.
        let code = unsafe { (self.init)(raw.0.as_ptr(), world as c_int, id, rank as c_int, &raw mut config) };
        match code {
            IN_PROGRESS => Ok(raw),
            _ => self.check("ncclCommInitRankConfig", code, ptr::null_mut()).map(|()| raw),
        }
    }

    /// Whether what `raw` was asked for is done; an error if it has failed, or if an error has come to it since.
    pub fn is_settled(&self, operation: &'static str, raw: Raw) -> Result<bool> {
        let mut state = SUCCESS;
        // SAFETY: a communicator that was not given back; the integer lives for the call.
        self.check("ncclCommGetAsyncError", unsafe { (self.async_error)(raw.get(), &raw mut state) }, raw.get())?;
        match state {
            IN_PROGRESS => Ok(false),
            state => self.check(operation, state, raw.get()).map(|()| true),
        }
    }

    /// Gives `stream` the sum of `count` elements at `address` over all ranks, in place.
    ///
    /// # Safety
    /// `stream` is one of the communicator's device, and the elements may be read and written until its work is done.
    pub unsafe fn all_reduce(
        &self,
        raw: Raw,
        address: u64,
        (count, element): (usize, Element),
        stream: *mut c_void,
    ) -> Result<()> {
        const SUM: c_int = 0;
        let place = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: a communicator that was not given back; the caller promises the rest.
        let code = unsafe { (self.all_reduce)(place, place, count, element as c_int, SUM, raw.get(), stream) };
        match code {
            IN_PROGRESS => Ok(()),
            _ => self.check("ncclAllReduce", code, raw.get()),
        }
    }

    /// Begins to end a communicator in order, with all other ranks.
    pub fn finalize(&self, raw: Raw) -> Result<()> {
        // SAFETY: a communicator that was not given back.
        match unsafe { (self.finalize)(raw.get()) } {
            IN_PROGRESS => Ok(()),
            code => self.check("ncclCommFinalize", code, raw.get()),
        }
    }

    /// Gives a finalized communicator back. Nothing may be asked of it afterwards.
    pub fn destroy(&self, raw: Raw) -> Result<()> {
        // SAFETY: given back once.
        self.check("ncclCommDestroy", unsafe { (self.destroy)(raw.get()) }, ptr::null_mut())
    }

    /// Ends a communicator and what its device does for it, whatever the others do. Nothing may be asked of it afterwards. May take long.
    pub fn abort(&self, raw: Raw) -> Result<()> {
        // SAFETY: given back once.
        match unsafe { (self.abort)(raw.get()) } {
            IN_PROGRESS => Ok(()),
            code => self.check("ncclCommAbort", code, ptr::null_mut()),
        }
    }

    fn check(&self, operation: &'static str, code: Code, handle: Handle) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: both give a string with its end, or null; the second's lives until NCCL's next error.
        let words = unsafe { [(self.error_string)(code), (self.last_error)(handle)] };
        let [text, last] = words.map(|text| match text.is_null() {
            true => String::new(),
            // SAFETY: as above.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().to_owned(),
        });
        Err(Error::Nccl { operation, code, text, last })
    }
}

/// A communicator that NCCL knows.
#[derive(Clone, Copy)]
pub struct Raw(&'static AtomicPtr<c_void>);

impl Raw {
    fn get(self) -> Handle {
        self.0.load(Ordering::Acquire)
    }
}

struct Symbols<'a> {
    shared: &'a Shared,
    path: &'a Path,
}

impl Symbols<'_> {
    fn get<T: Copy>(&self, name: &'static str) -> Result<T> {
        // SAFETY: each caller gives the type that nccl.h has for this name.
        let found = unsafe { self.shared.get::<T>(name.as_bytes()) };
        found
            .map(|symbol| *symbol)
            .map_err(|_| Error::NoNccl(format!("{} has no {name}: NCCL 2.14 or later is needed", self.path.display())))
    }
}

fn load(path: &Path, flags: c_int) -> Result<Shared, libloading::Error> {
    // SAFETY: NVIDIA's library; its initializers have no conditions.
    unsafe { Shared::open(Some(path), RTLD_NOW | flags) }
}

fn begins_with(folder: &Path, name: &str) -> Option<PathBuf> {
    let mut files = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    files.find(|file| file.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name)))
}

/// Where the library that this process has was loaded from.
fn loaded_path() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let paths = maps.lines().filter_map(|line| line.find('/').map(|start| &line[start..]));
    paths.map(PathBuf::from).find(|path| path.file_name().is_some_and(|name| name == NAME))
}
