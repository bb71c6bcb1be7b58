// Differentiable operation that is implemented in Rust.

#include <torch/csrc/autograd/custom_function.h>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <stdexcept>

#include "caught.h"

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using MaybeTensor = std::optional<at::Tensor>;

// Maximum number of tensors that a call returns.
constexpr size_t kMost = 4;

// A Rust object with its functions. A function reads `count` tensors, writes new tensors to `made`, and returns their number. On
// failure, it returns -1 and sets `said` to the message.
struct Operation : torch::CustomClassHolder {
  using Call = int (*)(void *owner, const at::Tensor *const *tensors, size_t count, at::Tensor **made, const char **said);
  Call forward, backward;
  void *owner;
  void (*forget)(void *owner);

  Operation(Call forward, Call backward, void *owner, void (*forget)(void *))
      : forward(forward), backward(backward), owner(owner), forget(forget) {}
  ~Operation() override { forget(owner); }

  variable_list run(Call call, const variable_list &tensors) const {
    std::vector<const at::Tensor *> pointers;
    for (const at::Tensor &tensor : tensors) {
      pointers.push_back(&tensor);
    }
    at::Tensor *made[kMost];
    const char *said = "";
    const int count = call(owner, pointers.data(), pointers.size(), made, &said);
    if (count < 0) {
      throw std::runtime_error(said);
    }
    variable_list results;
    for (int i = 0; i < count; i++) {
      results.push_back(std::move(*made[i]));
      delete made[i];
    }
    return results;
  }
};

struct Apply : torch::autograd::Function<Apply> {
  // The first tensor of the Rust function is the result. The others are saved for the backward pass.
  static at::Tensor forward(AutogradContext *context, const at::Tensor &first, const MaybeTensor &second,
                            const MaybeTensor &third, const MaybeTensor &fourth, const c10::intrusive_ptr<Operation> &operation) {
    variable_list inputs{first};
    for (const MaybeTensor *input : {&second, &third, &fourth}) {
      if (*input) {
        inputs.push_back(**input);
      }
    }
    variable_list made = operation->run(operation->forward, inputs);
    TORCH_CHECK(!made.empty(), "the operation has no result");
    context->saved_data["operation"] = c10::IValue::make_capsule(operation);
    context->save_for_backward(variable_list(made.begin() + 1, made.end()));
    return made[0];
  }

  static variable_list backward(AutogradContext *context, const variable_list &gradients) {
    const auto holder = context->saved_data["operation"].toCapsule();
    const auto &operation = static_cast<const Operation &>(*holder);
    variable_list tensors{gradients[0]};
    for (const at::Tensor &saved : context->get_saved_variables()) {
      tensors.push_back(saved);
    }
    variable_list results = operation.run(operation.backward, tensors);
    // One gradient for each input, and one for the operation.
    results.resize(5);
    return results;
  }
};

}  // namespace

// Applies an operation to `count` tensors, one to four. The operation owns `owner` and releases it with `forget`. Returns a new
// tensor, or null on failure, whose message goes to `failed`.
extern "C" at::Tensor *lambert_apply(const at::Tensor *const *tensors, size_t count, Operation::Call forward,
                                     Operation::Call backward, void *owner, void (*forget)(void *), Failed failed) {
  const auto apply = [&] {
    const auto operation = c10::make_intrusive<Operation>(forward, backward, owner, forget);
    const auto input = [&](size_t i) { return i < count ? MaybeTensor(*tensors[i]) : MaybeTensor(); };
    return Apply::apply(*tensors[0], input(1), input(2), input(3), operation);
  };
  return caught([&] { return new at::Tensor(apply()); }, static_cast<at::Tensor *>(nullptr), failed);
}
