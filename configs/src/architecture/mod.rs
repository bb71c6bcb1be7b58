//! What a model is made of. From this description follow the names and shapes of its parameters, what it computes (FLOPs),
//! what it keeps for the backward pass, how it grows, and what an export cuts off. In which order the parameters lie in memory
//! is another matter.

mod bert;

use crate::run::Model;

/// A part of a model; those of a layer are there once a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// A row a piece of the vocabulary.
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
    /// Whether it is a layer normalisation.
    pub fn is_norm(self) -> bool {
        matches!(
            self,
            Self::EmbeddingNorm | Self::AttentionNorm | Self::OutputNorm | Self::FinalNorm | Self::TransformNorm
        )
    }

    /// Whether what it puts out is added to what the layer was given.
    pub fn is_added(self) -> bool {
        matches!(self, Self::AttentionOutput | Self::Output)
    }
}

/// Which of a part's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Leaf {
    /// A matrix, or a normalisation's gain.
    Weight,
    /// What is added.
    Bias,
}

/// What tells a tensor from all others of its model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorId {
    /// The part that it belongs to.
    pub part: Part,
    /// The encoder layer, from 0, if the part is in one.
    pub layer: Option<usize>,
    /// Which of the part's.
    pub leaf: Leaf,
}

impl TensorId {
    /// Of a part that is there once.
    pub fn new(part: Part, leaf: Leaf) -> Self {
        Self { part, layer: None, leaf }
    }

    /// Weight decay (and LAMB's trust ratio) is for matrices: biases and layer normalisations have none.
    pub fn decays(self) -> bool {
        self.leaf == Leaf::Weight && !self.part.is_norm()
    }

    /// Whether it is what a layer normalisation multiplies by.
    pub fn is_gain(self) -> bool {
        self.leaf == Leaf::Weight && self.part.is_norm()
    }
}

/// A parameter of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// What it is.
    pub id: TensorId,
    /// Its name in transformers' model, such as `bert.encoder.layer.0.attention.self.query.weight`.
    pub name: String,
    /// As \[out, in\].
    pub shape: Vec<usize>,
    /// Its last rows that stand for no piece of the vocabulary; `None` if its rows are not pieces.
    pub padding: Option<usize>,
}

/// What a part computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// Looks rows up.
    Table { rows: usize, width: usize },
    /// `x W^T + b`.
    Linear { inputs: usize, outputs: usize },
    /// A layer normalisation.
    Norm { width: usize },
    /// Adds.
    Bias { width: usize },
}

/// What a part is computed for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Each {
    Token,
    /// Each hidden token.
    Answer,
    Sample,
}

/// A part with its sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Module {
    part: Part,
    form: Form,
    each: Each,
    /// Whether its rows are pieces of the vocabulary.
    of_pieces: bool,
    /// Whether it computes with another part's tensors and has none of its own.
    tied: bool,
}

impl Module {
    /// Shapes of its own tensors.
    fn shapes(&self) -> Vec<(Leaf, Vec<usize>)> {
        match self.form {
            _ if self.tied => Vec::new(),
            Form::Table { rows, width } => vec![(Leaf::Weight, vec![rows, width])],
            Form::Linear { inputs, outputs } => {
                vec![(Leaf::Weight, vec![outputs, inputs]), (Leaf::Bias, vec![outputs])]
            }
            Form::Norm { width } => vec![(Leaf::Weight, vec![width]), (Leaf::Bias, vec![width])],
            Form::Bias { width } => vec![(Leaf::Bias, vec![width])],
        }
    }

    fn parameters(&self) -> u64 {
        let count = |shape: &[usize]| shape.iter().map(|size| *size as u64).product::<u64>();
        self.shapes().iter().map(|(_, shape)| count(shape)).sum()
    }

    /// Multiplications and additions of its matrix product, each time; `pieces` rows count where rows are pieces.
    fn flops(&self, pieces: usize) -> f64 {
        let Form::Linear { inputs, outputs } = self.form else { return 0.0 };
        let outputs = if self.of_pieces { pieces } else { outputs };
        2.0 * inputs as f64 * outputs as f64
    }

    /// Numbers that it puts out, each time.
    fn outputs(&self) -> usize {
        match self.form {
            Form::Table { width, .. } | Form::Norm { width } | Form::Bias { width } => width,
            Form::Linear { outputs, .. } => outputs,
        }
    }
}

