//! Modules of the segments of a network, with their operations and the shapes of their tensors.

/// Kind of module, by its position in the network. Kinds inside a layer occur once per layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ModuleKind {
    /// Token embeddings: one row per vocabulary token.
    WordEmbeddings,
    /// Position embeddings: one row per position.
    PositionEmbeddings,
    /// Segment embeddings: one row per segment.
    SegmentEmbeddings,
    /// Embeddings of relative positions: one row per bucket.
    RelativeEmbeddings,
    /// Normalization of the embeddings of relative positions.
    RelativeNorm,
    /// Normalization of the summed embeddings.
    EmbeddingNorm,
    /// Projection of the normalized embeddings to the hidden size.
    EmbeddingProjection,
    /// Query, key and value projections as one tensor.
    QueryKeyValue,
    /// Rotation of queries and keys by their positions. It has no parameters.
    Rotary,
    /// Query projection.
    Query,
    /// Key projection.
    Key,
    /// Value projection.
    Value,
    /// Attention output projection.
    AttentionOutput,
    /// Normalization after the attention residual, or before attention with pre-norm.
    AttentionNorm,
    /// Feed-forward up projection. In a gated layer, the rows of the gate come last.
    Intermediate,
    /// Feed-forward down projection.
    Output,
    /// Normalization after the feed-forward residual, or before the feed-forward layer with pre-norm.
    OutputNorm,
    /// Normalization after the last layer (pre-norm only).
    FinalNorm,
    /// Pooler: dense layer over the hidden state of the first token.
    Pooler,
    /// Classifier of sentence pairs.
    PairHead,
    /// Dense layer of the MLM head.
    Transform,
    /// Normalization of the MLM head.
    TransformNorm,
    /// Projection from hidden states to vocabulary logits.
    Decoder,
    /// Bias of the logits if the decoder is tied to the token embeddings. Otherwise unused.
    PredictionBias,
    /// Dense layer of the head that detects replaced tokens.
    DetectionTransform,
    /// Classifier of replaced tokens.
    Detection,
    /// Embeddings of the positions in a masked span: one row per position.
    SpanPositions,
    /// First dense layer of the span boundary head.
    SpanTransform,
    /// Normalization after the first dense layer of the span boundary head.
    SpanTransformNorm,
    /// Second dense layer of the span boundary head.
    SpanOutput,
    /// Normalization after the second dense layer of the span boundary head.
    SpanOutputNorm,
    /// Projection of the span boundary head to vocabulary logits. Always tied to the token embeddings.
    SpanDecoder,
    /// Bias of the logits of the span boundary head.
    SpanBias,
}

/// Number of positions in a masked span that the span boundary head predicts (SpanBERT, arXiv 1907.10529).
pub const SPAN_POSITIONS: usize = 20;
/// Elements per position embedding of the span boundary head.
pub const SPAN_POSITION_WIDTH: usize = 200;

impl ModuleKind {
    /// Returns the name of the parameter group of this module, for parameters outside the layers. The updates of a
    /// group are counted together. Checkpoints store the names, so the names never change.
    pub fn group(self) -> &'static str {
        match self {
            Self::WordEmbeddings
            | Self::PositionEmbeddings
            | Self::SegmentEmbeddings
            | Self::RelativeEmbeddings
            | Self::RelativeNorm
            | Self::EmbeddingNorm
            | Self::EmbeddingProjection => "bert.embeddings",
            Self::Pooler => "bert.pooler",
            Self::PairHead => "cls.seq_relationship",
            Self::Transform | Self::TransformNorm | Self::Decoder | Self::PredictionBias => "cls.predictions",
            Self::DetectionTransform | Self::Detection => "discriminator_predictions",
            Self::SpanPositions
            | Self::SpanTransform
            | Self::SpanTransformNorm
            | Self::SpanOutput
            | Self::SpanOutputNorm
            | Self::SpanDecoder
            | Self::SpanBias => "span_boundary",
            Self::QueryKeyValue
            | Self::Rotary
            | Self::Query
            | Self::Key
            | Self::Value
            | Self::AttentionOutput
            | Self::AttentionNorm
            | Self::Intermediate
            | Self::Output
            | Self::OutputNorm
            | Self::FinalNorm => "bert.encoder",
        }
    }
}

