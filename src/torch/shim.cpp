// Functions of libtorch that tch does not expose. A tch C_tensor is an at::Tensor*.

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <ATen/core/ivalue.h>
#include <atomic>
#include <stdexcept>
#include <string>

#include "caught.h"

namespace at::native {
// Linear layer of oneDNN, x W^T + b, fused with the operation `attr`. libtorch exports this function without a header.
Tensor mkldnn_linear_pointwise(const Tensor &x, const Tensor &weight, const std::optional<Tensor> &bias,
                               std::string_view attr, c10::List<std::optional<Scalar>> scalars,
                               std::optional<std::string_view> algorithm);
}  // namespace at::native

// Makes the backward pass accumulate the gradient of `parameter` into `gradient`, a view of the flat gradient buffer.
// All-reduce and optimizer then use one buffer without copies.
extern "C" int lambert_set_gradient(at::Tensor *parameter, at::Tensor *gradient) {
  try {
    parameter->mutable_grad() = *gradient;
    return 0;
  } catch (...) {
    return 1;
  }
}

static std::atomic<bool> onednn_allowed{true};

// Allows or forbids oneDNN in linear layers.
extern "C" void lambert_allow_onednn(bool allowed) { onednn_allowed = allowed; }

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using MaybeTensor = std::optional<at::Tensor>;

// x W^T + b, where W may be strided. For f32 on the CPU, this function uses oneDNN, which is
// faster than the MKL of at::linear (docs/experiments/training-speed.md). Incompatible shapes are
// passed to at::linear, which reports the error.
at::Tensor product(const at::Tensor &x, const at::Tensor &weight, const std::optional<at::Tensor> &bias) {
  const bool plain = x.is_cpu() && x.scalar_type() == at::kFloat;
  if (onednn_allowed && plain && x.numel() > 0 && x.size(-1) == weight.size(1)) {
    c10::List<std::optional<at::Scalar>> none;
    return at::native::mkldnn_linear_pointwise(x, weight, bias, "none", none, std::nullopt);
  }
  return at::linear(x, weight, bias);
}

// Adds the column sums of `rows` to `sums`.
void add_column_sums(at::Tensor &sums, const at::Tensor &rows) {
  if (!rows.is_cpu() && rows.scalar_type() != sums.scalar_type()) {
    // On a GPU, this product is faster than the reduction of libtorch (docs/experiments/gpu-speed.md).
    at::Tensor row = sums.view({1, -1});
    at::addmm_out(row, row, at::ones({1, rows.size(0)}, rows.options()), rows, at::kFloat, 1, 1);
  } else {
    sums.add_(rows.sum(at::IntArrayRef{0}, false, sums.scalar_type()));
  }
}

// Adds a b to the f32 matrix `sum`. a and b are f32 or bf16.
void add_product(at::Tensor &sum, const at::Tensor &a, const at::Tensor &b) {
  if (a.scalar_type() == sum.scalar_type()) {
    sum.addmm_(a, b);
  } else if (!a.is_cpu()) {
    // The bf16 product accumulates in f32, so that micro-batches are not rounded separately.
    // The CPU does not support this operation.
    at::addmm_out(sum, sum, a, b, at::kFloat, 1, 1);
  } else {
    sum.add_(a.mm(b));
  }
}

// x W^T + b, computed in the dtype of x. The linear function of libtorch allocates the gradient of W and then adds it
// to the flat buffer. Here, the matrix product accumulates directly into the buffer.
struct Linear : torch::autograd::Function<Linear> {
  // `low_weight` and `low_bias` are weight and bias in the dtype of x, if such copies exist.
  static at::Tensor forward(AutogradContext *context, const at::Tensor &x, const at::Tensor &weight,
                            const MaybeTensor &bias, const MaybeTensor &low_weight, const MaybeTensor &low_bias,
                            bool sums_bias) {
    const auto cast = [&](const at::Tensor &parameter, const MaybeTensor &low) {
      return low && low->scalar_type() == x.scalar_type() ? *low : parameter.to(x.scalar_type());
    };
    const at::Tensor used = cast(weight, low_weight);
    context->save_for_backward({x, used});
    context->saved_data["weight"] = weight;
    context->saved_data["bias"] = sums_bias ? bias.value_or(at::Tensor()) : at::Tensor();
    return product(x, used, bias ? MaybeTensor(cast(*bias, low_bias)) : MaybeTensor());
  }

