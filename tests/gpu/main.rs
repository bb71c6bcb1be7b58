//! GPU tests, which compare a real GPU with the host. Each test prints its result as `POINT name: ...`, which
//! tests/gpu/run.sh collects. Without a GPU the tests print SKIPPED.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "../support/curve.rs"]
mod curve;
mod losses;

use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use curve::{max_difference, train, train_in};
use lambert_collective::nccl::{self, NcclLibrary, NcclOptions, WireFormat};
use lambert_collective::{Bucket, local};
use lambert_config::run::{
    Attention, Backend, Device, DeviceKind, Family, Model, Muon, MuonPrecision, Optimizer, OptimizerKind, Precision,
};
use lambert_dataset::random::Key;
use lambert_plan::architecture::Architecture;
use lambert_plan::batch_partition::{BatchPartition, Layout, MicroBatchPlan};
use lambert_worker::checkpoint::snapshot::Snapshot;
use lambert_worker::data::batch::MaskedSample;
use lambert_worker::data::{GlobalBatch, MicroBatch};
use lambert_worker::gpu::{CommStream, ComputeDevice, Driver, Gpu};
use lambert_worker::kernels::{DropoutParams, Host, Kernels, NormParams, TokenDraws, Values};
use lambert_worker::masking::MaskedToken;
use lambert_worker::model::compute_dtype;
use lambert_worker::model::input::Input;
use lambert_worker::objective::Objective;
use lambert_worker::optim;
use lambert_worker::state::{Buffer, Parameters, TrainState};
use lambert_worker::torch;
use lambert_worker::train::step;
use tch::{Kind, Tensor};

/// Returns the first GPU. Loads the libraries of all tests before libtorch is used.
fn first_gpu() -> Option<Arc<dyn Kernels>> {
    open_gpu().map(|(kernels, _)| kernels)
}

/// Returns the first GPU with its properties.
fn open_gpu() -> Option<(Arc<dyn Kernels>, Gpu)> {
    static GPU: OnceLock<Option<(Arc<dyn Kernels>, Gpu)>> = OnceLock::new();
    let open = || match Driver::open() {
        Err(error) if error.has_no_device() => None,
        opened => {
            opened.unwrap();
            let device = Device { kind: DeviceKind::Cuda, ..Device::default() };
            let (kernels, gpu) =
                ComputeDevice::load(&device, Backend::Auto).unwrap().kernels(None, Precision::Fp32).unwrap();
            let gpu = gpu.unwrap();
            eprintln!("{gpu}");
            Some((kernels, gpu))
        }
    };
    let gpu = GPU.get_or_init(open).clone();
    if gpu.is_none() {
        eprintln!("SKIPPED: there is no GPU");
    }
    gpu
}

#[test]
fn fifty_steps_match_the_reference_losses() {
    let Some(gpu) = first_gpu() else { return };
    for (kind, rate) in [(OptimizerKind::Adamw, 5e-3), (OptimizerKind::Lamb, 2e-2)] {
        let host = train(kind, rate);
        for (precision, most) in [(Precision::Fp32, 1e-4), (Precision::Bf16, 0.03)] {
            let difference = max_difference(&train_in(gpu.clone(), precision, kind, rate).0, &host);
            println!("POINT golden steps, {kind:?}, {precision:?}: {difference:.1e} (at most {most:.0e})");
            assert!(difference < most, "{kind:?}, {precision:?}: {difference:e}");
        }
    }
}

/// Shapes of dropout tensors in the model: [batch, sequence, hidden] and [batch, heads, sequence, sequence].
const SHAPES: [&[i64]; 6] =
    [&[5, 7, 16], &[3, 130, 768], &[2, 512, 1024], &[2, 4, 33, 33], &[2, 12, 128, 128], &[1, 16, 512, 512]];

