//! Trims weights for export: removes vocabulary padding rows and untrained heads.

use lambert_plan::architecture::Tensor;
use safetensors::tensor::{SafeTensorError, TensorView};
use safetensors::{SafeTensors, serialize};

/// Returns the safetensors file `bytes` without the tensors for which `left_out` is true and without vocabulary padding
/// rows. `tensors` are the tensors of the model.
pub fn weights(
    bytes: &[u8],
    tensors: &[Tensor],
    left_out: impl Fn(&Tensor) -> bool,
) -> Result<Vec<u8>, SafeTensorError> {
    if tensors.iter().all(|tensor| tensor.padding.unwrap_or(0) == 0 && !left_out(tensor)) {
        return Ok(bytes.to_vec());
    }
    let (_, header) = SafeTensors::read_metadata(bytes)?;
    let file = SafeTensors::deserialize(bytes)?;
    let known = |name: &str| tensors.iter().find(|tensor| tensor.name == name);
    let kept =
        file.tensors().into_iter().filter(|(name, _)| !known(name).is_some_and(&left_out)).map(|(name, view)| {
            let padding = known(&name).and_then(|tensor| tensor.padding);
            let view = padding.map_or(Ok(view.clone()), |padding| cut(&view, padding))?;
            Ok((name, view))
        });
    serialize(kept.collect::<Result<Vec<_>, SafeTensorError>>()?, header.metadata().clone())
}

/// Drops the last `padding` rows of a row-major tensor.
fn cut<'a>(view: &TensorView<'a>, padding: usize) -> Result<TensorView<'a>, SafeTensorError> {
    let rows = view.shape().first().copied().unwrap_or(0);
    let pieces = rows.checked_sub(padding).filter(|pieces| *pieces > 0).ok_or(SafeTensorError::ValidationOverflow)?;
    let shape = [&[pieces], &view.shape()[1..]].concat();
    TensorView::new(view.dtype(), shape, &view.data()[..view.data().len() / rows * pieces])
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_plan::architecture::{ModuleKind, ParamKind, Role, TensorId};
    use safetensors::Dtype;

    #[test]
    fn trim_removes_the_last_rows_of_tables() {
        let tensor = |name: &str, part, padding| Tensor {
            id: TensorId::new(part, ParamKind::Weight),
            role: Role::Matrix,
            name: name.to_owned(),
            shape: Vec::new(),
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
        let cut = weights(&whole, &tensors, none_left_out).unwrap();
        let file = SafeTensors::deserialize(&cut).unwrap();
        let table = file.tensor("table").unwrap();
        assert_eq!((table.shape(), table.data()), (&[5, 3][..], &data[..60]));
        assert_eq!(file.tensor("other").unwrap(), view(&[8, 2], 64));
        assert_eq!(SafeTensors::read_metadata(&cut).unwrap().1.metadata(), &Some(format));
        let none = [tensor("table", ModuleKind::WordEmbeddings, Some(0))];
        assert_eq!(weights(&whole, &none, none_left_out).unwrap(), whole);
        let both = none.into_iter().chain([tensors[1].clone()]).collect::<Vec<_>>();
        let without = weights(&whole, &both, |tensor| tensor.id.part == ModuleKind::Pooler).unwrap();
        let file = SafeTensors::deserialize(&without).unwrap();
        assert_eq!((file.names(), file.tensor("table").unwrap()), (vec!["table"], view(&[8, 3], 96)));
        let all = [tensor("table", ModuleKind::WordEmbeddings, Some(8))];
        assert!(weights(&whole, &all, none_left_out).is_err(), "nothing is left");
    }
}
