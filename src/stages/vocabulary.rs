//! Extension of the vocabulary at the start of a run: rows of new tokens in the embeddings and in the MLM head.

use lambert_dataset::tokenizer::VocabularyExtension;

use crate::state::{ParamSpec, Parameters};

/// Copies the weights of `old` to `new`, whose vocabulary has more tokens. The row of a new token is the mean of the rows
/// of the tokens that it replaces. Padding rows stay zero. Weights that `old` lacks stay unchanged.
pub fn extend(old: &Parameters, new: &Parameters, extension: &VocabularyExtension) {
    for spec in new.specs() {
        let Some(before) = old.find(spec.id) else { continue };
        let weights = old.read(before);
        let weights = if spec.padding.is_some() { extended(spec, &weights, extension) } else { weights };
        new.write(spec, &weights);
    }
}

/// Rows of all tokens. `old` are the rows of the shorter vocabulary and its padding.
fn extended(spec: &ParamSpec, old: &[f32], extension: &VocabularyExtension) -> Vec<f32> {
    let mut rows = vec![0.0; spec.count()];
    let width = rows.len() / spec.shape[0] as usize;
    rows[..extension.before * width].copy_from_slice(&old[..extension.before * width]);
    let new = rows.chunks_exact_mut(width).skip(extension.before);
    for (row, parts) in new.zip(&extension.parts) {
        for (place, element) in row.iter_mut().enumerate() {
            let sum: f64 = parts.iter().map(|part| f64::from(old[*part as usize * width + place])).sum();
            *element = (sum / parts.len() as f64) as f32;
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lambert_config::run::Model;
    use lambert_plan::architecture::Architecture;

    use super::*;
    use crate::kernels::Host;

    #[test]
    fn rows_of_new_tokens_are_means_and_all_else_is_kept() {
        let model =
            Model { hidden: 8, heads: 2, intermediate: 16, positions: 16, pad_vocabulary_to: 8, ..Model::default() };
        let parameters = |tokens| Parameters::initialize(Arc::new(Host), Architecture::new(&model, 1, tokens), 1, 0.02);
        let (old, new) = (parameters(21), parameters(23));
        let extension = VocabularyExtension { before: 21, parts: vec![vec![5, 7, 7, 9], vec![20]] };
        extend(&old, &new, &extension);
        let mut extended = 0;
        for spec in new.specs() {
            let (before, after) = (old.read(old.spec(spec.id)), new.read(spec));
            if spec.padding.is_none() {
                assert_eq!(before, after, "{}", spec.name);
                continue;
            }
            extended += 1;
            let width = after.len() / 24;
            assert_eq!(before[..21 * width], after[..21 * width]);
            for place in 0..width {
                let at = |row: usize| before[row * width + place];
                let mean = (at(5) + 2.0 * at(7) + at(9)) / 4.0;
                assert!((after[21 * width + place] - mean).abs() < 1e-8);
                assert_eq!(after[22 * width + place], at(20));
            }
            assert!(after[23 * width..].iter().all(|element| *element == 0.0));
        }
        assert_eq!(extended, 2, "the embeddings and the bias of the MLM head");
    }
}
