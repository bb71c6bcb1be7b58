//! Weights for export: without vocabulary padding rows and untrained heads, and with the rows of the position table that
//! belong to padding tokens.

use std::borrow::Cow;

use half::{bf16, f16};
use lambert_plan::architecture::{ModuleKind, Tensor, transformers_name};
use safetensors::tensor::{SafeTensorError, View};
use safetensors::{Dtype, SafeTensors, serialize};

use crate::import::EXPORT_TYPE;

/// Returns the safetensors file `bytes` without the tensors for which `left_out` is true and without vocabulary padding
/// rows, and with the names of transformers. The position table gets `first_position` rows of zeros before its own. `tensors` are the tensors of the model.
pub fn weights(
    bytes: &[u8],
    tensors: &[Tensor],
    first_position: usize,
    left_out: impl Fn(&Tensor) -> bool,
) -> Result<Vec<u8>, SafeTensorError> {
    let is_renamed = |tensor: &Tensor| transformers_name(&tensor.name) != tensor.name;
    let is_same = |tensor: &Tensor| tensor.padding.unwrap_or(0) == 0 && !left_out(tensor) && !is_renamed(tensor);
    if first_position == 0 && tensors.iter().all(is_same) {
        return Ok(bytes.to_vec());
    }
    let (_, header) = SafeTensors::read_metadata(bytes)?;
    let file = SafeTensors::deserialize(bytes)?;
    let known = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
    let kept = file.tensors().into_iter().filter(|(name, _)| !known(name).is_some_and(&left_out));
    let exported = kept.map(|(name, view)| {
        let table = Rows { dtype: view.dtype(), shape: view.shape().to_vec(), data: Cow::Borrowed(view.data()) };
        let tensor = known(&name);
        let table = tensor.and_then(|tensor| tensor.padding).map_or(Ok(table.clone()), |padding| table.cut(padding))?;
        let is_positions = tensor.is_some_and(|tensor| tensor.id.module == ModuleKind::PositionEmbeddings);
        let name = transformers_name(&name).to_owned();
        Ok((name, if is_positions { table.after_zeros(first_position) } else { table }))
    });
    serialize(exported.collect::<Result<Vec<_>, SafeTensorError>>()?, header.metadata().clone())
}

/// Converts the f32 tensors of a safetensors file to the type in which they were imported ([`EXPORT_TYPE`] in the metadata of
/// the file), and returns the name of that type in `config.json`. `None` if the file has no such type.
pub fn imported_type(bytes: &[u8]) -> Result<Option<(Vec<u8>, &'static str)>, SafeTensorError> {
    let (_, header) = SafeTensors::read_metadata(bytes)?;
    let mut metadata = header.metadata().clone().unwrap_or_default();
    let (dtype, name) = match metadata.remove(EXPORT_TYPE).as_deref() {
        Some("BF16") => (Dtype::BF16, "bfloat16"),
        Some("F16") => (Dtype::F16, "float16"),
        _ => return Ok(None),
    };
    let convert = |value| match dtype {
        Dtype::BF16 => bf16::from_f32(value).to_le_bytes(),
        _ => f16::from_f32(value).to_le_bytes(),
    };
    let file = SafeTensors::deserialize(bytes)?;
    let converted = file.tensors().into_iter().map(|(name, view)| {
        let floats = view.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let data = Cow::Owned(floats.flat_map(convert).collect());
        (name, Rows { dtype, shape: view.shape().to_vec(), data })
    });
    Ok(Some((serialize(converted, Some(metadata))?, name)))
}

/// A row-major tensor.
#[derive(Debug, Clone)]
struct Rows<'a> {
    dtype: Dtype,
    shape: Vec<usize>,
    data: Cow<'a, [u8]>,
}

impl Rows<'_> {
    /// Drops the last `padding` rows.
    fn cut(mut self, padding: usize) -> Result<Self, SafeTensorError> {
        let rows = self.shape.first().copied().unwrap_or(0);
        let kept = rows.checked_sub(padding).filter(|kept| *kept > 0).ok_or(SafeTensorError::ValidationOverflow)?;
        let bytes = self.data.len() / rows * kept;
        self.data = match self.data {
            Cow::Borrowed(data) => Cow::Borrowed(&data[..bytes]),
            Cow::Owned(data) => Cow::Owned(data[..bytes].to_vec()),
        };
        self.shape[0] = kept;
        Ok(self)
    }

    /// Adds `count` rows of zeros at the beginning.
    fn after_zeros(mut self, count: usize) -> Self {
        let Some(rows) = self.shape.first_mut().filter(|rows| **rows > 0) else { return self };
        let zeros = vec![0; self.data.len() / *rows * count];
        *rows += count;
        self.data = Cow::Owned([&zeros[..], &self.data].concat());
        self
    }
}

impl View for Rows<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.data)
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_plan::architecture::{ParamKind, Role, TensorId};
    use safetensors::tensor::TensorView;

    #[test]
    fn trim_removes_the_last_rows_of_tables() {
        let tensor = |name: &str, module, padding| Tensor {
            id: TensorId::new(module, ParamKind::Weight),
            role: Role::Matrix,
            name: name.to_owned(),
            shape: Vec::new(),
            matrices: 0,
            padding,
            is_fused_with_previous: false,
            head: None,
            final_after_segment: 1,
        };
        let tensors = [tensor("table", ModuleKind::WordEmbeddings, Some(3)), tensor("other", ModuleKind::Pooler, None)];
        let data: Vec<u8> = (0..96).collect();
        let view = |shape: &[usize], bytes: usize| TensorView::new(Dtype::F32, shape.to_vec(), &data[..bytes]).unwrap();
        let format = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let views = [("table", view(&[8, 3], 96)), ("other", view(&[8, 2], 64))];
        let whole = serialize(views, Some(format.clone())).unwrap();
        let none_left_out = |_: &Tensor| false;
        let cut = weights(&whole, &tensors, 0, none_left_out).unwrap();
        let file = SafeTensors::deserialize(&cut).unwrap();
        let table = file.tensor("table").unwrap();
        assert_eq!((table.shape(), table.data()), (&[5, 3][..], &data[..60]));
        assert_eq!(file.tensor("other").unwrap(), view(&[8, 2], 64));
        assert_eq!(SafeTensors::read_metadata(&cut).unwrap().1.metadata(), &Some(format));
        let none = [tensor("table", ModuleKind::WordEmbeddings, Some(0))];
        assert_eq!(weights(&whole, &none, 0, none_left_out).unwrap(), whole);
        let both = none.into_iter().chain([tensors[1].clone()]).collect::<Vec<_>>();
        let without = weights(&whole, &both, 0, |tensor| tensor.id.module == ModuleKind::Pooler).unwrap();
        let file = SafeTensors::deserialize(&without).unwrap();
        assert_eq!((file.names(), file.tensor("table").unwrap()), (vec!["table"], view(&[8, 3], 96)));
        let all = [tensor("table", ModuleKind::WordEmbeddings, Some(8))];
        assert!(weights(&whole, &all, 0, none_left_out).is_err(), "nothing is left");
        let positions = [tensor("other", ModuleKind::PositionEmbeddings, None)];
        let longer = weights(&whole, &positions, 2, none_left_out).unwrap();
        let file = SafeTensors::deserialize(&longer).unwrap();
        let other = file.tensor("other").unwrap();
        assert_eq!((other.shape(), other.data()), (&[10, 2][..], &[&[0; 16], &data[..64]].concat()[..]));
        assert_eq!(file.tensor("table").unwrap(), view(&[8, 3], 96));
    }
}
