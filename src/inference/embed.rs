//! Embeddings of lines of text, as a Parquet file.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Int32Array, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use arrow::record_batch::RecordBatch;
use lambert_progress::Progress;
use lambert_store::output_file::{OutputFile, is_same_file};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use tch::{Kind, Tensor};

use crate::data::batch::MaskedSample;
use crate::error::Error;
use crate::inference::loaded_model::LoadedModel;
use crate::inference::texts::{EncodedText, Lines, micro_batches};
use crate::model::Encoder;
use crate::model::input::Input;
use crate::torch;

/// Vector of a text from the hidden states of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Mean over all tokens, \[CLS\] and \[SEP\] included.
    Mean,
    /// Hidden state of \[CLS\].
    Cls,
}

/// Hidden states that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HiddenLayer {
    /// Output of the last layer.
    Last,
    /// Outputs of the last four layers, one after the other.
    LastFour,
    /// Output of a layer, counted from 1. 0: output of the embeddings.
    Number(usize),
}

impl FromStr for Pooling {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "mean" => Ok(Self::Mean),
            "cls" => Ok(Self::Cls),
            _ => Err("expected mean or cls".to_owned()),
        }
    }
}

impl FromStr for HiddenLayer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "last" => Ok(Self::Last),
            "last-four" => Ok(Self::LastFour),
            number => {
                Ok(Self::Number(number.parse().map_err(|_| "expected last, last-four or the number of a layer")?))
            }
        }
    }
}

/// Input, output and form of the embeddings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbedOptions {
    /// Text file with a text per line; `-`: standard input.
    pub input: PathBuf,
    /// Parquet file.
    pub output: PathBuf,
    pub pooling: Pooling,
    pub layer: HiddenLayer,
}

impl EmbedOptions {
    /// Checks the files before the model is read.
    ///
    /// # Errors
    /// The output is the input, whose texts it would replace.
    pub fn check(&self) -> Result<(), Error> {
        let is_stdin = self.input == Path::new("-");
        let input = if is_stdin { Path::new("/dev/stdin") } else { &self.input };
        match is_same_file(input, &self.output) {
            true => {
                let output = self.output.display();
                Err(Error::Usage(format!("--output {output} is the file of --input; choose another --output")))
            }
            false => Ok(()),
        }
    }
}

/// Numbers of texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EmbedSummary {
    /// Texts.
    pub texts: u64,
    /// Texts that were truncated to the maximum length of the model.
    pub truncated: u64,
    /// Elements of an embedding.
    pub width: usize,
}

impl std::fmt::Display for EmbedSummary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { texts, truncated, width } = self;
        write!(f, "wrote {texts} embeddings of {width} elements")?;
        if *truncated > 0 {
            write!(f, "; {truncated} texts were truncated to the model's maximum length")
        } else {
            Ok(())
        }
    }
}

/// Writes the embedding of each line. The file replaces an existing one when it is complete.
///
/// # Errors
/// The model has no such layer, a file cannot be read or written, or the device fails.
pub fn embed(model: &LoadedModel, options: &EmbedOptions, progress: &Progress) -> Result<EmbedSummary, Error> {
    check(model, options.layer)?;
    let mut lines = Lines::open(&options.input)?;
    let width = model.config.model.hidden * if options.layer == HiddenLayer::LastFour { 4 } else { 1 };
    let mut summary = EmbedSummary { width, ..EmbedSummary::default() };
    let objective = model.objective();
    let mut file = EmbeddingsFile::create(&options.output, width)?;
    loop {
        let texts = lines.next_chunk()?;
        if texts.is_empty() {
            break;
        }
        let encoded = texts.iter().map(|text| EncodedText::new(model, text)).collect::<Result<Vec<_>, _>>()?;
        summary.texts += texts.len() as u64;
        summary.truncated += encoded.iter().filter(|text| text.is_truncated).count() as u64;
        let vectors = torch::guard(|| vectors(objective.encoder(), &encoded, options))?;
        file.write(&texts, &encoded, vectors)?;
        progress.set_done(summary.texts);
    }
    file.finish()?;
    Ok(summary)
}

fn check(model: &LoadedModel, layer: HiddenLayer) -> Result<(), Error> {
    let layers = model.layers;
    let uses_last = !matches!(layer, HiddenLayer::Number(number) if number < layers);
    match layer {
        HiddenLayer::Number(number) if number > layers => {
            Err(Error::Usage(format!("--layer {number}: the model has {layers} layers")))
        }
        HiddenLayer::LastFour if layers < 4 => {
            Err(Error::Usage(format!("--layer last-four: the model has {layers} layers, expected at least 4")))
        }
        _ if uses_last && model.config.model.enhanced_decoder => Err(Error::Usage(format!(
            "the last layer of a model with model.enhanced_decoder predicts masked tokens; use --layer {} or a lower one",
            layers.saturating_sub(1)
        ))),
        _ => Ok(()),
    }
}

