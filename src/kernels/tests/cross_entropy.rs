//! Tests of the cross-entropy over the vocabulary: the emulated GPU compared with single libtorch operations in f32.

use tch::{Reduction, Tensor};

use super::{RandomValues, emulated};
use crate::kernels::*;

/// Logits, labels and factors of some rows.
struct Rows {
    /// Logits \[rows, vocabulary + padding\].
    logits: Tensor,
    labels: Tensor,
    factors: Option<Tensor>,
    vocabulary: i64,
}

/// Loss, number of correct predictions, and gradient of the logits, f32, for a quarter of the loss.
type Results = (f64, i64, Tensor);

impl Rows {
    /// Random logits from -`most` to `most`. The padding has values that no result may depend on.
    fn random([rows, vocabulary, padding]: [i64; 3], kind: Kind, most: f64, weighs: bool) -> Self {
        let width = vocabulary + padding;
        let values = RandomValues::new(1).values(&[("x", (rows * width) as usize, true)], 2.0 * most);
        let logits = Host.upload(Values::F32(&values)).view([rows, width]).to_kind(kind);
        let _ = logits.narrow(1, vocabulary, padding).fill_(f64::INFINITY);
        let _ = logits.narrow(1, vocabulary, padding / 2).fill_(f64::NAN);
        let argmax = logits.narrow(1, 0, vocabulary).to_kind(Kind::Float).argmax(-1, false);
        // Every other prediction is correct.
        let others = Tensor::arange(rows, (Kind::Int64, tch::Device::Cpu));
        let labels = argmax.where_self(&others.remainder(2).eq(0), &(&others * 13).remainder(vocabulary));
        let factors = weighs.then(|| others.to_kind(Kind::Float) * 0.5 - 0.75);
        Self { logits, labels, factors, vocabulary }
    }

    fn of_libtorch(&self) -> Results {
        let logits = self.logits.to_kind(Kind::Float).copy().set_requires_grad(true);
        let used = logits.narrow(1, 0, self.vocabulary);
        let losses = used.cross_entropy_loss(&self.labels, None::<Tensor>, Reduction::None, -100, 0.0);
        let losses = self.factors.as_ref().map_or_else(|| losses.shallow_clone(), |factors| &losses * factors);
        let loss = losses.sum(Kind::Double);
        (&loss * 0.25).backward();
        let correct = used.argmax(-1, false).eq_tensor(&self.labels).sum(Kind::Int64);
        (loss.double_value(&[]), correct.int64_value(&[]), logits.grad())
    }

    fn of_kernels(&self, kernels: &dyn Kernels) -> Results {
        let logits = self.logits.copy().set_requires_grad(true);
        let (labels, factors, vocabulary) = (&self.labels, self.factors.as_ref(), self.vocabulary);
        let targets = TokenTargets { vocabulary, labels, factors };
        let evaluated = tch::no_grad(|| kernels.cross_entropy(&logits, &targets));
        let CrossEntropy { loss, correct } = kernels.cross_entropy(&logits, &targets);
        assert!(!evaluated.loss.requires_grad() && loss.kind() == Kind::Float && correct.kind() == Kind::Int64);
        assert!(evaluated.loss == loss && evaluated.correct == correct, "an evaluation has other results");
        (&loss * 0.25).backward();
        let gradient = logits.grad();
        assert_eq!((gradient.kind(), gradient.size()), (self.logits.kind(), self.logits.size()));
        (loss.double_value(&[]), correct.int64_value(&[]), gradient.to_kind(Kind::Float))
    }
}

#[test]
fn the_kernels_compute_as_single_operations_do() {
    for shape in
        [[3, 1000, 0], [2, 1003, 5], [5, 7, 1], [4, 1001, 7], [1, 3, 61], [1, 2050, 2], [6, 1, 3], [3, 1500, 36]]
    {
        for (kind, most) in [(Kind::Float, 2e-6), (Kind::BFloat16, 4e-3)] {
            for (size, weighs) in [(8.0, false), (8.0, true), (1e4, false), (1e4, true)] {
                let rows = Rows::random(shape, kind, size, weighs);
                let (expected, found) = (rows.of_libtorch(), rows.of_kernels(&emulated()));
                let name = format!("{shape:?} {kind:?}, logits to {size}, {weighs}");
                // Logits of 1e4 in f32 have steps of 1e-3.
                assert!(
                    (found.0 - expected.0).abs() <= 2e-6 * expected.0.abs().max(1.0),
                    "{name}: {found:?} {expected:?}"
                );
                assert_eq!(found.1, expected.1, "{name}");
                assert_eq!(found.2.narrow(1, shape[1], shape[2]).abs().sum(Kind::Double).double_value(&[]), 0.0);
                let largest = expected.2.abs().max().double_value(&[]);
                let difference = (&found.2 - &expected.2).abs().max().double_value(&[]);
                // Near 1, probabilities have steps of 6e-8.
                assert!(difference <= most * largest + 1e-7, "{name}: {difference:e} of {largest:e}");
            }
        }
    }
}

/// The first of several largest logits is the prediction, also if other threads read them.
#[test]
fn ties_are_decided_as_on_the_host() {
    for width in [8, 3000] {
        for (kind, largest) in [(Kind::Float, 2.0), (Kind::BFloat16, 2.0), (Kind::Float, -3.0)] {
            let places = [2, 3, width / 2, width - 1];
            let logits = Tensor::full([4, width], -3.0, (kind, tch::Device::Cpu));
            for place in places {
                let _ = logits.narrow(1, place, 1).fill_(largest);
            }
            let rows = Rows { logits, labels: Tensor::from_slice(&places), factors: None, vocabulary: width };
            let (expected, found) = (rows.of_libtorch(), rows.of_kernels(&emulated()));
            assert_eq!(found.1, expected.1, "{width} {kind:?} {largest}");
            assert_eq!(found.1, i64::from(largest > 0.0), "{width} {kind:?} {largest}");
        }
    }
}

#[test]
fn undefined_losses_are_not_numbers() {
    let loss = |logits: &[f32], label: i64| {
        let (logits, labels) = (Tensor::from_slice(logits).view([1, -1]), Tensor::from_slice(&[label]));
        let targets = TokenTargets { vocabulary: 3, labels: &labels, factors: None };
        let CrossEntropy { loss, correct } = emulated().cross_entropy(&logits, &targets);
        (loss.double_value(&[]), correct.int64_value(&[]))
    };
    let logits = [1.0, 2.0, 0.5, 9.0];
    assert!(loss(&logits, 1).0.is_finite());
    for label in [-100, -1, 3, 4, i64::MAX] {
        let (loss, correct) = loss(&logits, label);
        assert!(loss.is_nan() && correct == 0, "{label}: {loss}");
    }
    for undefined in [f32::NAN, f32::INFINITY] {
        for place in [0, 1] {
            let mut logits = logits;
            logits[place] = undefined;
            assert!(!loss(&logits, 1).0.is_finite(), "{undefined} at {place}");
        }
    }
    // A token without probability does not change the loss.
    let [with, without] = [f32::NEG_INFINITY, -1e9].map(|low| loss(&[1.0, 2.0, low], 1));
    assert_eq!(with, without);
}
