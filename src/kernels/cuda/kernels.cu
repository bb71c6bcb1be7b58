// Keyed dropout (the random draws are a function of a key and a counter), reductions and multi-tensor optimizer
// updates. This CUDA C++ includes no headers. NVRTC compiles it at run time for the GPU. The tests compile it as
// C++ and run it on the CPU (emulator.cpp).
//
// Every reduction has a fixed order: first the elements of a thread, then the threads of a block, then the
// chunks of a tensor. No kernel uses atomics.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef long long i64;

// Threads per block.
#define THREADS 256u
#define WARP 32u

struct bf16 {
  u16 bits;
};

__device__ inline u32 float_bits(float value) {
  u32 bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

__device__ inline float float_from_bits(u32 bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(bf16 value) { return float_from_bits(static_cast<u32>(value.bits) << 16); }

// Rounds to nearest, ties to even; NaN stays NaN.
__device__ inline void narrow(float value, float *into) { *into = value; }
__device__ inline void narrow(float value, bf16 *into) {
  const u32 bits = float_bits(value);
  const bool is_number = (bits & 0x7fffffffu) <= 0x7f800000u;
  into->bits = is_number ? static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16) : static_cast<u16>(0x7fc0u);
}

// Gradient conversion for a bf16 all-reduce.
extern "C" __global__ void lambert_to_bf16(bf16 *to, const float *from, u64 count) {
  const u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) {
    narrow(from[i], to + i);
  }
}

extern "C" __global__ void lambert_from_bf16(float *to, const bf16 *from, u64 count) {
  const u64 i = static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) {
    to[i] = widen(from[i]);
  }
}

// ---- Random generator with a key, as in data-prep/dataset/src/random.rs.

#define STEP 0x9e3779b97f4a7c15ull

