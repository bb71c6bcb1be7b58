//! Cost model of data-parallel training. It estimates the duration of the gradient all-reduce, the part that does not
//! overlap with the backward pass, the wait for the slowest rank, and the scaling efficiency.
//!
//! The all-reduce is assumed to transfer the minimum number of bytes (Patarasuk and Yuan, "Bandwidth optimal all-reduce
//! algorithms for clusters of workstations", 2009). Contention between jobs is not modeled. docs/experiments/scaling.md
//! compares the model with measurements.

/// Network link or interconnect.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bandwidth in each direction, bytes per second.
    pub bandwidth: f64,
    /// Time until the first byte of a message arrives, seconds.
    pub latency: f64,
}

/// Topology of a cluster.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClusterTopology {
    /// Number of hosts.
    pub hosts: usize,
    /// Ranks per host.
    pub ranks_per_host: usize,
    /// Link between two ranks of a host.
    pub intra_host: Link,
    /// Link between two hosts. Its bandwidth is the total of all network adapters of a host.
    pub inter_host: Link,
}

impl ClusterTopology {
    /// Total number of ranks.
    pub fn world_size(&self) -> usize {
        self.hosts * self.ranks_per_host
    }

    /// Duration of a ring all-reduce of `bytes`, seconds. Transfers within and between hosts overlap, so the slower
    /// link determines the duration. The ranks of a host share its network bandwidth.
    pub fn ring_seconds(&self, bytes: f64) -> f64 {
        let transfer = |members: usize, link: Link| match members {
            0 | 1 => 0.0,
            members => 2.0 * (members - 1) as f64 / members as f64 * bytes / link.bandwidth,
        };
        let steps = 2.0 * self.world_size().saturating_sub(1) as f64;
        let crossings = 2.0 * self.hosts.saturating_sub(1) as f64;
        let latencies = crossings * self.inter_host.latency + (steps - crossings).max(0.0) * self.intra_host.latency;
        transfer(self.ranks_per_host, self.intra_host).max(transfer(self.hosts, self.inter_host)) + latencies
    }

    /// Duration of a recursive-doubling all-reduce of `bytes`, seconds. Each round sends all bytes.
    pub fn recursive_doubling_seconds(&self, bytes: f64) -> f64 {
        let rounds = |members: usize| f64::from(members.max(1).next_power_of_two().ilog2());
        let round = |link: Link| link.latency + bytes / link.bandwidth;
        rounds(self.ranks_per_host) * round(self.intra_host) + rounds(self.hosts) * round(self.inter_host)
    }

    /// Duration of a binomial-tree gather of `bytes` per rank on rank 0, seconds. A sender forwards the data of its
    /// whole subtree. The rounds within hosts come first.
    pub fn gather_seconds(&self, bytes: f64) -> f64 {
        let tree = |members: usize, bytes: f64, link: Link| {
            let rounds = f64::from(members.max(1).next_power_of_two().ilog2());
            rounds * link.latency + members.saturating_sub(1) as f64 * bytes / link.bandwidth
        };
        let host = bytes * self.ranks_per_host as f64;
        tree(self.ranks_per_host, bytes, self.intra_host) + tree(self.hosts, host, self.inter_host)
    }

    /// Duration of an all-reduce of `bytes` with the faster algorithm, seconds.
    pub fn all_reduce_seconds(&self, bytes: f64) -> f64 {
        self.ring_seconds(bytes).min(self.recursive_doubling_seconds(bytes))
    }
}

/// Gradient bucket of the cost model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BucketTiming {
    /// Size on the wire, bytes.
    pub bytes: f64,
    /// Time between the completion of its gradients and the end of the backward pass, seconds.
    pub seconds_before_end: f64,
}

/// Compute work of one step on each rank.
#[derive(Debug, Clone, PartialEq)]
pub struct StepWork {
    /// Duration of forward and backward passes and the update, seconds.
    pub seconds: f64,
    /// Buckets, in the order in which their gradients become final.
    pub buckets: Vec<BucketTiming>,
    /// Standard deviation of the step times of the ranks, relative to their mean.
    pub relative_deviation: f64,
}

impl StepWork {
    /// Exposed communication time, seconds. This is the time that the all-reduces take after the end of the backward
    /// pass. Buckets are reduced one after the other.
    pub fn exposed_seconds(&self, cluster: &ClusterTopology) -> f64 {
        let finish = |free: f64, bucket: &BucketTiming| {
            free.max(-bucket.seconds_before_end) + cluster.all_reduce_seconds(bucket.bytes)
        };
        self.buckets.iter().fold(f64::NEG_INFINITY, finish).max(0.0)
    }