#[test]
fn dropout_matches_the_host() {
    let Some(gpu) = first_gpu() else { return };
    let factors = |kernels: &dyn Kernels, shape: &[i64]| {
        let samples: Vec<i32> = (0..shape[0] as i32).map(|row| 70_001 * row + 3).collect();
        let samples = kernels.upload(Values::I32(&samples)).to_kind(Kind::Int64);
        let draws = DropoutParams {
            key: Key::new(11).with(5),
            samples: &samples,
            positions: None,
            threshold: 6554,
            scale: 1.0 / 0.9,
        };
        let made = kernels.dropout_factors(&draws, shape);
        let mut bytes = vec![0; 4 * made.numel()];
        kernels.read(&made, 0, &mut bytes);
        bytes
    };
    for shape in SHAPES {
        assert!(factors(&*gpu, shape) == factors(&Host, shape), "{shape:?}: dropout factors differ");
    }
    println!("POINT dropout masks: equal bits over {} shapes", SHAPES.len());
}

/// Environment variable of the process whose GPU fails.
const FAULT: &str = "LAMBERT_TEST_GPU_FAULT";

/// A process uploads to a GPU and updates there, then reads an invalid address. It must reach its end, although it frees tensors
/// after the failure.
#[test]
fn a_failed_gpu_ends_its_process_with_a_message() {
    if std::env::var_os(FAULT).is_some() {
        fail_on_the_gpu();
    }
    if first_gpu().is_none() {
        return;
    }
    let own = ["--exact", "a_failed_gpu_ends_its_process_with_a_message", "--nocapture"];
    let ended = Command::new(std::env::current_exe().unwrap()).args(own).env(FAULT, "1").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    println!("POINT a failed GPU: the process ends with {} (exit status: 74)", ended.status);
    assert!(ended.status.code() == Some(74) && said.contains("LOST: CUDA error: an illegal memory access"), "{said}");
}

/// Ends the process with exit code 74 if the failure of the GPU is recognized and the destructors return.
fn fail_on_the_gpu() {
    let device = Device { kind: DeviceKind::Cuda, ..Device::default() };
    let (kernels, gpu) = ComputeDevice::load(&device, Backend::Auto).unwrap().kernels(None, Precision::Fp32).unwrap();
    let (gpu, model) = (gpu.unwrap(), Model { hidden: 64, heads: 1, intermediate: 256, ..Model::default() });
    let mut state = state(kernels.clone(), &model);
    optim::update(&mut state, &Optimizer::default(), 1e-3, &mut optim::SingleRank).unwrap();
    let batches: Vec<_> = (0..2).flat_map(|_| micro_batch(Layout::Unpadded).micro_batches).collect();
    let failed = torch::guard(|| {
        Input::each(&*kernels, &batches, |_, _| {
            let (mut to, mut from, mut count) = (8_u64, 16_u64, 1_u64);
            let mut arguments = [&raw mut to, &raw mut from, &raw mut count].map(<*mut u64>::cast);
            let stream = torch::gpu::current_stream(gpu.index).unwrap();
            let loaded = gpu.kernels.as_ref().unwrap();
            // SAFETY: the kernel has these three parameters. Reading the invalid addresses is the purpose of this test.
            unsafe { loaded.launch("to_bf16", 1, 256, stream, &mut arguments) }.unwrap();
            kernels.wait();
        });
    });
    let failed = failed.unwrap_err();
    eprintln!("LOST: {}", failed.lost_gpu().unwrap_or("not recognized"));
    drop((state, kernels));
    lambert_worker::worker::leave::exit_now(74);
}

