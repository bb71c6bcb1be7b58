//! Buckets of the all-reduces of a step.

use lambert_config::run::{ReduceDtype, RunConfig, Stage};

use crate::architecture::{Architecture, CostUnit, Network, Segment};
use crate::memory;
use crate::muon::UpdateWork;
use crate::scaling::BucketTiming;

/// Returns the gradient buckets, in the order in which they are final. The `backward` seconds are divided among the layers of
/// all networks, in proportion to their FLOPs per token. Embeddings and heads take no time.
pub fn of_gradients(config: &RunConfig, stage: &Stage, vocabulary: usize, backward: f64) -> Vec<BucketTiming> {
    let layers = stage.depth(&config.model);
    let width = element_bytes(config);
    let most = config.cluster.all_reduce.bucket_elements(memory::uses_nccl(config)) as f64;
    let (mut buckets, mut elements) = (Vec::new(), 0.0);
    let architecture = Architecture::of_run(config, layers, vocabulary);
    let (tensors, done) = (architecture.tensors(), completed_shares(&architecture));
    let count = tensors.len();
    for (index, tensor) in tensors.into_iter().enumerate() {
        elements += tensor.shape.iter().product::<usize>() as f64;
        let seconds_before_end = backward * (1.0 - done[tensor.final_after_segment - 1]);
        let parts = if index + 1 == count { (elements / most).ceil() } else { (elements / most).floor() };
        for _ in 0..parts as usize {
            let taken = elements.min(most);
            buckets.push(BucketTiming { bytes: width * taken, seconds_before_end });
            elements -= taken;
        }
    }
    buckets
}

/// Returns the share of the backward pass that is complete after each segment, in the order of the backward pass.
fn completed_shares(architecture: &Architecture) -> Vec<f64> {
    let work = |network: &Network| {
        let of_segment = |segment: &Segment| match segment.layer {
            Some(_) => segment.flops(CostUnit::Token, network.vocabulary),
            None => 0.0,
        };
        network.segments.iter().rev().map(of_segment).collect::<Vec<_>>()
    };
    let work: Vec<f64> = architecture.networks().iter().flat_map(work).collect();
    let all: f64 = work.iter().sum();
    let sums = work.iter().scan(0.0, |sum, work| {
        *sum += work;
        Some(*sum)
    });
    sums.map(|sum| if all > 0.0 { (sum / all).min(1.0) } else { 1.0 }).collect()
}

/// Returns the buckets of the all-reduce of Muon's orthogonalized matrices, which follows the passes.
pub fn of_matrices(config: &RunConfig, matrices: UpdateWork, ranks: usize) -> Vec<BucketTiming> {
    let (most, mut elements) =
        (config.cluster.all_reduce.bucket_elements(memory::uses_nccl(config)) as f64, matrices.elements as f64);
    let mut buckets = Vec::new();
    while ranks > 1 && elements > 0.0 {
        let taken = elements.min(most);
        buckets.push(BucketTiming { bytes: element_bytes(config) * taken, seconds_before_end: 0.0 });
        elements -= taken;
    }
    buckets
}

/// Bytes of an element in an all-reduce.
fn element_bytes(config: &RunConfig) -> f64 {
    match config.cluster.all_reduce.dtype {
        ReduceDtype::Fp32 => 4.0,
        ReduceDtype::Bf16 => 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_elements_are_in_a_bucket() {
        let mut config = RunConfig::default();
        let stage = Stage { name: "one".into(), ..Stage::default() };
        let buckets = of_gradients(&config, &stage, 30522, 1.0);
        let bytes = |buckets: &[BucketTiming]| buckets.iter().map(|bucket| bucket.bytes).sum::<f64>();
        assert_eq!(bytes(&buckets), 4.0 * 110_106_428.0);
        // The 440 MB of gradients are split into buckets of 25 MB.
        assert_eq!(buckets.len(), 18);
        assert!(buckets.is_sorted_by(|a, b| a.seconds_before_end >= b.seconds_before_end));
        assert_eq!(buckets[17].seconds_before_end, 0.0);
        let matrices = UpdateWork { elements: 84_934_656, ..UpdateWork::default() };
        assert_eq!(bytes(&of_matrices(&config, matrices, 8)), 4.0 * 84_934_656.0);
        assert!(of_matrices(&config, matrices, 1).is_empty());
        config.cluster.all_reduce.dtype = ReduceDtype::Bf16;
        assert_eq!(bytes(&of_matrices(&config, matrices, 2)), 2.0 * 84_934_656.0);
    }
}
