//! Knowledge distillation: the network of a teacher, and the tensors of a model that start from a teacher.

use lambert_config::run::{Model, Teacher};
use serde_json::{Map, Value};

use crate::architecture::{Architecture, Head, ModuleKind, Network, Tensor, TensorId};

/// Keys of `[model]` that may differ between a model and the teacher whose layers it copies. [`other_reach`] compares the windows
/// of attention.
const FREE: [&str; 7] =
    ["family", "layers", "positions", "segments", "pad_vocabulary_to", "attention_window", "global_attention_every"];

/// Describes the network of a teacher. `None` until the teacher has been read.
pub fn network(teacher: &Teacher, vocabulary: usize) -> Option<Network> {
    let model = &teacher.info.as_ref()?.model;
    Some(Network::new(model, &[], model.layers, vocabulary))
}

/// Tensor of a model that starts from a tensor of its teacher.
#[derive(Debug, Clone, PartialEq)]
pub struct CopiedTensor {
    /// Tensor of the model.
    pub to: Tensor,
    /// Tensor of the teacher. It has at least as many elements. The model takes the first ones.
    pub from: TensorId,
}

/// Returns the tensors of `student` that start from those of `teacher`. Layer i of the student starts from layer `layers[i]` of
/// the teacher. The sentence-pair head starts from that of the teacher only if the teacher has one.
///
/// # Errors
/// A message that names the key, layer or tensor that does not fit.
pub fn copied_tensors(
    (student, of_student): (&Architecture, &Model),
    (teacher, of_teacher): (&Architecture, &Model),
    layers: &[usize],
) -> Result<Vec<CopiedTensor>, String> {
    check_keys(of_student, of_teacher)?;
    if student.networks().iter().chain(teacher.networks()).any(Network::shares_layers) {
        return Err("layers that share weights cannot be copied".to_owned());
    }
    if let Some(layer) = layers.iter().find(|layer| **layer >= of_teacher.layers) {
        return Err(format!("layer {layer} does not exist: the teacher has layers 0 to {}", of_teacher.layers - 1));
    }
    let theirs = teacher.tensors();
    let mut copied = Vec::new();
    for to in student.tensors() {
        let layer = to.id.layer.and_then(|layer| layers.get(layer)).copied();
        let from = TensorId { layer, ..to.id };
        match theirs.iter().find(|tensor| tensor.id == from) {
            Some(tensor) if fits(&to, tensor) => copied.push(CopiedTensor { to, from }),
            Some(tensor) => {
                return Err(format!(
                    "{} has the shape {:?}, that of the teacher {:?}",
                    to.name, to.shape, tensor.shape
                ));
            }
            None if matches!(to.head, Some(Head::Pair | Head::SpanBoundary)) => {}
            None => return Err(format!("the teacher has no tensor for {}", to.name)),
        }
    }
    Ok(copied)
}

/// Layers of `student` that start from a layer of `teacher` with another window of attention.
pub fn other_reach(student: &Model, teacher: &Model, layers: &[usize]) -> Vec<usize> {
    let differs = |(layer, from): &(usize, &usize)| student.attention_reach(*layer) != teacher.attention_reach(**from);
    layers.iter().enumerate().filter(differs).map(|(layer, _)| layer).collect()
}

/// Compares the keys of `[model]` that determine what a layer computes from its weights.
fn check_keys(student: &Model, teacher: &Model) -> Result<(), String> {
    let table = |model: &Model| serde_json::to_value(model.computed()).map_err(|error| error.to_string());
    let (ours, theirs) = (table(student)?, table(teacher)?);
    let keys = [&ours, &theirs].into_iter().filter_map(Value::as_object).flat_map(Map::keys);
    let shown = |value: Option<&Value>| value.map_or("absent".to_owned(), ToString::to_string);
    for key in keys.filter(|key| !FREE.contains(&key.as_str())) {
        let (ours, theirs) = (ours.get(key), theirs.get(key));
        if ours != theirs {
            return Err(format!("model.{key} is {}, that of the teacher is {}", shown(ours), shown(theirs)));
        }
    }
    Ok(())
}

/// True if `to` is equal to the first rows of `from`. Only embeddings of positions and the padding of the vocabulary may differ in
/// their numbers of rows.
fn fits(to: &Tensor, from: &Tensor) -> bool {
    let rows = |tensor: &Tensor| tensor.shape.first().map_or(0, |rows| rows - tensor.padding.unwrap_or(0));
    let may_be_fewer = to.id.module == ModuleKind::PositionEmbeddings;
    let fits = if may_be_fewer { rows(to) <= rows(from) } else { rows(to) == rows(from) };
    fits && to.shape.get(1..) == from.shape.get(1..)
}

