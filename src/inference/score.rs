//! Pseudo-log-likelihood of lines of text (arXiv 1910.14659): the sum, over the tokens of a text, of the log-probability of the
//! token when only this token is masked.

use std::path::Path;

use lambert_progress::Progress;
use serde::Serialize;
use tch::{Kind, Tensor};

use crate::data::batch::MaskedSample;
use crate::error::Error;
use crate::inference::loaded_model::LoadedModel;
use crate::inference::texts::{EncodedText, Lines, micro_batches};
use crate::masking::MaskedToken;
use crate::model::Dropout;
use crate::model::input::Input;
use crate::objective::Objective;
use crate::torch;
use crate::worker::output;

/// Score of a text.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TextScore {
    /// Sum of the log-probabilities of the tokens, nats.
    pub log_likelihood: f64,
    /// Number of tokens, without \[CLS\] and \[SEP\].
    pub tokens: usize,
    /// True if the text was truncated to the maximum length of the model.
    #[serde(rename = "is_cut")]
    pub is_truncated: bool,
    /// The text.
    pub text: String,
}

impl TextScore {
    /// Mean log-probability of a token, nats. 0 for a text without tokens.
    pub fn per_token(&self) -> f64 {
        self.log_likelihood / self.tokens.max(1) as f64
    }
}

/// Prints the score of each line of a file: the log-likelihood, its mean over the tokens, the number of tokens and the text, with tabs
/// between them, or as JSON. Logs the pseudo-perplexity of all lines.
///
/// # Errors
/// The file cannot be read, the output cannot be written, or the device fails.
pub fn score_lines(model: &LoadedModel, input: &Path, json: bool, progress: &Progress) -> Result<(), Error> {
    let mut lines = Lines::open(input)?;
    let objective = model.objective();
    let (mut sum, mut tokens, mut texts, mut truncated) = (0.0, 0, 0_u64, 0_u64);
    loop {
        let chunk = lines.next_chunk()?;
        if chunk.is_empty() {
            break;
        }
        for text in chunk {
            let score = score(model, &objective, &text)?;
            (sum, tokens) = (sum + score.log_likelihood, tokens + score.tokens);
            (texts, truncated) = (texts + 1, truncated + u64::from(score.is_truncated));
            output::line(&match json {
                true => serde_json::to_string(&score).map_err(Error::Json)?,
                false => format!("{:.4}\t{:.4}\t{}\t{text}", score.log_likelihood, score.per_token(), score.tokens),
            })?;
            progress.set_done(texts);
        }
    }
    if truncated > 0 {
        let most = model.config.model.positions;
        tracing::warn!("{truncated} of {texts} texts were truncated to {most} tokens, the model's maximum");
    }
    let perplexity = (-sum / f64::from(tokens.max(1) as u32)).exp();
    tracing::info!("pseudo-perplexity {perplexity:.3} over {tokens} tokens of {texts} texts");
    Ok(())
}

/// Scores a text.
///
/// # Errors
/// The tokenizer or the device fails.
pub fn score(model: &LoadedModel, objective: &Objective, text: &str) -> Result<TextScore, Error> {
    let encoded = EncodedText::new(model, text)?;
    let mask = model.tokenizer.special().mask;
    let copy = |position: usize| {
        let mut ids = encoded.ids.clone();
        let label = std::mem::replace(&mut ids[position], mask);
        let masked_tokens = vec![MaskedToken { position: position as u16, label }];
        MaskedSample { ids, segment_b_start: 0, pair_label: None, masked_tokens, loss_scale: 1.0 }
    };
    let copies: Vec<MaskedSample> = (1..=encoded.tokens()).map(copy).collect();
    let encoder = objective.masked_language_encoder();
    let log_likelihood = torch::guard(|| {
        let mut sum = 0.0;
        for (_, batch) in micro_batches(&copies) {
            let input = Input::upload(encoder.kernels(), &batch);
            let (Some(positions), Some(labels)) = (&input.positions, &input.labels) else { continue };
            let of_tokens: Tensor = tch::no_grad(|| {
                let hidden = encoder.forward(&input, Dropout::Off);
                let logits = encoder.heads.masked_language(&hidden, positions).without_padding();
                logits.log_softmax(-1, Kind::Double).gather(1, &labels.unsqueeze(1), false)
            });
            sum += encoder.kernels().fetch(&of_tokens.view([-1])).iter().sum::<f64>();
        }
        sum
    })?;
    Ok(TextScore {
        log_likelihood,
        tokens: encoded.tokens(),
        is_truncated: encoded.is_truncated,
        text: text.to_owned(),
    })
}