/// Kind of parameter in a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ParamKind {
    /// Weight matrix, or gain of a normalization.
    Weight,
    /// Bias vector.
    Bias,
}

/// Pre-training head. Each loss uses one head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Head {
    /// MLM head: logits over the vocabulary at masked tokens.
    MaskedLanguage,
    /// Sentence-pair (NSP/SOP) head: logits of the pair label.
    Pair,
    /// Head of replaced-token detection: a logit for each token.
    ReplacedTokens,
    /// Span boundary head: logits over the vocabulary at tokens of masked spans, from the tokens beside the span.
    SpanBoundary,
}

impl Head {
    /// True if the transformers classes have this head. Other heads are not exported.
    pub fn is_exported(self) -> bool {
        self != Self::SpanBoundary
    }
}

/// Unique identity of a tensor in an architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorId {
    /// Index of the network that owns the tensor.
    pub network: usize,
    /// Module that owns the tensor.
    pub module: ModuleKind,
    /// Index of the layer, if the tensor is in a layer. Layers that share parameters share the index.
    pub layer: Option<usize>,
    /// Kind of parameter.
    pub param: ParamKind,
}

impl TensorId {
    /// Identifies a tensor outside the layers, in network 0.
    pub fn new(module: ModuleKind, param: ParamKind) -> Self {
        Self { network: 0, module, layer: None, param }
    }
}

/// Role of a tensor in initialization, weight decay and growth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Embedding table or weight matrix: random initialization, weight decay.
    Matrix,
    /// Weight or bias of a projection whose output is added to a residual.
    ResidualOutput(ParamKind),
    /// Gain or bias of the normalization of an inner residual sum of a layer.
    InnerNorm(ParamKind),
    /// Gain or bias of the normalization of the last residual sum of a layer.
    ClosingNorm(ParamKind),
    /// Gain or bias of any other normalization.
    Norm(ParamKind),
    /// Any other bias.
    Bias,
}

impl Role {
    /// True if weight decay and LAMB's trust ratio apply. They apply to matrices, but not to biases and normalizations.
    pub fn decays(self) -> bool {
        matches!(self, Self::Matrix | Self::ResidualOutput(ParamKind::Weight))
    }

    /// True for the gain of a normalization.
    pub fn is_gain(self) -> bool {
        matches!(
            self,
            Self::InnerNorm(ParamKind::Weight) | Self::ClosingNorm(ParamKind::Weight) | Self::Norm(ParamKind::Weight)
        )
    }
}

/// Operation of a module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Embedding lookup.
    Table {
        /// Number of rows.
        rows: usize,
        /// Elements per row.
        width: usize,
    },
    /// `x W^T + b`.
    Linear {
        /// Input features.
        inputs: usize,
        /// Output features.
        outputs: usize,
    },
    /// Layer normalization.
    Norm {
        /// Normalized elements.
        width: usize,
    },
    /// Addition of a bias.
    Bias {
        /// Elements of the bias.
        width: usize,
    },
    /// Rotation of elements by an angle that depends on the position.
    Rotation {
        /// Rotated elements.
        width: usize,
    },
}

/// Unit for which a module is computed once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CostUnit {
    /// Every token.
    Token,
    /// Every masked token.
    MaskedToken,
    /// Every sample.
    Sample,
}

/// Input of a layer normalization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormInput {
    /// Inner residual sum of a layer.
    InnerSum,
    /// Last residual sum of a layer.
    LastSum,
    /// Anything else.
    Other,
}

/// Module description with its sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Module {
    /// Kind of module.
    pub kind: ModuleKind,
    /// Operation.
    pub op: Op,
    /// Unit for which the module is computed once.
    pub unit: CostUnit,
    /// True if the rows or outputs of the module correspond to vocabulary tokens.
    pub is_vocabulary: bool,
    /// Module whose weight this module shares, if the weight is tied. A tied module has no tensors itself.
    pub tied_to: Option<ModuleKind>,
    /// Index of the network that owns the tensors of this module, if another network owns them.
    pub owner: Option<usize>,
    /// Head to which the module belongs, if any.
    pub head: Option<Head>,
    /// True if the weight and the bias directly follow those of the previous module in memory. The weights then form
    /// one matrix, and the biases form one vector.
    pub is_fused_with_previous: bool,
    /// True if the output of the module is added to a residual.
    pub is_residual: bool,
    /// True if a linear module or a normalization has a bias.
    pub has_bias: bool,
    /// True if dropout is applied to the output of the module, or of the activation function that follows.
    pub is_dropped: bool,
    /// True if an activation function follows. The output of this function is kept for the backward pass.
    pub is_activated: bool,
    /// True if the second half of the outputs multiplies the activated first half.
    pub is_gated: bool,
    /// Input of the normalization; only for layer normalizations.
    pub norm_input: NormInput,
}

