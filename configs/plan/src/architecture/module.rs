//! Modules: what a network's segments are made of, with the shapes of their tensors and what they compute.

/// A place in a network that has tensors; those of a layer are there once a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// A row a token of the vocabulary.
    WordEmbeddings,
    /// A row a position.
    PositionEmbeddings,
    /// A row a segment.
    SegmentEmbeddings,
    /// Behind the sum of the embeddings.
    EmbeddingNorm,
    /// Attention's queries.
    Query,
    /// Attention's keys.
    Key,
    /// Attention's values.
    Value,
    /// From what the heads mix to what is added.
    AttentionOutput,
    /// Behind that sum, or with pre-normalisation before attention.
    AttentionNorm,
    /// The feed-forward layer's way up.
    Intermediate,
    /// Its way down, to what is added.
    Output,
    /// Behind that sum, or with pre-normalisation before the feed-forward layer.
    OutputNorm,
    /// Behind the last layer.
    FinalNorm,
    /// Over the first token's hidden state.
    Pooler,
    /// What the second segment is.
    PairHead,
    /// Before the decoder.
    Transform,
    /// Behind it.
    TransformNorm,
    /// From a hidden state to logits over the vocabulary.
    Decoder,
    /// Added to the logits where the decoder is tied to the word embeddings, and idle where it is not.
    PredictionBias,
}

impl Part {
    /// The name, in checkpoints, of the parameters outside the layers whose updates are counted together. Names never change.
    pub fn group(self) -> &'static str {
        match self {
            Self::WordEmbeddings | Self::PositionEmbeddings | Self::SegmentEmbeddings | Self::EmbeddingNorm => {
                "bert.embeddings"
            }
            Self::Pooler => "bert.pooler",
            Self::PairHead => "cls.seq_relationship",
            Self::Transform | Self::TransformNorm | Self::Decoder | Self::PredictionBias => "cls.predictions",
            Self::Query
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

/// Which of a module's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Leaf {
    /// A matrix, or a normalisation's gain.
    Weight,
    /// What is added.
    Bias,
}

/// The pre-training head that a module is part of. Each loss reads one head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Head {
    /// Logits over the vocabulary, at masked tokens.
    MaskedLanguage,
    /// Logits of the pair label.
    Pair,
}

/// The identity of a tensor among all others of an architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorId {
    /// The number of the network that owns it.
    pub network: usize,
    /// The module that owns it.
    pub part: Part,
    /// The layer whose parameters it belongs to, from 0, if it is in one. Layers that share parameters have one number.
    pub layer: Option<usize>,
    /// Which of the module's.
    pub leaf: Leaf,
}

impl TensorId {
    /// A tensor of a module that is there once, in network 0.
    pub fn new(part: Part, leaf: Leaf) -> Self {
        Self { network: 0, part, layer: None, leaf }
    }
}

/// What a tensor is for, as far as initialisation, weight decay and growth have to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A table or a matrix: drawn at random, and decayed.
    Matrix,
    /// A matrix, or its bias, whose product is added to what the layer was given.
    ResidualOutput(Leaf),
    /// Gain or bias of a normalisation of a sum inside a layer.
    InnerNorm(Leaf),
    /// Gain or bias of the normalisation of a layer's last sum, which closes the layer.
    ClosingNorm(Leaf),
    /// Gain or bias of any other normalisation.
    Norm(Leaf),
    /// Any other bias.
    Bias,
}

impl Role {
    /// Whether weight decay, and LAMB's trust ratio, apply. They are for matrices, not for biases and normalisations.
    pub fn decays(self) -> bool {
        matches!(self, Self::Matrix | Self::ResidualOutput(Leaf::Weight))
    }

    /// Whether it is what a normalisation multiplies by.
    pub fn is_gain(self) -> bool {
        matches!(self, Self::InnerNorm(Leaf::Weight) | Self::ClosingNorm(Leaf::Weight) | Self::Norm(Leaf::Weight))
    }
}

