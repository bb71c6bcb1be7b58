//! Bindings to the CUDA driver (libcuda.so.1): device queries, pinned memory, kernel launches. The functions are documented at
//! <https://docs.nvidia.com/cuda/cuda-driver-api>.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW, Symbol};

use super::cubin::Cubin;

/// Library name.
pub const NAME: &str = "libcuda.so.1";

/// CUDA driver error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The driver cannot be loaded.
    #[error("this machine has no NVIDIA driver: {0}")]
    Absent(String),
    /// A driver call failed.
    #[error("CUDA driver call {call} failed: {message}")]
    Call {
        /// Function name.
        call: &'static str,
        /// `CUresult`; -1 if the call was not made.
        code: i32,
        /// Error name and description.
        message: String,
    },
}

impl DriverError {
    /// True if the error means that this process has no usable GPU.
    pub fn has_no_device(&self) -> bool {
        match self {
            Self::Absent(_) => true,
            Self::Call { code, .. } => *code == NO_DEVICE || *code == STUB_LIBRARY,
        }
    }
}

/// Codes of `CUDA_ERROR_NO_DEVICE` and of `CUDA_ERROR_STUB_LIBRARY` (the linker stub is loaded instead of the driver).
pub(super) const NO_DEVICE: i32 = 100;
const STUB_LIBRARY: i32 = 34;

/// `CUresult`.
pub(super) type CuResult = c_int;
type CuDevice = c_int;
type CuContext = *mut c_void;
type CuModule = *mut c_void;
type CuFunction = *mut c_void;
type CuStream = *mut c_void;
/// `cuLaunchKernel`: function, grid dimensions (3), block dimensions (3), shared memory in bytes, stream, arguments,
/// options.
type LaunchKernel = unsafe extern "C" fn(
    CuFunction,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    CuStream,
    *mut *mut c_void,
    *mut *mut c_void,
) -> CuResult;

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const COMPUTE_CAPABILITY: [c_int; 2] = [75, 76];

/// The loaded driver library. It is never unloaded: CUDA threads run its code.
pub struct Driver {
    library: std::mem::ManuallyDrop<Library>,
}

/// Properties of a GPU, as the driver reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuProperties {
    /// Product name, such as `NVIDIA H200`.
    pub name: String,
    /// Compute capability: major, minor.
    pub compute_capability: (i32, i32),
    /// PCI bus ID, such as `0000:1B:00.0`. The MIG instances of a GPU have the same one.
    pub pci_bus_id: String,
    /// UUID of the GPU or MIG instance, such as `8f6f2a7e-0a4c-...`, which identifies it in every process of the host.
    pub uuid: String,
    /// Total memory in bytes.
    pub memory: u64,
}

impl GpuProperties {
    /// Architecture in the notation of NVRTC, such as `sm_90`.
    pub fn architecture(&self) -> String {
        format!("sm_{}{}", self.compute_capability.0, self.compute_capability.1)
    }
}

/// Returns the notation of a UUID, in groups of 8, 4, 4, 4 and 12 digits.
fn uuid_text(bytes: [u8; 16]) -> String {
    let digits = format!("{:032x}", u128::from_be_bytes(bytes));
    [0..8, 8..12, 12..16, 16..20, 20..32].map(|group| &digits[group]).join("-")
}

impl Driver {
    /// Loads and initializes the driver.
    ///
    /// # Errors
    /// The driver is missing or cannot be initialized. [`DriverError::has_no_device`] is true if the machine has no
    /// GPU.
    pub fn open() -> Result<Self, DriverError> {
        // SAFETY: this is NVIDIA's driver library, whose initializers have no preconditions.
        let library = unsafe { Library::open(Some(NAME), RTLD_NOW | RTLD_GLOBAL) };
        let library = library.map_err(|error| DriverError::Absent(error.to_string()))?;
        let driver = Self { library: std::mem::ManuallyDrop::new(library) };
        let begin = driver.symbol::<unsafe extern "C" fn(c_uint) -> CuResult>("cuInit")?;
        // SAFETY: 0 is the only valid flag.
        driver.check("cuInit", unsafe { begin(0) })?;
        Ok(driver)
    }

