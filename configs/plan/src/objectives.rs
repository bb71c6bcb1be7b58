//! Losses of a run, by name.

use lambert_config::run::{self, Model, Pair, RunConfig, Teacher};

use crate::architecture::{Architecture, Head, Network};

/// Unit for which a loss has one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetKind {
    /// Masked tokens.
    MaskedTokens,
    /// All tokens.
    Tokens,
    /// Masked spans.
    Spans,
    /// Samples.
    Samples,
}

/// Loss description. The total loss is the weighted sum of all losses. Each loss is the mean over its targets in a
/// global batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossSpec {
    /// Name in step records.
    pub name: &'static str,
    /// Display name.
    pub title: &'static str,
    /// Unit of the targets.
    pub targets: TargetKind,
    /// Weight in the total loss.
    pub weight: f64,
    /// True if predictions are right or wrong, so that an accuracy is defined.
    pub has_accuracy: bool,
    /// Head that computes the predictions.
    pub head: Head,
}

/// Masked language modeling (arXiv 1810.04805, 3.1): cross-entropy at masked tokens.
pub const MASKED_LANGUAGE: LossSpec = LossSpec {
    name: "mlm",
    title: "MLM",
    targets: TargetKind::MaskedTokens,
    weight: 1.0,
    has_accuracy: true,
    head: Head::MaskedLanguage,
};

/// Cross-entropy of the pair label: next sentence or sentence order.
pub const PAIR: LossSpec = LossSpec {
    name: "pair",
    title: "pair",
    targets: TargetKind::Samples,
    weight: 1.0,
    has_accuracy: true,
    head: Head::Pair,
};

/// Span boundary objective (SpanBERT, arXiv 1907.10529, 3.2): cross-entropy at the tokens of masked spans, predicted from the
/// tokens beside the span.
pub const SPAN_BOUNDARY: LossSpec = LossSpec {
    name: "span_boundary",
    title: "SBO",
    targets: TargetKind::MaskedTokens,
    weight: 1.0,
    has_accuracy: true,
    head: Head::SpanBoundary,
};

/// Replaced-token detection (arXiv 2003.10555): binary cross-entropy over all tokens. The run sets the weight.
pub const REPLACED_TOKENS: LossSpec = LossSpec {
    name: "rtd",
    title: "RTD",
    targets: TargetKind::Tokens,
    weight: 50.0,
    has_accuracy: true,
    head: Head::ReplacedTokens,
};

/// Kullback-Leibler divergence from the distribution of the teacher to that of the model, over the vocabulary, at all
/// tokens, times the square of the temperature (DistilBERT, arXiv 1910.01108).
pub const SOFT_TARGETS: LossSpec = LossSpec {
    name: "soft_targets",
    title: "soft targets",
    targets: TargetKind::Tokens,
    weight: 1.0,
    has_accuracy: false,
    head: Head::MaskedLanguage,
};

/// 1 minus the cosine of the angle between the last hidden states of model and teacher, at all tokens (DistilBERT).
pub const COSINE: LossSpec = LossSpec { name: "cosine", title: "cosine", ..SOFT_TARGETS };

/// All supported losses.
pub const ALL: [LossSpec; 6] = [MASKED_LANGUAGE, PAIR, SPAN_BOUNDARY, REPLACED_TOKENS, SOFT_TARGETS, COSINE];

impl LossSpec {
    /// True if the loss compares the model with its teacher.
    pub fn needs_teacher(&self) -> bool {
        [SOFT_TARGETS.name, COSINE.name].contains(&self.name)
    }

    /// Returns the loss with the weight that a run with this teacher gives it. Without a teacher, the weight of a loss that
    /// needs one is 0.
    fn weighted(self, teacher: Option<&Teacher>) -> Self {
        let weight = match teacher {
            Some(teacher) if self.name == MASKED_LANGUAGE.name => teacher.masked_language_weight,
            Some(teacher) if self.name == SOFT_TARGETS.name => teacher.soft_target_weight,
            Some(teacher) if self.name == COSINE.name => teacher.cosine_weight,
            None if self.needs_teacher() => 0.0,
            _ => self.weight,
        };
        Self { weight, ..self }
    }
}

/// Network that a run trains, with its losses.
#[derive(Debug, Clone)]
pub struct TrainedNetwork {
    /// Configuration of the network.
    pub model: Model,
    /// Losses of its output.
    pub losses: Vec<LossSpec>,
}

/// Returns the networks that a run trains, in the order of their passes. `model` is the configuration of the last one.
pub fn networks(model: &Model, config: &run::Objective) -> Vec<TrainedNetwork> {
    let generator = config.replaced_tokens.as_ref().map(|settings| settings.generator(model));
    let models = generator.into_iter().chain([model.clone()]);
    models.zip(losses_of_networks(config)).map(|(model, losses)| TrainedNetwork { model, losses }).collect()
}

