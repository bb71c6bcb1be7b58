//! Model card of an exported checkpoint: README.md with the metadata that the Hugging Face Hub reads. Facts that the run
//! does not record are left out.

mod front_matter;
mod training;

use lambert_config::RunConfig;
use lambert_dataset::tokenizer::{Tokenizer, transformers};
use lambert_plan::architecture::{Head, TransformersModel};
use lambert_plan::objectives::TrainedNetwork;
use lambert_store::checkpoint::Manifest as Checkpoint;
use lambert_store::run::{CONFIG, WEIGHTS, split_checkpoint_url};
use serde_json::Value;

pub use front_matter::CardLabels;

use super::collect::RunReport;
use super::datasets::{TrainingData, short_name};
use super::document::{Block, head};
use super::markdown;
use crate::import::STAGE;

/// Sections of the configuration that name hosts, accounts, commands, addresses or local files and do not change the model.
/// The card leaves them out, because it is made to be published.
const PRIVATE: [&str; 6] = ["cluster", "slurm", "notify", "prometheus", "watch", "test"];

/// Facts of an exported checkpoint.
#[derive(Debug)]
pub struct ModelCard<'a> {
    pub labels: &'a CardLabels,
    pub config: &'a RunConfig,
    /// The exported network, with the number of layers of the checkpoint.
    pub network: &'a TrainedNetwork,
    pub checkpoint: &'a Checkpoint,
    pub model: &'a TransformersModel,
    /// Number of parameters in the exported file.
    pub parameters: u64,
    pub tokenizer: &'a Tokenizer,
    pub data: &'a [TrainingData],
    /// Records of the run up to the checkpoint. `None` if they cannot be read.
    pub records: Option<&'a RunReport>,
}

