// Test support for the meta device: shape functions, an observer that counts reads and copies, and an allocator that
// counts the bytes that a GPU would allocate. Meta tensors have shapes but no data, so reading a value is an error.
//
// libtorch has shape functions for these operations, but registers them only from Python.

#include <ATen/ATen.h>
#include <ATen/ExpandUtils.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
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
    const std::optional<at::Tensor> &weight, const std::optional<at::Tensor> &bias, std::array<bool, 3> required) {
  const auto gradient = [](bool is_required, const std::optional<at::Tensor> &tensor) {
    return is_required && tensor ? at::empty_like(*tensor) : at::Tensor();
  };
  return {gradient(required[0], input), gradient(required[1], weight), gradient(required[2], bias)};
}

at::Tensor index_select(const at::Tensor &self, int64_t dim, const at::Tensor &index) {
  std::vector<int64_t> sizes(self.sizes().begin(), self.sizes().end());
  sizes[at::maybe_wrap_dim(dim, self.dim())] = index.numel();
  return like(self, sizes);
}

at::Tensor logical_not(const at::Tensor &self) { return at::empty_like(self, self.options().dtype(at::kBool)); }

at::Tensor where_self(const at::Tensor &condition, const at::Tensor &self, const at::Tensor &other) {
  const auto sizes = at::infer_size(at::infer_size(condition.sizes(), self.sizes()), other.sizes());
  return at::empty(sizes, self.options().dtype(at::result_type(self, other)));
}

at::Tensor &where_out(const at::Tensor &condition, const at::Tensor &self, const at::Tensor &other, at::Tensor &out) {
  out.resize_(where_self(condition, self, other).sizes());
  return out;
}

// x W^T with a 16-bit x and an f32 result. As on CUDA, the product accumulates directly in `out`.
at::Tensor &addmm_out(const at::Tensor &, const at::Tensor &, const at::Tensor &, at::ScalarType, const at::Scalar &,
                      const at::Scalar &, at::Tensor &out) {
  return out;
}

// Memory-efficient attention, with the outputs of the CUDA kernels of libtorch
// (aten/src/ATen/native/transformers/cuda). The outputs are the result in the layout [batch, sequence, heads,
// head_size], and the logsumexp of each row of attention weights.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> fused(const at::Tensor &query, const at::Tensor &,
                                                                 const at::Tensor &, const std::optional<at::Tensor> &,
                                                                 bool computes_logsumexp, double, bool,
                                                                 std::optional<double>) {
  const int64_t rows = query.size(0), heads = query.size(1), width = query.size(2), head = query.size(3);
  const auto of = query.options();
  return {at::empty({rows, width, heads, head}, of).transpose(1, 2),
          at::empty({rows, heads, computes_logsumexp ? (width + 31) / 32 * 32 : 0}, of.dtype(at::kFloat)),
          at::empty({}, of.dtype(at::kLong)), at::empty({}, of.dtype(at::kLong))};
}

// Backward pass of memory-efficient attention. It accumulates the query gradients in f32, padded to
// multiples of 128 rows and 32 head elements.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> fused_backward(
    const at::Tensor &gradient, const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
    const at::Tensor &, const at::Tensor &, const at::Tensor &, const at::Tensor &, const at::Tensor &, double,
    std::array<bool, 4>, bool, std::optional<double>) {
  const int64_t rows = query.size(0), heads = query.size(1), width = query.size(2), head = query.size(3);
  const at::Tensor contiguous_gradient = gradient.transpose(1, 2).contiguous();
  const auto like_transposed = [&](const at::Tensor &of) {
    return at::empty({rows, of.size(2), heads, of.size(3)}, of.options()).transpose(1, 2);
  };
  auto gradients = std::make_tuple(like_transposed(query), like_transposed(key), like_transposed(value), at::Tensor());
  const at::Tensor sums =
      at::empty({rows, heads, (width + 127) / 128 * 128, (head + 31) / 32 * 32}, query.options().dtype(at::kFloat));
  return gradients;
}

