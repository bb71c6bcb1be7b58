//! The parameters of a network in the flat buffers, in the order in which the backward pass is done with their gradients: from
//! the heads down to the embeddings. So the gradients that are final at any moment of it are one range.

use lambert_config::architecture::{Network, Tensor};

use crate::state::{self, Spec};

/// Every parameter of a network, in the order in which the backward pass is done with their gradients.
pub fn specs(network: &Network) -> Vec<Spec> {
    let spec = |Tensor { id, role, name, shape, padding, joined, final_after }: Tensor| {
        let shape = shape.iter().map(|size| *size as i64).collect();
        Spec { id, role, joined, name, shape, first: 0, padding, frozen: false, final_after }
    };
    let mut specs: Vec<Spec> = network.tensors().into_iter().map(spec).collect();
    state::place(&mut specs);
    specs
}

/// Gradients, from the first on, that are final once the backward pass has gone through `segments` segments.
pub fn final_elements(specs: &[Spec], segments: usize) -> usize {
    let open = specs.iter().find(|spec| spec.final_after > segments);
    open.map_or_else(|| state::elements(specs), |spec| spec.first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_config::run::{self, Norm};

    fn tiny() -> run::Model {
        run::Model { hidden: 8, heads: 2, intermediate: 16, positions: 16, ..run::Model::default() }
    }

    #[test]
    fn specs_lie_one_behind_the_other_and_match_the_formula() {
        let untied = run::Model { tied_decoder: false, ..tiny() };
        let pre = run::Model { norm: Norm::Pre, ..tiny() };
        let padded = run::Model { pad_vocabulary_to: 8, ..untied.clone() };
        for model in [tiny(), untied, pre, padded] {
            let specs = specs(&Network::new(&model, 3, 50));
            assert!(specs.windows(2).all(|pair| pair[0].range().end <= pair[1].first));
            assert!(specs.iter().all(|spec| spec.joined || spec.first % 32 == 0));
            let elements: usize = specs.iter().map(Spec::count).sum();
            assert_eq!(elements as u64, lambert_config::flops::parameters(&model, 3, 50));
        }
    }

    #[test]
    fn the_order_is_that_of_the_backward_pass() {
        let order = |model: &run::Model| {
            specs(&Network::new(model, 12, 50)).into_iter().map(|spec| spec.name).collect::<Vec<_>>()
        };
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
