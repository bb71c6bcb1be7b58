//! Replaced-token detection (ELECTRA, arXiv 2003.10555). The generator predicts masked tokens. Tokens that are drawn from
//! its predictions replace them in the input of the discriminator, which detects the tokens that differ from the original.

use lambert_dataset::random::Key;
use lambert_plan::objectives;
use tch::{Kind, Tensor};

use super::{Loss, LossValue, PassInput, PassOutput};
use crate::data::{GlobalBatch, MicroBatch};
use crate::kernels::{Kernels, TokenDraws};
use crate::model::Heads;
use crate::model::input::Input;

/// Binary cross-entropy over all tokens, \[CLS\] and \[SEP\] included, padding excluded.
pub struct ReplacedTokensLoss(pub objectives::LossSpec);

impl Loss for ReplacedTokensLoss {
    fn description(&self) -> objectives::LossSpec {
        self.0
    }

    fn targets(&self, batch: &MicroBatch) -> usize {
        batch.tokens()
    }

    fn global_targets(&self, batch: &GlobalBatch) -> u64 {
        batch.tokens()
    }

    fn score(&self, heads: &Heads, hidden: &Tensor, input: &Input) -> LossValue {
        let logits = heads.replaced_tokens(hidden).to_kind(Kind::Float);
        let replaced = super::targets(input.derived_targets.as_ref()).view([-1]);
        let target = replaced.to_kind(Kind::Float);
        // The cross-entropy is ln(1 + exp(x)) for a negative target, and ln(1 + exp(-x)) for a positive one.
        let losses = (&logits * (target * -2.0 + 1.0)).softplus();
        let losses = match input.token_weights() {
            Some(weights) => losses * weights,
            None => losses,
        };
        let (loss, real) = (losses.sum(Kind::Float), input.token_mask().map(|mask| mask.gt(0.0)));
        let (replaced, detected) = (replaced.gt(0), logits.detach().gt(0.0));
        let is_correct = replaced.eq_tensor(&detected);
        let counted = [&is_correct, &replaced, &detected, &replaced.bitwise_and_tensor(&detected)];
        let counts = counted.map(|counted| match &real {
            Some(real) => counted.bitwise_and_tensor(real).sum(Kind::Int64),
            None => counted.sum(Kind::Int64),
        });
        let [correct, replaced, detected, both] = &counts;
        let detection = Tensor::stack(&[replaced, detected, both], 0);
        LossValue { loss, correct: Some(correct.shallow_clone()), detection: Some(detection), logits: None }
    }
}

/// Input of the discriminator. Tokens drawn from the predictions of the generator are in the places of the masked tokens,
/// also where masking kept the original token. A drawn token that equals the original one counts as original.
pub struct GeneratedTokens;

impl PassInput for GeneratedTokens {
    fn make(&self, input: &Input, earlier: &[PassOutput], kernels: &dyn Kernels, key: Key) -> Input {
        let (Some(logits), Some(positions)) = (&earlier[0].logits[0], &input.positions) else {
            return Input { derived_targets: Some(input.ids.zeros_like()), ..input.shallow_clone() };
        };
        let (samples, places) = input.places_of(positions);
        let key = key.with_bytes(b"replaced tokens");
        let drawn = kernels.sample_tokens(logits, &TokenDraws { key, samples: &samples, positions: &places });
        Input { drawn_digest: Some(digest(&drawn, &samples, &places)), ..Self::replace(input, &drawn) }
    }
}

impl GeneratedTokens {
    /// Returns the input with the tokens `drawn`, i64 \[masked tokens\], in the places of the masked tokens.
    pub fn replace(input: &Input, drawn: &Tensor) -> Input {
        let (positions, labels) = (super::targets(input.positions.as_ref()), super::targets(input.labels.as_ref()));
        let put = |into: &Tensor, values: &Tensor| into.view([-1]).index_copy(0, positions, values).view_as(into);
        let is_other = drawn.not_equal_tensor(labels).to_kind(Kind::Int64);
        Input {
            ids: put(&input.ids, drawn),
            derived_targets: Some(put(&input.ids.zeros_like(), &is_other)),
            ..input.shallow_clone()
        }
    }
}

/// Returns the sum of a 24-bit hash of each drawn token with its place, i64 \[\]. The sum over 2^29 tokens is exact in f64.
fn digest(drawn: &Tensor, samples: &Tensor, places: &Tensor) -> Tensor {
    const FACTORS: [i64; 3] =
        [0x9e37_79b9_7f4a_7c15_u64 as i64, 0xbf58_476d_1ce4_e5b9_u64 as i64, 0x94d0_49bb_1331_11eb_u64 as i64];
    let place = samples * (1 << 16) + places + 1;
    let mixed = place * FACTORS[0] + (drawn + 1) * FACTORS[1];
    let folded = mixed.bitwise_xor_tensor(&mixed.bitwise_right_shift_tensor_scalar(29)) * FACTORS[2];
    folded.bitwise_right_shift_tensor_scalar(40).bitwise_and((1_i64 << 24) - 1).sum(Kind::Int64)
}