// Flash attention of samples of different lengths, with the outputs of the CUDA kernels of libtorch: the result and the
// logsumexp of each row of attention weights.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> flash(
    const at::Tensor &query, const at::Tensor &key, const at::Tensor &value, const std::optional<at::Tensor> &bounds,
    const std::optional<at::Tensor> &key_bounds, c10::SymInt longest_query, c10::SymInt longest_key, double, bool causal, bool,
    std::optional<double>, std::optional<c10::SymInt> left, std::optional<c10::SymInt> right, const std::optional<at::Tensor> &,
    const std::optional<at::Tensor> &) {
  const auto is_bf16 = [](const at::Tensor &tensor) { return tensor.scalar_type() == at::kBFloat16 && tensor.stride(-1) == 1; };
  TORCH_CHECK(query.dim() == 3 && query.sizes() == key.sizes() && query.sizes() == value.sizes(), "flash attention: shapes");
  TORCH_CHECK(is_bf16(query) && is_bf16(key) && is_bf16(value), "flash attention: not bf16, or not contiguous");
  TORCH_CHECK(bounds && bounds->scalar_type() == at::kInt && bounds->dim() == 1 && bounds->size(0) > 1, "flash attention: bounds");
  TORCH_CHECK(key_bounds && key_bounds->is_same(*bounds), "flash attention: bounds of keys");
  // A length that is too short leaves rows out.
  const int64_t samples = bounds->size(0) - 1, longest = longest_query.expect_int();
  TORCH_CHECK(longest_key == longest_query && longest * samples >= query.size(0) && longest <= query.size(0),
              "flash attention: the longest sample has ", longest, " of ", query.size(0), " tokens of ", samples, " samples");
  TORCH_CHECK(!causal && left == right, "flash attention: window");
  const auto of = query.options();
  return {at::empty(query.sizes(), of), at::empty({query.size(1), query.size(0)}, of.dtype(at::kFloat)),
          at::empty({2}, of.dtype(at::kUInt64)), at::empty({}, of.dtype(at::kUInt64)), at::empty({0}, of)};
}

// Backward pass of flash attention. It accumulates the query gradients in f32, with 128 additional rows for each sample.
std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_backward(
    const at::Tensor &gradient, const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
    const at::Tensor &output, const at::Tensor &logsumexp, const at::Tensor &bounds, const at::Tensor &, c10::SymInt, c10::SymInt, double, bool,
    const at::Tensor &, const at::Tensor &, std::optional<double>, std::optional<c10::SymInt>, std::optional<c10::SymInt>) {
  TORCH_CHECK(gradient.sizes() == query.sizes() && gradient.scalar_type() == at::kBFloat16, "flash attention: gradient");
  TORCH_CHECK(output.sizes() == query.sizes() && output.scalar_type() == at::kBFloat16, "flash attention: output");
  TORCH_CHECK(logsumexp.size(0) == query.size(1) && logsumexp.size(1) == query.size(0), "flash attention: logsumexp");
  const int64_t rows = query.size(0) + 128 * (bounds.size(0) - 1);
  const at::Tensor sums = at::empty({rows, query.size(1), (query.size(2) + 31) / 32 * 32}, query.options().dtype(at::kFloat));
  const auto contiguous = [](const at::Tensor &of) { return at::empty(of.sizes(), of.options()); };
  return {contiguous(query), contiguous(key), contiguous(value)};
}

thread_local int64_t reads, copies, mask_copies, operations;
thread_local at::CallbackHandle observer;

