//! Bindings to NVML (libnvidia-ml.so.1), the management library of the NVIDIA driver: values of a GPU and its Xid
//! errors.
//!
//! All functions are documented at <https://docs.nvidia.com/deploy/nvml-api>.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::time::Duration;

use lambert_control::GpuSample;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

/// Library name.
pub const NAME: &str = "libnvidia-ml.so.1";

/// NVML error.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NvmlError {
    /// The library cannot be loaded.
    #[error("cannot load NVML: {0}")]
    Absent(String),
    /// A call failed.
    #[error("NVML call {call} failed: {message} ({code})")]
    Call {
        /// Function name.
        call: &'static str,
        /// `nvmlReturn_t`.
        code: i32,
        /// Description of the code.
        message: String,
    },
}

impl NvmlError {
    /// True if the GPU, the driver or the permissions of this user do not allow the call.
    fn is_unsupported(&self) -> bool {
        matches!(self, Self::Call { code: NOT_SUPPORTED | NO_PERMISSION | FUNCTION_NOT_FOUND, .. })
    }
}

type Result<T> = std::result::Result<T, NvmlError>;

/// `nvmlReturn_t`.
type NvmlReturn = c_int;
/// `NVML_SUCCESS` and other codes.
const SUCCESS: NvmlReturn = 0;
const NOT_SUPPORTED: NvmlReturn = 3;
const NO_PERMISSION: NvmlReturn = 4;
const TIMEOUT: NvmlReturn = 10;
const FUNCTION_NOT_FOUND: NvmlReturn = 13;

/// `nvmlDevice_t`, which stays valid until NVML is shut down.
type RawDevice = *mut c_void;
/// `nvmlEventSet_t`.
type RawEventSet = *mut c_void;

/// `NVML_DEVICE_UUID_V2_BUFFER_SIZE`.
const UUID_BYTES: usize = 96;
/// `NVML_TEMPERATURE_GPU`.
const DIE: c_int = 0;
/// `NVML_DEVICE_MIG_ENABLE`.
const MIG_ENABLED: c_uint = 1;
/// `nvmlEventTypeXidCriticalError`.
const XID: c_ulonglong = 8;

/// `nvmlUtilization_t`, percent.
#[repr(C)]
#[derive(Default)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlMemory_t`, bytes.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlEventData_t`.
#[repr(C)]
struct EventData {
    device: RawDevice,
    kind: c_ulonglong,
    /// The Xid, if `kind` is [`XID`].
    data: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// The loaded and initialized library. It is never unloaded or shut down.
pub struct Nvml {
    library: ManuallyDrop<Library>,
}

impl Nvml {
    /// Loads the library `path` and initializes it.
    ///
    /// # Errors
    /// The library is missing, or its driver is.
    pub fn open(path: &Path) -> Result<Self> {
        // SAFETY: this is a library of the NVIDIA driver, whose initializers have no preconditions.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| NvmlError::Absent(error.to_string()))?;
        let nvml = Self { library: ManuallyDrop::new(library) };
        let init = nvml.symbol::<unsafe extern "C" fn() -> NvmlReturn>("nvmlInit_v2")?;
        // SAFETY: the function has no arguments and may be called several times, from any thread.
        nvml.check("nvmlInit_v2", unsafe { init() })?;
        Ok(nvml)
    }

    /// Looks up the GPU with a PCI bus ID, such as `0000:1B:00.0`. CUDA reports the same ID. The index of NVML differs
    /// from that of CUDA if `CUDA_VISIBLE_DEVICES` is set. If the CUDA device is a MIG instance, this is its GPU.
    ///
    /// # Errors
    /// There is no such GPU, or this process may not access it.
    pub fn device(self, pci_bus_id: &str) -> Result<NvmlDevice> {
        type Find = unsafe extern "C" fn(*const c_char, *mut RawDevice) -> NvmlReturn;
        let find = self.symbol::<Find>("nvmlDeviceGetHandleByPciBusId_v2")?;
        let id = CString::new(pci_bus_id).unwrap_or_default();
        let mut handle = std::ptr::null_mut();
        // SAFETY: the string and the pointer outlive the call.
        self.check("nvmlDeviceGetHandleByPciBusId_v2", unsafe { find(id.as_ptr(), &raw mut handle) })?;
        let mut device = NvmlDevice { nvml: self, handle, index: 0, uuid: String::new(), is_mig: false };
        device.index = device.query::<c_uint>("nvmlDeviceGetIndex")?;
        device.uuid = device.read_uuid()?;
        device.is_mig = supported(device.mig_mode())? == Some(MIG_ENABLED);
        Ok(device)
    }

