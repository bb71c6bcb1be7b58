//! GPUs of ranks as text.

use std::collections::BTreeSet;

use lambert_control::{GpuRanges, GpuSample, GpuStatus, ValueRange};

use super::RankStatus;
use crate::text::counted;

/// Bytes of a GiB.
pub const GIB: f64 = (1_u64 << 30) as f64;

/// Formats the ranges over the GPUs of all ranks: `4 GPUs: 96-98% busy, 71.2-71.9/80.0 GiB, 612-655 W, 61-67 C`. `None`
/// without GPUs.
pub fn summary(ranks: &[RankStatus]) -> Option<String> {
    let gpus: Vec<(&str, &GpuStatus)> =
        ranks.iter().filter_map(|rank| Some((rank.host.as_str(), rank.gpu.as_ref()?))).collect();
    let distinct: BTreeSet<(&str, &str)> = gpus.iter().map(|(host, gpu)| (*host, gpu.uuid.as_str())).collect();
    let samples: Vec<GpuSample> = gpus.iter().map(|(_, gpu)| gpu.sample).collect();
    let mig = if gpus.iter().any(|(_, gpu)| gpu.is_mig_parent) { " (of whole GPUs, not of MIG instances)" } else { "" };
    let values = values(&samples);
    (!gpus.is_empty()).then(|| format!("{}: {values}{mig}", counted(distinct.len() as u64, "GPU")))
}

/// Formats the GPU of a rank: `GPU 1: 97% busy, 71.5/80.0 GiB, 640 W, 65 C; Xid 79`.
pub fn of_rank(gpu: &GpuStatus) -> String {
    let mig = if gpu.is_mig_parent { " (whole GPU)" } else { "" };
    let xids: Vec<String> = gpu.xids.iter().map(|xid| format!("Xid {xid}")).collect();
    let xids = if xids.is_empty() { String::new() } else { format!("; {}", xids.join(", ")) };
    format!("GPU {}{mig}: {}{xids}", gpu.index, values(&[gpu.sample]))
}

fn values(samples: &[GpuSample]) -> String {
    let Some(ranges) = GpuRanges::of(samples) else { return "no values".to_owned() };
    let memory = match (ranges.memory_used, ranges.memory_total) {
        (Some(used), Some(total)) => Some(format!("{}/{} GiB", range(used, 1.0 / GIB, 1), range(total, 1.0 / GIB, 1))),
        _ => None,
    };
    let values = [
        ranges.utilization.map(|share| range(share, 100.0, 0) + "% busy"),
        memory,
        ranges.power.map(|watts| range(watts, 1.0, 0) + " W"),
        ranges.temperature.map(|degrees| range(degrees, 1.0, 0) + " C"),
    ];
    values.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Formats a range times `factor`, or one number if both ends are the same.
pub fn range(ValueRange { min, max }: ValueRange, factor: f64, digits: usize) -> String {
    let [min, max] = [min, max].map(|value| format!("{:.digits$}", factor * value));
    if min == max { min } else { format!("{min}-{max}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: usize, uuid: &str, sample: GpuSample) -> RankStatus {
        let gpu = Some(GpuStatus { index: 1, uuid: uuid.to_owned(), sample, ..GpuStatus::default() });
        let (host, phase) = ("a".to_owned(), String::new());
        RankStatus { rank, host, pid: 1, step: 1, phase, seconds_since_heartbeat: 0.0, gpu }
    }

    fn sample(percent: f64, gib: f64) -> GpuSample {
        let (memory_used, memory_total) = (Some((gib * GIB) as u64), Some(80 << 30));
        let (power, temperature) = (Some(600.0 + percent), Some(61.0));
        GpuSample { utilization: Some(percent / 100.0), memory_used, memory_total, power, temperature }
    }

    #[test]
    fn gpus_of_all_ranks_have_ranges() {
        let mut ranks = vec![rank(0, "u", sample(96.0, 71.2)), rank(1, "v", sample(98.0, 71.9))];
        let text = "2 GPUs: 96-98% busy, 71.2-71.9/80.0 GiB, 696-698 W, 61 C";
        assert_eq!(summary(&ranks).unwrap(), text);
        ranks.push(rank(2, "v", GpuSample::default()));
        assert_eq!(summary(&ranks).unwrap(), text, "two ranks share a GPU");
        ranks[2].gpu.as_mut().unwrap().is_mig_parent = true;
        assert_eq!(summary(&ranks).unwrap(), format!("{text} (of whole GPUs, not of MIG instances)"));
        assert_eq!(summary(&ranks[2..]).unwrap(), "1 GPU: no values (of whole GPUs, not of MIG instances)");
        ranks.iter_mut().for_each(|rank| rank.gpu = None);
        assert_eq!(summary(&ranks), None);
    }

    #[test]
    fn the_gpu_of_a_rank_has_its_xid_errors() {
        let mut gpu = rank(0, "u", GpuSample { power: None, ..sample(97.0, 71.5) }).gpu.unwrap();
        assert_eq!(of_rank(&gpu), "GPU 1: 97% busy, 71.5/80.0 GiB, 61 C");
        (gpu.xids, gpu.is_mig_parent) = (vec![79, 45], true);
        assert_eq!(of_rank(&gpu), "GPU 1 (whole GPU): 97% busy, 71.5/80.0 GiB, 61 C; Xid 79, Xid 45");
    }
}