// On meta tensors, libtorch would decompose attention. On a GPU, libtorch uses the fused kernel, so
// this function uses the fused kernel too.
at::Tensor attention(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value,
                     const std::optional<at::Tensor> &mask, double dropped, bool causal, std::optional<double> scale,
                     bool) {
  std::optional<at::Tensor> bias;
  if (mask) {
    // CUDA converts a boolean mask to an additive mask, and copies a mask with unaligned rows.
    const int64_t width = key.size(2), padded = (width + 15) / 16 * 16;
    const at::IntArrayRef strides = mask->strides();
    const bool is_aligned =
        std::all_of(strides.begin(), strides.end() - 1, [](int64_t stride) { return stride % 16 == 0; }) && strides.back() == 1;
    const bool copies = mask->scalar_type() == at::kBool || !is_aligned;
    mask_copies += copies;
    const at::Tensor added =
        copies ? at::empty({mask->size(0), 1, mask->size(2), padded}, query.options()) : *mask;
    bias = added.narrow(3, 0, width).expand({query.size(0), query.size(1), query.size(2), width});
  }
  const bool computes_logsumexp = at::GradMode::is_enabled() && query.requires_grad();
  return std::get<0>(
      at::_scaled_dot_product_efficient_attention(query, key, value, bias, computes_logsumexp, dropped, causal, scale));
}

// Current and peak bytes of the meta tensors of this thread.
thread_local int64_t live, peak;

// Counts allocations without allocating memory. The context pointer stores the size.
struct CountingAllocator final : c10::Allocator {
  static void free_bytes(void *bytes) {
    live -= *static_cast<int64_t *>(bytes);
    delete static_cast<int64_t *>(bytes);
  }

  c10::DataPtr allocate(size_t bytes) override {
    live += static_cast<int64_t>(bytes);
    peak = std::max(peak, live);
    return {nullptr, new int64_t(static_cast<int64_t>(bytes)), &free_bytes, c10::Device(c10::DeviceType::Meta)};
  }

  void copy_data(void *, const void *, size_t) const override {}
};

CountingAllocator counting_allocator;

// Registers the allocator before main. at::empty looks up the allocator on each call.
const bool is_registered = [] {
  c10::SetAllocator(c10::DeviceType::Meta, &counting_allocator, 1);
  return true;
}();

std::unique_ptr<at::ObserverContext> observe(const at::RecordFunction &function) {
  const char *name = function.name();
  operations++;
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
  library.impl("where.self", where_self);
  library.impl("where.self_out", where_out);
  library.impl("addmm.dtype_out", addmm_out);
  library.impl("_scaled_dot_product_efficient_attention", fused);
  library.impl("_scaled_dot_product_efficient_attention_backward", fused_backward);
  library.impl("_flash_attention_forward", flash);
  library.impl("_flash_attention_backward", flash_backward);
}

TORCH_LIBRARY_IMPL(aten, AutogradMeta, library) { library.impl("scaled_dot_product_attention", attention); }

// Returns a meta tensor with the shape and dtype of `host`, or null if libtorch fails.
extern "C" at::Tensor *lambert_to_meta(const at::Tensor *host) {
  try {
    return new at::Tensor(host->to(at::kMeta));
  } catch (...) {
    return nullptr;
  }
}

// Throws an exception inside `caught`, which passes the message to `failed`. Returns -1, the result of `caught`.
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

// Starts to count, on this thread, the scalar reads from tensors, the copies between devices, the copies of attention masks, and
// all operations.
extern "C" void lambert_start_counting() {
  reads = copies = mask_copies = operations = 0;
  observer = at::addThreadLocalCallback(at::RecordFunctionCallback(observe).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

// Stops counting and writes the four counts to `counts`.
extern "C" void lambert_stop_counting(int64_t *counts) {
  at::removeCallback(observer);
  std::copy_n(std::array{reads, copies, mask_copies, operations}.begin(), 4, counts);
}

// Returns the current bytes of this thread's meta tensors and resets the peak.
extern "C" int64_t lambert_live() {
  peak = live;
  return live;
}

// Returns the peak bytes since the last reset.
extern "C" int64_t lambert_peak() { return peak; }
