//! A whole step of distillation: forward passes of teacher and student, the three losses, and the gradients of their weighted sum.
//! tests/golden/make_student.py wrote the golden values.

use lambert_config::run::{Family, Model, Precision};
use lambert_plan::objectives::{COSINE, SOFT_TARGETS};

use super::{Golden, bf16_is_close, losses_and_gradients};

const BYTES: &[u8] = include_bytes!("../golden/student.safetensors");

fn golden(pad_vocabulary_to: usize) -> Golden {
    let of = |family: Family| Model { positions: 16, hidden: 12, dropout: 0.0, pad_vocabulary_to, ..family.model() };
    let student = Model { layers: 2, heads: 2, intermediate: 24, ..of(Family::Distilbert) };
    let teacher = Model { layers: 3, heads: 3, intermediate: 20, ..of(Family::Bert) };
    Golden { teacher: Some(teacher), ..Golden::read(student, 37, BYTES) }
}

#[test]
fn a_step_equals_transformers() {
    for (name, golden) in [("student", golden(1)), ("student with 27 rows more", golden(64))] {
        losses_and_gradients(name, &golden, true);
        for recompute in [false, true] {
            let (totals, _) = golden.step(recompute);
            for loss in [SOFT_TARGETS, COSINE] {
                let theirs = f64::from(golden.floats[&format!("{}_loss", loss.name)][0]);
                let difference = totals.of(loss).mean_loss().unwrap() - theirs;
                assert!(difference.abs() < 1e-5, "{name}, {}: {difference:e} of {theirs}", loss.name);
            }
        }
    }
}

#[test]
fn a_step_in_bf16_is_close_to_transformers() {
    let golden = golden(1);
    let model = Model { precision: Precision::Bf16, ..golden.model.clone() };
    bf16_is_close("student", &Golden { model, ..golden }, 0.05);
}
