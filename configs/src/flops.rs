//! Parameters and floating-point operations of an encoder, by formula.

use crate::run::Model;

/// Parameters of the pre-training model: embeddings, `layers` encoder layers, pooler, MLM head and pair head, the rows that
/// fill up the vocabulary among them. (With pre-normalisation the last layer norm takes the place of the embeddings'.)
pub fn parameters(model: &Model, layers: usize, vocabulary: usize) -> u64 {
    let (hidden, intermediate) = (model.hidden as u64, model.intermediate as u64);
    let vocabulary = model.rows_of(vocabulary) as u64;
    let norm = 2 * hidden;
    let embeddings = (vocabulary + model.positions as u64 + 2) * hidden + norm;
    let attention = 4 * (hidden * hidden + hidden) + norm;
    let feed_forward = 2 * hidden * intermediate + intermediate + hidden + norm;
    let pooler = hidden * hidden + hidden;
    let decoder = if model.tied_decoder { 0 } else { vocabulary * hidden + vocabulary };
    let mlm_head = hidden * hidden + hidden + norm + vocabulary + decoder;
    let pair_head = 2 * hidden + 2;
    embeddings + layers as u64 * (attention + feed_forward) + pooler + mlm_head + pair_head
}

/// Useful operations of one training pass (forward and backward: three times the forward's) over samples of the given
/// `lengths` (tokens, no padding) with `masked` predictions in all.
///
/// A multiplication with an addition counts as two. Counted are matrix products only: 8 h² for the attention's
/// projections, 4 h i for the feed-forward layer and 4 l h for scores and mixing, a token and layer; the MLM head at the
/// masked positions; pooler and pair head once a sample.
pub fn training(
    model: &Model,
    layers: usize,
    vocabulary: usize,
    lengths: impl Iterator<Item = u64>,
    masked: u64,
) -> f64 {
    let (hidden, intermediate) = (model.hidden as f64, model.intermediate as f64);
    let mut forward = masked as f64 * (2.0 * hidden * hidden + 2.0 * hidden * vocabulary as f64);
    for length in lengths {
        let length = length as f64;
        let token = 8.0 * hidden * hidden + 4.0 * hidden * intermediate + 4.0 * length * hidden;
        forward += length * layers as f64 * token + 2.0 * hidden * hidden + 4.0 * hidden;
    }
    3.0 * forward
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_sizes() {
        // BertForPreTraining of bert-base-uncased has 110,106,428 parameters, bert-large-uncased 336,226,108.
        let base = Model::default();
        assert_eq!(parameters(&base, 12, 30522), 110_106_428);
        let large = Model { layers: 24, hidden: 1024, heads: 16, intermediate: 4096, ..Model::default() };
        assert_eq!(parameters(&large, 24, 30522), 336_226_108);
        // Six rows of the table and of the decoder's bias more.
        let padded = Model { pad_vocabulary_to: 8, ..large };
        assert_eq!(parameters(&padded, 24, 30522), 336_226_108 + 6 * 1025);
    }
}