impl ModelCard<'_> {
    /// Formats the card.
    pub fn render(&self) -> String {
        let name = match self.config.run.name.as_str() {
            "" => self.model.class.to_owned(),
            name => name.to_owned(),
        };
        let model_type = self.model.config["model_type"].as_str().unwrap_or_default();
        let mut blocks = vec![Block::Paragraph(self.summary()), Block::Paragraph(self.license())];
        blocks.extend([Block::Heading("Use".to_owned()), Block::Snippet("python", self.example())]);
        blocks.extend([Block::Heading("Model".to_owned()), self.architecture()]);
        blocks.extend(self.training_data());
        if !self.is_imported() {
            blocks.extend(self.training());
        }
        blocks.extend(self.results());
        blocks.extend(self.limitations());
        if !self.is_imported() {
            blocks.extend(self.configuration().into_iter().flatten());
        }
        blocks.extend(self.versions());
        let front_matter = front_matter::render(self.labels, model_type, self.is_discriminator());
        format!("{front_matter}\n{}", markdown::render(&name, &blocks))
    }

    /// Returns the records if the last of them is that of the checkpoint's step.
    fn records(&self) -> Option<&RunReport> {
        self.records.filter(|records| records.last_step == Some(self.checkpoint.step))
    }

    /// Returns the records if they cover every step of the checkpoint. Sums over records are wrong otherwise.
    fn complete_records(&self) -> Option<&RunReport> {
        self.records.filter(|records| records.steps == self.checkpoint.step)
    }

    fn layers(&self) -> usize {
        self.network.model.layers
    }

    /// True if the exported network detects replaced tokens.
    fn is_discriminator(&self) -> bool {
        self.network.losses.iter().any(|loss| loss.head == Head::ReplacedTokens)
    }

    fn summary(&self) -> String {
        let from = self.config.run.from.as_deref().map(split_checkpoint_url);
        let start = match (&self.labels.base_model, from) {
            (Some(base), _) => format!("the weights of {base}"),
            (None, None) if self.config.objective.teacher.as_ref().is_some_and(|it| !it.layers.is_empty()) => {
                "layers of its teacher".to_owned()
            }
            (None, None) => "random weights".to_owned(),
            (None, Some((run, checkpoint))) => {
                format!("the weights of checkpoint {} of {}", checkpoint.unwrap_or_default(), short_name(run))
            }
        };
        let training = match self.is_imported() {
            true => "lambert imported it and did not train it".to_owned(),
            false => format!("lambert pre-trained it with {}, starting from {start}", self.objective()),
        };
        let (class, layers, parameters) = (self.model.class, self.layers(), self.parameters);
        let difference = self.model.difference.map(|difference| format!(" Note: {difference}.")).unwrap_or_default();
        format!("{class} with {layers} layers and {parameters} parameters. {training}.{difference}")
    }

    /// True if lambert imported the model and did not train it. Its configuration then has nothing of its training.
    fn is_imported(&self) -> bool {
        self.checkpoint.step == 0 && self.config.stage[0].name == STAGE
    }

    fn license(&self) -> String {
        match &self.labels.license {
            Some(license) => format!("License: {license}."),
            None => "The license is not stated: none was given when this model was exported.".to_owned(),
        }
    }

    /// Python code that loads the model. It works in the exported folder.
    fn example(&self) -> String {
        let class = self.model.class;
        let tokenizer = transformers::class(self.tokenizer.tokens().model());
        let mask = self.tokenizer.piece(self.tokenizer.special().mask);
        if self.is_discriminator() {
            return format!(
                "from transformers import {class}, {tokenizer}\n\n\
                 folder = \".\"  # this folder, or the name of the model on the Hugging Face Hub\n\
                 tokenizer = {tokenizer}.from_pretrained(folder)\n\
                 model = {class}.from_pretrained(folder)\n\
                 # One logit for each token: positive if the token was probably replaced.\n\
                 print(model(**tokenizer(\"a text\", return_tensors=\"pt\")).logits)\n"
            );
        }
        format!(
            "from transformers import {class}, {tokenizer}, pipeline\n\n\
             folder = \".\"  # this folder, or the name of the model on the Hugging Face Hub\n\
             tokenizer = {tokenizer}.from_pretrained(folder)\n\
             model = {class}.from_pretrained(folder)\n\
             # Predicts the token at {mask}.\n\
             fill_mask = pipeline(\"fill-mask\", model=folder, tokenizer=tokenizer)\n\
             print(fill_mask(\"a text with one {mask} .\"))\n"
        )
    }

    fn architecture(&self) -> Block {
        let key = |key: &str| match &self.model.config[key] {
            Value::String(text) => text.clone(),
            value => value.to_string(),
        };
        let case = if self.tokenizer.lowercase() { "uncased" } else { "cased" };
        let model_name = self.tokenizer.tokens().model();
        let model = &self.network.model;
        let norm = match model.norm {
            lambert_config::run::Norm::Post => "after each residual sum",
            lambert_config::run::Norm::Pre => "before each sublayer",
        };
        table(
            &["property", "value"],
            vec![
                ("class in transformers", self.model.class.to_owned()),
                ("parameters", self.parameters.to_string()),
                ("layers", self.layers().to_string()),
                ("hidden size", model.hidden.to_string()),
                ("attention heads", model.heads.to_string()),
                ("feed-forward size", model.intermediate.to_string()),
                (
                    "activation",
                    serde_json::to_value(model.activation)
                        .ok()
                        .and_then(|it| Some(it.as_str()?.to_owned()))
                        .unwrap_or_default(),
                ),
                ("normalization", norm.to_owned()),
                ("maximum length", format!("{} tokens", model.positions)),
                ("vocabulary", format!("{} {model_name} tokens, {case}", key("vocab_size"))),
                ("weights", key("torch_dtype")),
            ],
        )
    }

    fn limitations(&self) -> Vec<Block> {
        let positions = self.config.model.positions;
        let held_out = match self.has_held_out() {
            true => "The held-out figures describe one dataset and say little about other text.",
            false => "No loss on held-out data is known for this checkpoint.",
        };
        vec![
            Block::Heading("Limitations".to_owned()),
            Block::Paragraph(
                "The model is only pre-trained: it reproduces errors and biases of its training text, and no downstream \
                 task was tested."
                    .to_owned(),
            ),
            Block::Paragraph(format!("It reads at most {positions} tokens. {held_out}")),
        ]
    }

    fn configuration(&self) -> Option<[Block; 3]> {
        let mut config = self.config.to_table().ok()?;
        config.retain(|section, _| !PRIVATE.contains(&section));
        let left_out = format!("The configuration of the run, without the sections {}:", PRIVATE.join(", "));
        Some([
            Block::Heading("Configuration".to_owned()),
            Block::Paragraph(left_out),
            Block::Code(CONFIG.to_owned(), config.to_string()),
        ])
    }

    fn versions(&self) -> Vec<Block> {
        let mut rows = vec![
            ("exported by", format!("lambert {}", lambert_control::version_text())),
            ("checkpoint", self.checkpoint.name()),
            ("SHA-256 of the run's configuration", self.checkpoint.config_sha256.clone()),
        ];
        let averaged = &self.checkpoint.averaged;
        rows.extend((!averaged.is_empty()).then(|| ("weights averaged over", averaged.join(", "))));
        let weights = self.checkpoint.object(WEIGHTS);
        rows.extend(weights.map(|weights| ("SHA-256 of the checkpoint's weights", weights.sha256.clone())));
        vec![Block::Heading("Versions".to_owned()), table(&["item", "value"], rows)]
    }
}

/// Table of two columns.
fn table(names: &[&str; 2], rows: Vec<(&str, String)>) -> Block {
    let rows = rows.into_iter().map(|(name, value)| vec![name.to_owned(), value]);
    Block::Table(std::iter::once(head(names)).chain(rows).collect())
}

/// Table without the columns that have no content.
fn filled(rows: Vec<Vec<String>>) -> Block {
    let has_content =
        |column: usize| rows.iter().skip(1).any(|row| row.get(column).is_some_and(|cell| !cell.is_empty()));
    let kept: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).filter(|column| has_content(*column)).collect();
    let cells = |row: &Vec<String>| kept.iter().filter_map(|column| row.get(*column).cloned()).collect();
    Block::Table(rows.iter().map(cells).collect())
}