/// A GPU computes logarithms with other roundings than the host, so a draw between two nearly equal tokens may differ.
#[test]
fn drawn_tokens_match_the_host() {
    const ROWS: i64 = 1 << 16;
    let Some(gpu) = first_gpu() else { return };
    let places: Vec<i32> = (0..ROWS as i32).collect();
    let drawn = |kernels: &dyn Kernels, kind: Kind, width: i64| {
        let values: Vec<f32> = (0..width).map(|token| (token * 7919 % 1009) as f32 / 100.0).collect();
        let logits = kernels.upload(Values::F32(&values)).to_kind(kind).expand([ROWS, width], false).contiguous();
        let samples = kernels.upload(Values::I32(&places)).to_kind(Kind::Int64);
        let draws = TokenDraws { key: Key::new(11).with(5), samples: &samples, positions: &samples };
        let made = kernels.sample_tokens(&logits, &draws);
        let mut bytes = vec![0; 8 * made.numel()];
        kernels.read(&made, 0, &mut bytes);
        bytes
    };
    for (kind, width) in [(Kind::Float, 1000), (Kind::BFloat16, 1000), (Kind::Float, 1003), (Kind::BFloat16, 1003)] {
        let (ours, host) = (drawn(&*gpu, kind, width), drawn(&Host, kind, width));
        let differ = ours.chunks(8).zip(host.chunks(8)).filter(|(ours, host)| ours != host).count();
        println!("POINT drawn tokens, {kind:?}, {width}: {differ} of {ROWS} differ from the host (at most 6)");
        assert!(differ <= 6, "{kind:?}, {width}: {differ}");
    }
}

/// Evaluates samples of different lengths with and without padding.
#[test]
fn evaluations_without_padding_have_the_same_loss() {
    let Some(gpu) = first_gpu() else { return };
    let model = Model { hidden: 256, heads: 4, intermediate: 1024, positions: 128, ..Model::default() };
    let model = Model { precision: Precision::Bf16, ..model };
    let mut state = state(gpu.clone(), &model);
    state.parameters.keep_bf16_copy(compute_dtype(&model));
    let objective = Objective::new(&state.parameters, &model, &lambert_config::run::Objective::default());
    let [padded, unpadded] = [Layout::Padded, Layout::Unpadded].map(|layout| {
        let totals = step::evaluate(&objective, &micro_batch(layout).micro_batches, Key::new(1));
        totals.unwrap().total_loss()
    });
    let difference = (unpadded / padded - 1.0).abs();
    println!("POINT evaluation without padding: {difference:.1e} from the padded loss (at most 1e-2)");
    assert!(difference < 1e-2, "{padded} {unpadded}");
}

/// Samples of 5 to 44 tokens as one micro-batch of `layout`.
fn micro_batch(layout: Layout) -> GlobalBatch {
    let lengths: Vec<u16> = (0..40).map(|number| 5 + number).collect();
    let sample = |length: &u16| MaskedSample {
        ids: (0..u32::from(*length)).map(|place| (7 * place + u32::from(*length)) % 1000).collect(),
        segment_b_start: 3,
        pair_label: Some(1),
        masked_tokens: vec![MaskedToken { position: 2, label: 9 }],
        loss_scale: 1.0,
    };
    let plan = BatchPartition::new(&lengths, 1, 1 << 16, layout).ranks.remove(0);
    let samples = |plan: &MicroBatchPlan| plan.samples.iter().map(|index| sample(&lengths[*index])).collect::<Vec<_>>();
    let micro_batches = plan.iter().map(|plan| MicroBatch::new(plan, 0, &samples(plan))).collect();
    GlobalBatch { masked_tokens: 40, sample_range: 0..40, micro_batches, lengths, ..GlobalBatch::default() }
}

/// Computes the gradients of one global batch.
fn gradients(kernels: &Arc<dyn Kernels>, model: &Model, layout: Layout) -> Vec<f32> {
    let mut state = state(kernels.clone(), model);
    state.parameters.keep_bf16_copy(compute_dtype(model));
    let settings = lambert_config::run::Objective { pair: model.family.pair(), ..Default::default() };
    let objective = Objective::new(&state.parameters, model, &settings);
    let batch = micro_batch(layout);
    step::forward_backward(&objective, &mut state, batch.whole(), Key::new(1), &mut |_, _| ()).unwrap();
    state.read(Buffer::Gradients, 0..state.elements())
}