impl Module {
    /// Creates a module with default values for the other fields.
    pub fn new(kind: ModuleKind, unit: CostUnit, op: Op) -> Self {
        Self {
            kind,
            op,
            unit,
            is_vocabulary: false,
            tied_to: None,
            owner: None,
            head: None,
            is_fused_with_previous: false,
            is_residual: false,
            has_bias: true,
            is_dropped: false,
            is_activated: false,
            is_gated: false,
            norm_input: NormInput::Other,
        }
    }

    /// Returns the shapes of the tensors that belong to this module.
    pub fn shapes(&self) -> Vec<(ParamKind, Vec<usize>)> {
        let bias = |width: usize| self.has_bias.then(|| (ParamKind::Bias, vec![width]));
        let weight = |shape: Vec<usize>| (ParamKind::Weight, shape);
        match self.op {
            _ if self.tied_to.is_some() => Vec::new(),
            Op::Table { rows, width } => vec![weight(vec![rows, width])],
            Op::Linear { inputs, outputs } => {
                std::iter::once(weight(vec![outputs, inputs])).chain(bias(outputs)).collect()
            }
            Op::Norm { width } => std::iter::once(weight(vec![width])).chain(bias(width)).collect(),
            Op::Bias { width } => vec![(ParamKind::Bias, vec![width])],
            Op::Rotation { .. } => Vec::new(),
        }
    }

    /// Returns the number of matrices that are stacked in the rows of the weight: 3 for query, key and value, and 2 for a gated
    /// layer. 0 without a matrix product.
    pub fn stacked_matrices(&self) -> usize {
        match (self.op, self.kind) {
            (Op::Linear { .. }, ModuleKind::QueryKeyValue) => 3,
            (Op::Linear { .. }, _) => 1 + usize::from(self.is_gated),
            _ => 0,
        }
    }

    /// Returns the role of a tensor of this module.
    pub fn role(&self, param: ParamKind) -> Role {
        match (self.op, self.norm_input) {
            (Op::Norm { .. }, NormInput::InnerSum) => Role::InnerNorm(param),
            (Op::Norm { .. }, NormInput::LastSum) => Role::ClosingNorm(param),
            (Op::Norm { .. }, NormInput::Other) => Role::Norm(param),
            _ if self.is_residual => Role::ResidualOutput(param),
            _ if param == ParamKind::Weight => Role::Matrix,
            _ => Role::Bias,
        }
    }

    /// Returns the FLOPs of the matrix product of this module per unit. For vocabulary outputs, only `vocabulary`
    /// columns count, not the padding.
    pub(super) fn flops(&self, vocabulary: usize) -> f64 {
        let Op::Linear { inputs, outputs } = self.op else { return 0.0 };
        let outputs = if self.is_vocabulary { vocabulary } else { outputs };
        2.0 * inputs as f64 * outputs as f64
    }

    /// Returns the number of output elements per unit.
    pub(super) fn outputs(&self) -> usize {
        match self.op {
            Op::Table { width, .. } | Op::Norm { width } | Op::Bias { width } | Op::Rotation { width } => width,
            Op::Linear { outputs, .. } => outputs,
        }
    }

    /// Returns the number of elements per unit that the backward pass needs.
    pub(super) fn saved_elements(&self) -> usize {
        self.outputs() * (1 + usize::from(self.is_activated))
    }

    /// Returns the number of elements per unit of the dropout mask.
    pub(super) fn dropped_elements(&self) -> usize {
        let outputs = if self.is_gated { self.outputs() / 2 } else { self.outputs() };
        if self.is_dropped { outputs } else { 0 }
    }
}
