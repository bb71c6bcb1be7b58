//! BERT and its options. tests/golden/make_bert.py wrote the golden values. Inputs include padded rows and rows with a
//! single segment.

use lambert_config::run::{Activation, Model, Norm, Precision};
use lambert_worker::torch;

use super::{Golden, bf16_is_close, logits, losses_and_gradients};

/// Vocabulary size of the small models.
const PIECES: usize = 96;

fn tiny() -> Model {
    Model { layers: 2, hidden: 32, heads: 4, intermediate: 64, positions: 24, dropout: 0.0, ..Model::default() }
}

/// Returns all golden models with their names.
fn golden() -> [(&'static str, Golden); 5] {
    let padded = Model { pad_vocabulary_to: 100, ..tiny() };
    let padded_untied =
        Model { activation: Activation::GeluTanh, tied_decoder: false, pad_vocabulary_to: 64, ..tiny() };
    let untied = Model { activation: Activation::GeluTanh, tied_decoder: false, ..tiny() };
    let pre = Model { norm: Norm::Pre, ..tiny() };
    [
        ("bert-tiny", Golden::read(tiny(), PIECES, include_bytes!("../golden/bert-tiny.safetensors"))),
        ("bert-tiny with 4 rows more", Golden::read(padded, PIECES, include_bytes!("../golden/bert-tiny.safetensors"))),
        (
            "bert-untied-tanh with 32 rows more",
            Golden::read(padded_untied, PIECES, include_bytes!("../golden/bert-untied-tanh.safetensors")),
        ),
        ("bert-untied-tanh", Golden::read(untied, PIECES, include_bytes!("../golden/bert-untied-tanh.safetensors"))),
        ("megatron-bert", Golden::read(pre, PIECES, include_bytes!("../golden/megatron-bert.safetensors"))),
    ]
}

#[test]
fn logits_equal_transformers() {
    for (name, golden) in golden() {
        logits(name, &golden);
    }
}

/// Tests the published shapes. The variable LAMBERT_GOLDEN names the folder with the files of
/// tests/golden/make_bert.py. The test uses the matrix products of libtorch, and then those of oneDNN. With oneDNN,
/// gradients whose terms almost cancel (keys and queries of deep layers) are compared with float64 gradients.
#[test]
#[ignore = "needs the files that tests/golden/make_bert.py writes"]
fn published_shapes_equal_transformers() {
    let folder = std::env::var("LAMBERT_GOLDEN").expect("LAMBERT_GOLDEN is the folder with the golden files");
    let base = Model { dropout: 0.0, ..Model::default() };
    let large = Model { layers: 24, hidden: 1024, heads: 16, intermediate: 4096, ..base.clone() };
    for (size, model) in [("base", base), ("large", large)] {
        for (case, pieces) in [("uncased", 30522), ("cased", 28996)] {
            let name = format!("bert-{size}-{case}");
            let bytes = std::fs::read(format!("{folder}/{name}.safetensors")).unwrap();
            let golden = Golden::read(model.clone(), pieces, &bytes);
            drop(bytes);
            for onednn in [false, true] {
                torch::allow_onednn(onednn);
                logits(&name, &golden);
                losses_and_gradients(&name, &golden, onednn);
            }
        }
    }
}

#[test]
fn losses_and_gradients_equal_transformers() {
    for (name, golden) in golden() {
        losses_and_gradients(name, &golden, true);
    }
}

/// bf16 has a relative precision of 0.4 %, so losses and gradients are close, but not equal. Also tests recomputed
/// activations.
#[test]
fn bf16_is_close_to_transformers() {
    for (name, golden) in golden() {
        let bf16 = Golden { model: Model { precision: Precision::Bf16, ..golden.model.clone() }, ..golden };
        bf16_is_close(name, &bf16, 0.03);
    }
}
