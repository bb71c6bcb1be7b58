// Attention of an unpadded micro-batch.

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "caught.h"

namespace {

// Attention of one sample on the CPU, [tokens, heads, head size].
at::Tensor of_sample(const at::Tensor &query, const at::Tensor &key, const at::Tensor &value, int64_t reach, double dropped) {
  const auto by_head = [](const at::Tensor &tensor) { return tensor.transpose(0, 1).unsqueeze(0); };
  std::optional<at::Tensor> mask;
  if (reach >= 0) {
    const int64_t length = query.size(0);
    mask = at::ones({length, length}, query.options().dtype(at::kBool)).tril(reach).triu(-reach);
  }
  const at::Tensor mixed = at::scaled_dot_product_attention(by_head(query), by_head(key), by_head(value), mask, dropped);
  return mixed.squeeze(0).transpose(0, 1);
}

}  // namespace

// Attention within each of `count` samples. `query`, `key` and `value` are [tokens, heads, head size]. `bounds` has the
// index of the first token of each sample, then the number of tokens, i32 [count + 1], on the device. `lengths` has the
// number of tokens of each sample. A token attends to tokens at a distance of at most `reach`; -1: to all. The result has
// the shape of `query`; null on failure, whose message goes to `failed`.
extern "C" at::Tensor *lambert_unpadded_attention(const at::Tensor *query, const at::Tensor *key, const at::Tensor *value,
                                                  const at::Tensor *bounds, const int64_t *lengths, size_t count,
                                                  int64_t reach, double dropped, Failed failed) {
  const auto attention = [&] {
    if (!query->is_cpu()) {
      const auto window = reach < 0 ? std::nullopt : std::make_optional(reach);
      const int64_t longest = *std::max_element(lengths, lengths + count);
      return std::get<0>(at::_flash_attention_forward(*query, *key, *value, *bounds, *bounds, longest, longest, dropped,
                                                      /*is_causal=*/false, /*return_debug_mask=*/false,
                                                      /*scale=*/std::nullopt, window, window));
    }
    std::vector<at::Tensor> samples;
    int64_t start = 0;
    for (size_t i = 0; i < count; start += lengths[i++]) {
      const auto part = [&](const at::Tensor &tensor) { return tensor.narrow(0, start, lengths[i]); };
      samples.push_back(of_sample(part(*query), part(*key), part(*value), reach, dropped));
    }
    return at::cat(samples);
  };
  return caught([&] { return new at::Tensor(attention()); }, static_cast<at::Tensor *>(nullptr), failed);
}