    /// Looks up a function. Callers pass the type of the function in nvml.h.
    fn symbol<T>(&self, call: &'static str) -> Result<Symbol<T>> {
        // SAFETY: the caller passes the right type.
        let found = unsafe { self.library.get(call.as_bytes()) };
        found.map_err(|error| NvmlError::Call { call, code: FUNCTION_NOT_FOUND, message: error.to_string() })
    }

    fn check(&self, call: &'static str, code: NvmlReturn) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let text = self.symbol::<unsafe extern "C" fn(NvmlReturn) -> *const c_char>("nvmlErrorString").ok();
        // SAFETY: the function returns a constant NUL-terminated string, or null.
        let text = text.map(|text| unsafe { text(code) }).filter(|text| !text.is_null());
        // SAFETY: as above.
        let message = text.map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
        Err(NvmlError::Call { call, code, message: message.unwrap_or_default() })
    }
}

/// A GPU.
pub struct NvmlDevice {
    nvml: Nvml,
    handle: RawDevice,
    /// Index in NVML and nvidia-smi.
    pub index: u32,
    /// UUID, such as `GPU-8f6f2a7e-...`.
    pub uuid: String,
    /// True if CUDA uses the GPU in MIG instances.
    pub is_mig: bool,
}

impl NvmlDevice {
    /// Measures the current values.
    ///
    /// # Errors
    /// A call fails, unless the GPU does not support it.
    pub fn sample(&self) -> Result<GpuSample> {
        let utilization = supported(self.query::<Utilization>("nvmlDeviceGetUtilizationRates"))?;
        let memory = supported(self.query::<Memory>("nvmlDeviceGetMemoryInfo"))?;
        let milliwatts = supported(self.query::<c_uint>("nvmlDeviceGetPowerUsage"))?;
        let temperature = supported(self.temperature())?;
        Ok(GpuSample {
            utilization: utilization.map(|share| f64::from(share.gpu) / 100.0),
            memory_used: memory.as_ref().map(|memory| memory.used),
            memory_total: memory.map(|memory| memory.total),
            power: milliwatts.map(|milliwatts| f64::from(milliwatts) / 1000.0),
            temperature: temperature.map(f64::from),
        })
    }

    /// Registers for the Xid errors of this GPU.
    ///
    /// # Errors
    /// The GPU does not support events, as some do with MIG instances.
    pub fn watch_xids(&self) -> Result<XidEvents<'_>> {
        type Register = unsafe extern "C" fn(RawDevice, c_ulonglong, RawEventSet) -> NvmlReturn;
        let create = self.nvml.symbol::<unsafe extern "C" fn(*mut RawEventSet) -> NvmlReturn>("nvmlEventSetCreate")?;
        let register = self.nvml.symbol::<Register>("nvmlDeviceRegisterEvents")?;
        let mut set = std::ptr::null_mut();
        // SAFETY: the pointer outlives the call.
        self.nvml.check("nvmlEventSetCreate", unsafe { create(&raw mut set) })?;
        let events = XidEvents { nvml: &self.nvml, set };
        // SAFETY: the device and the event set are valid.
        self.nvml.check("nvmlDeviceRegisterEvents", unsafe { register(self.handle, XID, set) })?;
        Ok(events)
    }

    /// Calls a function that writes one value of type `T`.
    fn query<T: Default>(&self, call: &'static str) -> Result<T> {
        let ask = self.nvml.symbol::<unsafe extern "C" fn(RawDevice, *mut T) -> NvmlReturn>(call)?;
        let mut value = T::default();
        // SAFETY: the device is valid, the value outlives the call, and the caller passes its type in nvml.h.
        self.nvml.check(call, unsafe { ask(self.handle, &raw mut value) })?;
        Ok(value)
    }