    /// Duration of a step, seconds: the work of the slowest rank plus the exposed communication time.
    pub fn step_seconds(&self, cluster: &ClusterTopology) -> f64 {
        self.seconds * (1.0 + self.relative_deviation * slowest_rank_deviations(cluster.world_size()))
            + self.exposed_seconds(cluster)
    }

    /// Scaling efficiency: throughput relative to the same number of independent ranks.
    pub fn scaling_efficiency(&self, cluster: &ClusterTopology) -> f64 {
        self.seconds / self.step_seconds(cluster)
    }
}

/// Expected delay of the slowest of `ranks` ranks relative to the mean, in standard deviations. Step times are assumed
/// to be normally distributed. The result is exact to two decimal places for up to eight ranks. For more ranks it
/// consists of the first terms of the asymptotic series (Cramér, "Mathematical Methods of Statistics", 1946, section
/// 28.6).
fn slowest_rank_deviations(ranks: usize) -> f64 {
    const FEW: [f64; 9] = [0.0, 0.0, 0.56, 0.85, 1.03, 1.16, 1.27, 1.35, 1.42];
    const EULER: f64 = 0.5772;
    FEW.get(ranks).copied().unwrap_or_else(|| {
        let root = (2.0 * (ranks as f64).ln()).sqrt();
        root - ((ranks as f64).ln().ln() + (4.0 * std::f64::consts::PI).ln()) / (2.0 * root) + EULER / root
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64, tolerance: f64) -> bool {
        (a / b - 1.0).abs() < tolerance
    }

    /// Describes hosts with one rank per host and links without latency.
    fn one_rank_per_host(hosts: usize, bandwidth: f64) -> ClusterTopology {
        let link = Link { bandwidth, latency: 0.0 };
        ClusterTopology { hosts, ranks_per_host: 1, intra_host: link, inter_host: link }
    }

    #[test]
    fn a_ring_transfers_each_byte_twice_except_the_own_chunk() {
        assert_eq!(one_rank_per_host(1, 1e9).ring_seconds(1e9), 0.0);
        assert_eq!(one_rank_per_host(2, 1e9).ring_seconds(1e9), 1.0);
        assert_eq!(one_rank_per_host(4, 1e9).ring_seconds(1e9), 1.5);
        // With eight ranks on two hosts, the link between the hosts is the bottleneck.
        let two = ClusterTopology {
            ranks_per_host: 4,
            intra_host: Link { bandwidth: 1e10, latency: 0.0 },
            ..one_rank_per_host(2, 1e9)
        };
        assert_eq!((two.world_size(), two.ring_seconds(1e9)), (8, 1.0));
    }

    #[test]
    fn small_all_reduces_use_recursive_doubling() {
        let link = Link { bandwidth: 1e9, latency: 1e-3 };
        let cluster = ClusterTopology { inter_host: link, ..one_rank_per_host(16, 1e9) };
        assert!(
            near(cluster.recursive_doubling_seconds(100.0), 4e-3, 1e-3)
                && cluster.all_reduce_seconds(100.0) == cluster.recursive_doubling_seconds(100.0)
        );
        assert_eq!(cluster.all_reduce_seconds(1e9), cluster.ring_seconds(1e9));
    }

    #[test]
    fn buckets_that_are_final_early_are_overlapped() {
        let bucket = |seconds_before_end| BucketTiming { bytes: 1e9, seconds_before_end };
        let work =
            |buckets: &[BucketTiming]| StepWork { seconds: 10.0, buckets: buckets.to_vec(), relative_deviation: 0.0 };
        let pair = one_rank_per_host(2, 1e9);
        assert_eq!(work(&[bucket(5.0), bucket(3.0)]).exposed_seconds(&pair), 0.0);
        assert_eq!(work(&[bucket(5.0), bucket(0.0)]).exposed_seconds(&pair), 1.0);
        assert_eq!(work(&[bucket(1.5), bucket(1.0), bucket(0.0)]).exposed_seconds(&pair), 1.5);
        assert_eq!(work(&[bucket(0.0); 3]).step_seconds(&pair), 13.0);
        assert_eq!(work(&[]).scaling_efficiency(&pair), 1.0);
    }

    #[test]
    fn the_slowest_rank_follows_the_normal_maximum() {
        // Expected maximum of n standard normal numbers.
        for (ranks, deviations) in [(1, 0.0), (2, 0.56), (16, 1.77), (100, 2.51), (1000, 3.24)] {
            let error = (slowest_rank_deviations(ranks) - deviations).abs();
            assert!(error < 0.1, "{ranks}: {}", slowest_rank_deviations(ranks));
        }
    }

    /// Describes hosts with eight A100 GPUs, NVLink (300 GB/s in each direction) and eight 200 Gbit/s network adapters.
    fn dgx(hosts: usize) -> ClusterTopology {
        let link = |bandwidth| Link { bandwidth, latency: 5e-6 };
        ClusterTopology { hosts, ranks_per_host: 8, intra_host: link(300e9), inter_host: link(200e9) }
    }

    /// Describes a step of BERT-large (336 million parameters) on one A100, which processes 580 samples of 128 tokens
    /// per second (NVIDIA DeepLearningExamples). The last of eight micro-batches spends two thirds of its time in the
    /// backward pass.
    fn bert_large(samples: f64, bytes_per_gradient: f64) -> StepWork {
        let (seconds, bytes) = (samples / 580.0, 336e6 * bytes_per_gradient);
        let backward = seconds / 8.0 * 2.0 / 3.0;
        let bucket = |index: usize| {
            let seconds_before_end = backward * (24 - index) as f64 / 25.0;
            BucketTiming { bytes: bytes / 25.0, seconds_before_end }
        };
        StepWork { seconds, buckets: (0..25).map(bucket).collect(), relative_deviation: 0.01 }
    }

    /// Published throughput: 138,294 samples/s on 256 A100 GPUs and 4,591 samples/s on 8 A100 GPUs, with 256 samples
    /// per update and GPU (NVIDIA DeepLearningExamples). From 1 to 32 hosts, this is 94 % of linear scaling.
    #[test]
    fn the_model_is_within_five_percent_of_a_published_run() {
        let work = bert_large(256.0, 2.0);
        let (one, many) = (work.scaling_efficiency(&dgx(1)), work.scaling_efficiency(&dgx(32)));
        println!("scaling efficiency: {one:.3} on 8 GPUs, {many:.3} on 256");
        assert!(near(many, 138_294.0 / 256.0 / 580.0, 0.05), "{many}");
        assert!(near(one, 4591.0 / 8.0 / 580.0, 0.05), "{one}");
        assert!(near(many / one, 0.95, 0.05), "{}", many / one);
    }

    /// Rows of the table in docs/experiments/scaling.md, for BERT-large. The global batch has 65,536 samples of 128
    /// tokens, but at least 32 samples per GPU.
    #[test]
    fn the_documented_table_matches_the_model() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/experiments/scaling.md");
        let page = std::fs::read_to_string(page).unwrap();
        for hosts in [1, 8, 64, 512] {
            let cluster = dgx(hosts);
            let samples = (65_536.0 / cluster.world_size() as f64).max(32.0);
            let estimate = |bytes| {
                let work = bert_large(samples, bytes);
                let all_reduce = 1e3 * cluster.all_reduce_seconds(336e6 * bytes);
                (work.scaling_efficiency(&cluster), 1e3 * work.exposed_seconds(&cluster), all_reduce)
            };
            let ((f32, exposed, all_reduce), (bf16, ..)) = (estimate(4.0), estimate(2.0));
            let gather = 1e3 * cluster.gather_seconds(4096.0);
            let row = format!(
                "| {} | {samples:.0} | {all_reduce:.1} | {exposed:.1} | {f32:.3} | {bf16:.3} | {gather:.2} |",
                cluster.world_size()
            );
            assert!(page.contains(&row), "docs/experiments/scaling.md lacks: {row}");
        }
    }

    /// Measured with 8 ranks on one host: 0.48 ms for 64 bytes per rank, 8.5 ms for 1 MiB per rank. In the model, a
    /// round takes 0.16 ms because a rank sleeps, and two copies share the memory bandwidth.
    #[test]
    fn a_gather_takes_log2_rounds() {
        let memory = Link { bandwidth: 0.9e9, latency: 0.16e-3 };
        let host = ClusterTopology { hosts: 1, ranks_per_host: 8, intra_host: memory, inter_host: memory };
        assert!(near(host.gather_seconds(64.0), 0.48e-3, 0.05), "{}", host.gather_seconds(64.0));
        assert!(near(host.gather_seconds(1024.0 * 1024.0), 8.5e-3, 0.1), "{}", host.gather_seconds(1024.0 * 1024.0));
        let many = ClusterTopology { hosts: 64, inter_host: Link { bandwidth: 25e9, latency: 0.16e-3 }, ..host };
        assert!(many.gather_seconds(64.0) < 2e-3, "nine rounds: {}", many.gather_seconds(64.0));
    }
}