/// Returns the losses of each network.
fn losses_of_networks(config: &run::Objective) -> Vec<Vec<LossSpec>> {
    if let Some(settings) = &config.replaced_tokens {
        return vec![vec![MASKED_LANGUAGE], vec![LossSpec { weight: settings.weight, ..REPLACED_TOKENS }]];
    }
    let pair = (config.pair != Pair::None).then_some(PAIR);
    let weight = config.span_boundary_weight;
    let span_boundary = (weight > 0.0).then_some(LossSpec { weight, ..SPAN_BOUNDARY });
    let own = std::iter::once(MASKED_LANGUAGE).chain(pair).chain(span_boundary);
    let all = own.chain([SOFT_TARGETS, COSINE]).map(|loss| loss.weighted(config.teacher.as_ref()));
    vec![all.filter(|loss| !loss.needs_teacher() || loss.weight > 0.0).collect()]
}

/// Returns the losses of a run, in the order of its records. The first loss is the main loss. The console shows the
/// main loss, and the held-out value of the main loss determines plateaus.
pub fn losses(config: &run::Objective) -> Vec<LossSpec> {
    losses_of_networks(config).concat()
}

/// Returns the main loss of a run.
pub fn main(config: &run::Objective) -> LossSpec {
    losses(config).first().copied().unwrap_or(MASKED_LANGUAGE)
}

/// Returns the heads that the losses of a run use. Each head occurs once.
pub fn heads(config: &run::Objective) -> Vec<Head> {
    let mut heads = Vec::new();
    for loss in losses(config) {
        if !heads.contains(&loss.head) {
            heads.push(loss.head);
        }
    }
    heads
}

impl Architecture {
    /// Describes the networks of a run, with the heads that its losses use, for `layers` layers and `vocabulary`
    /// tokens.
    pub fn of_run(config: &RunConfig, layers: usize, vocabulary: usize) -> Self {
        let RunConfig { model, objective, .. } = config;
        match &objective.replaced_tokens {
            Some(settings) => Self::with_generator(model, &settings.generator(model), layers, vocabulary),
            None => Network::new(model, &heads(objective), layers, vocabulary).into(),
        }
    }
}

/// True if no loss of the run uses this head. The parameters of an unused head are not exported.
pub fn is_head_unused(head: Option<Head>, config: &run::Objective) -> bool {
    head.is_some_and(|head| !heads(config).contains(&head))
}

/// True if no loss of the run trains this head: it is unused, or all losses that use it have the weight 0. Its parameters are
/// frozen.
pub fn is_head_frozen(head: Option<Head>, config: &run::Objective) -> bool {
    // The cosine loss compares hidden states, which no head computes.
    let trains = |loss: &LossSpec, head| loss.head == head && loss.weight > 0.0 && loss.name != COSINE.name;
    head.is_some_and(|head| !losses(config).iter().any(|loss| trains(loss, head)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_teacher_sets_the_weights() {
        let weights = |objective: &run::Objective| -> Vec<(&str, f64)> {
            losses(objective).iter().map(|loss| (loss.name, loss.weight)).collect()
        };
        let mut objective = run::Objective { pair: Pair::None, ..run::Objective::default() };
        assert_eq!(weights(&objective), [("mlm", 1.0)]);
        objective.teacher = Some(Teacher::default());
        assert_eq!(weights(&objective), [("mlm", 2.0), ("soft_targets", 5.0), ("cosine", 1.0)]);
        objective.teacher =
            Some(Teacher { masked_language_weight: 0.0, soft_target_weight: 0.0, ..Teacher::default() });
        assert_eq!(weights(&objective), [("mlm", 0.0), ("cosine", 1.0)]);
        let head = Some(Head::MaskedLanguage);
        assert!(is_head_frozen(head, &objective) && !is_head_unused(head, &objective));
        objective.teacher = Some(Teacher { masked_language_weight: 0.0, ..Teacher::default() });
        assert!(!is_head_frozen(head, &objective), "soft targets train it");
    }

    #[test]
    fn a_run_without_pairs_does_not_use_the_pair_head() {
        let config = |pair| run::Objective { pair, ..run::Objective::default() };
        for (pair, unused) in [(Pair::None, true), (Pair::Nsp, false), (Pair::Sop, false)] {
            assert_eq!(is_head_unused(Some(Head::Pair), &config(pair)), unused, "{pair:?}");
            assert!(!is_head_unused(Some(Head::MaskedLanguage), &config(pair)) && !is_head_unused(None, &config(pair)));
        }
    }

    #[test]
    fn a_weight_enables_the_span_boundary_loss() {
        let config = |span_boundary_weight| run::Objective { span_boundary_weight, ..run::Objective::default() };
        assert_eq!(losses(&config(0.0)), [MASKED_LANGUAGE, PAIR]);
        assert_eq!(losses(&config(0.5)), [MASKED_LANGUAGE, PAIR, LossSpec { weight: 0.5, ..SPAN_BOUNDARY }]);
        assert_eq!(heads(&config(0.5)), [Head::MaskedLanguage, Head::Pair, Head::SpanBoundary]);
        assert_eq!(main(&config(0.5)), MASKED_LANGUAGE);
    }
}