  static variable_list backward(AutogradContext *context, const variable_list &gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor weight = context->saved_data["weight"].toTensor();
    const at::Tensor bias = context->saved_data["bias"].toTensor();
    const at::Tensor x = saved[0].reshape({-1, saved[0].size(-1)});
    const at::Tensor gradient = gradients[0].reshape({-1, gradients[0].size(-1)});
    if (weight.requires_grad()) {
      add_product(weight.mutable_grad(), gradient.t(), x);
    }
    if (bias.defined() && bias.requires_grad()) {
      add_column_sums(bias.mutable_grad(), gradient);
    }
    at::Tensor below;
    if (context->needs_input_grad(0)) {
      below = product(gradient, saved[1].t(), std::nullopt).view_as(saved[0]);
    }
    return {below, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// Largest number of rows of a table whose gradient is a matrix product on a GPU: segments, and positions in a span.
constexpr int64_t kFewRows = 32;

// Embedding lookup. The embedding function of libtorch allocates a whole table for the gradient
// and then adds the table to the flat buffer.
struct Embedding : torch::autograd::Function<Embedding> {
  static at::Tensor forward(AutogradContext *context, const at::Tensor &table, const at::Tensor &ids) {
    context->save_for_backward({ids});
    context->saved_data["table"] = table;
    return at::embedding(table, ids);
  }

  static variable_list backward(AutogradContext *context, const variable_list &gradients) {
    const at::Tensor table = context->saved_data["table"].toTensor();
    const at::Tensor ids = context->get_saved_variables()[0].flatten();
    const at::Tensor rows = gradients[0].reshape({-1, table.size(1)});
    if (!ids.is_cpu() && table.size(0) <= kFewRows) {
      // A matrix product avoids contention of thousands of threads on a few rows.
      const at::Tensor kinds = at::arange(table.size(0), ids.options()).unsqueeze(1);
      table.mutable_grad().addmm_((ids.unsqueeze(0) == kinds).to(rows.scalar_type()), rows);
    } else {
      table.mutable_grad().index_add_(0, ids, rows);
    }
    return {at::Tensor(), at::Tensor()};
  }
};

// A Rust closure and the object that owns it.
struct Map : torch::CustomClassHolder {
  using Call = at::Tensor *(*)(void *owner, const at::Tensor *x, const at::Tensor *added, const char **said);
  Call call;
  void *owner;
  void (*forget)(void *owner);

  Map(Call call, void *owner, void (*forget)(void *)) : call(call), owner(owner), forget(forget) {}
  ~Map() override { forget(owner); }

  at::Tensor operator()(const at::Tensor &x, const MaybeTensor &added) const {
    const char *said = "";
    at::Tensor *made = call(owner, &x, added ? &*added : nullptr, &said);
    if (made == nullptr) {
      throw std::runtime_error(said);
    }
    at::Tensor result = std::move(*made);
    delete made;
    return result;
  }
};

// map(x) + added for a self-adjoint linear map. The backward pass applies the same map.
struct SelfAdjoint : torch::autograd::Function<SelfAdjoint> {
  static at::Tensor forward(AutogradContext *context, const at::Tensor &x, const MaybeTensor &added,
                            const c10::intrusive_ptr<Map> &map) {
    context->saved_data["map"] = c10::IValue::make_capsule(map);
    context->saved_data["adds"] = added.has_value();
    return (*map)(x, added);
  }

  static variable_list backward(AutogradContext *context, const variable_list &gradients) {
    const auto holder = context->saved_data["map"].toCapsule();
    const auto &map = static_cast<const Map &>(*holder);
    at::Tensor of_x, of_added;
    if (context->needs_input_grad(0)) {
      of_x = map(gradients[0], std::nullopt);
    }
    if (context->saved_data["adds"].toBool()) {
      of_added = gradients[0];
    }
    return {of_x, of_added, at::Tensor()};
  }
};

MaybeTensor some(const at::Tensor *tensor) { return tensor == nullptr ? MaybeTensor() : MaybeTensor(*tensor); }

// Returns the tensor that `make` creates. The caller owns it. On failure, returns null and passes the message to
// `failed`.
template <typename Make>
at::Tensor *made(Make make, Failed failed) {
  return caught([&] { return new at::Tensor(make()); }, static_cast<at::Tensor *>(nullptr), failed);
}

}  // namespace

// x W^T + b. `weight` and `bias` are parameters with gradients from lambert_set_gradient, and the backward pass adds to
// these gradients. `bias` may be null. `low_weight` and `low_bias` are weight and bias in the dtype of x, or null. If
// `sums_bias` is false, the backward pass adds nothing to the gradient of the bias. The
// result and the handling of a failure are as in `made`.
extern "C" at::Tensor *lambert_linear(const at::Tensor *x, const at::Tensor *weight, const at::Tensor *bias,
                                      const at::Tensor *low_weight, const at::Tensor *low_bias,
                                      bool sums_bias, Failed failed) {
  return made([&] { return Linear::apply(*x, *weight, some(bias), some(low_weight), some(low_bias), sums_bias); },
              failed);
}

// map(x) + added, or map(x) if `added` is null. The map owns `owner` and releases it with `forget`. The result and the
// handling of a failure are as in `made`.
extern "C" at::Tensor *lambert_self_adjoint(const at::Tensor *x, const at::Tensor *added, Map::Call call, void *owner,
                                             void (*forget)(void *), Failed failed) {
  return made([&] { return SelfAdjoint::apply(*x, some(added), c10::make_intrusive<Map>(call, owner, forget)); }, failed);
}

// Calls add_product. On failure, passes the message to `failed` and returns 1.
extern "C" int lambert_add_product(at::Tensor *sum, const at::Tensor *a, const at::Tensor *b, Failed failed) {
  return caught([&] { return add_product(*sum, *a, *b), 0; }, 1, failed);
}

// Runs the backward pass from `count` outputs with `gradients`. On failure, passes
// the message to `failed` and returns 1.
extern "C" int lambert_backward(const at::Tensor *const *outputs, const at::Tensor *const *gradients, size_t count,
                                Failed failed) {
  const auto all = [&](const at::Tensor *const *tensors) {
    variable_list list;
    for (size_t i = 0; i < count; ++i) list.push_back(*tensors[i]);
    return list;
  };
  return caught([&] { return torch::autograd::backward(all(outputs), all(gradients)), 0; }, 1, failed);
}

// Looks up rows of `table` by `ids`. `table` is a parameter with a gradient from lambert_set_gradient. The result and
// the handling of a failure are as in `made`.
extern "C" at::Tensor *lambert_embedding(const at::Tensor *table, const at::Tensor *ids, Failed failed) {
  return made([&] { return Embedding::apply(*table, *ids); }, failed);
}

// Build settings of the loaded libtorch, including its version; empty on failure.
extern "C" const char *lambert_torch_settings() {
  try {
    static const std::string settings = at::show_config();
    return settings.c_str();
  } catch (...) {
    return "";
  }
}
