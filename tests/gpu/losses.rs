//! Losses over a vocabulary with padding, compared with the host.

use lambert_dataset::random::Key;
use lambert_worker::kernels::{CrossEntropy, Kernels, SoftTargetParams, TokenTargets, Values};
use tch::{Kind, Reduction, Tensor};

use super::{Host, first_gpu, relative_difference};

/// Loss and gradient of soft targets, for rows of logits with padding.
#[test]
fn soft_targets_match_the_host() {
    const ROWS: i64 = 300;
    const VOCABULARY: i64 = 30_522;
    let Some(gpu) = first_gpu() else { return };
    let computed = |kernels: &dyn Kernels, kind: Kind, width: i64| {
        let logits = |seed: u64| {
            let mut rng = Key::new(seed).rng();
            let values: Vec<f32> = (0..ROWS * width).map(|_| 12.0 * rng.unit_f64() as f32).collect();
            kernels.upload(Values::F32(&values)).view([ROWS, width]).to_kind(kind)
        };
        let params = SoftTargetParams { vocabulary: VOCABULARY, temperature: 2.0, weights: None };
        let made = kernels.soft_targets([&logits(1), &logits(2)], &params);
        let gradient = made.gradient.to_kind(Kind::Float).flatten(0, -1).to_device(tch::Device::Cpu);
        (made.loss.double_value(&[]), Vec::<f32>::try_from(gradient).unwrap())
    };
    for (kind, most) in [(Kind::Float, 1e-5), (Kind::BFloat16, 1e-2)] {
        for width in [VOCABULARY, 30_528] {
            let (host, found) = (computed(&Host, kind, width), computed(&*gpu, kind, width));
            let (loss, gradient) = ((found.0 / host.0 - 1.0).abs(), relative_difference(&host.1, &found.1));
            println!(
                "POINT soft targets, {kind:?}, {width}: loss {loss:.1e}, gradient {gradient:.1e} (at most {most:.0e})"
            );
            assert!(loss < most && gradient < most, "{kind:?}, {width}: {loss:e} {gradient:e}");
        }
    }
}

/// Loss, number of correct predictions and gradient of the cross-entropy over a vocabulary with padding, compared with operations of
/// libtorch in f32 on the host.
#[test]
fn cross_entropies_match_the_host() {
    const ROWS: i64 = 300;
    const VOCABULARY: i64 = 30_522;
    let Some(gpu) = first_gpu() else { return };
    let of_rows = |kernels: &dyn Kernels, kind: Kind, width: i64| {
        let mut rng = Key::new(1).rng();
        let values: Vec<f32> = (0..ROWS * width).map(|_| 12.0 * rng.unit_f64() as f32).collect();
        let labels: Vec<i32> = (0..ROWS as i32).map(|row| 101 * row).collect();
        let logits = kernels.upload(Values::F32(&values)).view([ROWS, width]).to_kind(kind);
        (logits.set_requires_grad(true), kernels.upload(Values::I32(&labels)).to_kind(Kind::Int64))
    };
    let read = |loss: Tensor, correct: Tensor, logits: &Tensor| {
        (&loss / ROWS).backward();
        let gradient = logits.grad().to_kind(Kind::Float).flatten(0, -1).to_device(tch::Device::Cpu);
        (loss.double_value(&[]), correct.int64_value(&[]), Vec::<f32>::try_from(gradient).unwrap())
    };
    for (kind, most) in [(Kind::Float, 1e-5), (Kind::BFloat16, 1e-2)] {
        for width in [VOCABULARY, 30_528] {
            let (logits, labels) = of_rows(&Host, kind, width);
            let used = logits.narrow(1, 0, VOCABULARY).to_kind(Kind::Float);
            let loss = used.cross_entropy_loss(&labels, None::<Tensor>, Reduction::Sum, -100, 0.0);
            let host = read(loss, used.argmax(-1, false).eq_tensor(&labels).sum(Kind::Int64), &logits);
            let (logits, labels) = of_rows(&*gpu, kind, width);
            let targets = TokenTargets { vocabulary: VOCABULARY, labels: &labels, factors: None };
            let CrossEntropy { loss, correct } = gpu.cross_entropy(&logits, &targets);
            let found = read(loss, correct, &logits);
            let (loss, gradient) = ((found.0 / host.0 - 1.0).abs(), relative_difference(&host.2, &found.2));
            println!(
                "POINT cross-entropy, {kind:?}, {width}: loss {loss:.1e}, gradient {gradient:.1e} (at most {most:.0e})"
            );
            assert!(loss < 1e-5 && gradient < most, "{kind:?}, {width}: {loss:e} {gradient:e}");
            assert_eq!(found.1, host.1, "{kind:?}, {width}: correct predictions");
        }
    }
}

/// The rows beyond the first 2^31 logits have the loss and the gradient of the first row. Needs 10 GB.
#[test]
fn cross_entropies_of_many_logits_are_those_of_few() {
    const ROWS: i64 = 72_000;
    const WIDTH: i64 = 30_528;
    let Some(gpu) = first_gpu() else { return };
    let values: Vec<f32> = (0..WIDTH).map(|token| (token * 7919 % 1009) as f32 / 100.0).collect();
    let row = gpu.upload(Values::F32(&values)).to_kind(Kind::BFloat16);
    let label = gpu.upload(Values::I32(&[7])).to_kind(Kind::Int64);
    let scored = |rows: i64| {
        let logits = row.expand([rows, WIDTH], false).contiguous().set_requires_grad(true);
        let labels = label.expand([rows], false).contiguous();
        let targets = TokenTargets { vocabulary: WIDTH - 6, labels: &labels, factors: None };
        let CrossEntropy { loss, .. } = gpu.cross_entropy(&logits, &targets);
        loss.backward();
        (loss.double_value(&[]), logits.grad().select(0, rows - 1))
    };
    let ((one, of_one), (all, of_last)) = (scored(1), scored(ROWS));
    let difference = (all / ROWS as f64 / one - 1.0).abs();
    println!("POINT cross-entropy of {} logits: {difference:.1e} from that of one row (at most 1e-4)", ROWS * WIDTH);
    assert!(difference < 1e-4 && of_one == of_last, "{one} {all}");
}
