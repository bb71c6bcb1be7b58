//! Tests that every architecture in [`architectures`] must pass.

pub mod architectures;
mod unpadded;

use std::sync::Arc;

use lambert_collective::local;
use lambert_config::run::{Attention, Model, Norm, Precision};
use lambert_dataset::random::Key;
use lambert_plan::architecture::{Architecture, ModuleKind};
use lambert_plan::batch_partition::{BatchPartition, Layout};
use lambert_store::checkpoint::{CheckpointWriter, FORMAT, Manifest, verify};
use lambert_store::{Lease, Store};

use crate::checkpoint::snapshot::{Snapshot, SnapshotObject};
use crate::checkpoint::{ReadMode, read_state};
use crate::data::GlobalBatch;
use crate::kernels::cuda::Emulator;
use crate::kernels::{Cuda, Host, Kernels};
use crate::objective::Objective;
use crate::optim;
use crate::state::{Buffer, ParamSpec, TrainState, elements, specs};
use crate::train::gradients::BucketedAllReduce;
use crate::train::step::{self, tests::batch};
use architectures::{CASES, Case, gradients_of_one_graph};

impl Case {
    /// A randomly initialized training state and the objective over it.
    fn make(&self, kernels: Arc<dyn Kernels>, model: &Model, recompute: bool) -> (TrainState, Objective) {
        let state = self.state(kernels, model);
        let objective = self.objective(&state.parameters, model).recomputing(recompute);
        (state, objective)
    }

    /// Returns the gradients of a step over `batch`, and a copy of every prefix of the gradients,
    /// taken when the prefix was reported as final.
    fn step(
        &self,
        kernels: Arc<dyn Kernels>,
        model: &Model,
        recompute: bool,
        batch: &GlobalBatch,
    ) -> (Vec<f32>, Vec<Vec<f32>>) {
        let (mut state, objective) = self.make(kernels, model, recompute);
        let mut reported = Vec::new();
        let mut report = |state: &TrainState, elements| reported.push(state.read(Buffer::Gradients, 0..elements));
        step::forward_backward(&objective, &mut state, batch.whole(), Key::new(1), &mut report).unwrap();
        (state.read(Buffer::Gradients, 0..state.elements()), reported)
    }
}

fn model() -> Model {
    step::tests::model(Norm::Post)
}

fn host() -> Arc<dyn Kernels> {
    Arc::new(Host)
}

fn emulated_gpu() -> Arc<dyn Kernels> {
    Arc::new(Cuda::new(Arc::new(Emulator::default())))
}

const SINGLE_MICRO_BATCH: &[&[usize]] = &[&[4, 3, 2, 1, 0]];
const MICRO_BATCHES: &[&[usize]] = &[&[3, 0], &[1], &[4, 2]];

/// Relative error |a - b| / |a|.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>()) / norm(a)
}

#[test]
fn segmented_backward_matches_single_graph() {
    for case in CASES {
        let (mut state, objective) = case.make(host(), &model(), false);
        let global = batch(SINGLE_MICRO_BATCH);
        let whole = gradients_of_one_graph(&mut state, &objective, &global);
        for recompute in [false, true] {
            let (by_segments, _) = case.step(host(), &model(), recompute, &global);
            let error = distance(&whole, &by_segments);
            assert!(error < 1e-6, "{} {recompute}: {error:e}", case.name);
        }
        let without_gradient = |spec: &&ParamSpec| whole[spec.range()].iter().all(|gradient| *gradient == 0.0);
        let without_gradient: Vec<&str> =
            state.parameters.specs().iter().filter(without_gradient).map(|spec| &*spec.name).collect();
        let key_bias = |name: &&str| name.ends_with("key.bias") || name.contains("Key") && name.contains("Bias");
        assert!(without_gradient.iter().all(key_bias), "{}: {without_gradient:?} have no gradient", case.name);
    }
}

#[test]
fn gradients_reported_final_do_not_change() {
    for case in CASES {
        for (kernels, recompute, precision) in [
            (host as fn() -> Arc<dyn Kernels>, false, Precision::Fp32),
            (host, true, Precision::Bf16),
            (emulated_gpu, false, Precision::Fp32),
        ] {
            let model = Model { precision, ..model() };
            let (gradients, reported) = case.step(kernels(), &model, recompute, &batch(MICRO_BATCHES));
            assert_eq!(reported.len(), case.segments(&model), "{}", case.name);
            assert!(reported.windows(2).all(|pair| pair[0].len() <= pair[1].len()), "{}", case.name);
            assert_eq!(reported.last().map(Vec::len), Some(gradients.len()), "{}", case.name);
            for early in reported {
                assert_eq!(early, gradients[..early.len()], "{} {recompute} {precision:?}", case.name);
            }
        }
    }
}

