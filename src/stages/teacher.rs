//! Start of a model from the layers of its teacher.

use lambert_plan::distillation::CopiedTensor;

use crate::state::Parameters;

/// Copies weights of the teacher to the student. Padding rows of the vocabulary stay as they are.
pub fn copy(teacher: &Parameters, student: &Parameters, tensors: &[CopiedTensor]) {
    for CopiedTensor { to, from } in tensors {
        let (spec, weights) = (student.spec(to.id), teacher.read(teacher.spec(*from)));
        let mut elements = student.read(spec);
        let rows = spec.shape.first().map_or(1, |rows| *rows as usize).max(1);
        let copied = elements.len() - elements.len() / rows * spec.padding.unwrap_or(0);
        elements[..copied].copy_from_slice(&weights[..copied]);
        student.write(spec, &elements);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use lambert_config::run::{Family, Model};
    use lambert_plan::architecture::{Architecture, ModuleKind, ParamKind, TensorId};
    use lambert_plan::distillation::copied_tensors;

    use super::*;
    use crate::kernels::Host;

    #[test]
    fn a_student_starts_from_the_chosen_layers() {
        let small = |family: Family| Model { hidden: 8, heads: 2, intermediate: 16, positions: 16, ..family.model() };
        let of_teacher = Model { layers: 3, pad_vocabulary_to: 8, ..small(Family::Bert) };
        let of_student = Model { layers: 2, positions: 12, pad_vocabulary_to: 32, ..small(Family::Distilbert) };
        let parameters = |model: &Model, seed| {
            let architecture = Architecture::new(model, model.layers, 50);
            Parameters::initialize(Arc::new(Host), architecture, seed, 0.02)
        };
        let (teacher, student) = (parameters(&of_teacher, 1), parameters(&of_student, 2));
        let tensors =
            copied_tensors((student.architecture(), &of_student), (teacher.architecture(), &of_teacher), &[2, 0]);
        copy(&teacher, &student, &tensors.unwrap());
        let read = |parameters: &Parameters, id| parameters.read(parameters.spec(id));
        for spec in student.specs() {
            let layer = spec.id.layer.map(|layer| [2, 0][layer]);
            let (ours, theirs) = (read(&student, spec.id), read(&teacher, TensorId { layer, ..spec.id }));
            let same = match spec.id.module {
                ModuleKind::WordEmbeddings => 50 * 8,
                ModuleKind::PredictionBias => 50,
                _ => ours.len(),
            };
            assert_eq!(ours[..same], theirs[..same], "{}", spec.name);
            assert!(ours[same..].iter().all(|padding| *padding == 0.0), "{}", spec.name);
        }
        let words = student.spec(TensorId::new(ModuleKind::WordEmbeddings, ParamKind::Weight));
        assert_eq!(words.padding, Some(14));
    }
}
