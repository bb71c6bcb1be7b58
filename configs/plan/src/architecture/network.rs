//! A network: a list of segments. From it follow the names and shapes of its parameters, what it computes (FLOPs), and what it
//! keeps for the backward pass.

use std::collections::HashSet;
use std::sync::Arc;

use super::module::{Each, Form, Head, Leaf, Module, Part, TensorId};
use super::tensor::Tensor;

/// What a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentKind {
    /// Makes hidden states of token ids.
    Embed,
    /// Makes something that later segments read beside hidden states, such as a table of relative positions.
    Side,
    /// One application of a layer.
    Layer {
        /// Its number among all applications, from 0. Dropout is drawn by it.
        application: usize,
    },
    /// Everything above the encoder: losses are computed from its output.
    Heads,
}

/// An output of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Value {
    /// The segment's number.
    pub segment: usize,
    /// Which of its outputs, from 0.
    pub output: usize,
}

/// A part of a network that the backward pass treats as one graph, from its inputs to its outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// What it is.
    pub kind: SegmentKind,
    /// Outputs of earlier segments that it reads, in an order that its code knows. The first are the hidden states.
    pub inputs: Vec<Value>,
    /// The layer whose parameters it computes with, if it is one. Several applications may have the same.
    pub layer: Option<usize>,
    /// Its modules, in the order of the forward pass.
    pub modules: Arc<[Module]>,
    /// Width of what attention mixes, 0 without attention.
    pub attention: usize,
}

impl Segment {
    fn flops(&self, each: Each, vocabulary: usize) -> f64 {
        let modules = self.modules.iter().filter(|module| module.each == each);
        modules.map(|module| module.flops(vocabulary)).sum()
    }
}

/// A network of a certain depth.
#[derive(Debug, Clone)]
pub struct Network {
    /// Its number among the networks of an architecture. Dropout is drawn by it.
    pub number: usize,
    /// Its segments, in the order of the forward pass. The heads are last.
    pub segments: Vec<Segment>,
    /// The name of a tensor.
    pub name: fn(TensorId) -> String,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Rows of what has a row a token: the vocabulary, and what fills it up.
    pub rows: usize,
}

impl Network {
    /// The tensors that one of its segments reads, in the order of the forward pass, in groups. Those of a group keep their order
    /// in memory: of joined modules all weights, then all biases. All others are a group each.
    pub(super) fn reads(&self, segment: &Segment) -> Vec<Vec<TensorId>> {
        let mut reads = Vec::new();
        let mut rest = &segment.modules[..];
        while let Some((first, behind)) = rest.split_first() {
            let joined = behind.iter().take_while(|module| module.joined).count();
            let group = &rest[..=joined];
            rest = &rest[1 + joined..];
            let of = |leaf: Leaf| {
                let has = move |module: &&Module| module.shapes().iter().any(|(other, _)| *other == leaf);
                group.iter().filter(has).map(move |module| self.id(module.part, segment.layer, leaf))
            };
            let tensors = of(Leaf::Weight).chain(of(Leaf::Bias)).collect::<Vec<_>>();
            reads.extend(first.tied_to.map(|part| vec![self.id(part, None, Leaf::Weight)]));
            match joined {
                0 => reads.extend(tensors.into_iter().map(|id| vec![id])),
                _ => reads.push(tensors),
            }
        }
        reads
    }

    /// The identity of the tensor that its code knows by these, which another network may own.
    pub fn id(&self, part: Part, layer: Option<usize>, leaf: Leaf) -> TensorId {
        let mut modules = self.segments.iter().flat_map(|segment| segment.modules.iter());
        let module = modules.find(|module| module.part == part && module.tied_to.is_none());
        TensorId { network: module.and_then(|module| module.owner).unwrap_or(self.number), part, layer, leaf }
    }

    /// The description of a tensor that it owns.
    pub(super) fn tensor(&self, id: TensorId, final_after: usize) -> Option<Tensor> {
        let owns = |segment: &&Segment| id.layer == segment.layer;
        let mut modules = self.segments.iter().filter(owns).flat_map(|segment| segment.modules.iter());
        let owned = |module: &&Module| module.part == id.part && module.tied_to.is_none() && module.owner.is_none();
        let module = modules.find(owned)?;
        let (_, shape) = module.shapes().into_iter().find(|(leaf, _)| *leaf == id.leaf)?;
        let padding = module.of_vocabulary.then_some(self.rows - self.vocabulary);
        let (role, name, joined, head) = (module.role(id.leaf), (self.name)(id), module.joined, module.head);
        Some(Tensor { id, role, name, shape, padding, joined, head, final_after })
    }

