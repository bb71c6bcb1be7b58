//! Weights without the rows that fill up the vocabulary: what is exported has the size of its vocabulary.

use safetensors::tensor::{SafeTensorError, TensorView};
use safetensors::{SafeTensors, serialize};

/// Tensors with a row a piece.
const TABLES: [&str; 4] = [
    "bert.embeddings.word_embeddings.weight",
    "cls.predictions.bias",
    "cls.predictions.decoder.weight",
    "cls.predictions.decoder.bias",
];

/// The safetensors file `bytes` with the first `pieces` of the `rows` rows of each table of the vocabulary.
pub fn weights(bytes: &[u8], (rows, pieces): (usize, usize)) -> Result<Vec<u8>, SafeTensorError> {
    if rows == pieces {
        return Ok(bytes.to_vec());
    }
    let (_, header) = SafeTensors::read_metadata(bytes)?;
    let file = SafeTensors::deserialize(bytes)?;
    let tensors = file.tensors().into_iter().map(|(name, view)| {
        let view = if TABLES.contains(&name.as_str()) { cut(&view, rows, pieces)? } else { view };
        Ok((name, view))
    });
    serialize(tensors.collect::<Result<Vec<_>, SafeTensorError>>()?, header.metadata().clone())
}

/// The first `pieces` of the `rows` rows, which lie one behind the other.
fn cut<'a>(view: &TensorView<'a>, rows: usize, pieces: usize) -> Result<TensorView<'a>, SafeTensorError> {
    let shape = [&[pieces], &view.shape()[1..]].concat();
    let data = view.data();
    let first = data.get(..data.len() / rows * pieces).ok_or(SafeTensorError::ValidationOverflow)?;
    TensorView::new(view.dtype(), shape, first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use safetensors::Dtype;

    #[test]
    fn tables_lose_their_last_rows() {
        let data: Vec<u8> = (0..96).collect();
        let view = |shape: &[usize], bytes: usize| TensorView::new(Dtype::F32, shape.to_vec(), &data[..bytes]).unwrap();
        let (table, other) = ("bert.embeddings.word_embeddings.weight", "bert.pooler.dense.weight");
        let format = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let views = [(table, view(&[8, 3], 96)), (other, view(&[8, 2], 64))];
        let whole = serialize(views, Some(format.clone())).unwrap();
        let cut = weights(&whole, (8, 5)).unwrap();
        let file = SafeTensors::deserialize(&cut).unwrap();
        assert_eq!(
            (file.tensor(table).unwrap().shape(), file.tensor(table).unwrap().data()),
            (&[5, 3][..], &data[..60])
        );
        assert_eq!(file.tensor(other).unwrap(), view(&[8, 2], 64));
        assert_eq!(SafeTensors::read_metadata(&cut).unwrap().1.metadata(), &Some(format));
        assert_eq!(weights(&whole, (8, 8)).unwrap(), whole);
    }
}
