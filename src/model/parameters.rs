//! The parameters of a model: their names and shapes, and their order in the flat buffers, which is that of the names.

use lambert_config::run::{self, Norm};

use crate::state::Spec;

/// Every parameter of the pre-training model, in the order of the names.
pub fn specs(model: &run::Model, layers: usize, vocabulary: usize) -> Vec<Spec> {
    let (hidden, intermediate) = (model.hidden as i64, model.intermediate as i64);
    let rows = model.rows_of(vocabulary);
    let mut shapes: Vec<(String, Vec<i64>)> = vec![
        ("bert.embeddings.word_embeddings.weight".into(), vec![rows as i64, hidden]),
        ("bert.embeddings.position_embeddings.weight".into(), vec![model.positions as i64, hidden]),
        ("bert.embeddings.token_type_embeddings.weight".into(), vec![2, hidden]),
        ("cls.predictions.bias".into(), vec![rows as i64]),
    ];
    let mut linear = |name: String, from: i64, to: i64| {
        shapes.push((format!("{name}.weight"), vec![to, from]));
        shapes.push((format!("{name}.bias"), vec![to]));
    };
    linear("bert.pooler.dense".into(), hidden, hidden);
    linear("cls.predictions.transform.dense".into(), hidden, hidden);
    linear("cls.seq_relationship".into(), hidden, 2);
    for layer in (0..layers).map(|index| format!("bert.encoder.layer.{index}")) {
        for part in ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"] {
            linear(format!("{layer}.{part}"), hidden, hidden);
        }
        linear(format!("{layer}.intermediate.dense"), hidden, intermediate);
        linear(format!("{layer}.output.dense"), intermediate, hidden);
    }
    if !model.tied_decoder {
        shapes.push(("cls.predictions.decoder.weight".into(), vec![rows as i64, hidden]));
        // The bias beside it in transformers' model; `cls.predictions.bias` is there too, and idle.
        shapes.push(("cls.predictions.decoder.bias".into(), vec![rows as i64]));
    }
    for name in norms(model.norm, layers) {
        shapes.push((format!("{name}.weight"), vec![hidden]));
        shapes.push((format!("{name}.bias"), vec![hidden]));
    }
    shapes.sort();
    let mut first = 0;
    let place = |(name, shape): (String, Vec<i64>)| {
        let padding = if is_of_vocabulary(&name) { rows - vocabulary } else { 0 };
        let spec = Spec { name, shape, first, padding, frozen: false };
        first += spec.count();
        spec
    };
    shapes.into_iter().map(place).collect()
}

/// Whether a parameter has a row a piece.
fn is_of_vocabulary(name: &str) -> bool {
    name == "bert.embeddings.word_embeddings.weight"
        || name == "cls.predictions.bias"
        || name.starts_with("cls.predictions.decoder.")
}

/// The names of all layer normalisations.
fn norms(norm: Norm, layers: usize) -> Vec<String> {
    let (first, parts) = match norm {
        Norm::Post => ("bert.embeddings.LayerNorm", ["attention.output.LayerNorm", "output.LayerNorm"]),
        Norm::Pre => ("bert.encoder.ln", ["attention.ln", "ln"]),
    };
    let of_layers = (0..layers).flat_map(|index| parts.map(|part| format!("bert.encoder.layer.{index}.{part}")));
    [first, "cls.predictions.transform.LayerNorm"].into_iter().map(str::to_owned).chain(of_layers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiny() -> run::Model {
        run::Model { hidden: 8, heads: 2, intermediate: 16, positions: 16, ..run::Model::default() }
    }

    #[test]
    fn specs_lie_end_to_end_and_match_the_formula() {
        let untied = run::Model { tied_decoder: false, ..tiny() };
        let pre = run::Model { norm: Norm::Pre, ..tiny() };
        let padded = run::Model { pad_vocabulary_to: 8, ..untied.clone() };
        for model in [tiny(), untied, pre, padded] {
            let mut end = 0;
            for spec in &specs(&model, 3, 50) {
                assert_eq!(spec.first, end, "{}", spec.name);
                end = spec.range().end;
            }
            assert_eq!(end as u64, lambert_config::flops::parameters(&model, 3, 50));
        }
    }
}