    fn read_uuid(&self) -> Result<String> {
        type GetText = unsafe extern "C" fn(RawDevice, *mut c_char, c_uint) -> NvmlReturn;
        let ask = self.nvml.symbol::<GetText>("nvmlDeviceGetUUID")?;
        let mut bytes = [0_u8; UUID_BYTES + 1];
        // SAFETY: the buffer has one byte more than the length that is passed, and this byte stays zero.
        let code = unsafe { ask(self.handle, bytes.as_mut_ptr().cast(), UUID_BYTES as c_uint) };
        self.nvml.check("nvmlDeviceGetUUID", code)?;
        Ok(CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned())
    }

    /// Temperature of the die, degrees Celsius.
    fn temperature(&self) -> Result<c_uint> {
        type GetTemperature = unsafe extern "C" fn(RawDevice, c_int, *mut c_uint) -> NvmlReturn;
        let ask = self.nvml.symbol::<GetTemperature>("nvmlDeviceGetTemperature")?;
        let mut degrees = 0;
        // SAFETY: the device is valid, and the integer outlives the call.
        self.nvml.check("nvmlDeviceGetTemperature", unsafe { ask(self.handle, DIE, &raw mut degrees) })?;
        Ok(degrees)
    }

    fn mig_mode(&self) -> Result<c_uint> {
        type GetMode = unsafe extern "C" fn(RawDevice, *mut c_uint, *mut c_uint) -> NvmlReturn;
        let ask = self.nvml.symbol::<GetMode>("nvmlDeviceGetMigMode")?;
        let (mut current, mut pending) = (0, 0);
        // SAFETY: the device is valid, and both integers outlive the call.
        let code = unsafe { ask(self.handle, &raw mut current, &raw mut pending) };
        self.nvml.check("nvmlDeviceGetMigMode", code)?;
        Ok(current)
    }
}

/// Xid errors of a GPU, from the registration on.
pub struct XidEvents<'a> {
    nvml: &'a Nvml,
    set: RawEventSet,
}

impl XidEvents<'_> {
    /// Waits for an Xid error, at most `timeout`. `None` if there was none.
    ///
    /// # Errors
    /// NVML cannot wait, for example because the GPU is lost.
    pub fn wait(&self, timeout: Duration) -> Result<Option<u64>> {
        type Wait = unsafe extern "C" fn(RawEventSet, *mut EventData, c_uint) -> NvmlReturn;
        let wait = self.nvml.symbol::<Wait>("nvmlEventSetWait_v2")?;
        let mut event =
            EventData { device: std::ptr::null_mut(), kind: 0, data: 0, gpu_instance: 0, compute_instance: 0 };
        let milliseconds = c_uint::try_from(timeout.as_millis()).unwrap_or(c_uint::MAX);
        // SAFETY: the event set is valid, and the event outlives the call.
        match unsafe { wait(self.set, &raw mut event, milliseconds) } {
            TIMEOUT => Ok(None),
            code => self.nvml.check("nvmlEventSetWait_v2", code).map(|()| (event.kind == XID).then_some(event.data)),
        }
    }
}

impl Drop for XidEvents<'_> {
    fn drop(&mut self) {
        if let Ok(free) = self.nvml.symbol::<unsafe extern "C" fn(RawEventSet) -> NvmlReturn>("nvmlEventSetFree") {
            // SAFETY: the event set is valid and not used afterwards.
            let _ = unsafe { free(self.set) };
        }
    }
}

