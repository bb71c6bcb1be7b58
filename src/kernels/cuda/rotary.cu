// Rotary positions of queries and keys. Compiled together with kernels.cu.

// Number of tokens that a block rotates. Must equal `TOKENS` in rotary.rs.
#define ROTATED_TOKENS 8u

// x and out are [tokens, 3, heads, 8 * fours]: queries, keys and values. Rotates the queries and keys, and copies the values. The
// token t has the angles of row t % positions of `cosines` and `sines`, [positions, 4 * fours]. `sign` is 1, or -1 for the
// backward pass, which rotates by the negated angles.
template <typename T>
__device__ inline void rotate(T *out, const T *x, const float *cosines, const float *sines, u64 tokens, u32 positions, u32 heads,
                              u32 fours, float sign) {
  const u64 first = static_cast<u64>(blockIdx.x) * ROTATED_TOKENS;
  const u32 in_token = 3 * heads * fours;
  for (u32 i = threadIdx.x; i < ROTATED_TOKENS * in_token; i += THREADS) {
    const u64 token = first + i / in_token;
    if (token >= tokens) {
      return;
    }
    const u32 head = i % in_token / fours, four = i % fours;
    const u64 low = (token * 3 * heads + head) * 2 * fours + four, high = low + fours;
    const Four<T> a = reinterpret_cast<const Four<T> *>(x)[low], b = reinterpret_cast<const Four<T> *>(x)[high];
    Four<T> of_low = a, of_high = b;
    if (head < 2 * heads) {
      const u64 angle = token % positions * fours + four;
      const Four<float> cosine = reinterpret_cast<const Four<float> *>(cosines)[angle];
      const Four<float> sine = reinterpret_cast<const Four<float> *>(sines)[angle];
#pragma unroll
      for (u32 j = 0; j < 4; j++) {
        const float first_half = widen(a.values[j]), second_half = widen(b.values[j]), turned = sign * sine.values[j];
        narrow(first_half * cosine.values[j] - second_half * turned, &of_low.values[j]);
        narrow(second_half * cosine.values[j] + first_half * turned, &of_high.values[j]);
      }
    }
    reinterpret_cast<Four<T> *>(out)[low] = of_low;
    reinterpret_cast<Four<T> *>(out)[high] = of_high;
  }
}

#define ROTATE(name, T)                                                                                                     \
  extern "C" __global__ void lambert_rotate_##name(T *out, const T *x, const float *cosines, const float *sines, u64 tokens, \
                                                   u32 positions, u32 heads, u32 fours, float sign) {                       \
    rotate(out, x, cosines, sines, tokens, positions, heads, fours, sign);                                                  \
  }

ROTATE(f32, float)
ROTATE(bf16, bf16)