    pub(super) fn symbol<T>(&self, call: &'static str) -> Result<Symbol<T>, DriverError> {
        // SAFETY: callers pass the type from the header of NVIDIA.
        let found = unsafe { self.library.get(call.as_bytes()) };
        found.map_err(|error| DriverError::Call { call, code: -1, message: error.to_string() })
    }

    pub(super) fn check(&self, call: &'static str, code: CuResult) -> Result<(), DriverError> {
        type GetErrorText = unsafe extern "C" fn(CuResult, *mut *const c_char) -> CuResult;
        if code == 0 {
            return Ok(());
        }
        let text_of = |name: &'static str| {
            let mut text = std::ptr::null();
            let ask = self.symbol::<GetErrorText>(name).ok()?;
            // SAFETY: the function returns a constant string, or null for an unknown code.
            let has_text = unsafe { ask(code, &raw mut text) } == 0 && !text.is_null();
            // SAFETY: `text` is a NUL-terminated string.
            has_text.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let message =
            [text_of("cuGetErrorName"), text_of("cuGetErrorString")].into_iter().flatten().collect::<Vec<_>>();
        Err(DriverError::Call { call, code, message: format!("{} ({code})", message.join(": ")) })
    }

    /// CUDA version that the driver supports, such as 13000 for 13.0.
    ///
    /// # Errors
    /// The driver call fails.
    pub fn version(&self) -> Result<i32, DriverError> {
        let ask = self.symbol::<unsafe extern "C" fn(*mut c_int) -> CuResult>("cuDriverGetVersion")?;
        let mut version = 0;
        // SAFETY: the integer outlives the call.
        self.check("cuDriverGetVersion", unsafe { ask(&raw mut version) })?;
        Ok(version)
    }

