//! Fifty steps from fixed weights on fixed batches: against the same arithmetic in plain PyTorch (tests/golden/
//! make_curve.py), against the curve of this engine that is kept here, and against themselves.
//!
//! A change that is meant to move the curve writes it anew with `LAMBERT_WRITE_CURVE=1`.

#[path = "../../tests/support/curve.rs"]
mod curve;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::kernels::cuda::Emulator;
use crate::kernels::{Cuda, Host, Reference};
use curve::{Curve, Golden, train, train_in, worst};
use lambert_config::run::{OptimizerKind, Precision};

const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/own_curve.json");

#[test]
fn fifty_steps_lose_what_they_should() {
    let golden = Golden::read();
    let kinds = [("adamw", OptimizerKind::Adamw, 5e-3), ("lamb", OptimizerKind::Lamb, 2e-2)];
    let curves: BTreeMap<&str, Curve> = kinds.into_iter().map(|(name, kind, rate)| (name, train(kind, rate))).collect();
    if std::env::var_os("LAMBERT_WRITE_CURVE").is_some() {
        std::fs::write(OWN, serde_json::to_string_pretty(&curves).unwrap() + "\n").unwrap();
    }
    let own: BTreeMap<String, Curve> = serde_json::from_slice(&std::fs::read(OWN).unwrap()).unwrap();
    for (name, kind, rate) in kinds {
        let curve = &curves[name];
        let theirs: Curve = golden.floats(&format!("losses:{name}")).into_iter().map(f64::from).collect();
        assert_eq!((curve.len(), theirs.len(), own[name].len()), (50, 50, 50));
        assert!(curve[49] < 0.8 * curve[0], "{name} learns nothing: {curve:?}");
        let (torch, kept) = (worst(curve, &theirs), worst(curve, &own[name]));
        println!("{name}: from {:.4} to {:.4}; from PyTorch's {torch:.1e}, from ours {kept:.1e}", curve[0], curve[49]);
        assert!(torch < 1e-4, "{name}: {torch:e} from PyTorch");
        assert!(kept < 1e-5, "{name}: {kept:e} from the curve that is kept");
        assert_eq!(train(kind, rate), *curve, "{name}: two runs differ");
    }
}

/// The kernels of plain libtorch operations learn the same.
#[test]
fn the_reference_s_kernels_lose_the_same() {
    for (kind, rate) in [(OptimizerKind::Adamw, 5e-3), (OptimizerKind::Lamb, 2e-2)] {
        let reference = Arc::new(Reference::new(tch::Device::Cpu));
        let apart = worst(&train_in(reference, Precision::Fp32, kind, rate).0, &train(kind, rate));
        println!("{kind:?}: plain operations differ by {apart:.1e} at the most");
        assert!(apart < 1e-5, "{kind:?}: {apart:e}");
    }
}

/// The kernels of a GPU, run by a processor, learn the same.
#[test]
fn an_emulated_card_loses_the_same() {
    for (kind, rate) in [(OptimizerKind::Adamw, 5e-3), (OptimizerKind::Lamb, 2e-2)] {
        let card = Arc::new(Cuda::new(Arc::new(Emulator::default())));
        let apart = worst(&train_in(card, Precision::Fp32, kind, rate).0, &train(kind, rate));
        println!("{kind:?}: an emulated card differs by {apart:.1e} at the most");
        assert!(apart < 1e-5, "{kind:?}: {apart:e}");
    }
}

/// Weights and moments of 32 bits take in updates that 16 bits would lose.
#[test]
fn bf16_loses_nearly_the_same() {
    for (kind, rate) in [(OptimizerKind::Adamw, 5e-3), (OptimizerKind::Lamb, 2e-2)] {
        let (curve, weights) = train_in(Arc::new(Host), Precision::Bf16, kind, rate);
        let apart = worst(&curve, &train(kind, rate));
        println!("{kind:?}: bf16 ends at {:.4}, {apart:.1e} from f32 at the most", curve[49]);
        assert!((1e-6..0.03).contains(&apart), "{kind:?}: {apart:e}");
        let coarse = weights.iter().filter(|weight| weight.to_bits().trailing_zeros() >= 16).count();
        assert!(coarse < weights.len() / 10, "{coarse} of {} weights have 16 bits", weights.len());
    }
}
