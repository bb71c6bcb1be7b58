//! Network description: a list of segments. Parameter names, shapes, FLOPs and activation memory derive from this list.

use std::collections::HashSet;
use std::sync::Arc;

use lambert_config::run::Activation;

use super::module::{CostUnit, Head, Module, ModuleKind, Op, ParamKind, TensorId};
use super::tensor::Tensor;

/// Kind of segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentKind {
    /// Embeddings: token ids to hidden states.
    Embed,
    /// Extra input for later segments, such as a table of relative positions.
    Side,
    /// One application of a layer. Several applications may share the parameters of one layer (ALBERT).
    Layer {
        /// Index among all layer applications of the network. The dropout seed includes this index.
        application: usize,
    },
    /// A further application of a layer, between the encoder and the heads.
    Decoder {
        /// Index among all layer applications of the network. It follows those of the layers.
        application: usize,
    },
    /// Pre-training heads above the encoder.
    Heads,
}

/// Output of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentOutput {
    /// Segment index.
    pub segment: usize,
    /// Output index, from 0.
    pub output: usize,
}

/// Part of a network with its own autograd graph. The backward pass runs segment by segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Kind of segment.
    pub kind: SegmentKind,
    /// Outputs of earlier segments, in the order that the model code expects. Input 0 is the hidden states.
    pub inputs: Vec<SegmentOutput>,
    /// Index of the layer whose parameters this segment uses, for a layer application.
    pub layer: Option<usize>,
    /// Modules, in the order of the forward pass.
    pub modules: Arc<[Module]>,
    /// Width of the attention output; 0 without attention.
    pub attention_width: usize,
    /// Number of products of vectors of a head in an attention score: 1 for queries and keys, 2 more for relative positions.
    pub score_products: usize,
    /// Distance, in tokens, at which a token still attends to others. `None`: any distance.
    pub attention_reach: Option<usize>,
}

impl Segment {
    /// Describes a segment without a layer and without attention.
    pub(super) fn outside_layers(kind: SegmentKind, inputs: Vec<SegmentOutput>, modules: Vec<Module>) -> Self {
        Self {
            kind,
            inputs,
            layer: None,
            modules: modules.into(),
            attention_width: 0,
            score_products: 0,
            attention_reach: None,
        }
    }

    /// Returns the module of this kind, if the segment has one.
    pub fn module(&self, kind: ModuleKind) -> Option<&Module> {
        self.modules.iter().find(|module| module.kind == kind)
    }

    /// Returns the FLOPs of the matrix products per unit.
    pub(crate) fn flops(&self, unit: CostUnit, vocabulary: usize) -> f64 {
        let modules = self.modules.iter().filter(|module| module.unit == unit);
        modules.map(|module| module.flops(vocabulary)).sum()
    }
}

/// Network description.
#[derive(Debug, Clone)]
pub struct Network {
    /// Index among the networks of an architecture. Part of the dropout seed.
    pub number: usize,
    /// Segments, in the order of the forward pass. The heads are last.
    pub segments: Vec<Segment>,
    /// Function that returns the name of a tensor.
    pub name: fn(TensorId) -> String,
    /// Activation function of the MLM head.
    pub head_activation: Activation,
    /// Vocabulary size, in tokens.
    pub vocabulary: usize,
    /// Vocabulary size with padding: rows of the embedding table and the decoder.
    pub padded_vocabulary: usize,
}

impl Network {
    /// Returns the tensors that a segment reads, in groups, in the order of the forward pass. The tensors of fused
    /// modules (query, key and value) form one group, which is contiguous in memory: first all weights, then all
    /// biases. Every other tensor forms its own group.
    pub(super) fn tensor_groups(&self, segment: &Segment) -> Vec<Vec<TensorId>> {
        let mut groups = Vec::new();
        let mut rest = &segment.modules[..];
        while let Some((first, tail)) = rest.split_first() {
            let joined = tail.iter().take_while(|module| module.is_fused_with_previous).count();
            let group = &rest[..=joined];
            rest = &rest[1 + joined..];
            let of = |param: ParamKind| {
                let has = move |module: &&Module| module.shapes().iter().any(|(other, _)| *other == param);
                group.iter().filter(has).map(move |module| self.id(module.kind, segment.layer, param))
            };
            let tensors = of(ParamKind::Weight).chain(of(ParamKind::Bias)).collect::<Vec<_>>();
            groups.extend(first.tied_to.map(|kind| vec![self.id(kind, None, ParamKind::Weight)]));
            match joined {
                0 => groups.extend(tensors.into_iter().map(|id| vec![id])),
                _ => groups.push(tensors),
            }
        }
        groups
    }

