//! Monitoring of the GPU of a rank. A thread measures its values with NVML every few seconds and waits for Xid errors.
//! The values are part of the reports to the coordinator and of the step records. An Xid error becomes a warning.
//!
//! The training thread never waits for this thread, and nobody joins it: an NVML call may hang if the GPU is lost.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lambert_control::{GpuStatus, xid_text};

use super::control::GpuReporter;
use crate::gpu::Gpu;
use crate::gpu::conflicts::GpuId;
use crate::gpu::nvml::{self, Nvml, NvmlDevice, NvmlError};

/// Time between two measurements.
const PERIOD: Duration = Duration::from_secs(3);

/// Maximum number of GPUs of the test library.
const MAX_EMULATED: usize = 8;

/// Starts the thread, if this rank has a GPU. `test_library` (`test.gpu`) is a library in place of NVML: the rank then
/// monitors its [`emulated_gpu`]. An error is at most one line of log.
pub fn start(gpu: Option<&Gpu>, test_library: &str, emulated: Option<GpuId>, reporter: GpuReporter) {
    let (library, pci_bus_id) = match gpu {
        _ if !test_library.is_empty() => {
            let pci_bus_id = emulated.map_or_else(|| emulated_bus(local_rank()), |gpu| gpu.pci_bus_id);
            (PathBuf::from(test_library), pci_bus_id)
        }
        Some(gpu) => (PathBuf::from(nvml::NAME), gpu.properties.pci_bus_id.clone()),
        None => return,
    };
    let run = move || run(&library, &pci_bus_id, &reporter);
    if let Err(error) = std::thread::Builder::new().name("gpu-monitor".to_owned()).spawn(run) {
        tracing::warn!("the GPU is not monitored: cannot start a thread: {error}");
    }
}

/// Returns the GPU of this rank in `test_library`, whose GPUs are on the buses from 1 on. As with CUDA, the index is the
/// local rank modulo the number of GPUs. `None` if there is no library or no GPU.
pub fn emulated_gpu(test_library: &str) -> Option<GpuId> {
    if test_library.is_empty() {
        return None;
    }
    let find = |index| {
        let pci_bus_id = emulated_bus(index);
        let device = Nvml::open(Path::new(test_library)).and_then(|nvml| nvml.device(&pci_bus_id)).ok()?;
        Some(GpuId { pci_bus_id, uuid: device.uuid.trim_start_matches("GPU-").to_owned() })
    };
    let mut gpus: Vec<GpuId> = (0..MAX_EMULATED).filter_map(find).collect();
    (!gpus.is_empty()).then(|| gpus.swap_remove(local_rank() % gpus.len()))
}

/// PCI bus ID of GPU `index` of the test library.
fn emulated_bus(index: usize) -> String {
    format!("0000:{:02X}:00.0", 1 + index)
}

fn local_rank() -> usize {
    lambert_collective::world::detect().map_or(0, |world| world.local_rank)
}

fn run(library: &Path, pci_bus_id: &str, reporter: &GpuReporter) {
    match Nvml::open(library).and_then(|nvml| nvml.device(pci_bus_id)) {
        Ok(device) => watch(&device, reporter),
        Err(error @ NvmlError::Absent(_)) => tracing::debug!("the GPU is not monitored: {error}"),
        Err(error) => tracing::warn!("the GPU is not monitored: {error}"),
    }
}

/// Reports the values and the Xid errors of a GPU until the process exits.
fn watch(device: &NvmlDevice, reporter: &GpuReporter) {
    let (index, uuid, is_mig_parent) = (device.index, device.uuid.clone(), device.is_mig);
    let mut status = GpuStatus { index, uuid, is_mig_parent, ..GpuStatus::default() };
    let mut errors = FirstError::default();
    let mut events = errors.log("its Xid errors are not reported", device.watch_xids());
    loop {
        status.sample = errors
            .log("its utilization, memory, power and temperature are not reported", device.sample())
            .unwrap_or_default();
        reporter.report(&status);
        let end = Instant::now() + PERIOD;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            let Some(watched) = &events else {
                std::thread::sleep(left);
                break;
            };
            match watched.wait(left) {
                Ok(xid) => xid.into_iter().for_each(|xid| add_xid(&mut status, xid, reporter)),
                error => {
                    errors.log("its Xid errors are no longer reported", error);
                    events = None;
                }
            }
        }
    }
}

/// Warns about the first Xid error of each number.
fn add_xid(status: &mut GpuStatus, xid: u64, reporter: &GpuReporter) {
    if status.add_xid(xid) {
        reporter.report(status);
        reporter.warn(format!("{} on host {}: {}", status.name(), lambert_store::host::name(), xid_text(xid)));
    }
}

/// Logs the first error as a warning. Later errors have the level debug.
#[derive(Default)]
struct FirstError {
    has_logged: bool,
}

impl FirstError {
    fn log<T>(&mut self, consequence: &str, result: Result<T, NvmlError>) -> Option<T> {
        match result {
            Ok(value) => return Some(value),
            Err(error) if self.has_logged => tracing::debug!("GPU: {consequence}: {error}"),
            Err(error) => tracing::warn!("GPU: {consequence}: {error}"),
        }
        self.has_logged = true;
        None
    }
}
