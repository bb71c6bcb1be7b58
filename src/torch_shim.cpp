// What tch does not reach in libtorch. A tch C_tensor is an at::Tensor*.
//
// lambert_set_gradient: makes `gradient`, a view into the flat gradient buffer, the place where backward accumulates
// the gradient of `parameter`, so that all-reduce and optimizer see one buffer and nothing is copied.

#include <ATen/core/Tensor.h>

extern "C" int lambert_set_gradient(at::Tensor *parameter, at::Tensor *gradient) {
  try {
    parameter->mutable_grad() = *gradient;
    return 0;
  } catch (...) {
    return 1;
  }
}
