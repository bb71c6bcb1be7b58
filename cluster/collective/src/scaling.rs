//! How data-parallel training scales, by formula: how long the sum of the gradients takes, what of it the backward pass hides, what
//! is lost to the slowest rank, and what remains of the ranks' throughput.
//!
//! A sum moves what the cheapest algorithm must move (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", 2009); the formulas know no contention between jobs. docs/experiments/scaling.md holds them against measurements.

/// A way from one place to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Bytes a second in each direction.
    pub rate: f64,
    /// Seconds until the first byte of a message arrives.
    pub latency: f64,
}

/// The ranks and what joins them.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cluster {
    /// Hosts.
    pub hosts: usize,
    /// Ranks on each of them.
    pub ranks_per_host: usize,
    /// Between two ranks of a host.
    pub inside: Link,
    /// Between two hosts, over all their cards together.
    pub between: Link,
}

impl Cluster {
    /// All ranks.
    pub fn world(&self) -> usize {
        self.hosts * self.ranks_per_host
    }

    /// Seconds for the sum of `bytes` over all ranks in a ring whose parts travel inside and between hosts at the same time: the
    /// slower of both ways decides. Each rank has a share of its host's way to the others.
    pub fn ring(&self, bytes: f64) -> f64 {
        let way = |members: usize, link: Link| match members {
            0 | 1 => 0.0,
            members => 2.0 * (members - 1) as f64 / members as f64 * bytes / link.rate,
        };
        let steps = 2.0 * self.world().saturating_sub(1) as f64;
        let crossings = 2.0 * self.hosts.saturating_sub(1) as f64;
        let latencies = crossings * self.between.latency + (steps - crossings).max(0.0) * self.inside.latency;
        way(self.ranks_per_host, self.inside).max(way(self.hosts, self.between)) + latencies
    }

    /// Seconds for the same by recursive doubling, which sends everything in each of its rounds.
    pub fn doubling(&self, bytes: f64) -> f64 {
        let rounds = |members: usize| f64::from(members.max(1).next_power_of_two().ilog2());
        let round = |link: Link| link.latency + bytes / link.rate;
        rounds(self.ranks_per_host) * round(self.inside) + rounds(self.hosts) * round(self.between)
    }

    /// Seconds until the first rank has `bytes` of each rank, by a binomial tree: a message a round, of all that lies below its
    /// sender. The rounds inside hosts come first.
    pub fn gather(&self, bytes: f64) -> f64 {
        let way = |members: usize, bytes: f64, link: Link| {
            let rounds = f64::from(members.max(1).next_power_of_two().ilog2());
            rounds * link.latency + members.saturating_sub(1) as f64 * bytes / link.rate
        };
        let host = bytes * self.ranks_per_host as f64;
        way(self.ranks_per_host, bytes, self.inside) + way(self.hosts, host, self.between)
    }

    /// Seconds for a sum by the quicker of both.
    pub fn sum(&self, bytes: f64) -> f64 {
        self.ring(bytes).min(self.doubling(bytes))
    }
}

/// A bucket of gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// Its size on the way, bytes.
    pub bytes: f64,
    /// Seconds before the end of the backward pass at which it is final.
    pub before_end: f64,
}

/// What each rank does in a step, beside the sum.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// Seconds of all passes and of the update.
    pub seconds: f64,
    /// The buckets, in the order in which they are final.
    pub parts: Vec<Part>,
    /// How much the ranks' times differ: their standard deviation over their mean.
    pub deviation: f64,
}

impl Work {
    /// Seconds of the sums that are left when the backward pass has ended; they are made one after the other.
    pub fn exposed(&self, cluster: &Cluster) -> f64 {
        let after = |free: f64, part: &Part| free.max(-part.before_end) + cluster.sum(part.bytes);
        self.parts.iter().fold(f64::NEG_INFINITY, after).max(0.0)
    }

    /// Seconds of a step: the slowest rank's work, and what of the sums is not hidden.
    pub fn step(&self, cluster: &Cluster) -> f64 {
        self.seconds * (1.0 + self.deviation * slowest(cluster.world())) + self.exposed(cluster)
    }

    /// Throughput of the cluster over that of as many ranks without each other.
    pub fn efficiency(&self, cluster: &Cluster) -> f64 {
        self.seconds / self.step(cluster)
    }
}

