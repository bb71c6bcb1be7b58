//! Whatever holds for BERT's training step has to hold for every architecture: see [`architectures`].

pub mod architectures;

use std::sync::Arc;

use lambert_collective::local;
use lambert_config::run::{Attention, Model, Norm, Precision};
use lambert_dataset::random::Key;
use lambert_plan::architecture::Architecture;
use lambert_plan::batch_partition::Division;
use lambert_store::checkpoint::{FORMAT, Manifest, Writer, verify};
use lambert_store::{Lease, Store};

use crate::checkpoint::read_state;
use crate::checkpoint::snapshot::{Object, Snapshot};
use crate::data::GlobalBatch;
use crate::kernels::cuda::Emulator;
use crate::kernels::{Cuda, Host, Kernels};
use crate::objective::Objective;
use crate::optim;
use crate::state::{Buffer, Spec, TrainState, elements, specs};
use crate::train::gradients::Exchange;
use crate::train::step::{self, tests::batch};
use architectures::{CASES, Case, gradients_of_one_graph};

impl Case {
    /// A training state with weights drawn at random, and the passes over it.
    fn make(&self, kernels: Arc<dyn Kernels>, model: &Model, recompute: bool) -> (TrainState, Objective) {
        let state = self.state(kernels, model);
        let objective = self.objective(&state.parameters, model).recomputing(recompute);
        (state, objective)
    }

    /// The gradients of a step over `batch`, and what was said to be final on the way, each as it was then.
    fn step(
        &self,
        kernels: Arc<dyn Kernels>,
        model: &Model,
        recompute: bool,
        batch: &GlobalBatch,
    ) -> (Vec<f32>, Vec<Vec<f32>>) {
        let (mut state, objective) = self.make(kernels, model, recompute);
        let mut told = Vec::new();
        let mut tell = |state: &TrainState, elements| told.push(state.read(Buffer::Gradients, 0..elements));
        step::forward_backward(&objective, &mut state, batch.whole(), Key::new(1), &mut tell).unwrap();
        (state.read(Buffer::Gradients, 0..state.elements()), told)
    }
}

fn model() -> Model {
    step::tests::model(Norm::Post)
}

fn host() -> Arc<dyn Kernels> {
    Arc::new(Host)
}

fn card() -> Arc<dyn Kernels> {
    Arc::new(Cuda::new(Arc::new(Emulator::default())))
}

const WHOLE: &[&[usize]] = &[&[4, 3, 2, 1, 0]];
const CUT: &[&[usize]] = &[&[3, 0], &[1], &[4, 2]];

/// |a - b| / |a|.
fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
    norm(&a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<_>>()) / norm(a)
}

#[test]
fn the_backward_pass_by_segments_is_that_of_the_whole_graph() {
    for case in CASES {
        let (mut state, objective) = case.make(host(), &model(), false);
        let global = batch(WHOLE);
        let whole = gradients_of_one_graph(&mut state, &objective, &global);
        for recompute in [false, true] {
            let (by_segments, _) = case.step(host(), &model(), recompute, &global);
            let apart = distance(&whole, &by_segments);
            assert!(apart < 1e-6, "{} {recompute}: {apart:e}", case.name);
        }
        let idle = |spec: &&Spec| whole[spec.range()].iter().all(|gradient| *gradient == 0.0);
        let idle: Vec<&str> = state.parameters.specs().iter().filter(idle).map(|spec| &*spec.name).collect();
        let key_bias = |name: &&str| name.ends_with("key.bias") || name.contains("Key") && name.contains("Bias");
        assert!(idle.iter().all(key_bias), "{}: {idle:?} have no gradient", case.name);
    }
}

#[test]
fn gradients_that_are_said_to_be_final_are() {
    for case in CASES {
        for (kernels, recompute, precision) in [
            (host as fn() -> Arc<dyn Kernels>, false, Precision::Fp32),
            (host, true, Precision::Bf16),
            (card, false, Precision::Fp32),
        ] {
            let model = Model { precision, ..model() };
            let (gradients, told) = case.step(kernels(), &model, recompute, &batch(CUT));
            assert_eq!(told.len(), case.segments(&model), "{}", case.name);
            assert!(told.windows(2).all(|pair| pair[0].len() <= pair[1].len()), "{}", case.name);
            assert_eq!(told.last().map(Vec::len), Some(gradients.len()), "{}", case.name);
            for early in told {
                assert_eq!(early, gradients[..early.len()], "{} {recompute} {precision:?}", case.name);
            }
        }
    }
}

/// Gradients of a tensor are final as early as they can be: behind the first of the segments that read it, not later.
#[test]
fn heads_are_final_first_whatever_lies_below() {
    for case in CASES {
        let (gradients, told) = case.step(host(), &model(), false, &batch(CUT));
        let specs = specs(&(case.architecture)(&model()));
        let heads = specs.iter().take_while(|spec| spec.head.is_some());
        assert_eq!(told[0].len(), heads.last().unwrap().range().end.next_multiple_of(32), "{}", case.name);
        assert!(told[0].iter().any(|gradient| *gradient != 0.0) && gradients.len() > told[0].len());
    }
}

#[test]
fn no_gradient_depends_on_the_micro_batches_or_the_device() {
    for case in CASES {
        let (whole, _) = case.step(host(), &model(), false, &batch(WHOLE));
        let (cut, _) = case.step(host(), &model(), true, &batch(CUT));
        assert!(distance(&whole, &cut) < 1e-5, "{}: {:e}", case.name, distance(&whole, &cut));
        let keyed = Model { attention: Attention::Keyed, ..model() };
        let (on_card, _) = case.step(card(), &keyed, false, &batch(WHOLE));
        assert!(distance(&whole, &on_card) < 1e-5, "{}: {:e}", case.name, distance(&whole, &on_card));
    }
}

