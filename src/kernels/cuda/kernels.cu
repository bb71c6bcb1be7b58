// The kernels of our own: what keyed draws demand, and updates of all parameters at once. Plain CUDA C++ without a header:
// NVRTC compiles it for the card that is there; the tests compile it as C++ and run it by emulator.h.
//
// Every sum has a fixed order: over the elements of a thread, the threads of a block, the chunks of a tensor. No atomics.

typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;
typedef long long i64;

// Threads of every block.
#define THREADS 256u
#define WARP 32u

struct bf16 {
  u16 bits;
};

__device__ inline u32 bits_of(float value) {
  u32 bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

__device__ inline float of_bits(u32 bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(bf16 value) { return of_bits(static_cast<u32>(value.bits) << 16); }

// To the nearest, and to even in the middle; what is no number stays none.
__device__ inline void narrow(float value, float *into) { *into = value; }
__device__ inline void narrow(float value, bf16 *into) {
  const u32 bits = bits_of(value);
  const bool is_number = (bits & 0x7fffffffu) <= 0x7f800000u;
  into->bits = is_number ? static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16) : static_cast<u16>(0x7fc0u);
}

// Gradients on their way to other ranks.
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

// ---- The keyed generator of data-prep/dataset/src/random.rs.

#define STEP 0x9e3779b97f4a7c15ull

__device__ inline u64 mix(u64 value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

__device__ inline u64 with(u64 key, u64 fact) {
  const u64 turned = key << 23 | key >> 41;
  return mix(turned ^ mix(fact + STEP)) + key;
}

// Where a line of dropout's draws is: `line` counts [rows, heads, width].
__device__ inline u64 key_of_line(u64 key, const i64 *samples, u64 line, u32 heads, u32 width) {
  const u64 position = line % width, row_and_head = line / width;
  return with(with(with(key, static_cast<u64>(samples[row_and_head / heads])), row_and_head % heads), position);
}

// Four lanes of 16 bits from each word: `out[i] = x[i] * scale`, or 0 where the lane is below `dropped`, plus `added[i]` where
// there is such a thing. A warp for each line of `length` elements.
template <typename T>
__device__ inline void dropout(T *out, const T *x, const T *added, const i64 *samples, u64 key, u32 dropped, float scale,
                               u64 lines, u32 heads, u32 width, u32 length) {
  const u64 line = (static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;
  if (line >= lines) {
    return;
  }
  const u64 state = key_of_line(key, samples, line, heads, width), first = line * length;
  for (u32 word = threadIdx.x % WARP; 4 * word < length; word += WARP) {
    const u64 random = mix(state + (word + 1ull) * STEP);
    const u32 left = length - 4 * word, count = left < 4 ? left : 4;
    for (u32 lane = 0; lane < count; lane++) {
      const u64 place = first + 4 * word + lane;
      const float factor = ((random >> (16 * lane)) & 0xffffull) >= dropped ? scale : 0.0f;
      const float kept = widen(x[place]) * factor;
      narrow(added == nullptr ? kept : kept + widen(added[place]), out + place);
    }
  }
}

extern "C" __global__ void lambert_dropout_f32(float *out, const float *x, const float *added, const i64 *samples, u64 key,
                                       u32 dropped, float scale, u64 lines, u32 heads, u32 width, u32 length) {
  dropout(out, x, added, samples, key, dropped, scale, lines, heads, width, length);
}

extern "C" __global__ void lambert_dropout_bf16(bf16 *out, const bf16 *x, const bf16 *added, const i64 *samples, u64 key,
                                        u32 dropped, float scale, u64 lines, u32 heads, u32 width, u32 length) {
  dropout(out, x, added, samples, key, dropped, scale, lines, heads, width, length);
}

// ---- Sums.

// The sum of `value` over the block, in its first thread. Every thread of the block takes part.
template <typename T>
__device__ inline T sum_of_block(T value) {
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
  // The next sum writes there again.
  __syncthreads();
  return value;
}

// sums[block] = the sum of the squares of a block's `chunk` elements of `values`.
extern "C" __global__ void lambert_squares(double *sums, const float *values, u64 count, u32 chunk) {
  const u64 first = static_cast<u64>(blockIdx.x) * chunk;
  const u64 end = first + chunk < count ? first + chunk : count;
  double sum = 0.0;
  for (u64 i = first + threadIdx.x; i < end; i += THREADS) {
    sum += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
  }
}

// The sum of `sums`, by one block, in its first thread.
template <typename T>
__device__ inline T sum_of(const T *sums, u32 count) {
  T sum = 0;
  for (u32 i = threadIdx.x; i < count; i += THREADS) {
    sum += sums[i];
  }
  return sum_of_block(sum);
}

// *root = the root of the sum of `sums`, by one block.
extern "C" __global__ void lambert_root_of_sums(double *root, const double *sums, u32 count) {
  const double sum = sum_of(sums, count);
  if (threadIdx.x == 0) {
    *root = sqrt(sum);
  }
}

// sums[block] = the sum of the mixed words of a block's `chunk` elements, an even number, of `values`: a digest of their bits
// (`Kernels::digest`).
extern "C" __global__ void lambert_words(u64 *sums, const float *values, u64 count, u32 chunk) {
  const u64 first = static_cast<u64>(blockIdx.x) * chunk;
  const u64 end = first + chunk < count ? first + chunk : count;
  u64 sum = 0;
  for (u64 i = first + 2 * threadIdx.x; i < end; i += 2 * THREADS) {
    const u64 high = i + 1 < end ? bits_of(values[i + 1]) : 0;
    sum += mix((high << 32 | bits_of(values[i])) + (i / 2 + 1) * STEP);
  }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = sum;
  }
}

// *into = the sum of `sums`, by one block.
extern "C" __global__ void lambert_sum_of_words(u64 *into, const u64 *sums, u32 count) {
  const u64 sum = sum_of(sums, count);
  if (threadIdx.x == 0) {
    *into = sum;
  }
}

// ---- Updates (src/kernels/host/lamb.rs and adamw.rs have the formulas). A block for each chunk.

// As `Rule` of src/kernels/mod.rs.
struct Rule {
  float beta1, share1, beta2, share2, eps, correction1, correction2, learning_rate, weight_decay;
  u32 trusted;
};

// Some elements of one parameter.
struct Chunk {
  u64 first;
  u32 count, parameter;
};

// What gradients are multiplied with to be clipped to a norm of `clip`, 0 for never; 0 where nothing may change.
__device__ inline float scale_of(double norm, double clip) {
  if (!isfinite(norm)) {
    return 0.0f;
  }
  return clip > 0.0 && norm > clip ? static_cast<float>(clip / norm) : 1.0f;
}

// Moves the moments of an element and returns its direction.
__device__ inline float direction(const Rule &rule, float gradient, float *first, float *second) {
  *first = rule.beta1 * *first + rule.share1 * gradient;
  *second = rule.beta2 * *second + rule.share2 * gradient * gradient;
  return *first * rule.correction1 / (sqrtf(*second * rule.correction2) + rule.eps);
}

// Leaves LAMB's update where the gradients were, and the sums of the squares of weights and update in sums[2 block] and
// sums[2 block + 1].
extern "C" __global__ void lambert_lamb_directions(const Chunk *chunks, const Rule *rules, const double *norm, double clip,
                                           const float *weights, float *gradients, float *first, float *second,
                                           double *sums) {
  const Chunk chunk = chunks[blockIdx.x];
  const Rule rule = rules[chunk.parameter];
  const float scale = scale_of(*norm, clip);
  double of_weights = 0.0, of_update = 0.0;
  if (isfinite(*norm)) {
    for (u64 i = chunk.first + threadIdx.x; i < chunk.first + chunk.count; i += THREADS) {
      const float weight = weights[i];
      const float update = direction(rule, gradients[i] * scale, first + i, second + i) + rule.weight_decay * weight;
      gradients[i] = update;
      of_weights += static_cast<double>(weight) * static_cast<double>(weight);
      of_update += static_cast<double>(update) * static_cast<double>(update);
    }
  }
  of_weights = sum_of_block(of_weights);
  of_update = sum_of_block(of_update);
  if (threadIdx.x == 0) {
    sums[2 * blockIdx.x] = of_weights;
    sums[2 * blockIdx.x + 1] = of_update;
  }
}

// rates[parameter] = the learning rate times the trust ratio within [least, most]. A block for each parameter, whose chunks
// are ends[parameter - 1] to ends[parameter].
extern "C" __global__ void lambert_lamb_rates(float *rates, const Rule *rules, const u32 *ends, const double *sums, double least,
                                      double most) {
  const Rule rule = rules[blockIdx.x];
  double of_weights = 0.0, of_update = 0.0;
  for (u32 i = (blockIdx.x == 0 ? 0 : ends[blockIdx.x - 1]) + threadIdx.x; i < ends[blockIdx.x]; i += THREADS) {
    of_weights += sums[2 * i];
    of_update += sums[2 * i + 1];
  }
  of_weights = sum_of_block(of_weights);
  of_update = sum_of_block(of_update);
  if (threadIdx.x == 0) {
    double ratio = of_weights > 0.0 && of_update > 0.0 ? sqrt(of_weights) / sqrt(of_update) : 1.0;
    ratio = ratio < least ? least : ratio > most ? most : ratio;
    rates[blockIdx.x] = rule.learning_rate * (rule.trusted != 0 ? static_cast<float>(ratio) : 1.0f);
  }
}

// weights -= rate * update; `low` is their copy in bf16, if there is one.
extern "C" __global__ void lambert_lamb_apply(const Chunk *chunks, const float *rates, const double *norm, float *weights,
                                      const float *updates, bf16 *low) {
  const Chunk chunk = chunks[blockIdx.x];
  const float rate = rates[chunk.parameter];
  if (!isfinite(*norm)) {
    return;
  }
  for (u64 i = chunk.first + threadIdx.x; i < chunk.first + chunk.count; i += THREADS) {
    weights[i] -= rate * updates[i];
    if (low != nullptr) {
      narrow(weights[i], low + i);
    }
  }
}

// Adam with decoupled weight decay, in one pass.
extern "C" __global__ void lambert_adamw(const Chunk *chunks, const Rule *rules, const double *norm, double clip, float *weights,
                                 const float *gradients, float *first, float *second, bf16 *low) {
  const Chunk chunk = chunks[blockIdx.x];
  const Rule rule = rules[chunk.parameter];
  const float scale = scale_of(*norm, clip);
  if (!isfinite(*norm)) {
    return;
  }
  for (u64 i = chunk.first + threadIdx.x; i < chunk.first + chunk.count; i += THREADS) {
    const float towards = direction(rule, gradients[i] * scale, first + i, second + i);
    weights[i] -= rule.learning_rate * (towards + rule.weight_decay * weights[i]);
    if (low != nullptr) {
      narrow(weights[i], low + i);
    }
  }
}
