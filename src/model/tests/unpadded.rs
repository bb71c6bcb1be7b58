//! Tests of unpadded micro-batches.

use lambert_config::run::{Attention, Device, Model, Objective, Precision, ReplacedTokens, RunConfig, Unpadded};
use lambert_plan::batch_partition::Layout;

use super::architectures::CASES;
use super::{MICRO_BATCHES, SINGLE_MICRO_BATCH, distance, emulated_gpu, host, model};
use crate::model;
use crate::train::step::tests::{batch, batch_with};

/// Names of the cases that support unpadded micro-batches.
const FAMILIES: [&str; 10] = [
    "BERT",
    "RoBERTa",
    "ALBERT",
    "ELECTRA",
    "DistilBERT",
    "ModernBERT",
    "SpanBERT",
    "two networks",
    "a teacher",
    "a wide teacher",
];

/// The same samples with and without padding have the same gradients. Their dropout masks of hidden states are equal.
#[test]
fn gradients_do_not_depend_on_padding() {
    let cases: Vec<_> = CASES.iter().filter(|case| FAMILIES.contains(&case.name)).collect();
    assert_eq!(cases.len(), FAMILIES.len());
    for case in cases {
        let model = Model { attention: Attention::Fused, attention_dropout: Some(0.0), ..model() };
        let (padded, _) = case.step(host(), &model, false, &batch(SINGLE_MICRO_BATCH));
        for (kernels, cuts, recompute) in [
            (host(), SINGLE_MICRO_BATCH, false),
            (host(), MICRO_BATCHES, true),
            (emulated_gpu(), SINGLE_MICRO_BATCH, true),
            (emulated_gpu(), MICRO_BATCHES, false),
        ] {
            let (unpadded, _) = case.step(kernels, &model, recompute, &batch_with(cuts, Layout::Unpadded));
            let error = distance(&padded, &unpadded);
            assert!(error < 1e-6, "{} {cuts:?}: {error:e}", case.name);
        }
    }
}

#[test]
fn attention_dropout_of_unpadded_samples_is_reproducible() {
    let model = Model { attention: Attention::Fused, attention_dropout: Some(0.3), ..model() };
    let step = |cuts, recompute| CASES[0].step(host(), &model, recompute, &batch_with(cuts, Layout::Unpadded)).0;
    let once = step(SINGLE_MICRO_BATCH, false);
    assert_eq!(once, step(SINGLE_MICRO_BATCH, false));
    assert!(distance(&once, &step(SINGLE_MICRO_BATCH, true)) < 1e-6, "recomputed");
    assert!(distance(&once, &step(MICRO_BATCHES, false)) > 1e-3, "other micro-batches have other draws");
}

#[test]
fn the_layout_follows_device_precision_and_attention() {
    let layout = |unpadded, model: Model, kernels: &dyn crate::kernels::Kernels| {
        let device = Device { unpadded, ..Device::default() };
        model::layout(&RunConfig { device, model, ..RunConfig::default() }, kernels)
    };
    let bf16 = || Model { precision: Precision::Bf16, hidden: 16, heads: 2, ..model() };
    assert_eq!(layout(Unpadded::Auto, bf16(), &*host()), Layout::Padded, "a CPU has no such attention");
    assert_eq!(layout(Unpadded::Always, bf16(), &*host()), Layout::Unpadded);
    let gpu = crate::kernels::meta::kernels();
    assert_eq!(layout(Unpadded::Auto, bf16(), &*gpu), Layout::Unpadded);
    assert_eq!(layout(Unpadded::Never, bf16(), &*gpu), Layout::Padded);
    let keyed = Model { attention: Attention::Keyed, ..bf16() };
    let (short, long) = (Model { heads: 4, ..bf16() }, Model { hidden: 528, ..bf16() });
    for padded in [model(), keyed, Model { position_buckets: 8, ..bf16() }, short, long] {
        assert_eq!(layout(Unpadded::Auto, padded, &*gpu), Layout::Padded);
    }
    // The generator of this discriminator has one head of 4 elements.
    let replaced_tokens = Some(ReplacedTokens { generator_hidden: Some(4), ..ReplacedTokens::default() });
    let objective = Objective { replaced_tokens, ..Objective::default() };
    let config = RunConfig { model: bf16(), objective, ..RunConfig::default() };
    assert_eq!(model::layout(&config, &*gpu), Layout::Padded);
}
