//! Layout of the parameters in the flat buffers. The parameters are in the order in which the backward
//! pass completes their gradients, from the heads down to the embeddings. At any time, the gradients
//! that are final form a prefix of the buffer.

use std::ops::Range;

use lambert_plan::architecture::{ALIGNMENT, Architecture, Head, Role, Tensor, TensorId};

/// Name (as in Hugging Face models), shape and offset of a parameter in the flat buffers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParamSpec {
    /// Identifier within the architecture.
    pub id: TensorId,
    /// Role, which decides initialization and weight decay.
    pub role: Role,
    /// Name, such as `bert.encoder.layer.0.attention.self.query.weight`.
    pub name: String,
    /// Shape; \[out, in\] for linear layers.
    pub shape: Vec<i64>,
    /// Offset in the flat buffers, elements.
    pub first: usize,
    /// Number of matrices that are stacked in the rows, for Muon. 0 if AdamW updates the parameter.
    pub matrices: usize,
    /// Number of padding rows at the end, beyond the vocabulary; `None` if the rows are not tokens.
    pub padding: Option<usize>,
    /// True if the parameter directly follows the previous one in the buffers, so that
    /// the two form one fused matrix or vector.
    pub is_fused: bool,
    /// True if updates leave the parameter and its moments unchanged.
    pub is_frozen: bool,
    /// Head that the parameter belongs to, if any.
    pub head: Option<Head>,
    /// Number of segments whose backward pass must be complete before the gradient is final.
    pub final_after_segment: usize,
}

impl ParamSpec {
    /// Number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product::<i64>() as usize
    }

    /// Shape, as checkpoint files store it.
    pub fn sizes(&self) -> Vec<usize> {
        self.shape.iter().map(|size| *size as usize).collect()
    }

    /// Range of elements in the flat buffers.
    pub fn range(&self) -> Range<usize> {
        self.first..self.first + self.count()
    }

    /// Group of the parameter. The parameters of a group share an update count, because
    /// they are frozen or grown together.
    pub fn group(&self) -> String {
        let own = match self.id.layer {
            Some(layer) => format!("layer.{layer}"),
            None => self.id.module.group().to_owned(),
        };
        match self.id.network {
            0 => own,
            network => format!("network.{network}.{own}"),
        }
    }
}

/// Returns the parameters of an architecture, in the order in which the backward pass completes their gradients.
pub fn specs(architecture: &Architecture) -> Vec<ParamSpec> {
    let spec = |Tensor {
                    id,
                    role,
                    name,
                    shape,
                    padding,
                    matrices,
                    is_fused_with_previous: fused,
                    head,
                    final_after_segment,
                }: Tensor| {
        let shape = shape.iter().map(|size| *size as i64).collect();
        ParamSpec {
            id,
            role,
            is_fused: fused,
            name,
            shape,
            first: 0,
            matrices,
            padding,
            is_frozen: false,
            head,
            final_after_segment,
        }
    };
    let mut specs: Vec<ParamSpec> = architecture.tensors().into_iter().map(spec).collect();
    assign_offsets(&mut specs);
    specs
}

/// Number of elements at the start of the gradient buffer that are final after the
/// backward pass of `segments` segments.
pub fn final_elements(specs: &[ParamSpec], segments: usize) -> usize {
    let open = specs.iter().find(|spec| spec.final_after_segment > segments);
    open.map_or_else(|| elements(specs), |spec| spec.first)
}

/// Assigns aligned offsets to `specs`, in order. The elements between parameters are zero, and checkpoints do not
/// include them.
fn assign_offsets(specs: &mut [ParamSpec]) {
    let mut end = 0_usize;
    for spec in specs {
        spec.first = if spec.is_fused { end } else { end.next_multiple_of(ALIGNMENT) };
        end = spec.range().end;
    }
}

/// Length of a flat buffer, elements.
pub fn elements(specs: &[ParamSpec]) -> usize {
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
    fn parameters_do_not_overlap_and_match_the_formula() {
        let untied = run::Model { tied_decoder: false, ..tiny() };
        let pre = run::Model { norm: Norm::Pre, ..tiny() };
        let padded = run::Model { pad_vocabulary_to: 8, ..untied.clone() };
        for model in [tiny(), untied, pre, padded] {
            let specs = specs(&Architecture::new(&model, 3, 50));
            assert!(specs.windows(2).all(|pair| pair[0].range().end <= pair[1].first));
            assert!(specs.iter().all(|spec| spec.is_fused || spec.first % 32 == 0));
            let elements: usize = specs.iter().map(ParamSpec::count).sum();
            assert_eq!(elements as u64, Architecture::new(&model, 3, 50).parameters());
        }
    }

    /// Checkpoints store these names.
    #[test]
    fn group_names_are_stable() {
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
    fn parameters_are_in_backward_order() {
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
