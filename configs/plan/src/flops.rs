//! Floating-point operations of training, by formula.

use lambert_config::run::Teacher;

use crate::architecture::{Architecture, Head, Network};
use crate::distillation;

/// Returns the FLOPs of one forward and backward pass, which are three times the FLOPs of the forward pass. The samples
/// have `lengths` tokens, padding excluded, and `masked` predictions in total.
///
/// Only matrix products count, as in [`Network::forward_flops`]. Padding rows of the vocabulary do not count.
pub fn training(architecture: &Architecture, lengths: impl Iterator<Item = u64>, masked: u64) -> f64 {
    let lengths: Vec<u64> = lengths.collect();
    let forward = |network: &Network| network.forward_flops(lengths.iter().copied(), masked);
    3.0 * architecture.networks().iter().map(forward).sum::<f64>()
}

/// Returns the FLOPs that a teacher adds to a forward and backward pass of `student`: the forward pass of the teacher, with
/// its predictions at all tokens, and the predictions of the student at all tokens. 0 without a teacher.
pub fn teaching(teacher: Option<&Teacher>, student: &Architecture, lengths: impl Iterator<Item = u64>) -> f64 {
    let Some(teacher) = teacher else { return 0.0 };
    let lengths: Vec<u64> = lengths.collect();
    let predicted = if teacher.soft_target_weight > 0.0 { lengths.iter().sum::<u64>() as f64 } else { 0.0 };
    let predictions = |network: &Network| predicted * network.flops_per_prediction(Head::MaskedLanguage);
    let heads: f64 = student.networks().iter().map(predictions).sum();
    let network = distillation::network(teacher, student.vocabulary());
    let forward = |network: Network| network.forward_flops(lengths.iter().copied(), 0) + predictions(&network);
    3.0 * heads + network.map_or(0.0, forward)
}

#[cfg(test)]
mod tests {
    use lambert_config::run::{Model, TeacherInfo};

    use super::*;

    #[test]
    fn parameter_counts_match_published_models() {
        let parameters = |model: &Model| Architecture::new(model, model.layers, 30522).parameters();
        // BertForPreTraining of bert-base-uncased has 110,106,428 parameters, bert-large-uncased 336,226,108.
        let base = Model::default();
        assert_eq!(parameters(&base), 110_106_428);
        let large = Model { layers: 24, hidden: 1024, heads: 16, intermediate: 4096, ..Model::default() };
        assert_eq!(parameters(&large), 336_226_108);
        // Padding adds six rows to the embedding table and six elements to the decoder bias.
        let padded = Model { pad_vocabulary_to: 8, ..large };
        assert_eq!(parameters(&padded), 336_226_108 + 6 * 1025);
    }

    /// A student predicts the soft targets with its MLM head alone.
    #[test]
    fn other_heads_of_a_student_have_no_soft_targets() {
        let model = Model::default();
        let info = TeacherInfo {
            checkpoint: None,
            weights_sha256: String::new(),
            config_sha256: String::new(),
            vocabulary_sha256: String::new(),
            model: model.clone(),
        };
        let teacher = Teacher { info: Some(Box::new(info)), ..Teacher::default() };
        let of = |heads: &[Head]| {
            let student = Network::new(&Model { layers: 6, ..model.clone() }, heads, 6, 30522).into();
            teaching(Some(&teacher), &student, [128].into_iter())
        };
        let (h, i, v) = (768.0, 3072.0, 30522.0);
        let encoder = 128.0 * 12.0 * (8.0 * h * h + 4.0 * h * i + 4.0 * 128.0 * h) + 2.0 * h * h + 4.0 * h;
        let head = 128.0 * (2.0 * h * h + 2.0 * h * v);
        assert_eq!(of(&[Head::MaskedLanguage]), encoder + head + 3.0 * head);
        assert_eq!(of(&[Head::MaskedLanguage, Head::SpanBoundary]), encoder + head + 3.0 * head);
    }

    /// FLOPs per token and layer: 8 x hidden size^2 for the attention projections, 4 x hidden size x intermediate size
    /// for the feed-forward layer, 4 x length x hidden size for the attention scores and the weighted sum. The MLM head
    /// runs once per masked token. The pooler and the sentence-pair (NSP/SOP) head run once per sample.
    #[test]
    fn flops_match_manual_calculation() {
        let (h, i, v) = (768.0, 3072.0, 30522.0);
        let forward =
            |length: f64| length * 12.0 * (8.0 * h * h + 4.0 * h * i + 4.0 * length * h) + 2.0 * h * h + 4.0 * h;
        let by_hand = forward(128.0) + forward(77.0) + 30.0 * (2.0 * h * h + 2.0 * h * v);
        for (tied_decoder, pad_vocabulary_to) in [(true, 1), (false, 1), (true, 8)] {
            let model = Model { tied_decoder, pad_vocabulary_to, ..Model::default() };
            assert_eq!(training(&Architecture::new(&model, 12, 30522), [128, 77].into_iter(), 30), 3.0 * by_hand);
        }
    }
}
