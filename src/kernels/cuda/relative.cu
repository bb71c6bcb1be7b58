// Attention weights with relative positions, forward and backward. Compiled together with kernels.cu and norm.cu.
//
// The scores of contents are [batch, heads, length, length]. Those of contents with positions, in both directions, are
// [heads, batch, length, 2 * length - 1]: for a token, one score for each distance, in the order of the distance. One warp computes
// one row of at most 1024 elements.

// Number of groups of four elements that a thread holds in registers.
#define ROW_FOURS 8u

// Places of a row: query i of a head of a sample.
struct RelativeRow {
  // First element of the row in the scores of contents.
  u64 contents;
  // Element of the query for key 0 in the scores of the query with positions. Keys follow each other.
  u64 query;
  // Element of key 0 for the query in the scores of keys with positions, and the distance to the element of the next key.
  u64 key, key_step;
  // First element of the query's row in both, and the number of elements before those of the query.
  u64 distances;
  u32 before;
};

__device__ inline RelativeRow relative_row(u64 row, u32 batch, u32 heads, u32 length) {
  const u32 i = static_cast<u32>(row % length);
  const u64 sample = row / length / heads, head = row / length % heads;
  const u64 distances = 2ull * length - 1, tokens = (head * batch + sample) * length;
  const u32 before = length - 1 - i;
  return {row * length, (tokens + i) * distances + before, tokens * distances + length - 1 + i, distances - 1,
          (tokens + i) * distances, before};
}

__device__ inline float warp_max(float value) {
  for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, value, mask);
    value = other > value ? other : value;
  }
  return value;
}

// weights = softmax of the sum of the three scores; out = dropout(weights). `mask` [batch, length] has 0 at keys without
// attention, or is null. Without dropout, `out` is null.
template <typename T>
__device__ inline void relative_softmax(T *out, T *weights, const T *contents, const T *queries, const T *keys,
                                        const unsigned char *mask, const i64 *samples, const i64 *places, u64 key, u32 threshold,
                                        float scale, u32 batch, u32 heads, u32 length) {
  const u64 row = (static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;
  if (row >= static_cast<u64>(batch) * heads * length) {
    return;
  }
  const u32 lane = threadIdx.x % WARP;
  const RelativeRow at = relative_row(row, batch, heads, length);
  const unsigned char *kept = mask == nullptr ? nullptr : mask + row / length / heads * length;
  const float lowest = float_from_bits(0xff800000u);
  float values[ROW_FOURS][4], largest = lowest;
#pragma unroll
  for (u32 k = 0; k < ROW_FOURS; k++) {
    for (u32 l = 0; l < 4; l++) {
      const u32 j = 4 * (lane + WARP * k) + l;
      values[k][l] = lowest;
      if (j < length && (kept == nullptr || kept[j] != 0)) {
        values[k][l] = widen(contents[at.contents + j]) + widen(queries[at.query + j]) + widen(keys[at.key + j * at.key_step]);
      }
      largest = values[k][l] > largest ? values[k][l] : largest;
    }
  }
  largest = warp_max(largest);
  float sum = 0.0f;
#pragma unroll
  for (u32 k = 0; k < ROW_FOURS; k++) {
    for (u32 l = 0; l < 4; l++) {
      values[k][l] = expf(values[k][l] - largest);
      sum += values[k][l];
    }
  }
  const float inverse = 1.0f / warp_sum(sum);
  const RowDropout dropout = row_dropout(key, samples, places, threshold, scale, row, heads, length);
#pragma unroll
  for (u32 k = 0; k < ROW_FOURS; k++) {
    const u32 word = lane + WARP * k;
    const u64 random = dropout.random(word);
    for (u32 l = 0; l < 4; l++) {
      const u32 j = 4 * word + l;
      if (j < length) {
        T weight;
        narrow(values[k][l] * inverse, &weight);
        weights[at.contents + j] = weight;
        if (out != nullptr) {
          narrow(dropped(weight, random, l, threshold, scale), &out[at.contents + j]);
        }
      }
    }
  }
}

// Gradients of the three scores. `gradient` is that of the result.
template <typename T>
__device__ inline void relative_softmax_backward(T *of_contents, T *of_queries, T *of_keys, const T *gradient, const T *weights,
                                                 const i64 *samples, const i64 *places, u64 key, u32 threshold, float scale,
                                                 u32 batch, u32 heads, u32 length) {
  const u64 row = (static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;
  if (row >= static_cast<u64>(batch) * heads * length) {
    return;
  }
  const u32 lane = threadIdx.x % WARP;
  const RelativeRow at = relative_row(row, batch, heads, length);
  const RowDropout dropout = row_dropout(key, samples, places, threshold, scale, row, heads, length);
  float values[ROW_FOURS][4], shares[ROW_FOURS][4], sum = 0.0f;
#pragma unroll
  for (u32 k = 0; k < ROW_FOURS; k++) {
    const u32 word = lane + WARP * k;
    const u64 random = dropout.random(word);
    for (u32 l = 0; l < 4; l++) {
      const u32 j = 4 * word + l;
      values[k][l] = shares[k][l] = 0.0f;
      if (j < length) {
        shares[k][l] = widen(weights[at.contents + j]);
        values[k][l] = dropped(gradient[at.contents + j], random, l, threshold, scale);
      }
      sum += values[k][l] * shares[k][l];
    }
  }
  sum = warp_sum(sum);
#pragma unroll
  for (u32 k = 0; k < ROW_FOURS; k++) {
    for (u32 l = 0; l < 4; l++) {
      const u32 j = 4 * (lane + WARP * k) + l;
      if (j < length) {
        T score;
        narrow(shares[k][l] * (values[k][l] - sum), &score);
        of_contents[at.contents + j] = score;
        of_queries[at.query + j] = score;
        of_keys[at.key + j * at.key_step] = score;
      }
    }
  }
  // The other distances of the query, and those of the key with its index, are not used.
  T zero;
  narrow(0.0f, &zero);
  for (u32 i = lane; i < length - 1; i += WARP) {
    const u64 unused = at.distances + (i < at.before ? i : i + length);
    of_queries[unused] = zero;
    of_keys[unused] = zero;
  }
}

// With two blocks on each multiprocessor, a thread has at most 128 registers.
#define RELATIVE_SOFTMAX(name, T)                                                                                            \
  extern "C" __global__ void __launch_bounds__(THREADS, 2) lambert_relative_softmax_##name(                                                                \
      T *out, T *weights, const T *contents, const T *queries, const T *keys, const unsigned char *mask, const i64 *samples, \
      const i64 *places, u64 key, u32 threshold, float scale, u32 batch, u32 heads, u32 length) {                            \
    relative_softmax(out, weights, contents, queries, keys, mask, samples, places, key, threshold, scale, batch, heads,      \
                     length);                                                                                                \
  }                                                                                                                          \
  extern "C" __global__ void __launch_bounds__(THREADS, 2) lambert_relative_softmax_backward_##name(                                                       \
      T *of_contents, T *of_queries, T *of_keys, const T *gradient, const T *weights, const i64 *samples, const i64 *places, \
      u64 key, u32 threshold, float scale, u32 batch, u32 heads, u32 length) {                                               \
    relative_softmax_backward(of_contents, of_queries, of_keys, gradient, weights, samples, places, key, threshold, scale,   \
                              batch, heads, length);                                                                         \
  }

RELATIVE_SOFTMAX(f32, float)
RELATIVE_SOFTMAX(bf16, bf16)
