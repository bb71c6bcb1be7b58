// What tch does not reach in libtorch. A tch C_tensor is an at::Tensor*.

#include <torch/csrc/autograd/custom_function.h>

#include <ATen/ATen.h>

// Makes `gradient`, a view into the flat gradient buffer, the place where backward accumulates the gradient of
// `parameter`, so that all-reduce and optimizer see one buffer and nothing is copied.
extern "C" int lambert_set_gradient(at::Tensor *parameter, at::Tensor *gradient) {
  try {
    parameter->mutable_grad() = *gradient;
    return 0;
  } catch (...) {
    return 1;
  }
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// x W^T + b, computed in x's kind of number. libtorch's own puts the gradient of W into a tensor of its own, which is then
// read again to be added to the flat buffer; here the matrix product adds to the buffer itself.
struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext *context, const at::Tensor &x, const at::Tensor &weight,
                            const at::Tensor &bias) {
    const at::Tensor cast = weight.to(x.scalar_type());
    context->save_for_backward({x, cast});
    context->saved_data["weight"] = weight;
    context->saved_data["bias"] = bias;
    return at::linear(x, cast, bias.to(x.scalar_type()));
  }

  static variable_list backward(AutogradContext *context, const variable_list &gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor weight = context->saved_data["weight"].toTensor();
    const at::Tensor bias = context->saved_data["bias"].toTensor();
    const at::Tensor x = saved[0].reshape({-1, saved[0].size(-1)});
    const at::Tensor gradient = gradients[0].reshape({-1, gradients[0].size(-1)});
    if (weight.requires_grad()) {
      if (x.scalar_type() == weight.scalar_type()) {
        weight.mutable_grad().addmm_(gradient.t(), x);
      } else {
        weight.mutable_grad().add_(gradient.t().mm(x));
      }
    }
    if (bias.requires_grad()) {
      bias.mutable_grad().add_(gradient.sum(0));
    }
    at::Tensor below;
    if (context->needs_input_grad(0)) {
      below = gradient.mm(saved[1]).view_as(saved[0]);
    }
    return {below, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

// x W^T + b, whose backward pass adds the gradients of W and b to where lambert_set_gradient put them; `weight` and
// `bias` are parameters that have such places. Returns what the caller owns, or, where libtorch fails, nothing; `failed`
// is then told why.
extern "C" at::Tensor *lambert_linear(const at::Tensor *x, const at::Tensor *weight, const at::Tensor *bias,
                                      void (*failed)(const char *)) {
  try {
    return new at::Tensor(Linear::apply(*x, *weight, *bias));
  } catch (const std::exception &error) {
    failed(error.what());
    return nullptr;
  }
}
