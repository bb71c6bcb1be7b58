//! Thin layer over libtorch: all `unsafe` tensor code, and conversion of libtorch failures to errors.

pub mod attention;
mod cuda_error;
mod error;
pub mod gpu;
pub mod operation;

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_void};

use tch::{Device, Kind, Tensor};

pub use cuda_error::lost_gpu;
pub use error::{TorchError, caught, guard, last_panic, quiet_panics};

unsafe extern "C" {
    fn lambert_set_gradient(parameter: *mut torch_sys::C_tensor, gradient: *mut torch_sys::C_tensor) -> i32;
    fn lambert_allow_onednn(allowed: bool);
    fn lambert_linear(
        x: *const torch_sys::C_tensor,
        weight: *const torch_sys::C_tensor,
        bias: *const torch_sys::C_tensor,
        low_weight: *const torch_sys::C_tensor,
        low_bias: *const torch_sys::C_tensor,
        sums_bias: bool,
        failed: Failed,
    ) -> *mut torch_sys::C_tensor;
    fn lambert_self_adjoint(
        x: *const torch_sys::C_tensor,
        added: *const torch_sys::C_tensor,
        call: Call,
        owner: *mut c_void,
        forget: extern "C" fn(*mut c_void),
        failed: Failed,
    ) -> *mut torch_sys::C_tensor;
    fn lambert_add_product(
        sum: *mut torch_sys::C_tensor,
        a: *const torch_sys::C_tensor,
        b: *const torch_sys::C_tensor,
        failed: Failed,
    ) -> i32;
    fn lambert_backward(
        outputs: *const *const torch_sys::C_tensor,
        gradients: *const *const torch_sys::C_tensor,
        count: usize,
        failed: Failed,
    ) -> i32;
    fn lambert_embedding(
        table: *const torch_sys::C_tensor,
        ids: *const torch_sys::C_tensor,
        failed: Failed,
    ) -> *mut torch_sys::C_tensor;
}

/// Callback that receives the message of a failed operation.
type Failed = extern "C" fn(*const c_char);

/// Calls the [`Map`] that the first argument points to, with `x` and the addend. The addend may be null. On
/// failure, returns null and sets the message.
type Call = extern "C" fn(
    *mut c_void,
    *const torch_sys::C_tensor,
    *const torch_sys::C_tensor,
    *mut *const c_char,
) -> *mut torch_sys::C_tensor;

/// A self-adjoint linear map of tensors, with an addend.
type Map = Box<dyn Fn(&Tensor, Option<&Tensor>) -> Tensor + Send>;

thread_local! {
    /// Message of the last failure in the shim (shim.cpp).
    static LAST_ERROR_TEXT: RefCell<String> = const { RefCell::new(String::new()) };
}

extern "C" fn failed(text: *const c_char) {
    // SAFETY: the shim passes a NUL-terminated string that lives until this function returns.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    LAST_ERROR_TEXT.with(|output| *output.borrow_mut() = text);
}

unsafe extern "C" {
    fn lambert_torch_settings() -> *const c_char;
}

/// Version of the libtorch headers used in the build.
pub const BUILT_WITH: &str = env!("LAMBERT_LIBTORCH_VERSION");

/// Build settings of the loaded libtorch, as text.
pub fn settings() -> String {
    // SAFETY: the shim returns a NUL-terminated string that lives as long as the program.
    unsafe { CStr::from_ptr(lambert_torch_settings()) }.to_string_lossy().into_owned()
}

/// Version of the loaded libtorch, such as `2.11.0`; empty if unknown.
pub fn version() -> String {
    let settings = settings();
    let version = settings.split("TORCH_VERSION=").nth(1).and_then(|rest| rest.split([',', ' ']).next());
    version.unwrap_or_default().to_owned()
}

/// Makes the backward pass accumulate the gradient of `parameter` into `gradient`, a view of the same shape.
pub fn set_gradient(parameter: &Tensor, gradient: &Tensor) {
    // SAFETY: both pointers are live at::Tensor objects for the whole call. The
    // function copies the handle that it keeps.
    let failed = unsafe { lambert_set_gradient(parameter.as_ptr().cast_mut(), gradient.as_ptr().cast_mut()) };
    assert_eq!(failed, 0, "a gradient of another shape or type than its parameter");
}

/// Allows or forbids oneDNN in [`linear`], process-wide. oneDNN is allowed by default.
/// Without oneDNN, results round as in PyTorch.
pub fn allow_onednn(allowed: bool) {
    // SAFETY: sets a flag.
    unsafe { lambert_allow_onednn(allowed) }
}

