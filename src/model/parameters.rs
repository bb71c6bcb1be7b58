//! The parameters of a model: their names and shapes, and their order in the flat buffers, in which the backward pass is done
//! with their gradients: from the heads down to the embeddings. So the gradients that are final at any moment of it are one
//! range.

use std::cmp::Reverse;

use lambert_config::run::{self, Norm};

use crate::state::{self, Spec};

/// Every parameter of the pre-training model, in the order in which the backward pass is done with their gradients.
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
    shapes.sort_by_cached_key(|(name, _)| turn(name));
    let spec = |(name, shape): (String, Vec<i64>)| {
        let padding = if is_of_vocabulary(&name) { rows - vocabulary } else { 0 };
        Spec { joined: is_joined(&name), name, shape, first: 0, padding, frozen: false }
    };
    let mut specs: Vec<Spec> = shapes.into_iter().map(spec).collect();
    state::place(&mut specs);
    specs
}

/// Parameters outside the layers whose gradients the backward pass is done with before it comes to the layers, in its order.
const ABOVE: [&str; 8] = [
    "cls.seq_relationship.",
    "bert.pooler.",
    "cls.predictions.bias",
    "cls.predictions.decoder.",
    "cls.predictions.transform.LayerNorm.",
    "cls.predictions.transform.dense.",
    "bert.encoder.ln.",
    "bert.encoder.layer.",
];
/// Those behind the layers. The table of pieces, which is the decoder's too, is last.
const BELOW: [&str; 4] = [
    "bert.embeddings.LayerNorm.",
    "bert.embeddings.position_embeddings.",
    "bert.embeddings.token_type_embeddings.",
    "bert.embeddings.word_embeddings.",
];
/// Those of a layer. Query, key and value are one matrix and one vector.
const WITHIN: [&str; 13] = [
    "output.LayerNorm.",
    "output.dense.",
    "intermediate.dense.",
    "ln.",
    "attention.output.LayerNorm.",
    "attention.output.dense.",
    "attention.self.query.weight",
    "attention.self.key.weight",
    "attention.self.value.weight",
    "attention.self.query.bias",
    "attention.self.key.bias",
    "attention.self.value.bias",
    "attention.ln.",
];

/// When the backward pass is done with the gradient of a parameter, compared with others; the name itself last.
fn turn(name: &str) -> (usize, Reverse<usize>, usize, String) {
    let among =
        |parts: &[&str], name: &str| parts.iter().position(|part| name.starts_with(part)).unwrap_or(parts.len());
    let outside = ABOVE.iter().chain(&BELOW).position(|part| name.starts_with(part)).unwrap_or(0);
    let layer = name.strip_prefix("bert.encoder.layer.").and_then(|rest| rest.split_once('.'));
    let (layer, within) = layer.map_or((0, 0), |(layer, part)| (layer.parse().unwrap_or(0), among(&WITHIN, part)));
    (outside, Reverse(layer), within, name.to_owned())
}

/// Whether it lies directly behind the one before it.
fn is_joined(name: &str) -> bool {
    ["key", "value"].iter().any(|part| name.contains(&format!(".attention.self.{part}.")))
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
    fn specs_lie_one_behind_the_other_and_match_the_formula() {
        let untied = run::Model { tied_decoder: false, ..tiny() };
        let pre = run::Model { norm: Norm::Pre, ..tiny() };
        let padded = run::Model { pad_vocabulary_to: 8, ..untied.clone() };
        for model in [tiny(), untied, pre, padded] {
            let specs = specs(&model, 3, 50);
            assert!(specs.windows(2).all(|pair| pair[0].range().end <= pair[1].first));
            assert!(specs.iter().all(|spec| spec.joined || spec.first % 32 == 0));
            let elements: usize = specs.iter().map(Spec::count).sum();
            assert_eq!(elements as u64, lambert_config::flops::parameters(&model, 3, 50));
        }
    }

    #[test]
    fn the_order_is_that_of_the_backward_pass() {
        let order = |model: &run::Model| specs(model, 12, 50).into_iter().map(|spec| spec.name).collect::<Vec<_>>();
        let names = order(&tiny());
        let place = |name: &str| names.iter().position(|other| other == name).unwrap();
        let layer = |layer: usize, part: &str| place(&format!("bert.encoder.layer.{layer}.{part}"));
        assert_eq!(names.last().unwrap(), "bert.embeddings.word_embeddings.weight");
        assert_eq!(names[0], "cls.seq_relationship.bias");
        assert!(layer(10, "output.dense.weight") < layer(2, "output.dense.weight"));
        let first = layer(5, "attention.self.query.weight");
        let parts = ["query.weight", "key.weight", "value.weight", "query.bias", "key.bias", "value.bias"];
        let expected: Vec<usize> = (first..first + 6).collect();
        assert_eq!(parts.map(|part| layer(5, &format!("attention.self.{part}"))).to_vec(), expected);
        let pre = order(&run::Model { norm: Norm::Pre, tied_decoder: false, ..tiny() });
        let place = |name: &str| pre.iter().position(|other| other == name).unwrap();
        assert!(place("bert.encoder.ln.weight") < place("bert.encoder.layer.11.output.dense.weight"));
        assert!(place("cls.predictions.decoder.weight") < place("cls.predictions.transform.dense.weight"));
        assert!(
            place("bert.encoder.layer.3.attention.self.query.bias") < place("bert.encoder.layer.3.attention.ln.bias")
        );
    }
}
