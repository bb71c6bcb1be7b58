//! The order of a model's parameters in the flat buffers, in which the backward pass is done with their gradients: from the
//! heads down to the embeddings. So the gradients that are final at any moment of it are one range.

use std::cmp::Reverse;

use lambert_config::architecture::{Architecture, Leaf, Part, Tensor, TensorId};
use lambert_config::run::{self, Norm};

use super::Passed;
use crate::state::{self, Spec};

/// Every parameter of the pre-training model, in the order in which the backward pass is done with their gradients.
pub fn specs(model: &run::Model, layers: usize, vocabulary: usize) -> Vec<Spec> {
    let mut tensors = Architecture::new(model, vocabulary).tensors(layers);
    tensors.sort_by_key(|tensor| turn(tensor.id, model.norm));
    let spec = |Tensor { id, name, shape, padding }: Tensor| {
        let shape = shape.iter().map(|size| *size as i64).collect();
        Spec { id, joined: is_joined(id.part), name, shape, first: 0, padding: padding.unwrap_or(0), frozen: false }
    };
    let mut specs: Vec<Spec> = tensors.into_iter().map(spec).collect();
    state::place(&mut specs);
    specs
}

/// Parts outside the layers whose gradients the backward pass is done with before it comes to the layers, in its order.
const ABOVE: [Part; 7] = [
    Part::PairHead,
    Part::Pooler,
    Part::PredictionBias,
    Part::Decoder,
    Part::TransformNorm,
    Part::Transform,
    Part::FinalNorm,
];
/// Those behind the layers. The table of pieces, which is the decoder's too, is last.
const BELOW: [Part; 4] = [Part::EmbeddingNorm, Part::PositionEmbeddings, Part::SegmentEmbeddings, Part::WordEmbeddings];

/// Those of a layer. Those in one row have one place: they are one matrix and one vector.
fn within(norm: Norm) -> [&'static [Part]; 6] {
    const JOINED: &[Part] = &[Part::Query, Part::Key, Part::Value];
    let [output, output_norm]: [&[Part]; 2] = [&[Part::Output], &[Part::OutputNorm]];
    let [attention, attention_norm]: [&[Part]; 2] = [&[Part::AttentionOutput], &[Part::AttentionNorm]];
    match norm {
        Norm::Post => [output_norm, output, &[Part::Intermediate], attention_norm, attention, JOINED],
        Norm::Pre => [output, &[Part::Intermediate], output_norm, attention, JOINED, attention_norm],
    }
}

/// When the backward pass is done with the gradient of a parameter, compared with others.
fn turn(TensorId { part, layer, leaf }: TensorId, norm: Norm) -> (usize, Reverse<Option<usize>>, usize, bool, usize) {
    let outside = |parts: &[Part]| parts.iter().position(|other| *other == part);
    let section = match layer {
        Some(_) => ABOVE.len(),
        None => outside(&ABOVE).or_else(|| outside(&BELOW).map(|place| ABOVE.len() + 1 + place)).unwrap_or(0),
    };
    let rows = within(norm);
    let row = rows.iter().position(|row| row.contains(&part)).unwrap_or(0);
    let joined = layer.is_some() && rows[row].len() > 1;
    // Biases before weights; of those that are joined, all weights first.
    let later = (leaf == Leaf::Weight) != joined;
    let place = rows[row].iter().position(|other| *other == part).unwrap_or(0);
    (section, Reverse(layer), row, later, place)
}

/// Gradients, from the first on, that are final once the backward pass has come so far.
pub fn final_elements(specs: &[Spec], passed: Passed) -> usize {
    let is_final = |id: &TensorId| {
        let above = id.layer.is_none() && !BELOW.contains(&id.part);
        match passed {
            Passed::Heads => above,
            Passed::Layer(layer) => above || id.layer.is_some_and(|other| other >= layer),
            Passed::All => true,
        }
    };
    specs.iter().find(|spec| !is_final(&spec.id)).map_or_else(|| state::elements(specs), |spec| spec.first)
}

/// Whether it lies directly behind the one before it.
fn is_joined(part: Part) -> bool {
    matches!(part, Part::Key | Part::Value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_config::run::Norm;

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