/// Embeddings of texts, in their order, f32 \[texts, width\].
fn vectors(encoder: &Encoder, texts: &[EncodedText], options: &EmbedOptions) -> Vec<f32> {
    let sample = |text: &EncodedText| MaskedSample {
        ids: text.ids.clone(),
        segment_b_start: 0,
        pair_label: None,
        masked_tokens: Vec::new(),
        loss_scale: 1.0,
    };
    let samples: Vec<MaskedSample> = texts.iter().map(sample).collect();
    let mut rows = vec![Vec::new(); texts.len()];
    for (indices, batch) in micro_batches(&samples) {
        let input = Input::upload(encoder.kernels(), &batch);
        let pooled = tch::no_grad(|| pool(&input, encoder.hidden_states(&input), options));
        let values = encoder.kernels().fetch(&pooled.to_kind(Kind::Double).view([-1]));
        let width = values.len() / indices.len();
        for (index, row) in indices.into_iter().zip(values.chunks(width)) {
            rows[index] = row.iter().map(|value| *value as f32).collect();
        }
    }
    rows.concat()
}

/// Vectors of a micro-batch, f32 \[batch, width\].
fn pool(input: &Input, mut states: Vec<Tensor>, options: &EmbedOptions) -> Tensor {
    let chosen = match options.layer {
        HiddenLayer::Last => states.split_off(states.len() - 1),
        HiddenLayer::LastFour => states.split_off(states.len() - 4),
        HiddenLayer::Number(number) => vec![states.swap_remove(number)],
    };
    let hidden = Tensor::cat(&chosen, -1).to_kind(Kind::Float);
    match options.pooling {
        Pooling::Cls => input.first_tokens(&hidden),
        Pooling::Mean => match &input.attention_mask {
            None => hidden.mean_dim([1].as_slice(), false, Kind::Float),
            Some(mask) => {
                let mask = mask.view([hidden.size()[0], -1, 1]).to_kind(Kind::Float);
                let sum = |values: Tensor| values.sum_dim_intlist([1].as_slice(), false, Kind::Float);
                sum(hidden * &mask) / sum(mask)
            }
        },
    }
}

/// Parquet file of embeddings that is being written.
struct EmbeddingsFile {
    path: PathBuf,
    width: i32,
    schema: Arc<Schema>,
    writer: ArrowWriter<OutputFile>,
}

impl EmbeddingsFile {
    fn create(path: &Path, width: usize) -> Result<Self, Error> {
        let failed = |source| Error::Create { path: path.to_owned(), source };
        let file = OutputFile::create(path).map_err(failed)?;
        let element = Arc::new(Field::new("item", DataType::Float32, false));
        let schema = Arc::new(Schema::new(vec![
            Field::new("text", DataType::Utf8, false),
            Field::new("tokens", DataType::Int32, false),
            Field::new("embedding", DataType::FixedSizeList(element, width as i32), false),
        ]));
        let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
        let writer = ArrowWriter::try_new(file, Arc::clone(&schema), Some(properties));
        Ok(Self {
            path: path.to_owned(),
            width: width as i32,
            schema,
            writer: writer.map_err(|source| Error::Parquet { path: path.to_owned(), source })?,
        })
    }

    fn write(&mut self, texts: &[String], encoded: &[EncodedText], vectors: Vec<f32>) -> Result<(), Error> {
        let batch = self.batch(texts, encoded, vectors).map_err(ParquetError::from);
        let written = batch.and_then(|batch| self.writer.write(&batch));
        written.map_err(|source| Error::Parquet { path: self.path.clone(), source })
    }

    fn batch(&self, texts: &[String], encoded: &[EncodedText], vectors: Vec<f32>) -> Result<RecordBatch, ArrowError> {
        let element = Arc::new(Field::new("item", DataType::Float32, false));
        let values: ArrayRef = Arc::new(Float32Array::from(vectors));
        let columns: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from_iter_values(texts)),
            Arc::new(Int32Array::from_iter_values(encoded.iter().map(|text| text.tokens() as i32))),
            Arc::new(FixedSizeListArray::try_new(element, self.width, values, None)?),
        ];
        RecordBatch::try_new(Arc::clone(&self.schema), columns)
    }

    fn finish(self) -> Result<(), Error> {
        let Self { path, writer, .. } = self;
        let file = writer.into_inner().map_err(|source| Error::Parquet { path: path.clone(), source })?;
        file.finish().map_err(|source| Error::Create { path, source })
    }
}