/// What a module computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Looks rows up.
    Table {
        /// Rows of the table.
        rows: usize,
        /// Numbers in a row.
        width: usize,
    },
    /// `x W^T + b`.
    Linear {
        /// Numbers of `x`.
        inputs: usize,
        /// Numbers of the result.
        outputs: usize,
    },
    /// A layer normalisation.
    Norm {
        /// Numbers that are normalised together.
        width: usize,
    },
    /// Adds a vector.
    Bias {
        /// Its length.
        width: usize,
    },
}

/// How often a module is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Each {
    /// Once for each token.
    Token,
    /// Once for each masked token.
    MaskedToken,
    /// Once for each sample.
    Sample,
}

/// A place of a normalisation in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalises {
    /// Behind a sum inside the layer.
    InnerSum,
    /// Behind the layer's last sum.
    LastSum,
    /// Anything else.
    Other,
}

/// A module with its sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Module {
    /// Its place.
    pub part: Part,
    /// What it computes.
    pub form: Form,
    /// How often.
    pub each: Each,
    /// Whether its rows, or what it puts out, are tokens of the vocabulary.
    pub of_vocabulary: bool,
    /// The module whose weight it computes with; it has no tensors of its own then.
    pub tied_to: Option<Part>,
    /// The number of the network whose tensors it computes with, if that is another one.
    pub owner: Option<usize>,
    /// The head that it is part of, if it is in one.
    pub head: Option<Head>,
    /// Whether its weight, and its bias, lie directly behind those of the module before it, so that they are one matrix and one
    /// vector.
    pub joined: bool,
    /// Whether its output is added to what the layer was given.
    pub is_residual: bool,
    /// Whether an activation function follows, whose result is kept, too.
    pub is_activated: bool,
    /// For a normalisation in a layer: what it normalises.
    pub normalises: Normalises,
}

impl Module {
    /// A module that is like no special case.
    pub fn new(part: Part, each: Each, form: Form) -> Self {
        Self {
            part,
            form,
            each,
            of_vocabulary: false,
            tied_to: None,
            owner: None,
            head: None,
            joined: false,
            is_residual: false,
            is_activated: false,
            normalises: Normalises::Other,
        }
    }

    /// Shapes of its own tensors.
    pub fn shapes(&self) -> Vec<(Leaf, Vec<usize>)> {
        match self.form {
            _ if self.tied_to.is_some() => Vec::new(),
            Form::Table { rows, width } => vec![(Leaf::Weight, vec![rows, width])],
            Form::Linear { inputs, outputs } => {
                vec![(Leaf::Weight, vec![outputs, inputs]), (Leaf::Bias, vec![outputs])]
            }
            Form::Norm { width } => vec![(Leaf::Weight, vec![width]), (Leaf::Bias, vec![width])],
            Form::Bias { width } => vec![(Leaf::Bias, vec![width])],
        }
    }

    /// What one of its tensors is for.
    pub fn role(&self, leaf: Leaf) -> Role {
        match (self.form, self.normalises) {
            (Form::Norm { .. }, Normalises::InnerSum) => Role::InnerNorm(leaf),
            (Form::Norm { .. }, Normalises::LastSum) => Role::ClosingNorm(leaf),
            (Form::Norm { .. }, Normalises::Other) => Role::Norm(leaf),
            _ if self.is_residual => Role::ResidualOutput(leaf),
            _ if leaf == Leaf::Weight => Role::Matrix,
            _ => Role::Bias,
        }
    }

    /// Multiplications and additions of its matrix product, each time; where it puts out tokens, `vocabulary` of them count.
    pub(super) fn flops(&self, vocabulary: usize) -> f64 {
        let Form::Linear { inputs, outputs } = self.form else { return 0.0 };
        let outputs = if self.of_vocabulary { vocabulary } else { outputs };
        2.0 * inputs as f64 * outputs as f64
    }

    /// Numbers that it puts out, each time.
    pub(super) fn outputs(&self) -> usize {
        match self.form {
            Form::Table { width, .. } | Form::Norm { width } | Form::Bias { width } => width,
            Form::Linear { outputs, .. } => outputs,
        }
    }

    /// Numbers that it puts out and that are kept for the backward pass, each time.
    pub(super) fn kept(&self) -> usize {
        self.outputs() * (1 + usize::from(self.is_activated))
    }
}