/// The gradient of a tensor is final after the backward pass of the first segment (in forward order) that reads the
/// tensor.
#[test]
fn head_gradients_are_final_first() {
    for case in CASES {
        let (gradients, reported) = case.step(host(), &model(), false, &batch(MICRO_BATCHES));
        let specs = specs(&case.architecture(&model()));
        // A pre-norm network has a normalization above its layers too.
        let above_layers = |spec: &&ParamSpec| spec.head.is_some() || spec.id.module == ModuleKind::FinalNorm;
        let heads = specs.iter().take_while(above_layers);
        assert_eq!(reported[0].len(), heads.last().unwrap().range().end.next_multiple_of(32), "{}", case.name);
        assert!(reported[0].iter().any(|gradient| *gradient != 0.0) && gradients.len() > reported[0].len());
    }
}

#[test]
fn gradients_are_independent_of_micro_batches_and_device() {
    for case in CASES {
        let (whole, _) = case.step(host(), &model(), false, &batch(SINGLE_MICRO_BATCH));
        let (cut, _) = case.step(host(), &model(), true, &batch(MICRO_BATCHES));
        assert!(distance(&whole, &cut) < 1e-5, "{}: {:e}", case.name, distance(&whole, &cut));
        let keyed = Model { attention: Attention::Keyed, ..model() };
        let (on_gpu, _) = case.step(emulated_gpu(), &keyed, false, &batch(SINGLE_MICRO_BATCH));
        assert!(distance(&whole, &on_gpu) < 1e-5, "{}: {:e}", case.name, distance(&whole, &on_gpu));
    }
}

/// With `all_reduce.canonical`, the gradients of a global batch are computed and summed for one shard at a time.
#[test]
fn sum_of_shard_gradients_matches_whole_batch() {
    for case in CASES {
        let (whole, _) = case.step(host(), &model(), false, &batch(MICRO_BATCHES));
        let (mut state, objective) = case.make(host(), &model(), false);
        let global = GlobalBatch { shard_micro_batches: vec![1, 1, 1], ..batch(MICRO_BATCHES) };
        let mut sum = vec![0.0; state.elements()];
        let mut shards = 0;
        step::per_shard(&objective, &mut state, global.whole(), Key::new(1), |state| {
            shards += 1;
            let own = state.read(Buffer::Gradients, 0..state.elements());
            sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        })
        .unwrap();
        assert_eq!(shards, 3);
        assert!(distance(&whole, &sum) < 1e-6, "{}: {:e}", case.name, distance(&whole, &sum));
    }
}

/// A tensor that several segments or networks read is stored once.
#[test]
fn shared_parameters_are_stored_once() {
    let count = |case: &Case| specs(&case.architecture(&model())).len();
    let [
        bert,
        roberta,
        albert,
        electra,
        distilbert,
        modernbert,
        deberta,
        table,
        twice,
        networks,
        teacher,
        wide,
        no_segments,
        span,
        narrow,
    ] = CASES.each_ref().map(count);
    let (tensors_per_layer, embeddings, projection, pair_head) = (16, 5, 2, 4);
    assert_eq!((roberta, electra), (bert - pair_head, bert - pair_head + projection));
    assert_eq!((albert, distilbert), (bert - 2 * tensors_per_layer + projection, bert - pair_head - 1));
    // Three layers of six tensors, without the first normalization; two tensors of embeddings; the final norm; three of the head.
    assert_eq!(modernbert, 3 * 6 - 1 + 2 + 1 + 3);
    // No pair head and no segment embeddings, but a table of relative positions with a normalization.
    assert_eq!(deberta, bert - pair_head - 1 + 3);
    assert_eq!((table, twice), (bert, bert - tensors_per_layer));
    // These four architectures also have three layers in total and two heads. Both networks project the embeddings.
    assert_eq!((networks, teacher, wide, no_segments), (bert + 2 * projection, bert, bert, bert - 1));
    assert!(networks > 3 * tensors_per_layer + embeddings);
    // A table, two dense layers, two normalizations and the bias of the decoder, whose weight is that of the embeddings.
    assert_eq!((span - bert, narrow - electra), (10, 10));
    for case in CASES {
        let architecture: Architecture = case.architecture(&model());
        let count: usize = specs(&architecture).iter().map(ParamSpec::count).sum();
        assert_eq!(architecture.parameters(), count as u64, "{}", case.name);
    }
}

