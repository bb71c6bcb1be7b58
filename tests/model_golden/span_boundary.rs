//! The span boundary objective. tests/golden/make_span_boundary.py wrote the golden values. One span is longer than the table of
//! positions, and some boundaries are at the ends of the samples.

use lambert_config::run::{Family, Model, Precision};
use lambert_plan::objectives::{LossSpec, SPAN_BOUNDARY};
use lambert_worker::kernels::Host;
use lambert_worker::model::input::Input;
use lambert_worker::model::{Dropout, Encoder};
use tch::Tensor;

use super::{Golden, bf16_is_close, logits, losses_and_gradients, worst};

/// Vocabulary size of the models.
const PIECES: usize = 61;

/// Returns all golden models with their names.
fn golden() -> [(&'static str, Golden); 3] {
    let shape = Model { layers: 2, heads: 2, positions: 40, dropout: 0.0, ..Model::default() };
    let bert = Model { hidden: 16, intermediate: 32, ..shape.clone() };
    let electra = Model {
        family: Family::Electra,
        hidden: 12,
        intermediate: 20,
        embedding: Some(18),
        tied_decoder: false,
        ..shape.clone()
    };
    let padded = Model { pad_vocabulary_to: 64, ..bert.clone() };
    [
        ("spanbert", Golden::read(bert, PIECES, include_bytes!("../golden/spanbert.safetensors"))),
        ("spanbert with 3 rows more", Golden::read(padded, PIECES, include_bytes!("../golden/spanbert.safetensors"))),
        ("span-electra", Golden::read(electra, PIECES, include_bytes!("../golden/span-electra.safetensors"))),
    ]
}

#[test]
fn losses_and_gradients_equal_the_formulas() {
    for (name, golden) in golden() {
        logits(name, &golden);
        losses_and_gradients(name, &golden, true);
        let (totals, _) = golden.step(false);
        let ours = totals.of(LossSpec { weight: golden.span_boundary_weight(), ..SPAN_BOUNDARY });
        let difference = ours.mean_loss().unwrap() - f64::from(golden.floats["span_boundary_loss"][0]);
        assert!(difference.abs() < 1e-4, "{name}: {difference:e}");
        let labels = &golden.integers["span_boundary_labels"];
        assert_eq!(
            (ours.targets, ours.correct),
            (labels.len() as f64, golden.integers["span_boundary_correct"][0] as f64)
        );

        let encoder = Encoder::new(&golden.model(), 0, &golden.model);
        let (targets, predicted) = tch::no_grad(|| {
            let input = Input::upload(&Host, &golden.batch());
            let targets = input.span_targets.as_ref().unwrap();
            let [left, right, offsets, labels] = [0, 1, 2, 3].map(|row| targets.select(0, row));
            let hidden = encoder.forward(&input, Dropout::Off);
            (labels, encoder.heads.span_boundary(&hidden, &left, &right, &offsets).without_padding())
        });
        assert_eq!(&Vec::<i64>::try_from(targets).unwrap(), labels, "{name}");
        let (pieces, rows) = (PIECES as i64, predicted.size()[1]);
        let padding: Tensor = predicted.narrow(1, pieces, rows - pieces);
        assert!(padding.numel() == 0 || padding.max().double_value(&[]) == f64::NEG_INFINITY, "padding is predicted");
        let difference = worst(&predicted.narrow(1, 0, pieces), &golden.floats["span_boundary_logits"]);
        println!("{name}: largest difference of span boundary logits {difference:.1e}");
        assert!(difference < 1e-4, "{name}: {difference:e}");
    }
}

#[test]
fn bf16_is_close_to_the_formulas() {
    for (name, golden) in golden() {
        let bf16 = Golden { model: Model { precision: Precision::Bf16, ..golden.model.clone() }, ..golden };
        bf16_is_close(name, &bf16, 0.05);
    }
}
