//! Top-k predictions for each \[MASK\] of a text.

use lambert_dataset::tokenizer::MASK;
use serde::Serialize;
use tch::Kind;

use crate::data::MicroBatch;
use crate::data::batch::MaskedSample;
use crate::error::Error;
use crate::inference::loaded_model::LoadedModel;
use crate::masking::MaskedToken;
use crate::model::Dropout;
use crate::model::input::Input;
use crate::torch;
use crate::worker::output;

/// Prediction for one `[MASK]`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// Token, as in the vocabulary.
    pub piece: String,
    /// Token id.
    pub id: u32,
    pub probability: f64,
    pub logit: f64,
}

/// Prints the `top` most probable tokens for each \[MASK\] of `text`.
///
/// # Errors
/// The text has no mask or is too long, or the device fails.
pub fn print(model: &LoadedModel, text: &str, top: usize, json: bool) -> Result<(), Error> {
    let masks = fill(model, text, top)?;
    if json {
        return output::line(&serde_json::to_string(&masks).map_err(Error::Json)?);
    }
    for (number, predictions) in masks.iter().enumerate() {
        let predictions: Vec<String> = predictions
            .iter()
            .map(|prediction| {
                let label = model.tokenizer.tokens().label(prediction.id);
                format!("{label} {:.1}%", 100.0 * prediction.probability)
            })
            .collect();
        output::line(&format!("[MASK] {}: {}", number + 1, predictions.join(", ")))?;
    }
    Ok(())
}

/// Returns the `top` most probable tokens for each \[MASK\] of `text`, in order.
pub fn fill(model: &LoadedModel, text: &str, top: usize) -> Result<Vec<Vec<Prediction>>, Error> {
    let batch = read(model, text)?;
    let tokenizer = &model.tokenizer;
    let logits = torch::guard(|| {
        let objective = model.objective();
        let bert = objective.masked_language_encoder();
        let input = Input::upload(bert.kernels(), &batch);
        let hidden = tch::no_grad(|| bert.forward(&input, Dropout::Off));
        let positions = input.positions.as_ref().expect("read() refuses a text without a mask");
        tch::no_grad(|| bert.heads.masked_language(&hidden, positions).without_padding())
    })?;
    let predictions = |row: i64| {
        let logits = logits.get(row);
        let probabilities = logits.softmax(-1, Kind::Double);
        let (_, best) = logits.topk(top.min(tokenizer.size()) as i64, -1, true, true);
        let prediction = |id: i64| Prediction {
            piece: tokenizer.piece(id as u32).to_owned(),
            id: id as u32,
            probability: probabilities.double_value(&[id]),
            logit: logits.double_value(&[id]),
        };
        (0..best.size()[0]).map(|rank| prediction(best.int64_value(&[rank]))).collect()
    };
    torch::guard(|| (0..batch.positions.len() as i64).map(predictions).collect()).map_err(Error::from)
}

fn read(model: &LoadedModel, text: &str) -> Result<MicroBatch, Error> {
    let (tokenizer, special) = (&model.tokenizer, model.tokenizer.special());
    let mut ids = vec![special.cls];
    ids.extend(tokenizer.encode_masked(text));
    tokenizer.check()?;
    ids.push(special.sep);
    let positions = model.config.model.positions;
    if ids.len() > positions {
        return Err(Error::Usage(format!("the text has {} tokens; the model takes at most {positions}", ids.len())));
    }
    let masked = ids.iter().enumerate().filter(|(_, id)| **id == special.mask);
    let hidden: Vec<MaskedToken> =
        masked.map(|(position, _)| MaskedToken { position: position as u16, label: special.mask }).collect();
    if hidden.is_empty() {
        return Err(Error::Usage(format!("the text has no {MASK}: {text:?}")));
    }
    let width = ids.len();
    let sample = MaskedSample { ids, segment_b_start: 0, pair_label: None, masked_tokens: hidden, loss_scale: 1.0 };
    Ok(MicroBatch::padded(&[0], width, &[sample]))
}
