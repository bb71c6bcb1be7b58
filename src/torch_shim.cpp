// What tch does not reach in libtorch. A tch C_tensor is an at::Tensor*.

#include <torch/csrc/autograd/custom_function.h>

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <atomic>
#include <string>

namespace at::native {
// oneDNN's x W^T + b, fused with what `attr` names. libtorch exports it, but has no header for it.
Tensor mkldnn_linear_pointwise(const Tensor &x, const Tensor &weight, const std::optional<Tensor> &bias,
                               std::string_view attr, c10::List<std::optional<Scalar>> scalars,
                               std::optional<std::string_view> algorithm);
}  // namespace at::native

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

static std::atomic<bool> onednn_allowed{true};

// Whether linear maps may be computed by oneDNN.
extern "C" void lambert_allow_onednn(bool allowed) { onednn_allowed = allowed; }

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// x W^T + b; W may be strided. For f32 in main memory by oneDNN, which is faster than MKL, what at::linear calls
// (docs/experiments.md). Shapes that do not fit are left to at::linear, which says so.
at::Tensor product(const at::Tensor &x, const at::Tensor &weight, const std::optional<at::Tensor> &bias) {
  const bool plain = x.is_cpu() && x.scalar_type() == at::kFloat;
  if (onednn_allowed && plain && x.numel() > 0 && x.size(-1) == weight.size(1)) {
    c10::List<std::optional<at::Scalar>> none;
    return at::native::mkldnn_linear_pointwise(x, weight, bias, "none", none, std::nullopt);
  }
  return at::linear(x, weight, bias);
}

// x W^T + b, computed in x's kind of number. libtorch's own puts the gradient of W into a tensor of its own, which is then
// read again to be added to the flat buffer; here the matrix product adds to the buffer itself.
struct Linear : torch::autograd::Function<Linear> {
  static at::Tensor forward(AutogradContext *context, const at::Tensor &x, const at::Tensor &weight,
                            const at::Tensor &bias) {
    const at::Tensor cast = weight.to(x.scalar_type());
    context->save_for_backward({x, cast});
    context->saved_data["weight"] = weight;
    context->saved_data["bias"] = bias;
    return product(x, cast, bias.to(x.scalar_type()));
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
      below = product(gradient, saved[1].t(), std::nullopt).view_as(saved[0]);
    }
    return {below, at::Tensor(), at::Tensor()};
  }
};

// Rows of a table. libtorch's own puts the gradient into a table of its own, which is then added to the flat buffer.
struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext *context, const at::Tensor &table, const at::Tensor &ids) {
    context->save_for_backward({ids});
    context->saved_data["table"] = table;
    return at::embedding(table, ids);
  }

  static variable_list backward(AutogradContext *context, const variable_list &gradients) {
    const at::Tensor table = context->saved_data["table"].toTensor();
    const at::Tensor ids = context->get_saved_variables()[0].flatten();
    table.mutable_grad().index_add_(0, ids, gradients[0].reshape({-1, table.size(1)}));
    return {at::Tensor(), at::Tensor()};
  }
};

// What `make` makes, as its caller's own; where libtorch fails, nothing, and `failed` is told why.
template <typename Make>
at::Tensor *made(Make make, void (*failed)(const char *)) {
  try {
    return new at::Tensor(make());
  } catch (const std::exception &error) {
    failed(error.what());
    return nullptr;
  }
}

}  // namespace

// x W^T + b, whose backward pass adds the gradients of W and b to where lambert_set_gradient put them; `weight` and
// `bias` are parameters that have such places. Returns as `made` does.
extern "C" at::Tensor *lambert_linear(const at::Tensor *x, const at::Tensor *weight, const at::Tensor *bias,
                                      void (*failed)(const char *)) {
  return made([&] { return Linear::apply(*x, *weight, *bias); }, failed);
}

// The rows of `table`, a parameter of the same sort, that `ids` name. Returns as `made` does.
extern "C" at::Tensor *lambert_embedding(const at::Tensor *table, const at::Tensor *ids, void (*failed)(const char *)) {
  return made([&] { return Embedding::apply(*table, *ids); }, failed);
}

// What libtorch was built with, its version among it, as the library that is loaded says.
extern "C" const char *lambert_torch_settings() {
  static const std::string settings = at::show_config();
  return settings.c_str();
}
