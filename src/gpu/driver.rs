//! NVIDIA's driver (libcuda.so.1): which cards there are, and kernels that are started on one.
//!
//! Every function here is one of <https://docs.nvidia.com/cuda/cuda-driver-api>.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

use super::cubin::Cubin;

/// The driver's library.
pub const NAME: &str = "libcuda.so.1";

/// What the driver refuses, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// There is no driver on this machine.
    #[error("this machine has no NVIDIA driver: {0}")]
    Absent(String),
    /// A call failed.
    #[error("the driver's {call} failed: {said}")]
    Call {
        /// Which.
        call: &'static str,
        /// Its number.
        code: i32,
        /// Its name and what it means.
        said: String,
    },
}

impl DriverError {
    /// Whether this only says that the machine has no card that this process may use.
    pub fn has_no_card(&self) -> bool {
        match self {
            Self::Absent(_) => true,
            Self::Call { code, .. } => *code == NO_DEVICE || *code == STUB_LIBRARY,
        }
    }
}

/// `CUDA_ERROR_NO_DEVICE`, and `CUDA_ERROR_STUB_LIBRARY`: a driver's place is taken by what programs are linked with.
const NO_DEVICE: i32 = 100;
const STUB_LIBRARY: i32 = 34;

/// What a function of the driver returns.
pub(super) type Status = c_int;
type Device = c_int;
type Context = *mut c_void;
type Module = *mut c_void;
type Function = *mut c_void;
type Stream = *mut c_void;
/// `cuLaunchKernel`: function, three sizes of the grid, three of a block, bytes of shared memory, stream, arguments, options.
type Launch = unsafe extern "C" fn(
    Function,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Stream,
    *mut *mut c_void,
    *mut *mut c_void,
) -> Status;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const CAPABILITY: [c_int; 2] = [75, 76];

/// The driver.
pub struct Driver {
    library: Library,
}

/// A card, as the driver tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CardFacts {
    /// As `NVIDIA H200`.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    /// Its place on the bus, as `0000:1B:00.0`: the same card has the same in every process of a host.
    pub bus: String,
    /// Bytes of its memory.
    pub memory: u64,
}

impl CardFacts {
    /// Its architecture, as NVRTC names it: `sm_90`.
    pub fn architecture(&self) -> String {
        format!("sm_{}{}", self.capability.0, self.capability.1)
    }
}

impl Driver {
    /// Loads the driver and lets it begin.
    ///
    /// # Errors
    /// There is none, or it cannot begin; without a card that is [`DriverError::has_no_card`].
    pub fn open() -> Result<Self, DriverError> {
        // SAFETY: NVIDIA's library; its initializers have no conditions.
        let library = unsafe { Library::open(Some(NAME), RTLD_NOW | RTLD_GLOBAL) };
        let driver = Self { library: library.map_err(|error| DriverError::Absent(error.to_string()))? };
        let begin = driver.symbol::<unsafe extern "C" fn(c_uint) -> Status>("cuInit")?;
        // SAFETY: 0 is the only flag there is.
        driver.check("cuInit", unsafe { begin(0) })?;
        Ok(driver)
    }

    pub(super) fn symbol<T>(&self, call: &'static str) -> Result<Symbol<T>, DriverError> {
        // SAFETY: each caller gives the type that NVIDIA's header has for this name.
        let found = unsafe { self.library.get(call.as_bytes()) };
        found.map_err(|error| DriverError::Call { call, code: -1, said: error.to_string() })
    }

    pub(super) fn check(&self, call: &'static str, code: Status) -> Result<(), DriverError> {
        type Ask = unsafe extern "C" fn(Status, *mut *const c_char) -> Status;
        if code == 0 {
            return Ok(());
        }
        let words = |name: &'static str| {
            let mut text = std::ptr::null();
            let ask = self.symbol::<Ask>(name).ok()?;
            // SAFETY: gives a constant string, or null for a number that it does not know.
            let known = unsafe { ask(code, &raw mut text) } == 0 && !text.is_null();
            // SAFETY: a string with its end.
            known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let said = [words("cuGetErrorName"), words("cuGetErrorString")].into_iter().flatten().collect::<Vec<_>>();
        Err(DriverError::Call { call, code, said: format!("{} ({code})", said.join(": ")) })
    }

