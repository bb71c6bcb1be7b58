//! Settings with which a GPU is much slower than it could be.

use lambert_config::RunConfig;
use lambert_config::run::{Precision, Stage, TokenBudget};

/// Number of tokens of a micro-batch below which the CPU usually enqueues operations more slowly than a GPU computes them.
const FEW_TOKENS: usize = 16_384;

/// Minimum compute capability of GPUs with matrix units for bf16 and tf32.
const AMPERE: (i32, i32) = (8, 0);

/// Returns a warning for each setting of a run with `world` ranks on GPUs of this compute capability. `micro_batch_tokens` has the
/// maximum number of tokens of a micro-batch of each stage.
pub fn slow_settings(
    config: &RunConfig,
    world: usize,
    capability: (i32, i32),
    micro_batch_tokens: &[usize],
) -> Vec<String> {
    let precision = match config.model.precision {
        Precision::Fp32 if capability < AMPERE => None,
        Precision::Bf16 if capability < AMPERE => {
            let (major, minor) = capability;
            Some(format!(
                "model.precision is \"bf16\", for which a GPU of compute capability {major}.{minor} has no tensor cores; \"fp32\" may \
                 be faster"
            ))
        }
        Precision::Fp32 => {
            Some("model.precision is \"fp32\": \"bf16\" and \"tf32\" use the tensor cores of the GPU".to_owned())
        }
        Precision::Tf32 | Precision::Bf16 => None,
    };
    // A micro-batch has at most the samples of a rank.
    let is_small =
        |tokens: usize, batch: usize| tokens < FEW_TOKENS.min(batch.div_ceil(world.max(1)) * config.model.positions);
    let stages = config.stage.iter().zip(micro_batch_tokens).enumerate();
    let is_chosen = |stage: &Stage| stage.micro_batch_tokens == TokenBudget::Auto;
    let few = stages.filter(|(_, (stage, tokens))| !is_chosen(stage) && is_small(**tokens, stage.global_batch)).map(
        |(index, (_, tokens))| {
            format!(
                "stage.{index}.micro_batch_tokens is {tokens}: the GPU waits for the CPU; try {} or more, or \"auto\"",
                2 * FEW_TOKENS
            )
        },
    );
    precision.into_iter().chain(few).collect()
}

#[cfg(test)]
mod tests {
    use lambert_config::run::Model;

    use super::*;

    #[test]
    fn slow_settings_are_named() {
        let warnings_with = |precision, micro_batch_tokens, tokens: usize, global_batch| {
            let model = Model { precision, positions: 512, ..Model::default() };
            let stage = vec![Stage { global_batch, micro_batch_tokens, ..Stage::default() }];
            slow_settings(&RunConfig { model, stage, ..RunConfig::default() }, 2, AMPERE, &[tokens])
        };
        let warnings =
            |precision, tokens: usize, batch| warnings_with(precision, TokenBudget::Tokens(tokens), tokens, batch);
        let both = warnings(Precision::Fp32, 4096, 1024);
        assert_eq!(both.len(), 2);
        assert!(
            both[0].contains("model.precision") && both[1].contains("stage.0.micro_batch_tokens is 4096"),
            "{both:?}"
        );
        assert!(warnings(Precision::Bf16, 32_768, 1024).is_empty());
        assert!(warnings(Precision::Bf16, 4096, 16).is_empty(), "the samples of a rank are no more");
        assert_eq!(warnings(Precision::Bf16, 4096, 18).len(), 1, "a rank has nine samples of 512 tokens");
        assert!(warnings_with(Precision::Bf16, TokenBudget::Auto, 4096, 1024).is_empty(), "no more fits");
        let turing = |precision| {
            let config = RunConfig { model: Model { precision, ..Model::default() }, ..RunConfig::default() };
            slow_settings(&config, 1, (7, 5), &[])
        };
        assert!(turing(Precision::Fp32).is_empty() && turing(Precision::Bf16)[0].contains("capability 7.5"));
    }
}