/// A model as its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Architecture {
    /// Those that are there once.
    whole: Vec<Module>,
    /// Those of each encoder layer.
    layer: Vec<Module>,
    /// How parts are named.
    names: bert::Names,
    hidden: usize,
    intermediate: usize,
    /// Pieces of the vocabulary.
    pieces: usize,
    /// Rows of what has a row a piece.
    rows: usize,
}

/// Keys of a run's `[model]` that decide which tensors there are and what shapes they have.
pub const SHAPING: [&str; 7] =
    ["layers", "hidden", "intermediate", "positions", "norm", "tied_decoder", "pad_vocabulary_to"];

impl Architecture {
    /// That of a configuration, for a vocabulary of `pieces`.
    pub fn new(model: &Model, pieces: usize) -> Self {
        Self {
            whole: bert::whole(model, pieces),
            layer: bert::layer(model),
            names: bert::Names::of(model),
            hidden: model.hidden,
            intermediate: model.intermediate,
            pieces,
            rows: model.rows_of(pieces),
        }
    }

    /// All tensors of the model with `layers` encoder layers.
    pub fn tensors(&self, layers: usize) -> Vec<Tensor> {
        let whole = self.whole.iter().flat_map(|module| self.tensors_of(module, None));
        let layer = |index| self.layer.iter().flat_map(move |module| self.tensors_of(module, Some(index)));
        whole.chain((0..layers).flat_map(layer)).collect()
    }

    fn tensors_of(&self, module: &Module, layer: Option<usize>) -> impl Iterator<Item = Tensor> {
        let (part, names) = (module.part, self.names);
        let padding = module.of_pieces.then_some(self.rows - self.pieces);
        module.shapes().into_iter().map(move |(leaf, shape)| {
            let id = TensorId { part, layer, leaf };
            Tensor { id, name: names.tensor(id), shape, padding }
        })
    }

    /// Numbers in all tensors of the model with `layers` encoder layers.
    pub fn parameters(&self, layers: usize) -> u64 {
        let sum = |modules: &[Module]| modules.iter().map(Module::parameters).sum::<u64>();
        sum(&self.whole) + layers as u64 * sum(&self.layer)
    }

    /// Operations of the matrix products of a forward pass over samples of the given `lengths` (tokens) with `answers`
    /// hidden tokens in all; a multiplication with an addition counts as two. Beside the parts' own products these are
    /// attention's scores and mixing, 2 l h each, a token and layer.
    pub fn forward_flops(&self, layers: usize, lengths: impl Iterator<Item = u64>, answers: u64) -> f64 {
        let sum = |modules: &[Module], each: Each| {
            modules.iter().filter(|module| module.each == each).map(|module| module.flops(self.pieces)).sum::<f64>()
        };
        let (token, sample) = (sum(&self.layer, Each::Token), sum(&self.whole, Each::Sample));
        let mut forward = answers as f64 * sum(&self.whole, Each::Answer);
        for length in lengths.map(|length| length as f64) {
            forward += length * layers as f64 * (token + 4.0 * length * self.hidden as f64) + sample;
        }
        forward
    }

    /// Numbers a token that a layer keeps for its backward pass, dropout's factors and attention's weights not counted:
    /// what each part puts out (with a projection, the sum that it is added to), what the heads mix to, and the
    /// feed-forward layer behind its activation.
    pub fn kept_by_layer(&self) -> usize {
        self.layer.iter().map(Module::outputs).sum::<usize>() + self.hidden + self.intermediate
    }

    /// Numbers a token that dropout draws a factor for in a layer, attention's weights not counted.
    pub fn dropped_by_layer(&self) -> usize {
        self.layer.iter().filter(|module| module.part.is_added()).map(Module::outputs).sum()
    }

    /// Numbers a hidden token that the MLM head keeps before its logits: what comes in, what each part puts out, and the
    /// transform behind its activation.
    pub fn kept_by_head(&self) -> usize {
        let parts = self.whole.iter().filter(|module| module.each == Each::Answer && !module.of_pieces);
        parts.map(Module::outputs).sum::<usize>() + 2 * self.hidden
    }

    /// Rows of what has a row a piece.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

#[cfg(test)]
mod tests;
