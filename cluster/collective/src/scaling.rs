//! How data-parallel training scales, by formula: how long the sum of the gradients takes, what of it the backward pass hides, what
//! is lost to the slowest rank, and what remains of the ranks' throughput.
//!
//! A sum moves what the cheapest algorithm must move (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
//! workstations", 2009); the formulas know no contention between jobs. docs/experiments.md holds them against measurements.

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

    /// BERT-large with 256 samples of 128 tokens an update on each A100: 580 samples a second on one, and 138,294 on 256, 8 a host
    /// with NVLink and eight cards of 200 Gbit/s (NVIDIA's DeepLearningExamples): 4,591 on one host, of which 95 % on 32.
    #[test]
    fn a_published_run_is_within_five_percent() {
        let dgx = |hosts| Cluster {
            hosts,
            ranks_per_host: 8,
            inside: Link { rate: 300e9, latency: 5e-6 },
            between: Link { rate: 200e9, latency: 5e-6 },
        };
        let bytes = 2.0 * 336e6;
        let part = |number: usize| Part { bytes: bytes / 25.0, before_end: 0.4 * (24 - number) as f64 / 25.0 / 8.0 };
        let work = Work { seconds: 256.0 / 580.0, parts: (0..25).map(part).collect(), deviation: 0.01 };
        let (one, many) = (work.efficiency(&dgx(1)), work.efficiency(&dgx(32)));
        println!("of one card's throughput: {one:.3} on 8, {many:.3} on 256");
        assert!(near(many, 138_294.0 / 256.0 / 580.0, 0.05), "{many}");
        assert!(near(one, 4591.0 / 8.0 / 580.0, 0.05), "{one}");
    }
}
