// Gated activation functions. Compiled together with kernels.cu.

// Numbers of `Activation` in gate.rs.
#define GELU 0u
#define GELU_TANH 1u
#define SILU 2u

// Value and derivative of an activation function.
struct Activated {
  float value, slope;
};

__device__ inline Activated activated(float x, u32 activation) {
  if (activation == GELU) {
    const float share = 0.5f * (1.0f + erff(x * 0.70710678f));
    return {x * share, share + x * 0.39894228f * expf(-0.5f * x * x)};
  }
  if (activation == GELU_TANH) {
    const float inner = 0.79788456f * (x + 0.044715f * x * x * x), turned = tanhf(inner);
    const float of_inner = 0.79788456f * (1.0f + 3.0f * 0.044715f * x * x);
    return {0.5f * x * (1.0f + turned), 0.5f * (1.0f + turned) + 0.5f * x * (1.0f - turned * turned) * of_inner};
  }
  const float share = 1.0f / (1.0f + expf(-x));
  return {x * share, share * (1.0f + x * (1.0f - share))};
}

// Group of four elements of a thread: its index in the first half of its row of x, which has 2 * fours groups. The group at
// the same place in the second half follows `fours` groups later.
__device__ inline u64 first_half(u32 i, u32 fours) { return static_cast<u64>(i / fours) * 2 * fours + i % fours; }

// out = activation(first half of x) * second half of x. x is [rows, 8 * fours], and out has `groups` groups of four elements.
template <typename T>
__device__ inline void gate(T *out, const T *x, u32 groups, u32 fours, u32 activation) {
  const u32 i = blockIdx.x * THREADS + threadIdx.x;
  if (i >= groups) {
    return;
  }
  const u64 first = first_half(i, fours);
  const Four<T> a = reinterpret_cast<const Four<T> *>(x)[first], b = reinterpret_cast<const Four<T> *>(x)[first + fours];
  Four<T> product;
#pragma unroll
  for (u32 j = 0; j < 4; j++) {
    narrow(activated(widen(a.values[j]), activation).value * widen(b.values[j]), &product.values[j]);
  }
  reinterpret_cast<Four<T> *>(out)[i] = product;
}

// Gradient of x for the gradient of `out`.
template <typename T>
__device__ inline void gate_backward(T *of_x, const T *gradient, const T *x, u32 groups, u32 fours, u32 activation) {
  const u32 i = blockIdx.x * THREADS + threadIdx.x;
  if (i >= groups) {
    return;
  }
  const u64 first = first_half(i, fours);
  const Four<T> a = reinterpret_cast<const Four<T> *>(x)[first], b = reinterpret_cast<const Four<T> *>(x)[first + fours];
  const Four<T> of_out = reinterpret_cast<const Four<T> *>(gradient)[i];
  Four<T> of_a, of_b;
#pragma unroll
  for (u32 j = 0; j < 4; j++) {
    const Activated here = activated(widen(a.values[j]), activation);
    const float own = widen(of_out.values[j]);
    narrow(own * widen(b.values[j]) * here.slope, &of_a.values[j]);
    narrow(own * here.value, &of_b.values[j]);
  }
  reinterpret_cast<Four<T> *>(of_x)[first] = of_a;
  reinterpret_cast<Four<T> *>(of_x)[first + fours] = of_b;
}

#define GATE(name, T)                                                                                                        \
  extern "C" __global__ void lambert_gate_##name(T *out, const T *x, u32 groups, u32 fours, u32 activation) {                \
    gate(out, x, groups, fours, activation);                                                                                 \
  }                                                                                                                          \
  extern "C" __global__ void lambert_gate_backward_##name(T *of_x, const T *gradient, const T *x, u32 groups, u32 fours,     \
                                                          u32 activation) {                                                  \
    gate_backward(of_x, gradient, x, groups, fours, activation);                                                             \
  }

GATE(f32, float)
GATE(bf16, bf16)
