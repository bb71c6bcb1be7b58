//! Where each parameter lies in the flat buffers: in the order in which the backward pass is done with the gradients, from the heads
//! down to the embeddings. So the gradients that are final at any moment of it are one range.

use std::ops::Range;

use lambert_plan::architecture::{ALIGNMENT, Architecture, Head, Role, Tensor, TensorId};

/// A parameter's name (Hugging Face's), shape and place in the flat buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// What it is.
    pub id: TensorId,
    /// What it is for.
    pub role: Role,
    /// As `bert.encoder.layer.0.attention.self.query.weight`.
    pub name: String,
    /// As \[out, in\].
    pub shape: Vec<i64>,
    /// Its first element in the flat buffers.
    pub first: usize,
    /// Its last rows that stand for no token of the vocabulary; `None` if its rows are not tokens.
    pub padding: Option<usize>,
    /// Whether it lies directly behind the one before, so that both are one matrix, or one vector.
    pub joined: bool,
    /// Whether it stays as it is for now, with its moments.
    pub frozen: bool,
    /// The head that it is part of, if it is in one.
    pub head: Option<Head>,
    /// The number of segments that the backward pass goes through until its gradient is final.
    pub final_after: usize,
}

impl Spec {
    /// Elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }

    /// Its shape, as files have it.
    pub fn sizes(&self) -> Vec<usize> {
        self.shape.iter().map(|size| *size as usize).collect()
    }

    /// Its elements in the flat buffers.
    pub fn range(&self) -> Range<usize> {
        self.first..self.first + self.count()
    }

    /// The parameters that its updates are counted together with: those that are frozen, or grown, with it.
    pub fn group(&self) -> String {
        let own = match self.id.layer {
            Some(layer) => format!("layer.{layer}"),
            None => self.id.part.group().to_owned(),
        };
        match self.id.network {
            0 => own,
            network => format!("network.{network}.{own}"),
        }
    }
}

/// Every parameter of an architecture, in the order in which the backward pass is done with their gradients.
pub fn specs(architecture: &Architecture) -> Vec<Spec> {
    let spec = |Tensor { id, role, name, shape, padding, is_joined: joined, head, final_after }: Tensor| {
        let shape = shape.iter().map(|size| *size as i64).collect();
        Spec { id, role, joined, name, shape, first: 0, padding, frozen: false, head, final_after }
    };
    let mut specs: Vec<Spec> = architecture.tensors().into_iter().map(spec).collect();
    place(&mut specs);
    specs
}

/// Gradients, from the first on, that are final once the backward pass has gone through `segments` segments.
pub fn final_elements(specs: &[Spec], segments: usize) -> usize {
    let open = specs.iter().find(|spec| spec.final_after > segments);
    open.map_or_else(|| elements(specs), |spec| spec.first)
}

/// Gives each of `specs` its place, in their order. Gaps between them are zero, and in no checkpoint.
fn place(specs: &mut [Spec]) {
    let mut end = 0_usize;
    for spec in specs {
        spec.first = if spec.joined { end } else { end.next_multiple_of(ALIGNMENT) };
        end = spec.range().end;
    }
}

/// Elements from the first parameter's beginning to the last one's end.
pub fn elements(specs: &[Spec]) -> usize {
    specs.iter().map(|spec| spec.range().end).max().unwrap_or(0)
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
            let specs = specs(&Architecture::new(&model, 3, 50));
            assert!(specs.windows(2).all(|pair| pair[0].range().end <= pair[1].first));
            assert!(specs.iter().all(|spec| spec.joined || spec.first % 32 == 0));
            let elements: usize = specs.iter().map(Spec::count).sum();
            assert_eq!(elements as u64, Architecture::new(&model, 3, 50).parameters());
        }
    }

    /// Checkpoints hold these names.
    #[test]
    fn groups_have_the_names_that_they_have_always_had() {
        for norm in [Norm::Post, Norm::Pre] {
            let model = run::Model { norm, tied_decoder: false, ..tiny() };
            for spec in specs(&Architecture::new(&model, 2, 50)) {
                let expected = match spec.id.layer {
                    Some(layer) => format!("layer.{layer}"),
                    None => spec.name.splitn(3, '.').take(2).collect::<Vec<_>>().join("."),
                };
                assert_eq!(spec.group(), expected, "{}", spec.name);
            }
        }
    }

    #[test]
    fn the_order_is_that_of_the_backward_pass() {
        let order = |model: &run::Model| {
            specs(&Architecture::new(model, 12, 50)).into_iter().map(|spec| spec.name).collect::<Vec<_>>()
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