/// The parts of a global batch that `cluster.all_reduce.canonical` sums one by one.
#[test]
fn parts_that_are_summed_one_by_one_make_the_whole() {
    for case in CASES {
        let (whole, _) = case.step(host(), &model(), false, &batch(CUT));
        let (mut state, objective) = case.make(host(), &model(), false);
        let global = GlobalBatch { leaves: vec![1, 1, 1], ..batch(CUT) };
        let mut sum = vec![0.0; state.elements()];
        let mut parts = 0;
        step::leaf_by_leaf(&objective, &mut state, global.whole(), Key::new(1), |state| {
            parts += 1;
            let own = state.read(Buffer::Gradients, 0..state.elements());
            sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
        })
        .unwrap();
        assert_eq!(parts, 3);
        assert!(distance(&whole, &sum) < 1e-6, "{}: {:e}", case.name, distance(&whole, &sum));
    }
}

/// Tensors that several segments or networks read exist once.
#[test]
fn shared_parameters_are_there_once() {
    let count = |case: &Case| specs(&(case.architecture)(&model())).len();
    let [bert, shared, table, twice, networks, teacher, no_segments] = CASES.each_ref().map(count);
    let (of_a_layer, embeddings) = (16, 5);
    assert_eq!((shared, table, twice), (bert - 2 * of_a_layer, bert, bert - of_a_layer));
    // Both have three layers in all; of each head there is one.
    assert_eq!((networks, teacher, no_segments), (bert, bert, bert - 1));
    assert!(networks > 3 * of_a_layer + embeddings);
    for case in CASES {
        let architecture: Architecture = (case.architecture)(&model());
        let count: usize = specs(&architecture).iter().map(Spec::count).sum();
        assert_eq!(architecture.parameters(), count as u64, "{}", case.name);
    }
}

/// The gradients that rank `rank` of so many has after a step whose sums travel beside the backward pass.
fn gradients_of_a_rank(case: &Case, mut ends: lambert_collective::Endpoints) -> Vec<f32> {
    tch::set_num_threads(1);
    let world = ends.group.world_size();
    let lengths: Vec<u16> = (0..5).map(|number| 5 + 2 * number).collect();
    let division = Division::new(&lengths, world, 24);
    let cuts: Vec<&[usize]> = division.ranks[ends.group.rank()].iter().map(|cut| &cut.samples[..]).collect();
    let (mut state, objective) = case.make(host(), &model(), false);
    let mut exchange = Exchange::new((world > 1).then_some(&mut *ends.reducer), 1000, true);
    let mut are_final = |state: &TrainState, elements: usize| exchange.are_final(state, elements);
    step::forward_backward(&objective, &mut state, batch(&cuts).whole(), Key::new(1), &mut are_final).unwrap();
    exchange.finish(&mut state).unwrap();
    state.read(Buffer::Gradients, 0..state.elements())
}

#[test]
fn sums_beside_the_backward_pass_are_those_of_one_rank() {
    for case in &CASES {
        let of = |world: usize| {
            std::thread::scope(|scope| {
                let ranks = local::group(world).into_iter().map(|ends| scope.spawn(|| gradients_of_a_rank(case, ends)));
                let threads: Vec<_> = ranks.collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            })
        };
        let one = of(1).remove(0);
        for world in [2, 3] {
            for gradients in of(world) {
                assert!(distance(&one, &gradients) < 1e-6, "{} {world}: {:e}", case.name, distance(&one, &gradients));
            }
        }
    }
}

/// One update.
fn update(state: &mut TrainState, objective: &Objective) {
    let key = Key::new(state.step);
    step::forward_backward(objective, state, batch(CUT).whole(), key, &mut |_, _| ()).unwrap();
    let norm = optim::update(state, &lambert_config::run::Optimizer::default(), 1e-2).norm;
    assert!(norm.double_value(&[]) > 0.0);
    state.count_update();
    state.step += 1;
}

/// Whoever is killed goes on from a checkpoint, with the same bits.
#[test]
fn a_checkpoint_holds_all_that_a_step_needs() {
    for case in CASES {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("run").to_str().unwrap()).unwrap();
        let lease = Lease::take(&store).unwrap();
        let (mut state, objective) = case.make(host(), &model(), false);
        (0..2).for_each(|_| update(&mut state, &objective));
        let name = save(&state, &store, &lease);
        (0..2).for_each(|_| update(&mut state, &objective));

        let verified = verify(&store, &name).unwrap();
        let mut other = TrainState::new(crate::state::Parameters::zeros(host(), (case.architecture)(&model())));
        read_state(&store, &verified, &mut other).unwrap();
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
        let own: usize = state.parameters.specs().iter().map(Spec::count).sum();
        assert_eq!(saved, own, "{}: nothing else is in a checkpoint", case.name);
    }
}

/// Writes a checkpoint of `state`; its name.
fn save(state: &TrainState, store: &Store, lease: &Lease) -> String {
    let writer = Writer::new(store, state.step, lease.attempt());
    let mut snapshot = Snapshot::new(&state.parameters, 0, 1).unwrap();
    let copying = snapshot.begin(state);
    let write = |object: Object| {
        let mut entry = writer.start_object(&object.name, object.bytes).unwrap().wait().unwrap();
        entry.slices = object.slices;
        entry
    };
    let objects = snapshot.finish(copying).into_iter().map(write).collect();
    let facts =
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
        state: facts,
        objects,
    };
    writer.commit(&manifest, lease).unwrap();
    manifest.name()
}
