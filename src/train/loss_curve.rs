//! Loss curves of fifty steps from fixed weights on fixed batches. The curves are compared with plain PyTorch
//! (tests/golden/make_curve.py), with the stored curve of this engine, and with a second run.
//!
//! After an intended change, `LAMBERT_WRITE_CURVE=1` rewrites the stored curve.

#[path = "../../tests/support/curve.rs"]
mod curve;
mod families;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::kernels::cuda::Emulator;
use crate::kernels::{Cuda, Host, Reference};
use curve::{Curve, Golden, max_difference, train, train_in};
use lambert_config::run::{OptimizerKind, Precision};

const OWN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/own_curve.json");

#[test]
fn loss_curve_matches_pytorch_and_the_stored_curve() {
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
        let (torch, kept) = (max_difference(curve, &theirs), max_difference(curve, &own[name]));
        println!(
            "{name}: loss {:.4} to {:.4}; off PyTorch by {torch:.1e}, off the stored curve by {kept:.1e}",
            curve[0], curve[49]
        );
        assert!(torch < 1e-4, "{name}: differs from PyTorch by {torch:e}");
        assert!(kept < 1e-5, "{name}: differs from the stored curve by {kept:e}");
        assert_eq!(train(kind, rate), *curve, "{name}: two runs differ");
    }
}

/// Reference kernels of plain libtorch operations.
#[test]
fn reference_kernels_give_the_same_loss_curve() {
    for (kind, rate) in [(OptimizerKind::Adamw, 5e-3), (OptimizerKind::Lamb, 2e-2)] {
        let reference = Arc::new(Reference::new(tch::Device::Cpu));
        let difference = max_difference(&train_in(reference, Precision::Fp32, kind, rate).0, &train(kind, rate));
        println!("{kind:?}: reference kernels differ by at most {difference:.1e}");
        assert!(difference < 1e-5, "{kind:?}: {difference:e}");
    }
}

/// GPU kernels, emulated on the CPU.
#[test]
fn emulated_gpu_gives_the_same_loss_curve() {
    for (kind, rate) in [(OptimizerKind::Adamw, 5e-3), (OptimizerKind::Lamb, 2e-2)] {
        let gpu = Arc::new(Cuda::new(Arc::new(Emulator::default())));
        let difference = max_difference(&train_in(gpu, Precision::Fp32, kind, rate).0, &train(kind, rate));
        println!("{kind:?}: the emulated GPU differs by at most {difference:.1e}");
        assert!(difference < 1e-5, "{kind:?}: {difference:e}");
    }
}

/// Weights and moments are f32, so they do not lose small updates that bf16 would round away.
#[test]
fn bf16_loss_curve_is_close_to_f32() {
    for (kind, rate) in [(OptimizerKind::Adamw, 5e-3), (OptimizerKind::Lamb, 2e-2)] {
        let (curve, weights) = train_in(Arc::new(Host), Precision::Bf16, kind, rate);
        let difference = max_difference(&curve, &train(kind, rate));
        println!("{kind:?}: bf16 ends at {:.4}, off f32 by at most {difference:.1e}", curve[49]);
        assert!((1e-6..0.03).contains(&difference), "{kind:?}: {difference:e}");
        let coarse = weights.iter().filter(|weight| weight.to_bits().trailing_zeros() >= 16).count();
        assert!(coarse < weights.len() / 10, "{coarse} of {} weights have 16 bits", weights.len());
    }
}
