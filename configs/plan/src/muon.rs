//! Orthogonalizations of Muon: their work, their memory, and their distribution over ranks.

use lambert_config::run::{Optimizer, OptimizerKind};

use crate::architecture::{Architecture, Tensor};

/// Matrices of equal shape that one rank orthogonalizes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatrixStack {
    /// Number of matrices.
    pub count: usize,
    /// Rows of a matrix.
    pub rows: usize,
    /// Columns of a matrix.
    pub columns: usize,
}

impl MatrixStack {
    /// Describes the matrices of a tensor of shape \[rows, columns\], with `count` matrices stacked in its rows. `None` for
    /// a tensor without matrices.
    pub fn new(count: usize, shape: &[usize]) -> Option<Self> {
        let [rows, columns] = shape else { return None };
        (count > 0).then(|| Self { count, rows: rows / count, columns: *columns })
    }

    fn of_tensor(tensor: &Tensor) -> Option<Self> {
        Self::new(tensor.matrices, &tensor.shape)
    }

    /// Number of elements of all matrices.
    pub fn elements(self) -> usize {
        self.count * self.rows * self.columns
    }

    /// FLOPs of `iterations` Newton-Schulz iterations. With m rows and n columns, m <= n, an iteration computes `A = X X^T`,
    /// `A A` and the product with `X`: 2 m^2 n + 2 m^3 + 2 m^2 n FLOPs.
    pub fn flops(self, iterations: u32) -> f64 {
        let (short, long) = (self.rows.min(self.columns) as f64, self.rows.max(self.columns) as f64);
        self.count as f64 * f64::from(iterations) * short * short * (4.0 * long + 2.0 * short)
    }
}

/// Assigns each stack to one of `ranks` ranks. The stacks are assigned in descending order of work, each to the rank
/// with the least work so far.
pub fn owners(stacks: &[MatrixStack], ranks: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..stacks.len()).collect();
    order.sort_by(|a, b| stacks[*b].flops(1).total_cmp(&stacks[*a].flops(1)));
    let (mut owners, mut work) = (vec![0; stacks.len()], vec![0.0_f64; ranks.max(1)]);
    for stack in order {
        let rank = (0..work.len()).min_by(|a, b| work[*a].total_cmp(&work[*b])).unwrap_or(0);
        work[rank] += stacks[stack].flops(1);
        owners[stack] = rank;
    }
    owners
}

/// Orthogonalizations of an update.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct UpdateWork {
    /// FLOPs of all matrices.
    pub flops: f64,
    /// FLOPs of the busiest rank.
    pub rank_flops: f64,
    /// Number of elements that the ranks exchange.
    pub elements: u64,
    /// Number of elements of the largest stack of matrices.
    pub largest: u64,
}

impl UpdateWork {
    /// Computes the work of an update on `ranks` ranks. It is zero for other optimizers than Muon.
    pub fn new(optimizer: &Optimizer, architecture: &Architecture, ranks: usize) -> Self {
        if optimizer.kind != OptimizerKind::Muon {
            return Self::default();
        }
        let stacks: Vec<MatrixStack> = architecture.tensors().iter().filter_map(MatrixStack::of_tensor).collect();
        let flops = |stack: &MatrixStack| stack.flops(optimizer.muon.iterations);
        let mut of_rank = vec![0.0_f64; ranks.max(1)];
        owners(&stacks, ranks).into_iter().zip(&stacks).for_each(|(rank, stack)| of_rank[rank] += flops(stack));
        Self {
            flops: stacks.iter().map(flops).sum(),
            rank_flops: of_rank.into_iter().fold(0.0, f64::max),
            elements: stacks.iter().map(|stack| stack.elements() as u64).sum(),
            largest: stacks.iter().map(|stack| stack.elements() as u64).max().unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use lambert_config::run::{Family, Model};

    use super::*;

    fn muon() -> Optimizer {
        Optimizer { kind: OptimizerKind::Muon, ..Optimizer::default() }
    }

    #[test]
    fn work_matches_manual_calculation() {
        let (h, i) = (768.0, 3072.0);
        let base = Architecture::new(&Model::default(), 12, 30522);
        // Four matrices of 768 x 768 and two of 768 x 3072 per layer, with five iterations each.
        let layer = 4.0 * (6.0 * h * h * h) + 2.0 * h * h * (4.0 * i + 2.0 * h);
        let work = UpdateWork::new(&muon(), &base, 1);
        assert_eq!((work.flops, work.rank_flops), (5.0 * 12.0 * layer, work.flops));
        assert_eq!((work.elements, work.largest), (12 * 12 * 768 * 768, 768 * 3072));
        assert_eq!(UpdateWork::new(&Optimizer::default(), &base, 1), UpdateWork::default());
        // ModernBERT has one tensor of query, key and value, and one of both halves of the gated layer.
        let model = Family::Modernbert.model();
        let (h, i) = (model.hidden as f64, model.intermediate as f64);
        let layer = 4.0 * 6.0 * h * h * h + 3.0 * h.min(i).powi(2) * (4.0 * i.max(h) + 2.0 * h.min(i));
        let work = UpdateWork::new(&muon(), &Architecture::new(&model, 2, 50368), 1);
        assert_eq!(work.flops, 5.0 * 2.0 * layer);
    }

    #[test]
    fn ranks_share_the_work() {
        let base = Architecture::new(&Model::default(), 12, 30522);
        let one = UpdateWork::new(&muon(), &base, 1).flops;
        for ranks in [2, 3, 4, 8, 12] {
            let work = UpdateWork::new(&muon(), &base, ranks);
            let excess = work.rank_flops * ranks as f64 / one;
            assert!((1.0..1.2).contains(&excess), "{ranks} ranks: {excess}");
        }
        let stacks: Vec<MatrixStack> = base.tensors().iter().filter_map(MatrixStack::of_tensor).collect();
        assert_eq!(stacks.len(), 72);
        // With more ranks than matrices, some ranks have no work.
        assert!(owners(&stacks, 100).into_iter().all(|rank| rank < 72));
    }
}
