// Cross-entropy of logits over the vocabulary, with its gradient. Compiled together with kernels.cu and soft_targets.cu.

// Adds four values.
__device__ inline void add_four(Exponentials *all, const float *values) {
  float most = all->largest;
#pragma unroll
  for (u32 j = 0; j < 4; j++) {
    most = values[j] > most ? values[j] : most;
  }
  if (most > all->largest) {
    all->sum *= expf(all->largest - most);
    all->largest = most;
  }
#pragma unroll
  for (u32 j = 0; j < 4; j++) {
    all->sum += expf(values[j] - all->largest);
  }
}

// One block computes one row of `width` logits. Only the first `vocabulary` columns count. losses[row] = factor * (log of the sum of
// the exponentials of all logits - logit of the label). correct[row] is 1 if the label is the first column with the largest
// logit, otherwise 0. statistics[row] has the largest logit, and the log of the sum of the exponentials of the differences to it.
// `factors` may be null. With a label outside of the vocabulary, the loss is not a number.
template <typename T>
__device__ inline void cross_entropy(float *losses, i64 *correct, float *statistics, const T *logits, const i64 *labels,
                                     const float *factors, u32 vocabulary, u32 width) {
  __shared__ Exponentials of_warps[THREADS / WARP];
  const u64 row = blockIdx.x;
  logits += row * width;
  const bool aligned = width % 4 == 0 && is_aligned(logits);
  const float none = float_from_bits(0xff800000u), not_a_number = float_from_bits(0x7fc00000u);
  const i64 label = labels[row];
  const float of_label = label >= 0 && label < static_cast<i64>(vocabulary) ? widen(logits[label]) : not_a_number;
  Exponentials all = {-3.0e38f, 0.0f};
  float better = 0.0f;
  for (u32 word = threadIdx.x; 4 * word < vocabulary; word += THREADS) {
    const Four<T> x = four_of(logits, word, width, aligned);
    float values[4];
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      const u32 column = 4 * word + j;
      values[j] = column < vocabulary ? widen(x.values[j]) : none;
      const bool is_first = values[j] == of_label && static_cast<i64>(column) >= label;
      better = values[j] < of_label || is_first ? better : 1.0f;
    }
    add_four(&all, values);
  }
  all = block_merged(all, of_warps);
  better = block_sum(better);
  if (threadIdx.x == 0) {
    const float log_sum = logf(all.sum), factor = factors == nullptr ? 1.0f : factors[row];
    losses[row] = (log_sum + (all.largest - of_label)) * factor;
    correct[row] = better == 0.0f ? 1 : 0;
    statistics[2 * row] = all.largest;
    statistics[2 * row + 1] = log_sum;
  }
}

// One block computes one row. `gradient` is that of *scale times the sum of the losses, and 0 in the columns of padding.
template <typename T>
__device__ inline void cross_entropy_backward(T *gradient, const float *scale, const T *logits, const i64 *labels,
                                              const float *factors, const float *statistics, u32 vocabulary, u32 width) {
  const u64 row = blockIdx.x;
  logits += row * width;
  gradient += row * width;
  const bool aligned = width % 4 == 0 && is_aligned(logits) && is_aligned(gradient);
  const i64 label = labels[row];
  const float largest = statistics[2 * row], log_sum = statistics[2 * row + 1];
  const float factor = factors == nullptr ? *scale : *scale * factors[row];
  for (u32 word = threadIdx.x; 4 * word < width; word += THREADS) {
    Four<T> x = {}, of_logits = {};
    if (4 * word < vocabulary) {
      x = four_of(logits, word, width, aligned);
    }
#pragma unroll
    for (u32 j = 0; j < 4; j++) {
      const u32 column = 4 * word + j;
      const float target = static_cast<i64>(column) == label ? 1.0f : 0.0f;
      const float probability = expf(widen(x.values[j]) - largest - log_sum);
      narrow(column < vocabulary ? (probability - target) * factor : 0.0f, &of_logits.values[j]);
    }
    put_four(gradient, of_logits, word, width, aligned);
  }
}

#define CROSS_ENTROPY(name, T)                                                                                               \
  extern "C" __global__ void lambert_cross_entropy_##name(float *losses, i64 *correct, float *statistics, const T *logits,   \
                                                          const i64 *labels, const float *factors, u32 vocabulary,           \
                                                          u32 width) {                                                       \
    cross_entropy(losses, correct, statistics, logits, labels, factors, vocabulary, width);                                  \
  }                                                                                                                          \
  extern "C" __global__ void lambert_cross_entropy_backward_##name(T *gradient, const float *scale, const T *logits,         \
                                                                   const i64 *labels, const float *factors,                  \
                                                                   const float *statistics, u32 vocabulary, u32 width) {     \
    cross_entropy_backward(gradient, scale, logits, labels, factors, statistics, vocabulary, width);                         \
  }

CROSS_ENTROPY(f32, float)
CROSS_ENTROPY(bf16, bf16)