/// Parameters of a linear layer.
pub struct LinearParams {
    /// Weight, \[out, in\].
    pub weight: Tensor,
    /// Bias, \[out\].
    pub bias: Option<Tensor>,
}

/// Computes `x W^T + b` in the dtype of `x`, \[..., in\] to \[..., out\]. The parameters have gradients from
/// [`set_gradient`]. The backward pass adds to these gradients without a temporary tensor. `low` has the parameters in the
/// dtype of `x`. Without `low`, the parameters are cast on each call.
pub fn linear(x: &Tensor, params: &LinearParams, low: Option<&LinearParams>) -> Tensor {
    linear_with(x, params, low, true)
}

/// [`linear`], but the backward pass does not compute the gradient of the bias. The operation that reads the result must compute
/// it.
pub fn linear_without_bias_gradient(x: &Tensor, params: &LinearParams, low: Option<&LinearParams>) -> Tensor {
    linear_with(x, params, low, false)
}

fn linear_with(x: &Tensor, params: &LinearParams, low: Option<&LinearParams>, sums_bias: bool) -> Tensor {
    let pointer = |tensor: Option<&Tensor>| tensor.map_or(std::ptr::null(), Tensor::as_ptr);
    let bias = |params: &LinearParams| pointer(params.bias.as_ref());
    let (low_weight, low_bias) = (pointer(low.map(|low| &low.weight)), low.map_or(std::ptr::null(), bias));
    // SAFETY: all pointers are live at::Tensor objects for the whole call, or null where null is allowed.
    made(|failed| unsafe {
        lambert_linear(x.as_ptr(), params.weight.as_ptr(), bias(params), low_weight, low_bias, sums_bias, failed)
    })
}

/// Returns `map(x, added)`. `map` must apply a self-adjoint linear map to `x`, and then add `added`, which has the
/// shape of `x`. The gradient of `x` is therefore the linear map of the gradient of the result. The backward pass calls
/// `map` without an addend to compute it, possibly from another thread, but `map` is never called concurrently.
pub fn self_adjoint(
    x: &Tensor,
    added: Option<&Tensor>,
    map: impl Fn(&Tensor, Option<&Tensor>) -> Tensor + Send + 'static,
) -> Tensor {
    extern "C" fn call(
        owner: *mut c_void,
        x: *const torch_sys::C_tensor,
        added: *const torch_sys::C_tensor,
        output: *mut *const c_char,
    ) -> *mut torch_sys::C_tensor {
        thread_local! {
            static WHY: RefCell<CString> = RefCell::default();
        }
        // SAFETY: `owner` is the Map that `self_adjoint` passed, which lives until `forget`.
        let map = unsafe { &*owner.cast::<Map>() };
        let handle = |tensor: *const torch_sys::C_tensor| {
            // SAFETY: `tensor` is a live at::Tensor, and the result is a separate handle to this tensor.
            unsafe { Tensor::clone_from_ptr(tensor.cast_mut()) }
        };
        let made = caught(|| {
            let added = (!added.is_null()).then(|| handle(added));
            map(&handle(x), added.as_ref())
        });
        match made {
            // The shim takes ownership of the at::Tensor.
            Ok(made) => std::mem::ManuallyDrop::new(made).as_mut_ptr(),
            Err(why) => {
                WHY.set(CString::new(why.replace('\0', " ")).unwrap_or_default());
                // SAFETY: `output` is a pointer of the shim to a string. The string lives until
                // the next failure on this thread.
                unsafe { *output = WHY.with_borrow(|why| why.as_ptr()) };
                std::ptr::null_mut()
            }
        }
    }
    extern "C" fn forget(owner: *mut c_void) {
        // SAFETY: `owner` comes from Box::into_raw below, and the shim calls `forget` once.
        drop(unsafe { Box::from_raw(owner.cast::<Map>()) });
    }
    let owner = Box::into_raw(Box::<Map>::new(Box::new(map))).cast::<c_void>();
    let added = added.map_or(std::ptr::null(), Tensor::as_ptr);
    // SAFETY: the tensor pointers are live at::Tensor objects, or null where null is allowed. `owner` is
    // the value that `call` and `forget` expect.
    made(|failed| unsafe { lambert_self_adjoint(x.as_ptr(), added, call, owner, forget, failed) })
}

