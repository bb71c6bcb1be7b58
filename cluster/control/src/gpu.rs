//! Measurements of GPUs by NVML, and Xid errors.

use serde::{Deserialize, Serialize};

/// Maximum number of different Xid errors that are kept for a GPU.
const MAX_XIDS: usize = 8;
/// Number that NVML reports for an Xid error that it does not know.
const UNKNOWN_XID: u64 = 999;

/// Meanings of common Xid errors, from NVIDIA's Xid catalog.
const XID_MEANINGS: [(u64, &str); 11] = [
    (13, "graphics engine exception"),
    (31, "GPU memory page fault"),
    (43, "GPU stopped processing"),
    (45, "preemptive cleanup, due to previous errors"),
    (48, "double-bit ECC error"),
    (63, "ECC page retirement or row remapping recorded"),
    (64, "ECC page retirement or row remapping failed"),
    (74, "NVLink error"),
    (79, "GPU has fallen off the bus"),
    (94, "contained memory error"),
    (95, "uncontained memory error"),
];

/// Xid errors of a defective GPU, its memory or its links. Programs cause others, such as 13 and 31.
const FATAL_XIDS: [u64; 4] = [48, 74, 79, 95];

/// Describes an Xid error: `Xid 79 (GPU has fallen off the bus)`.
pub fn xid_text(xid: u64) -> String {
    let meaning = XID_MEANINGS.iter().find(|(number, _)| *number == xid).map(|(_, meaning)| *meaning);
    match meaning {
        Some(meaning) => format!("Xid {xid} ({meaning})"),
        None if xid == UNKNOWN_XID => "an Xid error that NVML does not know".to_owned(),
        None => format!("Xid {xid}"),
    }
}

/// Values of a GPU at one time. A value is absent if the GPU does not support it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuSample {
    /// Share of the last sample period in which a kernel ran, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<f64>,
    /// Memory in use by all processes, and memory that the driver reserves, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used: Option<u64>,
    /// Memory of the GPU, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_total: Option<u64>,
    /// Power, watts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<f64>,
    /// Temperature of the die, degrees Celsius.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
}

/// The GPU of a rank and its last values.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuStatus {
    /// Index in NVML and nvidia-smi. It does not depend on `CUDA_VISIBLE_DEVICES`.
    pub index: u32,
    /// UUID of the GPU, such as `GPU-8f6f2a7e-...`.
    pub uuid: String,
    /// True if the rank computes on a MIG instance of this GPU. The values are those of the whole GPU.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_mig_parent: bool,
    /// Last values.
    #[serde(flatten)]
    pub sample: GpuSample,
    /// Xid errors in this attempt, each number once, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xids: Vec<u64>,
}

impl GpuStatus {
    /// Name for messages: index and UUID.
    pub fn name(&self) -> String {
        let part = if self.is_mig_parent { ", with MIG instances" } else { "" };
        format!("GPU {} ({}{part})", self.index, self.uuid)
    }

    /// Records an Xid error. Returns true if it is the first one with its number. After eight numbers, others are
    /// ignored.
    pub fn add_xid(&mut self, xid: u64) -> bool {
        let is_new = !self.xids.contains(&xid) && self.xids.len() < MAX_XIDS;
        if is_new {
            self.xids.push(xid);
        }
        is_new
    }

    /// True if an Xid error shows that the GPU or the host is defective.
    pub fn is_defective(&self) -> bool {
        self.xids.iter().any(|xid| FATAL_XIDS.contains(xid))
    }

    /// Describes the Xid errors: `GPU 1 (GPU-...) reported Xid 79 (GPU has fallen off the bus)`. `None` if there are
    /// none.
    pub fn xid_report(&self) -> Option<String> {
        let xids: Vec<String> = self.xids.iter().map(|xid| xid_text(*xid)).collect();
        (!xids.is_empty()).then(|| format!("{} reported {}", self.name(), xids.join(", ")))
    }
}

/// Smallest and largest value over GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ValueRange {
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