/// How far the slowest of `ranks` is behind their mean, in standard deviations, if their times are normal: exact to two places for up
/// to eight, the first terms of the asymptotic series above (Cramér, "Mathematical Methods of Statistics", 1946, section 28.6).
fn slowest(ranks: usize) -> f64 {
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

    fn near(a: f64, b: f64, share: f64) -> bool {
        (a / b - 1.0).abs() < share
    }

    /// Hosts of one rank each, without latency.
    fn plain(hosts: usize, rate: f64) -> Cluster {
        let link = Link { rate, latency: 0.0 };
        Cluster { hosts, ranks_per_host: 1, inside: link, between: link }
    }

    #[test]
    fn a_ring_moves_each_byte_twice_but_for_the_own_share() {
        assert_eq!(plain(1, 1e9).ring(1e9), 0.0);
        assert_eq!(plain(2, 1e9).ring(1e9), 1.0);
        assert_eq!(plain(4, 1e9).ring(1e9), 1.5);
        // Eight ranks of two hosts: the link between the hosts decides.
        let two = Cluster { ranks_per_host: 4, inside: Link { rate: 1e10, latency: 0.0 }, ..plain(2, 1e9) };
        assert_eq!((two.world(), two.ring(1e9)), (8, 1.0));
    }

    #[test]
    fn small_sums_take_fewer_rounds() {
        let link = Link { rate: 1e9, latency: 1e-3 };
        let cluster = Cluster { between: link, ..plain(16, 1e9) };
        assert!(near(cluster.doubling(100.0), 4e-3, 1e-3) && cluster.sum(100.0) == cluster.doubling(100.0));
        assert_eq!(cluster.sum(1e9), cluster.ring(1e9));
    }

    #[test]
    fn what_is_final_early_is_hidden() {
        let part = |before_end| Part { bytes: 1e9, before_end };
        let work = |parts: &[Part]| Work { seconds: 10.0, parts: parts.to_vec(), deviation: 0.0 };
        let pair = plain(2, 1e9);
        assert_eq!(work(&[part(5.0), part(3.0)]).exposed(&pair), 0.0);
        assert_eq!(work(&[part(5.0), part(0.0)]).exposed(&pair), 1.0);
        assert_eq!(work(&[part(1.5), part(1.0), part(0.0)]).exposed(&pair), 1.5);
        assert_eq!(work(&[part(0.0); 3]).step(&pair), 13.0);
        assert_eq!(work(&[]).efficiency(&pair), 1.0);
    }

    #[test]
    fn the_slowest_of_many_is_some_deviations_late() {
        // Expected largest of n standard normal numbers.
        for (ranks, deviations) in [(1, 0.0), (2, 0.56), (16, 1.77), (100, 2.51), (1000, 3.24)] {
            let off = (slowest(ranks) - deviations).abs();
            assert!(off < 0.1, "{ranks}: {}", slowest(ranks));
        }
    }

    /// Hosts of 8 A100 with NVLink (300 GB/s in each direction) and eight cards of 200 Gbit/s.
    fn dgx(hosts: usize) -> Cluster {
        let link = |rate| Link { rate, latency: 5e-6 };
        Cluster { hosts, ranks_per_host: 8, inside: link(300e9), between: link(200e9) }
    }

    /// A step of BERT-large (336 million parameters) on one A100, which does 580 samples of 128 tokens a second (NVIDIA's
    /// DeepLearningExamples). The backward pass of its last eighth, a micro-batch, is two thirds of that.
    fn bert_large(samples: f64, bytes_each: f64) -> Work {
        let (seconds, bytes) = (samples / 580.0, 336e6 * bytes_each);
        let backward = seconds / 8.0 * 2.0 / 3.0;
        let part = |number: usize| Part { bytes: bytes / 25.0, before_end: backward * (24 - number) as f64 / 25.0 };
        Work { seconds, parts: (0..25).map(part).collect(), deviation: 0.01 }
    }

    /// Published: 138,294 samples a second on 256 A100, 4,591 on 8, with 256 samples an update and card (NVIDIA's
    /// DeepLearningExamples): 95 % of linear from one host to 32.
    #[test]
    fn a_published_run_is_within_five_percent() {
        let work = bert_large(256.0, 2.0);
        let (one, many) = (work.efficiency(&dgx(1)), work.efficiency(&dgx(32)));
        println!("of one card's throughput: {one:.3} on 8, {many:.3} on 256");
        assert!(near(many, 138_294.0 / 256.0 / 580.0, 0.05), "{many}");
        assert!(near(one, 4591.0 / 8.0 / 580.0, 0.05), "{one}");
        assert!(near(many / one, 0.95, 0.05), "{}", many / one);
    }

    /// The rows of the table in docs/experiments/scaling.md: BERT-large, a global batch of 65,536 samples of 128 tokens up to
    /// 512 GPUs, and at least 32 per GPU.
    #[test]
    fn the_table_of_the_documentation_is_what_the_formulas_say() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/experiments/scaling.md");
        let page = std::fs::read_to_string(page).unwrap();
        for hosts in [1, 8, 64, 512] {
            let cluster = dgx(hosts);
            let samples = (65_536.0 / cluster.world() as f64).max(32.0);
            let of = |bytes| {
                let work = bert_large(samples, bytes);
                (work.efficiency(&cluster), 1e3 * work.exposed(&cluster), 1e3 * cluster.sum(336e6 * bytes))
            };
            let ((full, left, sum), (half, ..)) = (of(4.0), of(2.0));
            let gather = 1e3 * cluster.gather(4096.0);
            let row = format!(
                "| {} | {samples:.0} | {sum:.1} | {left:.1} | {full:.3} | {half:.3} | {gather:.2} |",
                cluster.world()
            );
            assert!(page.contains(&row), "docs/experiments/scaling.md lacks: {row}");
        }
    }

    /// 8 ranks of one host, measured: 0.48 ms for 64 bytes each and 8.5 for 1 MiB, where a round costs a sleep of 0.16 ms and memory
    /// takes what two copies leave of it.
    #[test]
    fn a_gather_is_as_many_rounds_as_the_world_has_bits() {
        let sleep = Link { rate: 0.9e9, latency: 0.16e-3 };
        let host = Cluster { hosts: 1, ranks_per_host: 8, inside: sleep, between: sleep };
        assert!(near(host.gather(64.0), 0.48e-3, 0.05), "{}", host.gather(64.0));
        assert!(near(host.gather(1024.0 * 1024.0), 8.5e-3, 0.1), "{}", host.gather(1024.0 * 1024.0));
        let many = Cluster { hosts: 64, between: Link { rate: 25e9, latency: 0.16e-3 }, ..host };
        assert!(many.gather(64.0) < 2e-3, "nine rounds: {}", many.gather(64.0));
    }
}