__device__ inline u64 mix(u64 value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

__device__ inline u64 with(u64 key, u64 value) {
  const u64 rotated = key << 23 | key >> 41;
  return mix(rotated ^ mix(value + STEP)) + key;
}

// Key of row `row`. If `places` is not null, the row is a token of an unpadded micro-batch, and `samples` and `places` have its
// sample and its position in the sample. Otherwise, rows are numbered in the order [batch, heads, positions].
__device__ inline u64 row_key(u64 key, const i64 *samples, const i64 *places, u64 row, u32 heads, u32 positions) {
  if (places != nullptr) {
    return with(with(with(key, static_cast<u64>(samples[row])), 0), static_cast<u64>(places[row]));
  }
  const u64 position = row % positions, sample_and_head = row / positions;
  return with(with(with(key, static_cast<u64>(samples[sample_and_head / heads])), sample_and_head % heads), position);
}

// Four adjacent elements, which one access loads or stores.
template <typename T>
struct alignas(4 * sizeof(T)) Four {
  T values[4];
};

template <typename T>
__device__ inline bool is_aligned(const T *pointer) {
  return reinterpret_cast<u64>(pointer) % sizeof(Four<T>) == 0;
}

// Result of dropout for the element x, which has the 16 random bits at position `lane` of `random`.
template <typename T>
__device__ inline float dropped(T x, u64 random, u32 lane, u32 threshold, float scale) {
  return widen(x) * (((random >> (16 * lane)) & 0xffffull) >= threshold ? scale : 0.0f);
}

// Dropout. `out[i]` is `x[i] * scale`, or 0 if the 16 random bits of the element are below `threshold`. If `added`
// is not null, `added[i]` is added to `out[i]`. One 64-bit random word has the random bits of four elements. One
// warp computes one row of `length` elements.
template <typename T>
__device__ inline void dropout(T *out, const T *x, const T *added, const i64 *samples, const i64 *places, u64 key,
                               u32 threshold, float scale, u64 rows, u32 heads, u32 positions, u32 length) {
  const u64 row = (static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;
  if (row >= rows) {
    return;
  }
  const u64 state = row_key(key, samples, places, row, heads, positions), first = row * length;
  out += first;
  x += first;
  added = added == nullptr ? nullptr : added + first;
  const u32 start = threadIdx.x % WARP;
  if (length % 4 == 0 && is_aligned(out) && is_aligned(x) && is_aligned(added)) {
    for (u32 word = start; 4 * word < length; word += WARP) {
      const u64 random = mix(state + (word + 1ull) * STEP);
      const Four<T> of_x = reinterpret_cast<const Four<T> *>(x)[word];
      Four<T> of_added = {}, of_out;
      if (added != nullptr) {
        of_added = reinterpret_cast<const Four<T> *>(added)[word];
      }
#pragma unroll
      for (u32 lane = 0; lane < 4; lane++) {
        const float kept = dropped(of_x.values[lane], random, lane, threshold, scale);
        narrow(added == nullptr ? kept : kept + widen(of_added.values[lane]), &of_out.values[lane]);
      }
      reinterpret_cast<Four<T> *>(out)[word] = of_out;
    }
    return;
  }
  for (u32 word = start; 4 * word < length; word += WARP) {
    const u64 random = mix(state + (word + 1ull) * STEP);
    const u32 left = length - 4 * word, count = left < 4 ? left : 4;
    for (u32 lane = 0; lane < count; lane++) {
      const u64 index = 4 * word + lane;
      const float kept = dropped(x[index], random, lane, threshold, scale);
      narrow(added == nullptr ? kept : kept + widen(added[index]), out + index);
    }
  }
}

extern "C" __global__ void lambert_dropout_f32(float *out, const float *x, const float *added, const i64 *samples,
                                               const i64 *places, u64 key, u32 threshold, float scale, u64 rows, u32 heads,
                                               u32 positions, u32 length) {
  dropout(out, x, added, samples, places, key, threshold, scale, rows, heads, positions, length);
}

extern "C" __global__ void lambert_dropout_bf16(bf16 *out, const bf16 *x, const bf16 *added, const i64 *samples,
                                                const i64 *places, u64 key, u32 threshold, float scale, u64 rows, u32 heads,
                                                u32 positions, u32 length) {
  dropout(out, x, added, samples, places, key, threshold, scale, rows, heads, positions, length);
}

// ---- Reductions.

// Sum of `value` over the threads of the block. Only the first thread gets the result. All
// threads of the block must call this function.
template <typename T>
__device__ inline T block_sum(T value) {
  __shared__ T warps[THREADS / WARP];
  for (u32 delta = WARP / 2; delta > 0; delta /= 2) {
    value += __shfl_down_sync(0xffffffffu, value, delta);
  }
  if (threadIdx.x % WARP == 0) {
    warps[threadIdx.x / WARP] = value;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (u32 warp = 1; warp < THREADS / WARP; warp++) {
      value += warps[warp];
    }
  }
  // Wait here, because the next call reuses `warps`.
  __syncthreads();
  return value;
}

// sums[block] = sum of squares of the block's `chunk` elements of `values`.
extern "C" __global__ void lambert_sum_of_squares(double *sums, const float *values, u64 count, u32 chunk) {
  const u64 first = static_cast<u64>(blockIdx.x) * chunk;
  const u64 end = first + chunk < count ? first + chunk : count;
  double sum = 0.0;
  for (u64 i = first + threadIdx.x; i < end; i += THREADS) {
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
  }
}

// Sum of `sums`, computed by one block. Only the first thread gets the result.
template <typename T>
__device__ inline T sum_partials(const T *sums, u32 count) {
  T sum = 0;
  for (u32 i = threadIdx.x; i < count; i += THREADS) {
    sum += sums[i];
  }
  return block_sum(sum);
}

// *norm = square root of the sum of `sums`. Runs in one block.
extern "C" __global__ void lambert_norm_from_sums(double *norm, const double *sums, u32 count) {
  const double sum = sum_partials(sums, count);
  if (threadIdx.x == 0) {
    *norm = sqrt(sum);
  }
}

// sums[block] = digest of the block's `chunk` elements of `values` (`Kernels::digest`). `chunk` is even.
extern "C" __global__ void lambert_digest_chunks(u64 *sums, const float *values, u64 count, u32 chunk) {
  const u64 first = static_cast<u64>(blockIdx.x) * chunk;
  const u64 end = first + chunk < count ? first + chunk : count;
  u64 sum = 0;
  for (u64 i = first + 2 * threadIdx.x; i < end; i += 2 * THREADS) {
    const u64 high = i + 1 < end ? float_bits(values[i + 1]) : 0;
    sum += mix((high << 32 | float_bits(values[i])) + (i / 2 + 1) * STEP);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
  }
}

// *digest = sum of `sums`. Runs in one block.
extern "C" __global__ void lambert_digest_sum(u64 *digest, const u64 *sums, u32 count) {
  const u64 sum = sum_partials(sums, count);
  if (threadIdx.x == 0) {
    *digest = sum;
  }
}

// ---- Optimizer updates, with one block per chunk. The formulas are in src/kernels/host/scaled.rs and adamw.rs.

// Mirrors `ParamUpdate` of src/kernels/mod.rs.
struct ParamUpdate {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, eps, inv_bias_correction1, inv_bias_correction2, learning_rate,
      weight_decay;
  u32 step_scale;
};

// Numbers of `StepScale`.
#define FIXED 0u
#define TRUST_RATIO 1u
#define STABLE 2u

// A range of elements of one parameter.
struct Chunk {
  u64 first;
  u32 count, parameter;
};

// Factor that scales the gradients down to a norm of at most `clip`. A `clip` of 0 disables clipping.
// The factor is 0 if `norm` is not finite.
__device__ inline float clip_scale(double norm, double clip) {
  if (!isfinite(norm)) {
    return 0.0f;
  }
  return clip > 0.0 && norm > clip ? static_cast<float>(clip / norm) : 1.0f;
}

// Square root of a second moment after bias correction.
__device__ inline float root(const ParamUpdate &constants, float second) {
  return sqrtf(second * constants.inv_bias_correction2);
}

// Updates the moments of an element and returns its update direction.
__device__ inline float direction(const ParamUpdate &constants, float gradient, float *first, float *second) {
  *first = constants.beta1 * *first + constants.one_minus_beta1 * gradient;
  *second = constants.beta2 * *second + constants.one_minus_beta2 * gradient * gradient;
  return *first * constants.inv_bias_correction1 / (root(constants, *second) + constants.eps);
}

// LAMB and StableAdamW, first kernel: overwrites the gradients with the update. For each block,
// sums[2 * block] = sum of squares of the weights, and sums[2 * block + 1] = sum of squares of the update. For STABLE, they
// are the sum of squares of gradient / max(root of the second moment, eps), and the number of elements.
extern "C" __global__ void lambert_scaled_directions(const Chunk *chunks, const ParamUpdate *all_constants,
                                                     const double *norm, double clip, const float *weights,
                                                     float *gradients, float *first, float *second, double *sums) {
  const Chunk chunk = chunks[blockIdx.x];
  const ParamUpdate constants = all_constants[chunk.parameter];
  const float scale = clip_scale(*norm, clip);
  double first_sum = 0.0, second_sum = 0.0;
  if (isfinite(*norm)) {
    for (u64 i = chunk.first + threadIdx.x; i < chunk.first + chunk.count; i += THREADS) {
      const float weight = weights[i];
      const float gradient = gradients[i] * scale;
      const float update = direction(constants, gradient, first + i, second + i) + constants.weight_decay * weight;
      gradients[i] = update;
      if (constants.step_scale == STABLE) {
        const float relative = gradient / fmaxf(root(constants, second[i]), constants.eps);
        first_sum += static_cast<double>(relative) * static_cast<double>(relative);
        second_sum += 1.0;
      } else {
        first_sum += static_cast<double>(weight) * static_cast<double>(weight);
        second_sum += static_cast<double>(update) * static_cast<double>(update);
      }
    }
  }
  first_sum = block_sum(first_sum);
  second_sum = block_sum(second_sum);
  if (threadIdx.x == 0) {
    sums[2 * blockIdx.x] = first_sum;
    sums[2 * blockIdx.x + 1] = second_sum;
  }
}

// Second kernel: step_sizes[parameter] = learning rate * step scale. Trust ratios are clamped to [min_ratio, max_ratio]. Runs with one block per parameter. The chunks of a parameter are numbered from
// ends[parameter - 1] up to, but not including, ends[parameter].
extern "C" __global__ void lambert_scaled_step_sizes(float *step_sizes, const ParamUpdate *all_constants, const u32 *ends,
                                                     const double *sums, double min_ratio, double max_ratio) {
  const ParamUpdate constants = all_constants[blockIdx.x];
  double first_sum = 0.0, second_sum = 0.0;
  for (u32 i = (blockIdx.x == 0 ? 0 : ends[blockIdx.x - 1]) + threadIdx.x; i < ends[blockIdx.x]; i += THREADS) {
    first_sum += sums[2 * i];
    second_sum += sums[2 * i + 1];
  }
  first_sum = block_sum(first_sum);
  second_sum = block_sum(second_sum);
  if (threadIdx.x == 0) {
    double factor = 1.0;
    if (constants.step_scale == TRUST_RATIO) {
      const double ratio = first_sum > 0.0 && second_sum > 0.0 ? sqrt(first_sum) / sqrt(second_sum) : 1.0;
      factor = ratio < min_ratio ? min_ratio : ratio > max_ratio ? max_ratio : ratio;
    } else if (constants.step_scale == STABLE) {
      const double rms = sqrt(first_sum / second_sum);
      factor = rms > 1.0 ? 1.0 / rms : 1.0;
    }
    step_sizes[blockIdx.x] = constants.learning_rate * static_cast<float>(factor);
  }
}

// Third kernel: weights -= step size * update. `bf16_weights` is the bf16 copy of the weights, or null.
extern "C" __global__ void lambert_scaled_apply(const Chunk *chunks, const float *step_sizes, const double *norm,
                                                float *weights, const float *updates, bf16 *bf16_weights) {
  const Chunk chunk = chunks[blockIdx.x];
  const float step_size = step_sizes[chunk.parameter];
  if (!isfinite(*norm)) {
    return;
  }
  for (u64 i = chunk.first + threadIdx.x; i < chunk.first + chunk.count; i += THREADS) {
    weights[i] -= step_size * updates[i];
    if (bf16_weights != nullptr) {
      narrow(weights[i], bf16_weights + i);
    }
  }
}

// Adam with decoupled weight decay, in one kernel.
extern "C" __global__ void lambert_adamw(const Chunk *chunks, const ParamUpdate *all_constants, const double *norm,
                                         double clip, float *weights, const float *gradients, float *first, float *second,
                                         bf16 *bf16_weights) {
  const Chunk chunk = chunks[blockIdx.x];
  const ParamUpdate constants = all_constants[chunk.parameter];
  const float scale = clip_scale(*norm, clip);
  if (!isfinite(*norm)) {
    return;
  }
  for (u64 i = chunk.first + threadIdx.x; i < chunk.first + chunk.count; i += THREADS) {
    const float update = direction(constants, gradients[i] * scale, first + i, second + i);
    weights[i] -= constants.learning_rate * (update + constants.weight_decay * weights[i]);
    if (bf16_weights != nullptr) {
      narrow(weights[i], bf16_weights + i);
    }
  }
}
