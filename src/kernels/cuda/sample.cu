// Draws of tokens from logits, with Gumbel noise. Compiled together with kernels.cu.

// Index and score of a token. Of two equal scores, that of the lower index counts as larger.
struct Drawn {
  float score;
  u32 index;
};

__device__ inline Drawn larger(Drawn one, Drawn other) {
  const bool is_other = other.score > one.score || (other.score == one.score && other.index < one.index);
  return is_other ? other : one;
}

// Largest value over the threads of the warp. Every thread gets the result.
__device__ inline Drawn warp_largest(Drawn drawn) {
  for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
    const Drawn other = {__shfl_xor_sync(0xffffffffu, drawn.score, mask), __shfl_xor_sync(0xffffffffu, drawn.index, mask)};
    drawn = larger(drawn, other);
  }
  return drawn;
}

// Gumbel noise from 32 random bits. The uniform number lies near 0 for large noise, where f32 has the smallest steps.
__device__ inline float gumbel(u32 bits) {
  const float uniform = (static_cast<float>(bits) + 0.5f) * 2.3283064365386963e-10f;
  return -logf(-log1pf(-uniform));
}

// Draws one of the first `width` tokens for each row of `logits`, [rows, stride]. One block computes one row. One 64-bit random word
// serves two tokens.
template <typename T>
__device__ inline void sample_tokens(i64 *out, const T *logits, const i64 *samples, const i64 *places, u64 key, u32 width,
                                     u32 stride) {
  __shared__ Drawn of_warps[THREADS / WARP];
  const u64 row = blockIdx.x;
  const u64 state = with(with(key, static_cast<u64>(samples[row])), static_cast<u64>(places[row]));
  logits += row * stride;
  Drawn drawn = {float_from_bits(0xff800000u), 0};
  for (u32 word = threadIdx.x; 2 * word < width; word += THREADS) {
    const u64 random = mix(state + (word + 1ull) * STEP);
    for (u32 lane = 0; lane < 2 && 2 * word + lane < width; lane++) {
      const u32 index = 2 * word + lane;
      drawn = larger(drawn, {widen(logits[index]) + gumbel(static_cast<u32>(random >> (32 * lane))), index});
    }
  }
  drawn = warp_largest(drawn);
  if (threadIdx.x % WARP == 0) {
    of_warps[threadIdx.x / WARP] = drawn;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (u32 warp = 1; warp < THREADS / WARP; warp++) {
      drawn = larger(drawn, of_warps[warp]);
    }
    out[row] = drawn.index;
  }
}

extern "C" __global__ void lambert_sample_tokens_f32(i64 *out, const float *logits, const i64 *samples, const i64 *places,
                                                     u64 key, u32 width, u32 stride) {
  sample_tokens(out, logits, samples, places, key, width, stride);
}

extern "C" __global__ void lambert_sample_tokens_bf16(i64 *out, const bf16 *logits, const i64 *samples, const i64 *places,
                                                      u64 key, u32 width, u32 stride) {
  sample_tokens(out, logits, samples, places, key, width, stride);
}
