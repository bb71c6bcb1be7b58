// Layer normalization of dropout(x) + residual, forward and backward. Compiled together with kernels.cu.
//
// A row has at most 1024 elements, and their number is a multiple of four. One warp computes one row of the forward pass, and
// one block computes rows of the backward pass.

// Number of groups of four elements that a thread of the forward pass holds in registers.
#define FOURS 8u

// Sum of `value` over the threads of the warp. Every thread gets the result.
__device__ inline float warp_sum(float value) {
  for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, mask);
  }
  return value;
}

// Keyed dropout of one row. Without dropout, `threshold` is 0 and `scale` is 1.
struct RowDropout {
  u64 state;
  u32 threshold;
  float scale;

  // Random bits of the group of four elements `word`.
  __device__ inline u64 random(u32 word) const { return threshold == 0 ? 0 : mix(state + (word + 1ull) * STEP); }
};

__device__ inline RowDropout row_dropout(u64 key, const i64 *samples, const i64 *places, u32 threshold, float scale, u64 row,
                                         u32 heads, u32 positions) {
  return {threshold == 0 ? 0 : row_key(key, samples, places, row, heads, positions), threshold, scale};
}

// sum = dropout(x) + residual, rounded to T; out = layer norm of `sum`; statistics = mean and reciprocal standard deviation of
// each row.
template <typename T>
__device__ inline void residual_norm(T *out, T *sum, float *statistics, const T *x, const T *residual, const float *weight,
                                     const float *bias, const i64 *samples, const i64 *places, u64 key, u32 threshold,
                                     float scale, float eps, u64 rows, u32 positions, u32 width) {
  const u64 row = (static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;
  if (row >= rows) {
    return;
  }
  const u32 lane = threadIdx.x % WARP;
  const RowDropout dropout = row_dropout(key, samples, places, threshold, scale, row, 1, positions);
  const Four<T> *from = reinterpret_cast<const Four<T> *>(x + row * width);
  const Four<T> *added = reinterpret_cast<const Four<T> *>(residual + row * width);
  float values[FOURS][4], total = 0.0f;
#pragma unroll
  for (u32 i = 0; i < FOURS; i++) {
    const u32 word = lane + WARP * i;
    if (4 * word < width) {
      const u64 random = dropout.random(word);
      const Four<T> of_x = from[word], of_added = added[word];
      Four<T> rounded;
      for (u32 j = 0; j < 4; j++) {
        const float kept = dropped(of_x.values[j], random, j, threshold, scale);
        narrow(kept + widen(of_added.values[j]), &rounded.values[j]);
        values[i][j] = widen(rounded.values[j]);
        total += values[i][j];
      }
      reinterpret_cast<Four<T> *>(sum + row * width)[word] = rounded;
    }
  }
  const float mean = warp_sum(total) / static_cast<float>(width);
  float squares = 0.0f;
#pragma unroll
  for (u32 i = 0; i < FOURS; i++) {
    if (4 * (lane + WARP * i) < width) {
      for (u32 j = 0; j < 4; j++) {
        squares += (values[i][j] - mean) * (values[i][j] - mean);
      }
    }
  }
  const float inverse = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(width) + eps);
#pragma unroll
  for (u32 i = 0; i < FOURS; i++) {
    const u32 word = lane + WARP * i;
    if (4 * word < width) {
      const Four<float> factor = reinterpret_cast<const Four<float> *>(weight)[word];
      const Four<float> offset = reinterpret_cast<const Four<float> *>(bias)[word];
      Four<T> normalized;
      for (u32 j = 0; j < 4; j++) {
        narrow((values[i][j] - mean) * inverse * factor.values[j] + offset.values[j], &normalized.values[j]);
      }
      reinterpret_cast<Four<T> *>(out + row * width)[word] = normalized;
    }
  }
  if (lane == 0) {
    statistics[2 * row] = mean;
    statistics[2 * row + 1] = inverse;
  }
}

// Number of rows that a block of the backward pass computes at a time.
#define ROWS 4u

// Backward pass. `of_sum` gets the gradient of `sum`, which is also that of the residual. If `of_x` is not null, it gets the
// gradient of x. `partials` [blocks, 3, width] gets the sums over the rows of each block: the gradients of weight and bias,
// and the column sums of the gradient of x. A thread computes four columns of each row.
template <typename T>
__device__ inline void residual_norm_backward(T *of_x, T *of_sum, float *partials, const T *gradient, const T *sum,
                                              const float *statistics, const float *weight, const i64 *samples,
                                              const i64 *places, u64 key, u32 threshold, float scale, u64 rows, u32 positions,
                                              u32 width, u32 blocks) {
  __shared__ float warp_totals[THREADS / WARP][2 * ROWS];
  __shared__ u64 states[ROWS];
  const u32 word = threadIdx.x;
  const bool has_columns = 4 * word < width;
  Four<float> factor = {};
  if (has_columns) {
    factor = reinterpret_cast<const Four<float> *>(weight)[word];
  }
  float of_weight[4] = {}, of_bias[4] = {}, columns[4] = {};
  for (u64 first = static_cast<u64>(blockIdx.x) * ROWS; first < rows; first += static_cast<u64>(blocks) * ROWS) {
    if (threadIdx.x < ROWS && first + threadIdx.x < rows && threshold != 0) {
      states[threadIdx.x] = row_key(key, samples, places, first + threadIdx.x, 1, positions);
    }
    float normalized[ROWS][4], scaled[ROWS][4], totals[2 * ROWS];
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
      const u64 row = first + r;
      totals[2 * r] = totals[2 * r + 1] = 0.0f;
      if (has_columns && row < rows) {
        const Four<T> of_row = reinterpret_cast<const Four<T> *>(gradient + row * width)[word];
        const Four<T> of_sums = reinterpret_cast<const Four<T> *>(sum + row * width)[word];
        const float mean = statistics[2 * row], inverse = statistics[2 * row + 1];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
          const float own = widen(of_row.values[j]);
          normalized[r][j] = (widen(of_sums.values[j]) - mean) * inverse;
          scaled[r][j] = own * factor.values[j];
          totals[2 * r] += scaled[r][j];
          totals[2 * r + 1] += scaled[r][j] * normalized[r][j];
          of_weight[j] += own * normalized[r][j];
          of_bias[j] += own;
        }
      }
    }
