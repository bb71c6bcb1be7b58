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
    use lambert_config::run::Model;
    use lambert_plan::architecture::Architecture;

    use super::*;

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
