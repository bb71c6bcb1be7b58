//! The losses of a run, by name.

use lambert_config::run::{self, Pair, RunConfig};

use crate::architecture::{Architecture, Head, Network};

/// What a loss has one target for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Targets {
    /// Each masked token.
    MaskedTokens,
    /// Each token.
    Tokens,
    /// Each masked span.
    Spans,
    /// Each sample.
    Samples,
}

/// The description of a loss. Its mean over the targets of a global batch, times the weight, is a part of the total loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Loss {
    /// Its name in records.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// What it has one target for.
    pub targets: Targets,
    /// Its factor in the total loss.
    pub weight: f64,
    /// Whether its predictions are right or wrong, so that they have an accuracy.
    pub has_accuracy: bool,
    /// The head that it reads.
    pub head: Head,
}

/// Masked language modelling (arXiv 1810.04805, 3.1): the cross-entropy of masked tokens.
pub const MASKED_LANGUAGE: Loss = Loss {
    name: "mlm",
    title: "MLM",
    targets: Targets::MaskedTokens,
    weight: 1.0,
    has_accuracy: true,
    head: Head::MaskedLanguage,
};

/// The cross-entropy of the pair label: next sentence, or sentence order.
pub const PAIR: Loss =
    Loss { name: "pair", title: "pair", targets: Targets::Samples, weight: 1.0, has_accuracy: true, head: Head::Pair };

/// All losses that there are.
pub const ALL: [Loss; 2] = [MASKED_LANGUAGE, PAIR];

/// The losses of a run, in the order of its records. The first is its main loss: lines for people show it, and its held-out value
/// ends a stage with a plateau.
pub fn losses(config: &run::Objective) -> Vec<Loss> {
    let is_active = |loss: &Loss| *loss != PAIR || config.pair != Pair::None;
    ALL.into_iter().filter(is_active).collect()
}

/// The run's main loss.
pub fn main(config: &run::Objective) -> Loss {
    losses(config).first().copied().unwrap_or(MASKED_LANGUAGE)
}

/// The heads that the losses of a run read, each once.
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
    /// The networks of a run, with the heads that its losses read, `layers` deep, for a vocabulary of so many tokens.
    pub fn of_run(config: &RunConfig, layers: usize, vocabulary: usize) -> Self {
        Network::new(&config.model, &heads(&config.objective), layers, vocabulary).into()
    }
}

/// Whether no loss of the run reads this head. Then its parameters are frozen, and no export has them.
pub fn is_unused(head: Option<Head>, config: &run::Objective) -> bool {
    head.is_some_and(|head| !heads(config).contains(&head))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_without_pairs_does_not_use_the_pair_head() {
        let config = |pair| run::Objective { pair, ..run::Objective::default() };
        for (pair, unused) in [(Pair::None, true), (Pair::Nsp, false), (Pair::Sop, false)] {
            assert_eq!(is_unused(Some(Head::Pair), &config(pair)), unused, "{pair:?}");
            assert!(!is_unused(Some(Head::MaskedLanguage), &config(pair)) && !is_unused(None, &config(pair)));
        }
    }
}