/// Returns the norm of the difference of two vectors, divided by the norm of the first.
fn relative_difference(one: &[f32], other: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt();
    norm(&mut one.iter().zip(other).map(|(a, b)| a - b)) / norm(&mut one.iter().copied())
}

#[test]
fn unpadded_samples_have_the_gradients_of_padded_ones() {
    let Some(gpu) = first_gpu() else { return };
    let model = Model { hidden: 256, heads: 4, intermediate: 1024, positions: 128, dropout: 0.3, ..Model::default() };
    let model =
        Model { precision: Precision::Bf16, attention: Attention::Fused, attention_dropout: Some(0.0), ..model };
    let [padded, unpadded] = [Layout::Padded, Layout::Unpadded].map(|layout| gradients(&gpu, &model, layout));
    let difference = relative_difference(&padded, &unpadded);
    println!("POINT unpadded gradients: {difference:.1e} of the padded ones (at most 2e-2)");
    assert!(difference < 2e-2, "{difference:e}");
}

/// The models have dropout outside of the attention weights. Its draws are keyed, so host and GPU drop the same elements.
#[test]
fn gradients_of_each_family_match_the_host() {
    let Some(gpu) = first_gpu() else { return };
    let host: Arc<dyn Kernels> = Arc::new(Host);
    for family in [
        Family::Bert,
        Family::Roberta,
        Family::Albert,
        Family::Electra,
        Family::Distilbert,
        Family::Modernbert,
        Family::DebertaV2,
    ] {
        let model = Model { hidden: 256, heads: 4, intermediate: 512, positions: 128, ..family.model() };
        // The dropout of attention weights is keyed on both devices only with relative positions.
        let attention_dropout = Some(if model.position_buckets > 0 { 0.1 } else { 0.0 });
        let model = Model { dropout: 0.1, attention_dropout, ..model };
        let expected = gradients(&host, &model, Layout::Padded);
        let single = relative_difference(&expected, &gradients(&gpu, &model, Layout::Padded));
        let bf16 = Model { precision: Precision::Bf16, ..model };
        let padded = relative_difference(&expected, &gradients(&gpu, &bf16, Layout::Padded));
        // Relative positions need padded samples.
        let unpadded = (bf16.position_buckets == 0)
            .then(|| relative_difference(&expected, &gradients(&gpu, &bf16, Layout::Unpadded)));
        let shown = unpadded.map_or("-".to_owned(), |difference| format!("{difference:.1e}"));
        println!(
            "POINT gradients, {family:?}: f32 {single:.1e} (at most 1e-4), bf16 padded {padded:.1e}, unpadded {shown} \
             (at most 5e-2)"
        );
        assert!(single < 1e-4 && padded < 5e-2 && unpadded.unwrap_or(0.0) < 5e-2, "{family:?}");
    }
}

/// Result and gradients of the fused normalization, or of single libtorch operations if `is_fused` is false.
fn normalized(kernels: &dyn Kernels, shape: [i64; 3], kind: Kind, is_fused: bool) -> Vec<f32> {
    let count = shape.iter().product::<i64>() as usize;
    let values = |seed: u64| {
        let mut rng = Key::new(seed).rng();
        let values: Vec<f32> = (0..count).map(|_| 4.0 * rng.unit_f64() as f32 - 2.0).collect();
        kernels.upload(Values::F32(&values)).view(shape)
    };
    let parameter = |seed: u64| {
        let parameter = values(seed).view([-1, shape[2]]).select(0, 0).contiguous().set_requires_grad(true);
        let gradient = parameter.zeros_like();
        torch::set_gradient(&parameter, &gradient);
        (parameter, gradient)
    };
    let [x, residual] = [1, 2].map(|seed| values(seed).to_kind(kind).set_requires_grad(true));
    let [(weight, of_weight), (bias, of_bias)] = [3, 4].map(parameter);
    let samples = kernels.upload(Values::I32(&(0..shape[0] as i32).collect::<Vec<_>>())).to_kind(Kind::Int64);
    let params = DropoutParams { key: Key::new(5), samples: &samples, positions: None, threshold: 20_000, scale: 1.4 };
    let out = if is_fused {
        let norm = NormParams { weight: &weight, bias: &bias, eps: 1e-12, linear_bias: None };
        kernels.residual_norm(&x, &residual, &norm, Some(&params))
    } else {
        let sum = kernels.dropout(&x, Some(&residual), &params).to_kind(Kind::Float);
        sum.layer_norm([shape[2]], Some(&weight), Some(&bias), 1e-12, false).to_kind(kind)
    };
    (&out * values(6)).sum(Kind::Float).backward();
    let all = [out.detach(), x.grad(), residual.grad(), of_weight, of_bias];
    let all = Tensor::cat(&all.map(|tensor| tensor.to_kind(Kind::Float).flatten(0, -1)), 0).to_device(tch::Device::Cpu);
    Vec::try_from(all).unwrap()
}

