//! Shares of the datasets of a mixture.

use lambert_config::run::Stage;

/// Number of consecutive samples of a mixture in which each dataset has exactly its share.
pub const BLOCK: u64 = 1 << 16;

/// Returns the weights of the datasets of a stage. `rows` has the number of samples of each dataset. With
/// `mixture_temperature`, a weight is the number of samples to the power of the temperature. A stage without a mixture has
/// one dataset of weight 1.
pub fn weights(stage: &Stage, rows: &[u64]) -> Vec<f64> {
    match stage.mixture_temperature {
        Some(power) if !stage.mixture.is_empty() => rows.iter().map(|rows| (*rows as f64).powf(power)).collect(),
        _ if stage.mixture.is_empty() => vec![1.0],
        _ => stage.mixture.iter().map(|part| part.weight.unwrap_or(1.0)).collect(),
    }
}

/// Returns the number of samples of each dataset in a block of [`BLOCK`] samples: the shares of `weights`, rounded by
/// largest remainders. Each dataset has at least one sample. There must be at most [`BLOCK`] weights, all above 0.
pub fn block_counts(weights: &[f64]) -> Vec<u64> {
    let total: f64 = weights.iter().sum();
    let exact: Vec<f64> = weights.iter().map(|weight| weight / total * BLOCK as f64).collect();
    let mut counts: Vec<u64> = exact.iter().map(|exact| (*exact as u64).max(1)).collect();
    // What a count lacks, or has too much because every dataset has a sample.
    let lack = |counts: &[u64], index: usize| exact[index] - counts[index] as f64;
    let by_lack = |counts: &[u64], left: &usize, right: &usize| lack(counts, *left).total_cmp(&lack(counts, *right));
    loop {
        let sum: u64 = counts.iter().sum();
        let place = if sum < BLOCK {
            // The first of equals gets the sample.
            (0..counts.len()).rev().max_by(|left, right| by_lack(&counts, left, right))
        } else {
            (0..counts.len()).filter(|index| counts[*index] > 1).min_by(|left, right| by_lack(&counts, left, right))
        };
        match place {
            Some(place) if sum < BLOCK => counts[place] += 1,
            Some(place) if sum > BLOCK => counts[place] -= 1,
            _ => return counts,
        }
    }
}

/// Returns the share of each dataset, with the sum 1.
pub fn shares(counts: &[u64]) -> Vec<f64> {
    let sum = counts.iter().sum::<u64>().max(1) as f64;
    counts.iter().map(|count| *count as f64 / sum).collect()
}

#[cfg(test)]
mod tests {
    use lambert_config::run::MixtureDataset;

    use super::*;

    #[test]
    fn counts_are_the_shares_of_a_block() {
        assert_eq!(block_counts(&[1.0]), [BLOCK]);
        assert_eq!(block_counts(&[0.75, 0.25]), [49152, 16384]);
        assert_eq!(block_counts(&[1.0, 1.0, 1.0]), [21846, 21845, 21845]);
        // The smallest share is below one sample.
        assert_eq!(block_counts(&[1e9, 1.0, 1e9]), [32768, 1, 32767]);
        let weights: Vec<f64> = (1..=1000).map(f64::from).collect();
        let counts = block_counts(&weights);
        assert_eq!(counts.iter().sum::<u64>(), BLOCK);
        let exact = |index: usize| weights[index] / 500_500.0 * BLOCK as f64;
        assert!(counts.iter().enumerate().all(|(index, count)| (*count as f64 - exact(index)).abs() <= 1.0));
        assert!((shares(&counts).iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_temperature_raises_the_share_of_small_datasets() {
        let part = |weight| MixtureDataset { weight, ..MixtureDataset::default() };
        let stage =
            |power| Stage { mixture: vec![part(None), part(None)], mixture_temperature: power, ..Stage::default() };
        let share = |power| {
            let weights = weights(&stage(power), &[900, 100]);
            weights[1] / (weights[0] + weights[1])
        };
        assert!((share(Some(1.0)) - 0.1).abs() < 1e-12);
        assert!((share(Some(0.5)) - 0.25).abs() < 1e-12);
        assert!((share(Some(0.0)) - 0.5).abs() < 1e-12);
        assert!((share(None) - 0.5).abs() < 1e-12);
        let weighted = Stage { mixture: vec![part(Some(3.0)), part(Some(1.0))], ..Stage::default() };
        assert_eq!(weights(&weighted, &[5, 5]), [3.0, 1.0]);
        assert_eq!(weights(&Stage::default(), &[5]), [1.0]);
    }
}