impl ValueRange {
    /// Range of `values`. `None` if there are none.
    pub fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        values
            .map(|value| Self { min: value, max: value })
            .reduce(|one, other| Self { min: one.min.min(other.min), max: one.max.max(other.max) })
    }
}

/// Ranges of the values of several GPUs. The units are those of [`GpuSample`]. A range is absent if no GPU has the
/// value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuRanges {
    /// Shares of the time in which a kernel ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilization: Option<ValueRange>,
    /// Memory in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_used: Option<ValueRange>,
    /// Memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_total: Option<ValueRange>,
    /// Power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<ValueRange>,
    /// Temperatures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<ValueRange>,
}

impl GpuRanges {
    /// Ranges over `samples`. `None` if no sample has a value.
    pub fn of(samples: &[GpuSample]) -> Option<Self> {
        let range = |value: fn(&GpuSample) -> Option<f64>| ValueRange::of(samples.iter().filter_map(value));
        let ranges = Self {
            utilization: range(|sample| sample.utilization),
            memory_used: range(|sample| sample.memory_used.map(|bytes| bytes as f64)),
            memory_total: range(|sample| sample.memory_total.map(|bytes| bytes as f64)),
            power: range(|sample| sample.power),
            temperature: range(|sample| sample.temperature),
        };
        (ranges != Self::default()).then_some(ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(utilization: f64) -> GpuSample {
        let (memory_used, memory_total) = (Some(70), Some(80));
        GpuSample { utilization: Some(utilization), memory_used, memory_total, power: None, temperature: Some(61.0) }
    }

    #[test]
    fn a_gpu_keeps_its_json_fields() {
        let mut gpu = GpuStatus { index: 3, uuid: "GPU-a".into(), sample: sample(0.5), ..GpuStatus::default() };
        let text =
            r#"{"index":3,"uuid":"GPU-a","utilization":0.5,"memory_used":70,"memory_total":80,"temperature":61.0}"#;
        assert_eq!(serde_json::to_string(&gpu).unwrap(), text);
        assert_eq!(serde_json::from_str::<GpuStatus>(text).unwrap(), gpu);
        (gpu.is_mig_parent, gpu.sample, gpu.xids) = (true, GpuSample::default(), vec![79]);
        let text = r#"{"index":3,"uuid":"GPU-a","is_mig_parent":true,"xids":[79]}"#;
        assert_eq!(serde_json::to_string(&gpu).unwrap(), text);
        assert_eq!(serde_json::from_str::<GpuStatus>(text).unwrap(), gpu);
    }

    #[test]
    fn ranges_leave_out_absent_values() {
        let ranges = GpuRanges::of(&[sample(0.5), GpuSample::default(), sample(0.75)]).unwrap();
        let text = concat!(
            r#"{"utilization":{"min":0.5,"max":0.75},"memory_used":{"min":70.0,"max":70.0},"#,
            r#""memory_total":{"min":80.0,"max":80.0},"temperature":{"min":61.0,"max":61.0}}"#
        );
        assert_eq!(serde_json::to_string(&ranges).unwrap(), text);
        assert_eq!(serde_json::from_str::<GpuRanges>(text).unwrap(), ranges);
        assert_eq!(GpuRanges::of(&[GpuSample::default()]), None);
    }

    #[test]
    fn xid_errors_are_named_and_counted_once() {
        let mut gpu = GpuStatus { index: 1, uuid: "GPU-b".into(), ..GpuStatus::default() };
        assert_eq!(gpu.xid_report(), None);
        assert_eq!([79, 154, 79, 999].map(|xid| gpu.add_xid(xid)), [true, true, false, true]);
        assert_eq!(
            gpu.xid_report().unwrap(),
            "GPU 1 (GPU-b) reported Xid 79 (GPU has fallen off the bus), Xid 154, an Xid error that NVML does not know"
        );
        assert_eq!((0..20).filter(|xid| gpu.add_xid(*xid)).count(), MAX_XIDS - 3);
    }
}
