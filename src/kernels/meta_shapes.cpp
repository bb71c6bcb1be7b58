// For tests: tensors on the meta device, which have shapes and no data, so that reading one is an error; and an observer of
// what passes between it and main memory.
//
// libtorch's own shape functions of these operations are registered from Python.

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <cstring>

namespace {

at::Tensor like(const at::Tensor &of, at::IntArrayRef sizes) { return at::empty(sizes, of.options()); }

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm(const at::Tensor &input, c10::SymIntArrayRef shape,
                                                          const std::optional<at::Tensor> &,
                                                          const std::optional<at::Tensor> &, double) {
  std::vector<int64_t> rows(input.sizes().begin(), input.sizes().end());
  for (size_t i = rows.size() - shape.size(); i < rows.size(); i++) {
    rows[i] = 1;
  }
  return {at::empty_like(input), like(input, rows).to(at::kFloat), like(input, rows).to(at::kFloat)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_norm_backward(
    const at::Tensor &, const at::Tensor &input, c10::SymIntArrayRef, const at::Tensor &, const at::Tensor &,
    const std::optional<at::Tensor> &weight, const std::optional<at::Tensor> &bias, std::array<bool, 3> wanted) {
  const auto of = [](bool is_wanted, const std::optional<at::Tensor> &tensor) {
    return is_wanted && tensor ? at::empty_like(*tensor) : at::Tensor();
  };
  return {of(wanted[0], input), of(wanted[1], weight), of(wanted[2], bias)};
}

at::Tensor index_select(const at::Tensor &self, int64_t dim, const at::Tensor &index) {
  std::vector<int64_t> sizes(self.sizes().begin(), self.sizes().end());
  sizes[at::maybe_wrap_dim(dim, self.dim())] = index.numel();
  return like(self, sizes);
}

at::Tensor logical_not(const at::Tensor &self) { return at::empty_like(self, self.options().dtype(at::kBool)); }

at::Tensor chosen(const at::Tensor &condition, const at::Tensor &self, const at::Tensor &other) {
  const auto sizes = at::infer_size(at::infer_size(condition.sizes(), self.sizes()), other.sizes());
  return at::empty(sizes, self.options().dtype(at::result_type(self, other)));
}

at::Tensor &chosen_out(const at::Tensor &condition, const at::Tensor &self, const at::Tensor &other, at::Tensor &out) {
  out.resize_(chosen(condition, self, other).sizes());
  return out;
}

thread_local int64_t reads, copies;
thread_local at::CallbackHandle observer;

std::unique_ptr<at::ObserverContext> observe(const at::RecordFunction &function) {
  const char *name = function.name();
  if (std::strcmp(name, "aten::_local_scalar_dense") == 0) {
    reads++;
  }
  if (std::strcmp(name, "aten::copy_") == 0) {
    const auto inputs = function.inputs();
    if (inputs[0].toTensor().device() != inputs[1].toTensor().device()) {
      copies++;
    }
  }
  return nullptr;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("native_layer_norm", layer_norm);
  library.impl("native_layer_norm_backward", layer_norm_backward);
  library.impl("index_select", index_select);
  library.impl("logical_not", logical_not);
  library.impl("where.self", chosen);
  library.impl("where.self_out", chosen_out);
}

// A tensor of the shape and kind of `host`, and of none of its values, on the meta device; nothing where libtorch fails.
extern "C" at::Tensor *lambert_to_meta(const at::Tensor *host) {
  try {
    return new at::Tensor(host->to(at::kMeta));
  } catch (const std::exception &) {
    return nullptr;
  }
}

// Begins to count numbers that this thread reads from tensors, and its copies between devices.
extern "C" void lambert_observe() {
  reads = copies = 0;
  observer = at::addThreadLocalCallback(at::RecordFunctionCallback(observe).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

// Ends it.
extern "C" void lambert_observed(int64_t *reads_then, int64_t *copies_then) {
  at::removeCallback(observer);
  *reads_then = reads;
  *copies_then = copies;
}