    /// The CUDA version that the driver supports, as 13000 for 13.0.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn version(&self) -> Result<i32, DriverError> {
        let ask = self.symbol::<unsafe extern "C" fn(*mut c_int) -> Status>("cuDriverGetVersion")?;
        let mut version = 0;
        // SAFETY: the integer lives for the call.
        self.check("cuDriverGetVersion", unsafe { ask(&raw mut version) })?;
        Ok(version)
    }

    /// How many cards this process may use.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn cards(&self) -> Result<usize, DriverError> {
        let ask = self.symbol::<unsafe extern "C" fn(*mut c_int) -> Status>("cuDeviceGetCount")?;
        let mut count = 0;
        // SAFETY: the integer lives for the call.
        self.check("cuDeviceGetCount", unsafe { ask(&raw mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    fn device(&self, index: usize) -> Result<Device, DriverError> {
        let get = self.symbol::<unsafe extern "C" fn(*mut Device, c_int) -> Status>("cuDeviceGet")?;
        let mut device = 0;
        // SAFETY: the integer lives for the call.
        self.check("cuDeviceGet", unsafe { get(&raw mut device, index as c_int) })?;
        Ok(device)
    }

    /// What a card is.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn facts(&self, index: usize) -> Result<CardFacts, DriverError> {
        type Text = unsafe extern "C" fn(*mut c_char, c_int, Device) -> Status;
        let device = self.device(index)?;
        let text = |call: &'static str| {
            let mut bytes = [0_u8; 256];
            let ask = self.symbol::<Text>(call)?;
            // SAFETY: as many bytes as it is told; the last stays zero.
            self.check(call, unsafe { ask(bytes.as_mut_ptr().cast(), bytes.len() as c_int - 1, device) })?;
            let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
            Ok::<_, DriverError>(text.to_string_lossy().into_owned())
        };
        let ask = self.symbol::<unsafe extern "C" fn(*mut c_int, c_int, Device) -> Status>("cuDeviceGetAttribute")?;
        let attribute = |which: c_int| {
            let mut value = 0;
            // SAFETY: the integer lives for the call.
            self.check("cuDeviceGetAttribute", unsafe { ask(&raw mut value, which, device) })?;
            Ok::<_, DriverError>(value)
        };
        let total = self.symbol::<unsafe extern "C" fn(*mut usize, Device) -> Status>("cuDeviceTotalMem_v2")?;
        let mut memory = 0;
        // SAFETY: the integer lives for the call.
        self.check("cuDeviceTotalMem_v2", unsafe { total(&raw mut memory, device) })?;
        Ok(CardFacts {
            name: text("cuDeviceGetName")?,
            capability: (attribute(CAPABILITY[0])?, attribute(CAPABILITY[1])?),
            bus: text("cuDeviceGetPCIBusId")?,
            memory: memory as u64,
        })
    }

    /// The context of a card that libtorch uses, too; kept until the process ends.
    fn context(&self, index: usize) -> Result<Context, DriverError> {
        let retain = self.symbol::<unsafe extern "C" fn(*mut Context, Device) -> Status>("cuDevicePrimaryCtxRetain")?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer lives for the call.
        self.check("cuDevicePrimaryCtxRetain", unsafe { retain(&raw mut context, self.device(index)?) })?;
        Ok(context)
    }

    fn enter(&self, context: Context) -> Result<(), DriverError> {
        let set = self.symbol::<unsafe extern "C" fn(Context) -> Status>("cuCtxSetCurrent")?;
        // SAFETY: a context that stays.
        self.check("cuCtxSetCurrent", unsafe { set(context) })
    }

    /// Bytes of a card's memory that nobody uses, this process's context not counted.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn free(&self, index: usize) -> Result<u64, DriverError> {
        self.enter(self.context(index)?)?;
        let ask = self.symbol::<unsafe extern "C" fn(*mut usize, *mut usize) -> Status>("cuMemGetInfo_v2")?;
        let (mut free, mut all) = (0, 0);
        // SAFETY: both integers live for the call.
        self.check("cuMemGetInfo_v2", unsafe { ask(&raw mut free, &raw mut all) })?;
        Ok(free as u64)
    }

    /// Keeps `bytes` where they are, so that a card copies to them by itself and beside its computing.
    ///
    /// # Errors
    /// The driver refuses: the memory that may be pinned is limited.
    ///
    /// # Safety
    /// The memory stays allocated until the `Pin` is dropped.
    pub unsafe fn pin(self: &Arc<Self>, index: usize, bytes: &mut [u8]) -> Result<Pin, DriverError> {
        type Register = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> Status;
        self.enter(self.context(index)?)?;
        let register = self.symbol::<Register>("cuMemHostRegister_v2")?;
        let first = bytes.as_mut_ptr().cast::<c_void>();
        // SAFETY: memory of that length, which the caller keeps.
        self.check("cuMemHostRegister", unsafe { register(first, bytes.len(), PORTABLE) })?;
        Ok(Pin { driver: Arc::clone(self), index, first })
    }
}