/// Turns the error of an unsupported call into `None`.
fn supported<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_unsupported() => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;

    const BUS: &str = "0000:01:00.0";

    /// Compiles tests/support/nvml.c with `options`. Returns the path of the library.
    fn emulated(folder: &tempfile::TempDir, options: &[&str]) -> PathBuf {
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/nvml.c");
        let library = folder.path().join("libnvidia-ml.so.1");
        let mut compiler = Command::new("cc");
        let status = compiler.args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&library).args(options);
        assert!(status.arg(source).status().unwrap().success());
        library
    }

    fn device(options: &[&str]) -> (tempfile::TempDir, Result<NvmlDevice>) {
        let folder = tempfile::tempdir().unwrap();
        let device = Nvml::open(&emulated(&folder, options)).and_then(|nvml| nvml.device(BUS));
        (folder, device)
    }

    #[test]
    fn the_gpu_is_found_by_its_bus_id() {
        let folder = tempfile::tempdir().unwrap();
        let library = emulated(&folder, &[]);
        let find = |id: &str| Nvml::open(&library).unwrap().device(id);
        let found = |id: &str| find(id).map(|device| (device.index, device.uuid, device.is_mig)).unwrap();
        // The emulated library lists the GPU on bus 2 first.
        assert_eq!(found("0000:02:00.0"), (0, "GPU-00000000-0000-0000-0000-000000000002".to_owned(), false));
        assert_eq!(found(BUS), (1, "GPU-00000000-0000-0000-0000-000000000001".to_owned(), false));
        let Err(error) = find("0000:07:00.0") else { panic!("found a GPU on bus 7") };
        assert_eq!(error.to_string(), "NVML call nvmlDeviceGetHandleByPciBusId_v2 failed: Not Found (6)");
    }

    #[test]
    fn values_are_in_base_units() {
        let expected = GpuSample {
            utilization: Some(0.96),
            memory_used: Some(71 << 30),
            memory_total: Some(80 << 30),
            power: Some(610.5),
            temperature: Some(61.0),
        };
        assert_eq!(device(&[]).1.unwrap().sample().unwrap(), expected);
        let (folder, without) = device(&["-DPOWER_RESULT=3"]);
        assert_eq!(without.unwrap().sample().unwrap(), GpuSample { power: None, ..expected });
        drop(folder);
        let lost = device(&["-DUTILIZATION_RESULT=15"]).1.unwrap().sample().unwrap_err();
        assert_eq!(lost.to_string(), "NVML call nvmlDeviceGetUtilizationRates failed: GPU is lost (15)");
    }

    #[test]
    fn xid_errors_arrive_once() {
        let (folder, device) = device(&[]);
        let device = device.unwrap();
        let events = device.watch_xids().unwrap();
        assert_eq!(events.wait(Duration::from_millis(40)).unwrap(), None);
        std::fs::write(folder.path().join("libnvidia-ml.so.1.xid-2"), "48").unwrap();
        assert_eq!(events.wait(Duration::from_millis(40)).unwrap(), None, "the error of another GPU");
        std::fs::write(folder.path().join("libnvidia-ml.so.1.xid-1"), "79").unwrap();
        assert_eq!(events.wait(Duration::from_secs(10)).unwrap(), Some(79));
        assert_eq!(events.wait(Duration::from_millis(40)).unwrap(), None);
    }

    #[test]
    fn missing_features_and_libraries_are_errors() {
        let (_folder, device) = device(&["-DREGISTER_RESULT=3", "-DMIG_MODE=1"]);
        let device = device.unwrap();
        assert!(device.is_mig && device.sample().unwrap().power.is_some());
        let Err(error) = device.watch_xids() else { panic!("registered") };
        assert_eq!(error.to_string(), "NVML call nvmlDeviceRegisterEvents failed: Not Supported (3)");
        let (_folder, without_driver) = self::device(&["-DINIT_RESULT=9"]);
        assert!(without_driver.err().unwrap().to_string().starts_with("NVML call nvmlInit_v2 failed: Driver"));
        assert!(matches!(Nvml::open(Path::new("/nowhere/libnvidia-ml.so.1")), Err(NvmlError::Absent(_))));
    }

    /// Sizes and offsets of the types in nvml.h of CUDA 12 and 13.
    #[test]
    fn types_have_the_layout_of_the_header() {
        let sizes = [size_of::<Utilization>(), size_of::<Memory>(), size_of::<EventData>()];
        assert_eq!(sizes, [8, 24, 32]);
        let offsets = [std::mem::offset_of!(EventData, kind), std::mem::offset_of!(EventData, data)];
        assert_eq!((offsets, std::mem::offset_of!(Memory, used)), ([8, 16], 16));
    }
}