#[cfg(test)]
mod tests {
    use lambert_config::run::{Family, Norm};

    use super::*;

    fn architecture(model: &Model) -> Architecture {
        Architecture::new(model, model.layers, 50)
    }

    fn copied(student: &Model, teacher: &Model, layers: &[usize]) -> Result<Vec<CopiedTensor>, String> {
        copied_tensors((&architecture(student), student), (&architecture(teacher), teacher), layers)
    }

    #[test]
    fn a_distilbert_takes_every_tensor_from_bert() {
        let teacher = Model { layers: 12, ..Family::Bert.model() };
        let student = Family::Distilbert.model();
        let layers = [0, 2, 4, 7, 9, 11];
        let tensors = copied(&student, &teacher, &layers).unwrap();
        assert_eq!(tensors.len(), architecture(&student).tensors().len());
        for tensor in &tensors {
            assert_eq!(tensor.from.layer, tensor.to.id.layer.map(|layer| layers[layer]));
            assert_ne!(tensor.to.id.module, ModuleKind::SegmentEmbeddings);
        }
        let short = Model { positions: 128, pad_vocabulary_to: 8, ..student };
        assert_eq!(copied(&short, &teacher, &layers).unwrap().len(), tensors.len());
    }

    #[test]
    fn models_that_do_not_fit_are_named() {
        let teacher = Model { layers: 3, ..Family::Bert.model() };
        let student = Model { layers: 2, ..Family::Distilbert.model() };
        let error = |student: &Model, teacher: &Model, layers: &[usize]| copied(student, teacher, layers).unwrap_err();
        assert_eq!(error(&student, &teacher, &[0, 3]), "layer 3 does not exist: the teacher has layers 0 to 2");
        let narrow = Model { hidden: 384, ..student.clone() };
        assert_eq!(error(&narrow, &teacher, &[0, 1]), "model.hidden is 384, that of the teacher is 768");
        let heads = Model { heads: 6, ..student.clone() };
        assert_eq!(error(&heads, &teacher, &[0, 1]), "model.heads is 6, that of the teacher is 12");
        let other = Model { norm: Norm::Pre, ..teacher.clone() };
        assert!(error(&student, &other, &[0, 1]).starts_with("model.norm is"), "{}", error(&student, &other, &[0, 1]));
        let long = Model { positions: 1024, ..student.clone() };
        assert!(error(&long, &teacher, &[0, 1]).contains("has the shape [1024, 768], that of the teacher [512, 768]"));
        let roberta = Model { layers: 3, ..Family::Roberta.model() };
        let bert = Model { layers: 2, layer_norm_eps: 1e-5, ..Family::Bert.model() };
        assert!(error(&bert, &roberta, &[0, 1]).contains("that of the teacher"), "{}", error(&bert, &roberta, &[0, 1]));
        let epsilon = Model { layer_norm_eps: 1e-5, ..student.clone() };
        assert_eq!(error(&epsilon, &teacher, &[0, 1]), "model.layer_norm_eps is 0.00001, that of the teacher is 1e-12");
        let albert = Family::Albert.model();
        let shared = Model { layers: 2, ..albert.clone() };
        assert_eq!(error(&shared, &albert, &[0, 1]), "layers that share weights cannot be copied");
    }

    #[test]
    fn rotary_positions_and_attention_are_those_of_the_copied_layers() {
        let teacher = Family::Modernbert.model();
        let student = Model { layers: 4, ..teacher.clone() };
        // Other regularization, precision and initialization: nothing that the weights depend on.
        let plain = Model { dropout: 0.3, initializer_range: 0.1, positions: 128, ..student.clone() };
        assert!(copied(&plain, &teacher, &[0, 1, 2, 3]).is_ok());
        let base = Model { rotary_base: Some(160_000.0), ..student.clone() };
        let error = copied(&base, &teacher, &[0, 1, 2, 3]).unwrap_err();
        assert_eq!(error, "model.rotary_base is 160000.0, that of the teacher is 10000.0");
        assert_eq!(other_reach(&student, &teacher, &[0, 1, 2, 3]), [0; 0]);
        assert_eq!(other_reach(&student, &teacher, &[0, 3, 6, 9]), [1, 2]);
        let global = Model { attention_window: 0, ..student };
        assert_eq!(other_reach(&global, &teacher, &[0, 3, 6, 9]), [0; 0]);
        assert_eq!(other_reach(&global, &teacher, &[0, 1, 2, 3]), [1, 2]);
    }
}