/// Gradients of one rank after a step with an overlapped all-reduce.
fn gradients_of_a_rank(case: &Case, mut ends: lambert_collective::Endpoints) -> Vec<f32> {
    tch::set_num_threads(1);
    let world = ends.group.world_size();
    let lengths: Vec<u16> = (0..5).map(|number| 5 + 2 * number).collect();
    let division = BatchPartition::new(&lengths, world, 24, Layout::Padded);
    let cuts: Vec<&[usize]> = division.ranks[ends.group.rank()].iter().map(|cut| &cut.samples[..]).collect();
    let (mut state, objective) = case.make(host(), &model(), false);
    let mut all_reduce = BucketedAllReduce::new((world > 1).then_some(&mut *ends.reducer), 1000, true);
    let mut gradients_ready = |state: &TrainState, elements: usize| all_reduce.gradients_ready(state, elements);
    step::forward_backward(&objective, &mut state, batch(&cuts).whole(), Key::new(1), &mut gradients_ready).unwrap();
    all_reduce.finish(&mut state).unwrap();
    state.read(Buffer::Gradients, 0..state.elements())
}

#[test]
fn overlapped_all_reduce_matches_single_rank() {
    for case in &CASES {
        let gradients_of_world = |world: usize| {
            std::thread::scope(|scope| {
                let ranks = local::group(world).into_iter().map(|ends| scope.spawn(|| gradients_of_a_rank(case, ends)));
                let threads: Vec<_> = ranks.collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            })
        };
        let one = gradients_of_world(1).remove(0);
        for world in [2, 3] {
            for gradients in gradients_of_world(world) {
                assert!(distance(&one, &gradients) < 1e-6, "{} {world}: {:e}", case.name, distance(&one, &gradients));
            }
        }
    }
}

/// Runs one training step.
fn update(state: &mut TrainState, objective: &Objective) {
    let key = Key::new(state.step);
    step::forward_backward(objective, state, batch(MICRO_BATCHES).whole(), key, &mut |_, _| ()).unwrap();
    let norm =
        optim::update(state, &lambert_config::run::Optimizer::default(), 1e-2, &mut optim::SingleRank).unwrap().norm;
    assert!(norm.double_value(&[]) > 0.0);
    state.count_update();
    state.step += 1;
}

/// Training resumed from a checkpoint produces the same bits.
#[test]
fn resume_from_checkpoint_is_bit_exact() {
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("run").to_str().unwrap()).unwrap();
        let lease = Lease::take(&store).unwrap();
        let (mut state, objective) = case.make(host(), &model(), false);
        (0..2).for_each(|_| update(&mut state, &objective));
        let name = save(&state, &store, &lease);
        (0..2).for_each(|_| update(&mut state, &objective));

        let verified = verify(&store, &name).unwrap();
        let mut other = TrainState::new(crate::state::Parameters::zeros(host(), case.architecture(&model())));
        read_state(&store, &verified, &mut other, ReadMode::Alone).unwrap();
        let objective = case.objective(&other.parameters, &model());
        other.step = 2;
        (0..2).for_each(|_| update(&mut other, &objective));
        assert_eq!(state.updates, other.updates, "{}", case.name);
        for buffer in [Buffer::Weights, Buffer::First, Buffer::Second] {
            let all = 0..elements(state.parameters.specs());
            assert!(state.read(buffer, all.clone()) == other.read(buffer, all), "{}: {buffer:?}", case.name);
        }
        let saved: usize =
            verified.manifest.objects.iter().flat_map(|object| &object.slices).map(|slice| slice.count as usize).sum();
        let own: usize = state.parameters.specs().iter().map(ParamSpec::count).sum();
        assert_eq!(saved, own, "{}: checkpoint holds exactly the parameters", case.name);
    }
}

/// Writes a checkpoint of `state` and returns its name.
fn save(state: &TrainState, store: &Store, lease: &Lease) -> String {
    let writer = CheckpointWriter::new(store, state.step, lease.attempt());
    let mut snapshot = Snapshot::new(&state.parameters, 0, 1).unwrap();
    let copying = snapshot.begin(state);
    let write = |object: SnapshotObject| {
        let mut entry = writer.start_object(&object.name, object.bytes).unwrap().wait().unwrap();
        entry.slices = object.slices;
        entry
    };
    let objects = snapshot.finish(copying).into_iter().map(write).collect();
    let engine_state =
        serde_json::json!({ "updates": state.updates, "skipped_updates": 0, "vocabulary": 50, "lowercase": true });
    let manifest = Manifest {
        format: FORMAT,
        step: state.step,
        attempt: lease.attempt(),
        parent: None,
        stage: 0,
        cursor: Default::default(),
        config_sha256: "0".repeat(64),
        world: 1,
        held_out_loss: None,
        best: None,
        averaged: Vec::new(),
        state: engine_state,
        objects,
    };
    writer.commit(&manifest, lease).unwrap();
    manifest.name()
}