    /// Returns the identity of a tensor that this network uses. Another network may own the tensor.
    pub fn id(&self, kind: ModuleKind, layer: Option<usize>, param: ParamKind) -> TensorId {
        let mut modules = self.segments.iter().flat_map(|segment| segment.modules.iter());
        let module = modules.find(|module| module.kind == kind && module.tied_to.is_none());
        TensorId { network: module.and_then(|module| module.owner).unwrap_or(self.number), module: kind, layer, param }
    }

    /// Describes a tensor that this network owns.
    pub(super) fn tensor(&self, id: TensorId, final_after_segment: usize) -> Option<Tensor> {
        let owns = |segment: &&Segment| id.layer == segment.layer;
        let mut modules = self.segments.iter().filter(owns).flat_map(|segment| segment.modules.iter());
        let owned = |module: &&Module| module.kind == id.module && module.tied_to.is_none() && module.owner.is_none();
        let module = modules.find(owned)?;
        let (_, shape) = module.shapes().into_iter().find(|(param, _)| *param == id.param)?;
        let padding = module.is_vocabulary.then_some(self.padded_vocabulary - self.vocabulary);
        let (role, name, is_fused_with_previous, head) =
            (module.role(id.param), (self.name)(id), module.is_fused_with_previous, module.head);
        let matrices = if id.layer.is_some() && id.param == ParamKind::Weight { module.stacked_matrices() } else { 0 };
        Some(Tensor { id, role, name, shape, padding, matrices, is_fused_with_previous, head, final_after_segment })
    }

    /// Returns the module of this kind, if the network has one.
    pub fn module(&self, kind: ModuleKind) -> Option<&Module> {
        self.segments.iter().flat_map(|segment| segment.modules.iter()).find(|module| module.kind == kind)
    }

    /// True if any module satisfies the predicate.
    pub fn has(&self, predicate: impl Fn(&Module) -> bool) -> bool {
        self.segments.iter().flat_map(|segment| segment.modules.iter()).any(predicate)
    }

    /// Returns the number of layers, including those that share parameters.
    pub fn layers(&self) -> usize {
        self.segments.iter().filter(|segment| matches!(segment.kind, SegmentKind::Layer { .. })).count()
    }

    /// Returns the number of layer applications, including those of a decoder.
    pub fn applications(&self) -> usize {
        self.segments.iter().filter(|segment| segment.attention_width > 0).count()
    }

    /// Returns the number of rows of the table of relative positions; 0 without such a table. With the table, the attention
    /// weights are always kept for the backward pass.
    pub fn relative_rows(&self) -> usize {
        let tables = self.segments.iter().filter_map(|segment| segment.module(ModuleKind::RelativeEmbeddings));
        tables.map(|module| if let Op::Table { rows, .. } = module.op { rows } else { 0 }).sum()
    }

    /// Returns the number of elements that a layer saves for its scores of relative positions, for `tokens` tokens in
    /// samples of `length` tokens: scaled queries and keys, the table after dropout, and its projections.
    pub fn relative_elements(&self, tokens: f64, length: usize, hidden: usize) -> f64 {
        match self.relative_rows() as f64 {
            0.0 => 0.0,
            rows => (3.0 * tokens + rows + 4.0 * length as f64) * hidden as f64,
        }
    }

    /// True if layers share parameters.
    pub fn shares_layers(&self) -> bool {
        let mut layers = HashSet::new();
        let is_layer = |segment: &&Segment| matches!(segment.kind, SegmentKind::Layer { .. });
        self.segments.iter().filter(is_layer).filter_map(|segment| segment.layer).any(|layer| !layers.insert(layer))
    }

    /// Returns the number of parameters that this network owns.
    pub fn parameters(&self) -> u64 {
        let count = |shape: &[usize]| shape.iter().map(|size| *size as u64).product::<u64>();
        let mut layers = HashSet::new();
        let owners = self.segments.iter().filter(|segment| segment.layer.is_none_or(|layer| layers.insert(layer)));
        let modules = owners.flat_map(|segment| segment.modules.iter()).filter(|module| module.owner.is_none());
        let shapes = modules.flat_map(Module::shapes);
        shapes.map(|(_, shape)| count(&shape)).sum()
    }

    /// Returns the FLOPs of the matrix products in a forward pass. `lengths` has the number of
    /// tokens of each sample. All samples together have `masked` masked tokens. A multiply-add counts as two FLOPs. For each
    /// pair of a token and a token to which it attends, in each layer application, each product of an attention score and
    /// the weighted sum of the values add 2 x attention width. Products with a table, such as the keys of relative
    /// positions, are not counted.
    pub fn forward_flops(&self, lengths: impl Iterator<Item = u64>, masked: u64) -> f64 {
        let sum = |unit| self.segments.iter().map(|segment| segment.flops(unit, self.vocabulary)).sum::<f64>();
        let (token, sample) = (sum(CostUnit::Token), sum(CostUnit::Sample));
        let pair = |segment: &Segment| 2.0 * (segment.score_products + 1) as f64 * segment.attention_width as f64;
        let (local, global): (Vec<&Segment>, Vec<&Segment>) =
            self.segments.iter().partition(|segment| segment.attention_reach.is_some());
        let global: f64 = global.into_iter().map(pair).sum();
        let reaches: Vec<(usize, f64)> =
            local.into_iter().filter_map(|it| Some((it.attention_reach?, pair(it)))).collect();
        let mut forward = masked as f64 * sum(CostUnit::MaskedToken);
        for length in lengths {
            let tokens = length as f64;
            forward += tokens * (token + tokens * global) + sample;
            forward += reaches.iter().map(|(reach, pair)| pair * pairs(length, *reach)).sum::<f64>();
        }
        forward
    }

