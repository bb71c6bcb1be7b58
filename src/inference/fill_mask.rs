//! The most probable pieces for each \[MASK\] of a text.

use lambert_dataset::tokenizer::MASK;
use serde::Serialize;
use tch::Kind;

use crate::data::MicroBatch;
use crate::data::batch::MaskedSample;
use crate::error::Error;
use crate::inference::loaded_model::Saved;
use crate::masking::MaskedToken;
use crate::model::Dropout;
use crate::model::input::Input;
use crate::torch;

/// One guess for one masked place.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Guess {
    /// The piece.
    pub piece: String,
    /// Its id.
    pub id: u32,
    /// Its probability.
    pub probability: f64,
    /// Its logit.
    pub logit: f64,
}

/// The `top` most probable pieces for each masked place of `text`, in order.
pub fn fill(saved: &Saved, text: &str, top: usize) -> Result<Vec<Vec<Guess>>, Error> {
    let batch = read(saved, text)?;
    let tokenizer = &saved.tokenizer;
    let logits = torch::guard(|| {
        let objective = saved.objective();
        let bert = objective.encoder();
        let input = Input::upload(bert.kernels(), &batch);
        let hidden = tch::no_grad(|| bert.forward(&input, Dropout::Off));
        let positions = input.positions.as_ref().expect("read() refuses a text without a mask");
        tch::no_grad(|| bert.heads.masked_language(&hidden, positions))
    })?;
    let guesses = |row: i64| {
        let logits = logits.get(row);
        let probabilities = logits.softmax(-1, Kind::Double);
        let (_, best) = logits.topk(top.min(tokenizer.size()) as i64, -1, true, true);
        let guess = |id: i64| Guess {
            piece: tokenizer.piece(id as u32).to_owned(),
            id: id as u32,
            probability: probabilities.double_value(&[id]),
            logit: logits.double_value(&[id]),
        };
        (0..best.size()[0]).map(|rank| guess(best.int64_value(&[rank]))).collect()
    };
    torch::guard(|| (0..batch.positions.len() as i64).map(guesses).collect()).map_err(Error::from)
}

fn read(saved: &Saved, text: &str) -> Result<MicroBatch, Error> {
    let (tokenizer, special) = (&saved.tokenizer, saved.tokenizer.special());
    let mut ids = vec![special.cls];
    for (index, part) in text.split(MASK).enumerate() {
        if index > 0 {
            ids.push(special.mask);
        }
        ids.extend(tokenizer.encode(part));
    }
    ids.push(special.sep);
    let positions = saved.config.model.positions;
    if ids.len() > positions {
        return Err(Error::Usage(format!("the text has {} tokens, the model takes {positions}", ids.len())));
    }
    let masked = ids.iter().enumerate().filter(|(_, id)| **id == special.mask);
    let hidden: Vec<MaskedToken> =
        masked.map(|(position, _)| MaskedToken { position: position as u16, label: special.mask }).collect();
    if hidden.is_empty() {
        return Err(Error::Usage(format!("the text has no {MASK}: {text:?}")));
    }
    let width = ids.len();
    let sample = MaskedSample { ids, segment_b_start: 0, pair_label: None, masked_tokens: hidden, loss_scale: 1.0 };
    Ok(MicroBatch::new(&[0], width, special.pad, &[sample]))
}