#pragma unroll
    for (u32 k = 0; k < 2 * ROWS; k++) {
      totals[k] = warp_sum(totals[k]);
      if (threadIdx.x % WARP == 0) {
        warp_totals[threadIdx.x / WARP][k] = totals[k];
      }
    }
    __syncthreads();
#pragma unroll
    for (u32 r = 0; r < ROWS; r++) {
      const u64 row = first + r;
      if (has_columns && row < rows) {
        float total = 0.0f, product = 0.0f;
        for (u32 warp = 0; warp < THREADS / WARP; warp++) {
          total += warp_totals[warp][2 * r];
          product += warp_totals[warp][2 * r + 1];
        }
        total /= static_cast<float>(width);
        product /= static_cast<float>(width);
        const float inverse = statistics[2 * row + 1];
        const u64 random = threshold == 0 ? 0 : mix(states[r] + (word + 1ull) * STEP);
        Four<T> below, below_dropout;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
          narrow(inverse * (scaled[r][j] - total - normalized[r][j] * product), &below.values[j]);
          narrow(dropped(below.values[j], random, j, threshold, scale), &below_dropout.values[j]);
          columns[j] += widen(below_dropout.values[j]);
        }
        reinterpret_cast<Four<T> *>(of_sum + row * width)[word] = below;
        if (of_x != nullptr) {
          reinterpret_cast<Four<T> *>(of_x + row * width)[word] = below_dropout;
        }
      }
    }
    __syncthreads();
  }
  if (has_columns) {
    float *own = partials + static_cast<u64>(blockIdx.x) * 3 * width + 4 * word;
    for (u32 j = 0; j < 4; j++) {
      own[j] = of_weight[j];
      own[width + j] = of_bias[j];
      own[2 * width + j] = columns[j];
    }
  }
}

#define RESIDUAL_NORM(name, T)                                                                                              \
  extern "C" __global__ void lambert_residual_norm_##name(                                                                  \
      T *out, T *sum, float *statistics, const T *x, const T *residual, const float *weight, const float *bias,             \
      const i64 *samples, const i64 *places, u64 key, u32 threshold, float scale, float eps, u64 rows, u32 positions,       \
      u32 width) {                                                                                                          \
    residual_norm(out, sum, statistics, x, residual, weight, bias, samples, places, key, threshold, scale, eps, rows,       \
                  positions, width);                                                                                        \
  }                                                                                                                         \
  extern "C" __global__ void lambert_residual_norm_backward_##name(                                                         \
      T *of_x, T *of_sum, float *partials, const T *gradient, const T *sum, const float *statistics, const float *weight,   \
      const i64 *samples, const i64 *places, u64 key, u32 threshold, float scale, u64 rows, u32 positions, u32 width,       \
      u32 blocks) {                                                                                                         \
    residual_norm_backward(of_x, of_sum, partials, gradient, sum, statistics, weight, samples, places, key, threshold,      \
                           scale, rows, positions, width, blocks);                                                          \
  }

RESIDUAL_NORM(f32, float)
RESIDUAL_NORM(bf16, bf16)

// Adds the sums over the first dimension of `partials` [blocks, 3, width] to three vectors [width]. Skips null vectors. A block
// adds 32 columns: each warp sums every eighth row, and the warps' sums are added in order.
extern "C" __global__ void lambert_add_column_sums(float *first, float *second, float *third, const float *partials, u32 blocks,
                                                   u32 width) {
  __shared__ float sums[THREADS];
  const u32 column = blockIdx.x * WARP + threadIdx.x % WARP;
  float sum = 0.0f;
  if (column < 3 * width) {
    for (u32 block = threadIdx.x / WARP; block < blocks; block += THREADS / WARP) {
      sum += partials[static_cast<u64>(block) * 3 * width + column];
    }
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x >= WARP || column >= 3 * width) {
    return;
  }
  for (u32 warp = 1; warp < THREADS / WARP; warp++) {
    sum += sums[threadIdx.x + WARP * warp];
  }
  float *into = column < width ? first : column < 2 * width ? second : third;
  if (into != nullptr) {
    into[column % width] += sum;
  }
}