    /// Returns the FLOPs of the matrix products of a head for a masked token.
    pub fn flops_per_prediction(&self, head: Head) -> f64 {
        let modules = self.head_modules(head).filter(|module| module.unit == CostUnit::MaskedToken);
        modules.map(|module| module.flops(self.vocabulary)).sum()
    }

    /// Returns the modules of the last layer. The first layer may have fewer.
    fn layer(&self) -> impl Iterator<Item = &Module> {
        let is_layer = |segment: &&Segment| matches!(segment.kind, SegmentKind::Layer { .. });
        self.segments.iter().rfind(is_layer).into_iter().flat_map(|segment| segment.modules.iter())
    }

    /// Returns the number of elements per token that a layer saves for its backward pass: the outputs of modules, of
    /// activation functions and of the attention. If a residual sum follows a module, the sum is saved instead of the
    /// module output. Dropout masks and attention probabilities are not included.
    pub fn activation_elements(&self) -> usize {
        let attention = self.segments.iter().map(|segment| segment.attention_width).find(|width| *width > 0);
        self.layer().map(Module::saved_elements).sum::<usize>() + attention.unwrap_or(0)
    }

    /// Returns the number of columns of the mask of local attention for samples of `length` tokens; 0 if no layer needs a
    /// mask.
    pub fn local_mask_columns(&self, length: usize) -> usize {
        let is_short = |segment: &Segment| segment.attention_reach.is_some_and(|reach| reach + 1 < length);
        if self.segments.iter().any(is_short) { length } else { 0 }
    }

    /// Returns the number of elements per token of the dropout masks of a layer. The mask of the attention
    /// probabilities is not included.
    pub fn dropout_elements(&self) -> usize {
        self.layer().map(Module::dropped_elements).sum()
    }

    /// Returns the number of elements that a head saves for its backward pass: its input, and the outputs of modules
    /// and activation functions. Vocabulary logits are not included. `count` returns the number of tokens, masked
    /// tokens or samples.
    pub fn head_activation_elements(&self, head: Head, count: impl Fn(CostUnit) -> f64) -> f64 {
        // The rows of a table are a part of the input of the next module.
        let is_saved = |module: &&Module| !module.is_vocabulary && !matches!(module.op, Op::Table { .. });
        let mut modules = self.head_modules(head).filter(is_saved).peekable();
        let input = modules.peek().map_or(0.0, |module| match module.op {
            Op::Linear { inputs, .. } => count(module.unit) * inputs as f64,
            _ => count(module.unit) * module.outputs() as f64,
        });
        input + modules.map(|module| count(module.unit) * module.saved_elements() as f64).sum::<f64>()
    }

    /// Returns the number of vocabulary logits that a head computes. `count` returns the number of tokens, masked
    /// tokens or samples.
    pub fn logits(&self, head: Head, count: impl Fn(CostUnit) -> f64) -> f64 {
        let decoders = self.head_modules(head).filter(|module| module.is_vocabulary);
        let linear = |module: &Module| match module.op {
            Op::Linear { outputs, .. } => count(module.unit) * outputs as f64,
            _ => 0.0,
        };
        decoders.map(linear).sum()
    }

    fn head_modules(&self, head: Head) -> impl Iterator<Item = &Module> {
        let modules = self.segments.iter().flat_map(|segment| segment.modules.iter());
        modules.filter(move |module| module.head == Some(head))
    }
}

/// Returns the number of pairs of `length` tokens whose distance is at most `reach`, in both orders. A token pairs with
/// itself.
fn pairs(length: u64, reach: usize) -> f64 {
    let (length, reach) = (length as f64, (reach as f64).min(length.saturating_sub(1) as f64));
    length * (2.0 * reach + 1.0) - reach * (reach + 1.0)
}

#[cfg(test)]
mod tests {
    use super::pairs;

    #[test]
    fn pairs_are_counted() {
        for (length, reach) in [(1, 0), (1, 5), (7, 2), (7, 6), (7, 9), (130, 64)] {
            let near = |a: u64| (0..length).filter(|b| a.abs_diff(*b) <= reach as u64).count();
            assert_eq!(pairs(length, reach), (0..length).map(near).sum::<usize>() as f64, "{length} {reach}");
        }
    }
}