/// Adds the matrix product of `a` and `b` to `sum`, f32. `a` and `b` are both f32 or both bf16. Products of bf16 are not rounded
/// to bf16 on a GPU.
pub fn add_product(sum: &mut Tensor, a: &Tensor, b: &Tensor) {
    // SAFETY: all pointers are live at::Tensor objects for the whole call.
    let failure = unsafe { lambert_add_product(sum.as_mut_ptr(), a.as_ptr(), b.as_ptr(), failed) };
    assert_eq!(failure, 0, "{}", LAST_ERROR_TEXT.with(RefCell::take));
}

/// Runs the backward pass from `outputs`, with `gradients` of the same shapes. The
/// graphs of the outputs may share tensors.
pub fn backward(outputs: &[Tensor], gradients: &[Tensor]) {
    assert_eq!(outputs.len(), gradients.len(), "an output has one gradient");
    let pointers = |tensors: &[Tensor]| tensors.iter().map(Tensor::as_ptr).collect::<Vec<_>>();
    let (of_outputs, of_gradients) = (pointers(outputs), pointers(gradients));
    // SAFETY: both arrays have `outputs.len()` pointers to at::Tensor objects, which live for the whole call.
    let failure = unsafe { lambert_backward(of_outputs.as_ptr(), of_gradients.as_ptr(), outputs.len(), failed) };
    assert_eq!(failure, 0, "{}", LAST_ERROR_TEXT.with(RefCell::take));
}

/// Copies bytes of a contiguous tensor on any device to `into`. The first copied byte is byte `first` of the tensor.
pub fn read_bytes(tensor: &Tensor, first: usize, into: &mut [u8]) {
    // SAFETY: the tensor over `into` lives no longer than the borrow of `into`, and
    // the copy has ended when `copy_` returns.
    let mut host = unsafe { bytes_in_place(into.as_mut_ptr(), into.len()) };
    host.copy_(&bytes_of(tensor, first, into.len()));
}

/// Starts an asynchronous copy of bytes of a contiguous GPU tensor to `into`. The first copied byte is byte `first` of
/// the tensor.
///
/// # Safety
/// Same as for [`CopyStream::download`](gpu::CopyStream::download).
pub unsafe fn begin_read(stream: &gpu::CopyStream, tensor: &Tensor, first: usize, into: &mut [u8]) {
    // SAFETY: the caller keeps the memory valid for longer than this tensor lives.
    let host = unsafe { bytes_in_place(into.as_mut_ptr(), into.len()) };
    // SAFETY: the caller guarantees the conditions of `download`.
    unsafe { stream.download(&host, &bytes_of(tensor, first, into.len())) }
}

/// Copies `bytes` to a contiguous tensor on any device. The first byte goes to byte `first` of the tensor.
pub fn write_bytes(tensor: &Tensor, first: usize, bytes: &[u8]) {
    // SAFETY: as in `read_bytes`. Nothing writes through this tensor.
    let host = unsafe { bytes_in_place(bytes.as_ptr().cast_mut(), bytes.len()) };
    bytes_of(tensor, first, bytes.len()).copy_(&host);
}

/// Wraps host memory as a tensor, u8 \[count\].
unsafe fn bytes_in_place(first: *mut u8, count: usize) -> Tensor {
    // SAFETY: the caller keeps the memory valid.
    unsafe { Tensor::from_blob(first, &[count as i64], &[1], Kind::Uint8, Device::Cpu) }
}

/// Returns a view of `count` bytes of a contiguous tensor as u8, starting at byte `first`.
fn bytes_of(tensor: &Tensor, first: usize, count: usize) -> Tensor {
    assert!(tensor.is_contiguous(), "bytes of a tensor that has gaps");
    tensor.detach().flatten(0, -1).view_dtype(Kind::Uint8).narrow(0, first as i64, count as i64)
}

/// Looks up rows of `table` \[rows, width\] by `ids`, i64 \[...\]. The result is \[..., width\]. `table` is a
/// parameter with a gradient from [`set_gradient`].
pub fn embedding(table: &Tensor, ids: &Tensor) -> Tensor {
    // SAFETY: both pointers are live at::Tensor objects for the whole call.
    made(|failed| unsafe { lambert_embedding(table.as_ptr(), ids.as_ptr(), failed) })
}