#[test]
fn normalizations_match_the_host() {
    let Some(gpu) = first_gpu() else { return };
    for (kind, most) in [(Kind::Float, 1e-5), (Kind::BFloat16, 2e-2)] {
        for shape in [[2, 5, 128], [3, 11, 768], [64, 33, 1024]] {
            let (host, fused) = (normalized(&Host, shape, kind, false), normalized(&*gpu, shape, kind, true));
            let difference = relative_difference(&host, &fused);
            println!("POINT normalization, {kind:?} {shape:?}: {difference:.1e} (at most {most:.0e})");
            assert!(difference < most, "{kind:?} {shape:?}: {difference:e}");
        }
    }
}

/// Creates a state with the same weights and gradients on every device.
fn state(kernels: Arc<dyn Kernels>, model: &Model) -> TrainState {
    TrainState::new(Parameters::initialize(kernels, Architecture::new(model, 2, 1000), 1, 0.02))
}

#[test]
fn updates_match_the_host() {
    let Some(gpu) = first_gpu() else { return };
    let model = Model { hidden: 256, heads: 4, intermediate: 1024, positions: 128, ..Model::default() };
    for (kind, most) in [
        (OptimizerKind::Lamb, 1e-5),
        (OptimizerKind::Adamw, 1e-5),
        (OptimizerKind::AdamBert, 1e-5),
        (OptimizerKind::StableAdamw, 1e-5),
        // The iterations amplify the rounding of the matrix products.
        (OptimizerKind::Muon, 1e-4),
    ] {
        let muon = Muon { precision: MuonPrecision::Fp32, ..Muon::default() };
        let settings = Optimizer { kind, muon, ..Optimizer::default() };
        let (mut host, mut existing) = (state(Arc::new(Host), &model), state(gpu.clone(), &model));
        let mut rng = Key::new(9).rng();
        for _ in 0..100 {
            let gradients: Vec<f32> = (0..host.elements()).map(|_| (rng.unit_f64() - 0.5) as f32).collect();
            for state in [&mut host, &mut existing] {
                state.write(Buffer::Gradients, 0, &gradients);
                optim::update(state, &settings, 1e-3, &mut optim::SingleRank).unwrap();
            }
        }
        let read = |state: &TrainState| state.read(Buffer::Weights, 0..state.elements());
        let (host, existing) = (read(&host), read(&existing));
        let square = |values: &mut dyn Iterator<Item = f32>| values.map(|value| f64::from(value).powi(2)).sum::<f64>();
        let difference =
            square(&mut host.iter().zip(&existing).map(|(a, b)| a - b)) / square(&mut host.iter().copied());
        let difference = difference.sqrt();
        println!("POINT 100 updates, {kind:?}: {difference:.1e} of the weights (at most {most:.0e})");
        assert!(difference < most, "{kind:?}: {difference:e}");
    }
}