    /// Number of GPUs visible to this process.
    ///
    /// # Errors
    /// The driver call fails.
    pub fn device_count(&self) -> Result<usize, DriverError> {
        let ask = self.symbol::<unsafe extern "C" fn(*mut c_int) -> CuResult>("cuDeviceGetCount")?;
        let mut count = 0;
        // SAFETY: the integer outlives the call.
        self.check("cuDeviceGetCount", unsafe { ask(&raw mut count) })?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    fn device(&self, index: usize) -> Result<CuDevice, DriverError> {
        let get = self.symbol::<unsafe extern "C" fn(*mut CuDevice, c_int) -> CuResult>("cuDeviceGet")?;
        let mut device = 0;
        // SAFETY: the integer outlives the call.
        self.check("cuDeviceGet", unsafe { get(&raw mut device, index as c_int) })?;
        Ok(device)
    }

    /// Queries the properties of a GPU.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn properties(&self, index: usize) -> Result<GpuProperties, DriverError> {
        type GetDeviceText = unsafe extern "C" fn(*mut c_char, c_int, CuDevice) -> CuResult;
        let device = self.device(index)?;
        let text = |call: &'static str| {
            let mut bytes = [0_u8; 256];
            let ask = self.symbol::<GetDeviceText>(call)?;
            // SAFETY: the buffer has one byte more than the length that is passed, and this byte stays zero.
            self.check(call, unsafe { ask(bytes.as_mut_ptr().cast(), bytes.len() as c_int - 1, device) })?;
            let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
            Ok::<_, DriverError>(text.to_string_lossy().into_owned())
        };
        let ask =
            self.symbol::<unsafe extern "C" fn(*mut c_int, c_int, CuDevice) -> CuResult>("cuDeviceGetAttribute")?;
        let attribute = |which: c_int| {
            let mut value = 0;
            // SAFETY: the integer outlives the call.
            self.check("cuDeviceGetAttribute", unsafe { ask(&raw mut value, which, device) })?;
            Ok::<_, DriverError>(value)
        };
        let identify =
            self.symbol::<unsafe extern "C" fn(*mut [u8; 16], CuDevice) -> CuResult>("cuDeviceGetUuid_v2")?;
        let mut uuid = [0; 16];
        // SAFETY: the array has the size of CUuuid and outlives the call.
        self.check("cuDeviceGetUuid_v2", unsafe { identify(&raw mut uuid, device) })?;
        let total = self.symbol::<unsafe extern "C" fn(*mut usize, CuDevice) -> CuResult>("cuDeviceTotalMem_v2")?;
        let mut memory = 0;
        // SAFETY: the integer outlives the call.
        self.check("cuDeviceTotalMem_v2", unsafe { total(&raw mut memory, device) })?;
        Ok(GpuProperties {
            name: text("cuDeviceGetName")?,
            compute_capability: (attribute(COMPUTE_CAPABILITY[0])?, attribute(COMPUTE_CAPABILITY[1])?),
            pci_bus_id: text("cuDeviceGetPCIBusId")?,
            uuid: uuid_text(uuid),
            memory: memory as u64,
        })
    }

    /// Primary context of a GPU, which libtorch also uses. The context is retained until the process exits.
    fn context(&self, index: usize) -> Result<CuContext, DriverError> {
        let retain =
            self.symbol::<unsafe extern "C" fn(*mut CuContext, CuDevice) -> CuResult>("cuDevicePrimaryCtxRetain")?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the pointer outlives the call.
        self.check("cuDevicePrimaryCtxRetain", unsafe { retain(&raw mut context, self.device(index)?) })?;
        Ok(context)
    }

    fn make_current(&self, context: CuContext) -> Result<(), DriverError> {
        let set = self.symbol::<unsafe extern "C" fn(CuContext) -> CuResult>("cuCtxSetCurrent")?;
        // SAFETY: the primary context is never released.
        self.check("cuCtxSetCurrent", unsafe { set(context) })
    }

    /// Free memory of a GPU in bytes, measured after the context of this process is created.
    ///
    /// # Errors
    /// A driver call fails.
    pub fn free_memory(&self, index: usize) -> Result<u64, DriverError> {
        self.make_current(self.context(index)?)?;
        let ask = self.symbol::<unsafe extern "C" fn(*mut usize, *mut usize) -> CuResult>("cuMemGetInfo_v2")?;
        let (mut free, mut all) = (0, 0);
        // SAFETY: both integers outlive the call.
        self.check("cuMemGetInfo_v2", unsafe { ask(&raw mut free, &raw mut all) })?;
        Ok(free as u64)
    }

    /// Pins `bytes`, so that the GPU can copy to them asynchronously.
    ///
    /// # Errors
    /// The driver call fails, for example because the amount of pinned memory is limited.
    ///
    /// # Safety
    /// The memory must stay allocated until the `HostRegistration` is dropped.
    pub unsafe fn pin(self: &Arc<Self>, index: usize, bytes: &mut [u8]) -> Result<HostRegistration, DriverError> {
        type HostRegister = unsafe extern "C" fn(*mut c_void, usize, c_uint) -> CuResult;
        self.make_current(self.context(index)?)?;
        let register = self.symbol::<HostRegister>("cuMemHostRegister_v2")?;
        let first = bytes.as_mut_ptr().cast::<c_void>();
        // SAFETY: the memory has this length, and the caller keeps it allocated.
        self.check("cuMemHostRegister", unsafe { register(first, bytes.len(), PORTABLE) })?;
        Ok(HostRegistration { driver: Arc::clone(self), index, first })
    }
}

/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for all contexts of the process.
const PORTABLE: c_uint = 1;

/// Registration of pinned host memory. Dropping the registration unpins the memory.
pub struct HostRegistration {
    driver: Arc<Driver>,
    index: usize,
    first: *mut c_void,
}

// SAFETY: the pointer is only passed to the driver, which is thread-safe.
unsafe impl Send for HostRegistration {}
// SAFETY: as above.
unsafe impl Sync for HostRegistration {}

impl Drop for HostRegistration {
    fn drop(&mut self) {
        let driver = &self.driver;
        let undo = || {
            driver.make_current(driver.context(self.index)?)?;
            let unregister = driver.symbol::<unsafe extern "C" fn(*mut c_void) -> CuResult>("cuMemHostUnregister")?;
            // SAFETY: the memory was registered once, in `pin`.
            driver.check("cuMemHostUnregister", unsafe { unregister(self.first) })
        };
        if let Err(error) = undo() {
            tracing::debug!("cannot unpin host memory: {error}");
        }
    }
}