/// Takes ownership of the tensor that `make` returns. Panics, as in tch, on failure.
fn made(make: impl FnOnce(Failed) -> *mut torch_sys::C_tensor) -> Tensor {
    let made = make(failed);
    assert!(!made.is_null(), "{}", LAST_ERROR_TEXT.with(RefCell::take));
    // SAFETY: `made` is a new at::Tensor that nothing else owns.
    unsafe { Tensor::from_ptr(made) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(tensor: &Tensor) -> Vec<f32> {
        Vec::try_from(tensor.flatten(0, -1)).unwrap()
    }

    #[test]
    fn the_loaded_library_reports_its_version() {
        assert!(version().starts_with("2."), "{:?}", version());
    }

    #[test]
    fn linear_accumulates_gradients_of_unfrozen_parameters() {
        let options = (Kind::Float, Device::Cpu);
        for kind in [Kind::Float, Kind::BFloat16] {
            let parameter = |shape: &[i64]| {
                let (parameter, gradient) = (Tensor::ones(shape, options), Tensor::zeros(shape, options));
                let parameter = parameter.set_requires_grad(true);
                set_gradient(&parameter, &gradient);
                (parameter, gradient)
            };
            let (mut weight, of_weight) = parameter(&[5, 4]);
            let (bias, of_bias) = parameter(&[5]);
            let of = |weight: &Tensor, bias: Option<&Tensor>| LinearParams {
                weight: weight.shallow_clone(),
                bias: bias.map(Tensor::shallow_clone),
            };
            let x = Tensor::ones([2, 3, 4], options).to_kind(kind).set_requires_grad(true);
            let back = |weight: &Tensor| {
                let y = linear(&x, &of(weight, Some(&bias)), None);
                assert_eq!((y.kind(), y.size(), y.double_value(&[1, 2, 4])), (kind, vec![2, 3, 5], 5.0));
                y.sum(Kind::Float).backward();
            };
            back(&weight);
            back(&weight);
            let _ = weight.requires_grad_(false);
            back(&weight);
            assert_eq!(floats(&of_weight), [12.0; 20], "two passes, six rows each");
            assert_eq!(floats(&of_bias), [18.0; 5], "three passes");
            assert_eq!(x.grad().double_value(&[1, 2, 3]), 15.0);
            let without = linear(&x, &of(&weight, None), None);
            assert_eq!((without.kind(), without.double_value(&[1, 2, 4])), (kind, 4.0));
            without.sum(Kind::Float).backward();
            assert_eq!((floats(&of_bias), x.grad().double_value(&[1, 2, 3])), (vec![18.0; 5], 20.0), "no bias");
        }
    }

    #[test]
    fn embedding_accumulates_row_gradients_in_the_table() {
        let options = (Kind::Float, Device::Cpu);
        let table = Tensor::arange(6, options).view([3, 2]).set_requires_grad(true);
        let gradient = Tensor::zeros([3, 2], options);
        set_gradient(&table, &gradient);
        let ids = Tensor::from_slice(&[2_i64, 0, 2, 2]).view([2, 2]);
        for _ in 0..2 {
            let rows = embedding(&table, &ids);
            assert_eq!((rows.size(), floats(&rows)), (vec![2, 2, 2], vec![4.0, 5.0, 0.0, 1.0, 4.0, 5.0, 4.0, 5.0]));
            (rows * Tensor::from_slice(&[1.0_f32, 10.0])).sum(Kind::Float).backward();
        }
        assert_eq!(floats(&gradient), [2.0, 20.0, 0.0, 0.0, 6.0, 60.0], "two passes");
        assert!(guard(|| embedding(&table, &Tensor::from_slice(&[3_i64]))).is_err(), "a row that is not there");
    }

    #[test]
    fn incompatible_shapes_are_an_error() {
        let zeros = |shape: &[i64]| Tensor::zeros(shape, (Kind::Float, Device::Cpu));
        let params = LinearParams { weight: zeros(&[5, 4]), bias: Some(zeros(&[5])) };
        let failed = guard(|| linear(&zeros(&[2, 3]), &params, None)).unwrap_err();
        assert!(failed.to_string().contains("shapes cannot be multiplied (2x3 and 4x5)"), "{failed}");
    }

    #[test]
    fn no_exception_leaves_the_shim() {
        unsafe extern "C" {
            fn lambert_throw(is_standard: bool, failed: Failed) -> i32;
        }
        for (is_standard, output) in [(true, "of the standard library"), (false, "an exception of an unknown type")] {
            // SAFETY: the function throws an exception and catches it.
            assert_eq!(unsafe { lambert_throw(is_standard, failed) }, -1);
            assert_eq!(LAST_ERROR_TEXT.with(RefCell::take), output);
        }
    }
}