#[test]
fn the_weight_digest_matches_the_host() {
    let Some(gpu) = first_gpu() else { return };
    let digest = |kernels: Arc<dyn Kernels>| {
        let (mut digest, state) = ([0; 8], state(kernels.clone(), &Model::default()));
        let start = Instant::now();
        kernels.read(&state.digest(), 0, &mut digest);
        (u64::from_ne_bytes(digest), 1e3 * start.elapsed().as_secs_f64())
    };
    let (host, (existing, milliseconds)) = (digest(Arc::new(Host)), digest(gpu));
    assert_eq!(existing, host.0);
    println!("POINT digest of the weights: the host's, in {milliseconds:.1} ms");
}

/// A snapshot must start immediately. It must contain the values from the time of its start, although training
/// continues.
#[test]
fn snapshots_overlap_with_training() {
    let Some(gpu) = first_gpu() else { return };
    let mut state = state(gpu, &Model::default());
    let mut snapshot = Snapshot::new(&state.parameters, 0, 1).unwrap();
    for round in 0..3 {
        let before = state.read(Buffer::Weights, 0..state.elements());
        state.write(Buffer::Gradients, 0, &vec![0.1; state.elements()]);
        let start = Instant::now();
        let copying = snapshot.begin(&state);
        let begun = start.elapsed().as_secs_f64();
        optim::update(&mut state, &Optimizer::default(), 1e-2, &mut optim::SingleRank).unwrap();
        let objects = snapshot.finish(copying);
        let whole = start.elapsed().as_secs_f64();
        // The last elements of the last parameter are at the end of the weights file.
        let last = state.parameters.specs().iter().last().unwrap().range();
        let bytes: Vec<u8> = before[last].iter().flat_map(|weight| weight.to_le_bytes()).collect();
        assert!(objects[1].bytes.ends_with(&bytes), "the snapshot has later values");
        let size = objects.iter().map(|object| object.bytes.len()).sum::<usize>();
        let rate = size as f64 / whole / 1e9;
        println!(
            "POINT snapshot {round}: training waits {:.1} ms of {:.1} ms, {rate:.1} GB/s",
            1e3 * begun,
            1e3 * whole
        );
        assert!(begun < 0.2 * whole, "training waits {begun} s of {whole} s");
    }
}

/// Even with one rank, the all-reduce must wait for pending work of the compute stream.
#[test]
fn the_all_reduce_waits_for_pending_computation() {
    let Some((kernels, gpu)) = open_gpu() else { return };
    const COUNT: usize = 1 << 24;
    let library = Arc::new(NcclLibrary::open(&gpu.libtorch.nvidia_folders()).unwrap());
    for wire in [WireFormat::F32, WireFormat::Bf16] {
        let mut ends = local::single();
        let stream = CommStream::new(gpu.index, gpu.kernels.clone().unwrap()).unwrap();
        let options = NcclOptions { wire, ..NcclOptions::default() };
        let mut reducer = nccl::init(&mut *ends.group, ends.reducer, &library, stream, options).unwrap();
        let mut values = kernels.zeros(&[COUNT as i64], Kind::Float);
        for _ in 0..200 {
            let _ = values.g_add_scalar_(1.0);
        }
        let address = kernels.address(&values, 0).unwrap();
        // SAFETY: `values` outlive the all-reduce and are accessed only after waiting for it.
        let bucket = unsafe { Bucket::device(address.pointer.as_ptr(), COUNT, gpu.index) };
        let start = Instant::now();
        reducer.start(bucket).unwrap().wait(None).unwrap();
        let milliseconds = 1e3 * start.elapsed().as_secs_f64();
        let _ = values.g_add_scalar_(1.0);
        let mut bytes = vec![0; 4 * COUNT];
        kernels.read(&values, 0, &mut bytes);
        assert!(bytes.as_chunks::<4>().0.iter().all(|bytes| f32::from_le_bytes(*bytes) == 201.0), "{wire:?}");
        println!("POINT sum of a world of one, {wire:?}: NCCL {}, {milliseconds:.1} ms", library.version());
    }
}
