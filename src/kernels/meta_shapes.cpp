// For tests: tensors on the meta device, which have shapes and no data, so that reading one is an error; an observer of
// what passes between it and main memory; and an allocator that counts the bytes that a card would have to hold.
//
// libtorch's own shape functions of these operations are registered from Python.

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "../torch/caught.h"

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

// x W^T into f32, as CUDA has it for x of 16 bits: straight into the sum.
at::Tensor &addmm_out(const at::Tensor &, const at::Tensor &, const at::Tensor &, at::ScalarType, const at::Scalar &,
                      const at::Scalar &, at::Tensor &out) {
  return out;
}

// Fused attention as libtorch's CUDA kernels have it (aten/src/ATen/native/transformers/cuda): kept are the result, laid out
// as [rows, width, heads, head], and a logarithm of a sum for each row of weights.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> fused(const at::Tensor &query, const at::Tensor &,
                                                                 const at::Tensor &, const std::optional<at::Tensor> &,
                                                                 bool keeps, double, bool, std::optional<double>) {
  const int64_t rows = query.size(0), heads = query.size(1), width = query.size(2), head = query.size(3);
  const auto of = query.options();
  return {at::empty({rows, width, heads, head}, of).transpose(1, 2),
          at::empty({rows, heads, keeps ? (width + 31) / 32 * 32 : 0}, of.dtype(at::kFloat)),
          at::empty({}, of.dtype(at::kLong)), at::empty({}, of.dtype(at::kLong))};
}

// Its way back sums the queries' gradients in f32, in blocks of up to 128 rows of weights and heads of whole 32 numbers.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> fused_backward(
    const at::Tensor &gradient, const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
    const at::Tensor &, const at::Tensor &, const at::Tensor &, const at::Tensor &, const at::Tensor &, double,
    std::array<bool, 4>, bool, std::optional<double>) {
  const int64_t rows = query.size(0), heads = query.size(1), width = query.size(2), head = query.size(3);
  const at::Tensor laid_out = gradient.transpose(1, 2).contiguous();
  const auto like_laid_out = [&](const at::Tensor &of) {
    return at::empty({rows, of.size(2), heads, of.size(3)}, of.options()).transpose(1, 2);
  };
  auto gradients = std::make_tuple(like_laid_out(query), like_laid_out(key), like_laid_out(value), at::Tensor());
  const at::Tensor sums =
      at::empty({rows, heads, (width + 127) / 128 * 128, (head + 31) / 32 * 32}, query.options().dtype(at::kFloat));
  return gradients;
}

// On meta tensors libtorch would take attention apart into plain operations; a card does not.
at::Tensor attention(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
                     const std::optional<at::Tensor> &mask, double dropped, bool causal, std::optional<double> scale,
                     bool) {
  std::optional<at::Tensor> bias;
  if (mask) {
    // Added instead of chosen, its rows of whole 16 numbers, and one for all heads and queries.
    const int64_t width = key.size(2);
    const at::Tensor added = at::empty({query.size(0), 1, 1, (width + 15) / 16 * 16}, query.options());
    bias = added.narrow(3, 0, width).expand({query.size(0), query.size(1), query.size(2), width});
  }
  const bool keeps = at::GradMode::is_enabled() && query.requires_grad();
  return std::get<0>(
      at::_scaled_dot_product_efficient_attention(query, key, value, bias, keeps, dropped, causal, scale));
}

// Bytes of this thread's meta tensors, and the most they have been.
thread_local int64_t live, peak;

// A tensor's memory: a number of bytes, and nothing behind it.
struct Counting final : c10::Allocator {
  static void forget(void *bytes) {
    live -= *static_cast<int64_t *>(bytes);
    delete static_cast<int64_t *>(bytes);
  }

  c10::DataPtr allocate(size_t bytes) override {
    live += static_cast<int64_t>(bytes);
    peak = std::max(peak, live);
    return {nullptr, new int64_t(static_cast<int64_t>(bytes)), &forget, c10::Device(c10::DeviceType::Meta)};
  }

  void copy_data(void *, const void *, size_t) const override {}
};

Counting counting;

// Before main: at::empty asks for the meta device's allocator each time.
const bool counted = [] {
  c10::SetAllocator(c10::DeviceType::Meta, &counting, 1);
  return true;
}();

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
  library.impl("addmm.dtype_out", addmm_out);
  library.impl("_scaled_dot_product_efficient_attention", fused);
  library.impl("_scaled_dot_product_efficient_attention_backward", fused_backward);
}

TORCH_LIBRARY_IMPL(aten, AutogradMeta, library) { library.impl("scaled_dot_product_attention", attention); }

// A tensor of the shape and kind of `host`, and of none of its values, on the meta device; nothing where libtorch fails.
extern "C" at::Tensor *lambert_to_meta(const at::Tensor *host) {
  try {
    return new at::Tensor(host->to(at::kMeta));
  } catch (...) {
    return nullptr;
  }
}

// Throws, and returns what becomes of that: -1, and `failed` is told why.
extern "C" int lambert_throw(bool is_standard, Failed failed) {
  return caught(
      [=]() -> int {
        if (is_standard) {
          throw std::runtime_error("of the standard library");
        }
        throw 7;
      },
      -1, failed);
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

// Bytes of this thread's meta tensors now; the peak begins anew with them.
extern "C" int64_t lambert_live() {
  peak = live;
  return live;
}

// The most bytes since then.
extern "C" int64_t lambert_peak() { return peak; }