    /// Its module of this part, if it has one.
    pub fn module(&self, part: Part) -> Option<&Module> {
        self.segments.iter().flat_map(|segment| segment.modules.iter()).find(|module| module.part == part)
    }

    /// Whether it has such a module.
    pub fn has(&self, is_such: impl Fn(&Module) -> bool) -> bool {
        self.segments.iter().flat_map(|segment| segment.modules.iter()).any(is_such)
    }

    /// How many layers have parameters of their own.
    pub fn layers(&self) -> usize {
        self.segments.iter().filter_map(|segment| segment.layer).map(|layer| layer + 1).max().unwrap_or(0)
    }

    /// Numbers in all tensors that it owns.
    pub fn parameters(&self) -> u64 {
        let count = |shape: &[usize]| shape.iter().map(|size| *size as u64).product::<u64>();
        let mut layers = HashSet::new();
        let owners = self.segments.iter().filter(|segment| segment.layer.is_none_or(|layer| layers.insert(layer)));
        let modules = owners.flat_map(|segment| segment.modules.iter()).filter(|module| module.owner.is_none());
        let shapes = modules.flat_map(Module::shapes);
        shapes.map(|(_, shape)| count(&shape)).sum()
    }

    /// Operations of the matrix products of a forward pass over samples of the given `lengths` (tokens) with `masked` masked
    /// tokens in all; a multiplication with an addition counts as two. Beside the modules' own products these are attention's
    /// scores and mixing, 2 l h each, a token and application of a layer.
    pub fn forward_flops(&self, lengths: impl Iterator<Item = u64>, masked: u64) -> f64 {
        let sum = |each| self.segments.iter().map(|segment| segment.flops(each, self.vocabulary)).sum::<f64>();
        let (token, sample) = (sum(Each::Token), sum(Each::Sample));
        let attention: f64 = self.segments.iter().map(|segment| segment.attention as f64).sum();
        let mut forward = masked as f64 * sum(Each::MaskedToken);
        for length in lengths.map(|length| length as f64) {
            forward += length * (token + 4.0 * length * attention) + sample;
        }
        forward
    }

    /// The modules of the first layer.
    fn layer(&self) -> impl Iterator<Item = &Module> {
        let is_layer = |segment: &&Segment| matches!(segment.kind, SegmentKind::Layer { .. });
        self.segments.iter().find(is_layer).into_iter().flat_map(|segment| segment.modules.iter())
    }

    /// Numbers a token that a layer keeps for its backward pass, dropout's factors and attention's weights not counted: what each
    /// module puts out (with a projection, the sum that it is added to), what activation functions put out, and what the heads
    /// mix to.
    pub fn kept_by_layer(&self) -> usize {
        let attention = self.segments.iter().map(|segment| segment.attention).find(|width| *width > 0);
        self.layer().map(Module::kept).sum::<usize>() + attention.unwrap_or(0)
    }

    /// Numbers a token that dropout draws a factor for in a layer, attention's weights not counted.
    pub fn dropped_by_layer(&self) -> usize {
        self.layer().filter(|module| module.is_residual).map(Module::outputs).sum()
    }

    /// Numbers that a head keeps for its backward pass, logits over the vocabulary not counted: its input, the outputs of its modules
    /// and of their activation functions. `count` says how often a module is computed.
    pub fn kept_by_head(&self, head: Head, count: impl Fn(Each) -> f64) -> f64 {
        let mut modules = self.head_modules(head).filter(|module| !module.of_vocabulary).peekable();
        let input = modules.peek().map_or(0.0, |module| match module.form {
            Form::Linear { inputs, .. } => count(module.each) * inputs as f64,
            _ => count(module.each) * module.outputs() as f64,
        });
        input + modules.map(|module| count(module.each) * module.kept() as f64).sum::<f64>()
    }

    /// Logits over the vocabulary that a head computes. `count` says how often a module is computed.
    pub fn logits(&self, head: Head, count: impl Fn(Each) -> f64) -> f64 {
        let decoders = self.head_modules(head).filter(|module| module.of_vocabulary);
        let linear = |module: &Module| match module.form {
            Form::Linear { outputs, .. } => count(module.each) * outputs as f64,
            _ => 0.0,
        };
        decoders.map(linear).sum()
    }

    fn head_modules(&self, head: Head) -> impl Iterator<Item = &Module> {
        let modules = self.segments.iter().flat_map(|segment| segment.modules.iter());
        modules.filter(move |module| module.head == Some(head))
    }
}