/// Kernels loaded on a GPU.
pub struct LoadedKernels {
    driver: Arc<Driver>,
    context: CuContext,
    functions: HashMap<&'static str, CuFunction>,
    launch: LaunchKernel,
}

// SAFETY: the driver is thread-safe, and a context may be used from any thread.
unsafe impl Send for LoadedKernels {}
// SAFETY: as above.
unsafe impl Sync for LoadedKernels {}

impl std::fmt::Debug for LoadedKernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} kernels", self.functions.len())
    }
}

impl LoadedKernels {
    /// Loads a cubin on GPU `index`, and looks up its functions `names`.
    ///
    /// # Errors
    /// The driver rejects the code, or a function is missing.
    pub fn new(driver: Arc<Driver>, index: usize, code: &Cubin, names: &[&'static str]) -> Result<Self, DriverError> {
        let context = driver.context(index)?;
        driver.make_current(context)?;
        let load =
            driver.symbol::<unsafe extern "C" fn(*mut CuModule, *const c_void) -> CuResult>("cuModuleLoadData")?;
        let mut module = std::ptr::null_mut();
        // SAFETY: the type guarantees a complete cubin. The driver reads the length from the cubin and copies the code.
        driver.check("cuModuleLoadData", unsafe { load(&raw mut module, code.bytes().as_ptr().cast()) })?;
        type GetFunction = unsafe extern "C" fn(*mut CuFunction, CuModule, *const c_char) -> CuResult;
        let get = driver.symbol::<GetFunction>("cuModuleGetFunction")?;
        let function = |name: &&'static str| {
            let symbol = CString::new(format!("lambert_{name}")).unwrap_or_default();
            let mut function = std::ptr::null_mut();
            // SAFETY: `module` was loaded above, and `symbol` is a NUL-terminated string.
            driver.check("cuModuleGetFunction", unsafe { get(&raw mut function, module, symbol.as_ptr()) })?;
            Ok((*name, function))
        };
        let functions = names.iter().map(function).collect::<Result<_, DriverError>>()?;
        let launch = *driver.symbol::<LaunchKernel>("cuLaunchKernel")?;
        Ok(Self { driver, context, functions, launch })
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Makes the context of the GPU current on this thread.
    ///
    /// # Errors
    /// The driver call fails.
    pub fn make_current(&self) -> Result<(), DriverError> {
        self.driver.make_current(self.context)
    }

    /// Launches a kernel with `blocks` blocks of `threads` threads on `stream`.
    ///
    /// # Errors
    /// The kernel is unknown, or a driver call fails.
    ///
    /// # Safety
    /// `arguments` must match the parameters of the kernel in number and type.
    pub unsafe fn launch(
        &self,
        kernel: &str,
        blocks: usize,
        threads: usize,
        stream: *mut c_void,
        arguments: &mut [*mut c_void],
    ) -> Result<(), DriverError> {
        let unknown =
            || DriverError::Call { call: "cuLaunchKernel", code: -1, message: format!("unknown kernel {kernel}") };
        let function = *self.functions.get(kernel).ok_or_else(unknown)?;
        self.driver.make_current(self.context)?;
        let (blocks, threads) = (blocks as c_uint, threads as c_uint);
        let pointers = arguments.as_mut_ptr();
        // SAFETY: the caller guarantees the arguments, and the function belongs to the current context.
        let status =
            unsafe { (self.launch)(function, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, std::ptr::null_mut()) };
        self.driver.check("cuLaunchKernel", status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_have_the_notation_of_nvidia_smi() {
        let bytes = std::array::from_fn(|index| 0x0f + 0x10 * index as u8);
        assert_eq!(uuid_text(bytes), "0f1f2f3f-4f5f-6f7f-8f9f-afbfcfdfefff");
    }

    #[test]
    fn broken_driver_differs_from_missing_device() {
        let failed = |code| DriverError::Call { call: "cuInit", code, message: String::new() };
        assert!(DriverError::Absent(String::new()).has_no_device() && failed(100).has_no_device());
        // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, CUDA_ERROR_UNKNOWN.
        assert!(!failed(803).has_no_device() && !failed(999).has_no_device());
    }
}
