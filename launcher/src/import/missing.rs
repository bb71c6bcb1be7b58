//! Initial values of tensors that a folder does not have.

use std::fmt;

use clap::ValueEnum;
use lambert_dataset::random::Key;
use lambert_plan::architecture::{Head, ModuleKind, Tensor};

/// Module of a model that an import may initialize.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InitializedModule {
    /// The pooler below a sentence-pair head
    Pooler,
    /// The head that predicts masked tokens
    MlmHead,
}

impl fmt::Display for InitializedModule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Pooler => "pooler",
            Self::MlmHead => "mlm-head",
        })
    }
}

impl InitializedModule {
    /// Returns the module that a tensor belongs to, if an import may initialize it.
    pub fn of(tensor: &Tensor) -> Option<Self> {
        match (tensor.head?, tensor.id.module) {
            (Head::MaskedLanguage, _) => Some(Self::MlmHead),
            (Head::Pair, ModuleKind::Pooler) => Some(Self::Pooler),
            (Head::Pair | Head::SpanBoundary | Head::ReplacedTokens, _) => None,
        }
    }
}

/// Modules that an import initializes.
pub struct Initialization<'a> {
    /// Modules that get random values if the folder does not have them.
    pub modules: &'a [InitializedModule],
    /// True if the model has another head than an MLM head. Then the tensors with the names of a part of an MLM head are
    /// of the other head: `head.dense` of ModernBERT.
    pub has_other_head: bool,
}

impl Initialization<'_> {
    /// True if a tensor gets random values in place of those of the folder. `is_found` tells if the folder has a tensor.
    pub fn replaces(&self, tensor: &Tensor, all: &[Tensor], is_found: impl Fn(&Tensor) -> bool) -> bool {
        let is_head = |tensor: &Tensor| InitializedModule::of(tensor) == Some(InitializedModule::MlmHead);
        self.has_other_head
            && self.modules.contains(&InitializedModule::MlmHead)
            && is_head(tensor)
            && all.iter().any(|tensor| is_head(tensor) && !is_found(tensor))
    }
}

/// Returns the initial values of a tensor: 1 for gains, 0 for biases, and for matrices a normal distribution with this
/// deviation that is truncated at two deviations. The values depend on the name only.
pub fn initial(tensor: &Tensor, deviation: f64) -> Vec<f32> {
    let count = tensor.shape.iter().product();
    if !tensor.role.decays() {
        return vec![if tensor.role.is_gain() { 1.0 } else { 0.0 }; count];
    }
    let mut rng = Key::new(0).with_bytes(tensor.name.as_bytes()).rng();
    let mut normal = || {
        let (radius, angle) = ((-2.0 * (1.0 - rng.unit_f64()).ln()).sqrt(), std::f64::consts::TAU * rng.unit_f64());
        radius * angle.cos()
    };
    let mut truncated = || loop {
        let value = normal();
        if value.abs() <= 2.0 {
            return (deviation * value) as f32;
        }
    };
    (0..count).map(|_| truncated()).collect()
}

#[cfg(test)]
mod tests {
    use lambert_config::run::{Family, Model};
    use lambert_plan::architecture::{Architecture, ConfigKeys};
    use serde_json::json;

    use super::*;

    /// The head of a fine-tuned ModernBERT has tensors with the names of an MLM head, but no bias of the decoder.
    #[test]
    fn another_head_is_no_mlm_head() {
        let tensors = Architecture::new(&Family::Modernbert.model(), 1, 500).tensors();
        let has_no_bias = |tensor: &Tensor| tensor.name != "decoder.bias";
        let replaced = |class: &str, modules: &[InitializedModule], is_found: &dyn Fn(&Tensor) -> bool| -> Vec<&str> {
            let has_other_head = ConfigKeys(&json!({"architectures": [class]})).has_other_head();
            let initialization = Initialization { modules, has_other_head };
            let replaced = tensors.iter().filter(|tensor| initialization.replaces(tensor, &tensors, is_found));
            replaced.map(|tensor| tensor.name.as_str()).collect()
        };
        let (tuned, head) = ("ModernBertForSequenceClassification", &[InitializedModule::MlmHead]);
        assert_eq!(replaced(tuned, head, &has_no_bias), ["decoder.bias", "head.norm.weight", "head.dense.weight"]);
        assert!(replaced(tuned, &[InitializedModule::Pooler], &has_no_bias).is_empty());
        assert!(replaced(tuned, head, &|_| true).is_empty());
        assert!(replaced("ModernBertForMaskedLM", head, &has_no_bias).is_empty());
    }

    #[test]
    fn initial_values_have_their_distribution() {
        let model = Model { hidden: 64, heads: 2, intermediate: 128, ..Model::default() };
        let tensors = Architecture::new(&model, 1, 500).tensors();
        let of = |name: &str| initial(tensors.iter().find(|tensor| tensor.name == name).unwrap(), 0.02);
        let pooler = of("bert.pooler.dense.weight");
        assert_eq!(pooler, of("bert.pooler.dense.weight"));
        assert_ne!(pooler[..8], of("cls.predictions.transform.dense.weight")[..8]);
        let square = pooler.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>() / pooler.len() as f64;
        // The deviation of a normal distribution that is truncated at two deviations is 0.8796.
        assert!((square.sqrt() / 0.02 - 0.8796).abs() < 0.03, "{}", square.sqrt());
        assert!(pooler.iter().all(|value| value.abs() <= 0.04));
        assert!(of("cls.predictions.bias").iter().all(|value| *value == 0.0));
        assert!(of("cls.predictions.transform.LayerNorm.weight").iter().all(|value| *value == 1.0));
    }
}
