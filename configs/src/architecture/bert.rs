//! BERT (arXiv 1810.04805) and its pre-training heads, under the names that transformers gives them: those of
//! `BertForPreTraining`, or with pre-normalisation those of `MegatronBertForPreTraining`.

use super::{Each, Form, Leaf, Module, Part, TensorId};
use crate::run::{Model, Norm};

fn module(part: Part, each: Each, form: Form) -> Module {
    Module { part, form, each, of_pieces: false, tied: false }
}

/// What is there once.
pub fn whole(model: &Model, pieces: usize) -> Vec<Module> {
    let (width, rows) = (model.hidden, model.rows_of(pieces));
    let table = |part, rows| module(part, Each::Token, Form::Table { rows, width });
    let linear = |part, each, outputs| module(part, each, Form::Linear { inputs: width, outputs });
    let norm = match model.norm {
        Norm::Post => Part::EmbeddingNorm,
        Norm::Pre => Part::FinalNorm,
    };
    vec![
        Module { of_pieces: true, ..table(Part::WordEmbeddings, rows) },
        table(Part::PositionEmbeddings, model.positions),
        table(Part::SegmentEmbeddings, 2),
        module(norm, Each::Token, Form::Norm { width }),
        linear(Part::Pooler, Each::Sample, width),
        linear(Part::PairHead, Each::Sample, 2),
        linear(Part::Transform, Each::Answer, width),
        module(Part::TransformNorm, Each::Answer, Form::Norm { width }),
        Module { of_pieces: true, tied: model.tied_decoder, ..linear(Part::Decoder, Each::Answer, rows) },
        Module { of_pieces: true, ..module(Part::PredictionBias, Each::Answer, Form::Bias { width: rows }) },
    ]
}

/// What each encoder layer has.
pub fn layer(model: &Model) -> Vec<Module> {
    let (width, intermediate) = (model.hidden, model.intermediate);
    let linear = |part, inputs, outputs| module(part, Each::Token, Form::Linear { inputs, outputs });
    let norm = |part| module(part, Each::Token, Form::Norm { width });
    vec![
        linear(Part::Query, width, width),
        linear(Part::Key, width, width),
        linear(Part::Value, width, width),
        linear(Part::AttentionOutput, width, width),
        norm(Part::AttentionNorm),
        linear(Part::Intermediate, width, intermediate),
        linear(Part::Output, intermediate, width),
        norm(Part::OutputNorm),
    ]
}

/// How parts are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names {
    norm: Norm,
}

impl Names {
    pub fn of(model: &Model) -> Self {
        Self { norm: model.norm }
    }

    /// The name of a tensor.
    pub fn tensor(self, TensorId { part, layer, leaf }: TensorId) -> String {
        let part = self.part(part);
        let leaf = match leaf {
            Leaf::Weight => "weight",
            Leaf::Bias => "bias",
        };
        match layer {
            Some(layer) => format!("bert.encoder.layer.{layer}.{part}.{leaf}"),
            None => format!("{part}.{leaf}"),
        }
    }

    fn part(self, part: Part) -> &'static str {
        match (part, self.norm) {
            (Part::WordEmbeddings, _) => "bert.embeddings.word_embeddings",
            (Part::PositionEmbeddings, _) => "bert.embeddings.position_embeddings",
            (Part::SegmentEmbeddings, _) => "bert.embeddings.token_type_embeddings",
            (Part::EmbeddingNorm, _) => "bert.embeddings.LayerNorm",
            (Part::Query, _) => "attention.self.query",
            (Part::Key, _) => "attention.self.key",
            (Part::Value, _) => "attention.self.value",
            (Part::AttentionOutput, _) => "attention.output.dense",
            (Part::AttentionNorm, Norm::Post) => "attention.output.LayerNorm",
            (Part::AttentionNorm, Norm::Pre) => "attention.ln",
            (Part::Intermediate, _) => "intermediate.dense",
            (Part::Output, _) => "output.dense",
            (Part::OutputNorm, Norm::Post) => "output.LayerNorm",
            (Part::OutputNorm, Norm::Pre) => "ln",
            (Part::FinalNorm, _) => "bert.encoder.ln",
            (Part::Pooler, _) => "bert.pooler.dense",
            (Part::PairHead, _) => "cls.seq_relationship",
            (Part::Transform, _) => "cls.predictions.transform.dense",
            (Part::TransformNorm, _) => "cls.predictions.transform.LayerNorm",
            (Part::Decoder, _) => "cls.predictions.decoder",
            (Part::PredictionBias, _) => "cls.predictions",
        }
    }
}
