//! Differentiable operations that are implemented in Rust.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;

use tch::Tensor;

use super::{Failed, caught, made};

/// Function of the shim's `Operation`.
type Call = extern "C" fn(
    *mut c_void,
    *const *const torch_sys::C_tensor,
    usize,
    *mut *mut torch_sys::C_tensor,
    *mut *const c_char,
) -> c_int;

unsafe extern "C" {
    fn lambert_apply(
        tensors: *const *const torch_sys::C_tensor,
        count: usize,
        forward: Call,
        backward: Call,
        owner: *mut c_void,
        forget: extern "C" fn(*mut c_void),
        failed: Failed,
    ) -> *mut torch_sys::C_tensor;
}

/// Maximum number of tensors that a function of an operation returns.
const MAX_TENSORS: usize = 4;

/// A differentiable operation. Its functions run without recording a graph, possibly on other threads, but never
/// concurrently.
pub trait Operation: Send {
    /// Returns the result, then the tensors that the backward pass reads.
    fn forward(&self, inputs: &[Tensor]) -> Vec<Tensor>;

    /// Returns the gradients of the first inputs. `gradient` is the gradient of the result, and `saved` are the tensors that
    /// the forward pass returned for the backward pass. Other inputs get no gradient from libtorch.
    fn backward(&self, gradient: &Tensor, saved: &[Tensor]) -> Vec<Tensor>;
}

/// Applies `operation` to one to four inputs.
pub fn apply<O: Operation + 'static>(inputs: &[&Tensor], operation: O) -> Tensor {
    extern "C" fn forward<O: Operation>(
        owner: *mut c_void,
        tensors: *const *const torch_sys::C_tensor,
        count: usize,
        made: *mut *mut torch_sys::C_tensor,
        said: *mut *const c_char,
    ) -> c_int {
        // SAFETY: `owner` is the operation that `apply` passed, which lives until `forget`. The shim passes live tensors.
        let (operation, inputs) = unsafe { (&*owner.cast::<O>(), handles(tensors, count)) };
        // SAFETY: the shim has room for the tensors and for the pointer to the message.
        unsafe { give(caught(|| operation.forward(&inputs)), made, said) }
    }
    extern "C" fn backward<O: Operation>(
        owner: *mut c_void,
        tensors: *const *const torch_sys::C_tensor,
        count: usize,
        made: *mut *mut torch_sys::C_tensor,
        said: *mut *const c_char,
    ) -> c_int {
        // SAFETY: as in `forward`.
        let (operation, tensors) = unsafe { (&*owner.cast::<O>(), handles(tensors, count)) };
        // SAFETY: as in `forward`.
        unsafe { give(caught(|| operation.backward(&tensors[0], &tensors[1..])), made, said) }
    }
    extern "C" fn forget<O>(owner: *mut c_void) {
        // SAFETY: `owner` comes from Box::into_raw below, and the shim calls `forget` once.
        drop(unsafe { Box::from_raw(owner.cast::<O>()) });
    }
    assert!((1..=4).contains(&inputs.len()), "an operation has one to four inputs");
    let pointers: Vec<_> = inputs.iter().map(|tensor| tensor.as_ptr()).collect();
    let owner = Box::into_raw(Box::new(operation)).cast::<c_void>();
    // SAFETY: the tensors are live at::Tensor objects for the whole call, and `owner` is what the functions expect.
    made(|failed| unsafe {
        lambert_apply(pointers.as_ptr(), pointers.len(), forward::<O>, backward::<O>, owner, forget::<O>, failed)
    })
}

/// Returns own handles to tensors of the shim.
///
/// # Safety
/// `tensors` points to `count` live at::Tensor objects.
unsafe fn handles(tensors: *const *const torch_sys::C_tensor, count: usize) -> Vec<Tensor> {
    // SAFETY: guaranteed by the caller. Each result is a separate handle.
    (0..count).map(|index| unsafe { Tensor::clone_from_ptr((*tensors.add(index)).cast_mut()) }).collect()
}

/// Passes tensors, or a message, to the shim.
///
/// # Safety
/// `made` has room for [`MAX_TENSORS`] pointers, and `said` for one.
unsafe fn give(
    result: Result<Vec<Tensor>, String>,
    made: *mut *mut torch_sys::C_tensor,
    said: *mut *const c_char,
) -> c_int {
    thread_local! {
        static WHY: RefCell<CString> = RefCell::default();
    }
    let why = match result {
        Ok(tensors) if tensors.len() <= MAX_TENSORS => {
            let count = tensors.len() as c_int;
            for (index, tensor) in tensors.into_iter().enumerate() {
                // SAFETY: guaranteed by the caller. The shim takes ownership of the at::Tensor.
                unsafe { *made.add(index) = ManuallyDrop::new(tensor).as_mut_ptr() };
            }
            return count;
        }
        Ok(tensors) => format!("an operation returned {} tensors; at most {MAX_TENSORS} are supported", tensors.len()),
        Err(why) => why,
    };
    WHY.set(CString::new(why.replace('\0', " ")).unwrap_or_default());
    // SAFETY: guaranteed by the caller. The string lives until the next failure on this thread.
    unsafe { *said = WHY.with_borrow(|why| why.as_ptr()) };
    -1
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;
    use crate::torch::guard;

    /// x * y, where y gets no gradient.
    struct Product;

    impl Operation for Product {
        fn forward(&self, inputs: &[Tensor]) -> Vec<Tensor> {
            assert!(inputs[0].size() == inputs[1].size(), "shapes differ");
            vec![&inputs[0] * &inputs[1], inputs[1].shallow_clone()]
        }

        fn backward(&self, gradient: &Tensor, saved: &[Tensor]) -> Vec<Tensor> {
            vec![gradient * &saved[0]]
        }
    }

    #[test]
    fn an_operation_is_differentiable_and_its_panics_are_errors() {
        let x = Tensor::from_slice(&[1.0_f32, 2.0]).set_requires_grad(true);
        let y = Tensor::from_slice(&[3.0_f32, 5.0]).set_requires_grad(true);
        let product = apply(&[&x, &y], Product);
        product.sum(Kind::Float).backward();
        assert_eq!(Vec::<f32>::try_from(&product).unwrap(), [3.0, 10.0]);
        assert_eq!(Vec::<f32>::try_from(x.grad()).unwrap(), [3.0, 5.0]);
        assert!(!y.grad().defined());
        let other = Tensor::zeros([3], (Kind::Float, Device::Cpu));
        let failed = guard(|| apply(&[&x, &other], Product)).unwrap_err().to_string();
        assert!(failed.contains("shapes differ"), "{failed}");
    }
}