/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for all contexts of the process.
const PORTABLE: c_uint = 1;

/// Main memory that stays where it is.
pub struct Pin {
    driver: Arc<Driver>,
    index: usize,
    first: *mut c_void,
}

// SAFETY: the pointer is only given to the driver, whose functions any thread may call.
unsafe impl Send for Pin {}
// SAFETY: as above.
unsafe impl Sync for Pin {}

impl Drop for Pin {
    fn drop(&mut self) {
        let driver = &self.driver;
        let undo = || {
            driver.enter(driver.context(self.index)?)?;
            let unregister = driver.symbol::<unsafe extern "C" fn(*mut c_void) -> Status>("cuMemHostUnregister")?;
            // SAFETY: registered above, and once.
            driver.check("cuMemHostUnregister", unsafe { unregister(self.first) })
        };
        if let Err(error) = undo() {
            tracing::debug!("pinned memory is not given back: {error}");
        }
    }
}

/// Kernels on a card.
pub struct Loaded {
    driver: Arc<Driver>,
    context: Context,
    functions: HashMap<&'static str, Function>,
    launch: Launch,
}

// SAFETY: the driver's functions may be called by any thread, with any context of the process.
unsafe impl Send for Loaded {}
// SAFETY: as above.
unsafe impl Sync for Loaded {}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} kernels", self.functions.len())
    }
}

impl Loaded {
    /// The functions of these names out of a cubin, on card `index`.
    ///
    /// # Errors
    /// The driver refuses the code, or it has no such function.
    pub fn new(driver: Arc<Driver>, index: usize, code: &Cubin, names: &[&'static str]) -> Result<Self, DriverError> {
        let context = driver.context(index)?;
        driver.enter(context)?;
        let load = driver.symbol::<unsafe extern "C" fn(*mut Module, *const c_void) -> Status>("cuModuleLoadData")?;
        let mut module = std::ptr::null_mut();
        // SAFETY: a whole cubin, as its type says, whose length it has in itself; it is copied.
        driver.check("cuModuleLoadData", unsafe { load(&raw mut module, code.bytes().as_ptr().cast()) })?;
        type Get = unsafe extern "C" fn(*mut Function, Module, *const c_char) -> Status;
        let get = driver.symbol::<Get>("cuModuleGetFunction")?;
        let function = |name: &&'static str| {
            let symbol = CString::new(format!("lambert_{name}")).unwrap_or_default();
            let mut function = std::ptr::null_mut();
            // SAFETY: a module from above and a string with its end.
            driver.check("cuModuleGetFunction", unsafe { get(&raw mut function, module, symbol.as_ptr()) })?;
            Ok((*name, function))
        };
        let functions = names.iter().map(function).collect::<Result<_, DriverError>>()?;
        let launch = *driver.symbol::<Launch>("cuLaunchKernel")?;
        Ok(Self { driver, context, functions, launch })
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Lets what this thread calls go to the card.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn enter(&self) -> Result<(), DriverError> {
        self.driver.enter(self.context)
    }

    /// Starts `blocks` blocks of `threads` threads on `stream`.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// `arguments` point to as many values as the kernel has parameters, of their types.
    pub unsafe fn launch(
        &self,
        kernel: &str,
        blocks: usize,
        threads: usize,
        stream: *mut c_void,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        let unknown = || DriverError::Call { call: "cuLaunchKernel", code: -1, said: format!("no kernel {kernel}") };
        let function = *self.functions.get(kernel).ok_or_else(unknown)?;
        self.driver.enter(self.context)?;
        let (blocks, threads) = (blocks as c_uint, threads as c_uint);
        let pointers = arguments.as_mut_ptr();
        // SAFETY: the caller's arguments; a function of this context.
        let status =
            unsafe { (self.launch)(function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, std::ptr::null_mut()) };
        self.driver.check("cuLaunchKernel", status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_that_is_broken_is_not_one_without_cards() {
        let failed = |code| DriverError::Call { call: "cuInit", code, said: String::new() };
        assert!(DriverError::Absent(String::new()).has_no_card() && failed(100).has_no_card());
        // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_UNKNOWN.
        assert!(!failed(803).has_no_card() && !failed(999).has_no_card());
    }
}
