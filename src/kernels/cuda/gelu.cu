// Backward pass of GELU with the column sums of its result, which are the gradient of the bias of the linear layer before it.
// Compiled together with kernels.cu.

// Number of columns that a block computes.
#define GELU_COLUMNS (4u * THREADS)
// Number of rows that a thread reads before it computes.
#define GELU_ROWS 4u

// Derivative of GELU at x: of x * normal_cdf(x), or of its approximation by tanh.
__device__ inline float gelu_derivative(float x, bool is_tanh) {
  if (is_tanh) {
    const float root = 0.7978845608028654f, cubic = 0.044715f;
    const float tangent = tanhf(root * (x + cubic * x * x * x));
    const float inner = root * (1.0f + 3.0f * cubic * x * x);
    return 0.5f * (1.0f + tangent) + 0.5f * x * (1.0f - tangent * tangent) * inner;
  }
  const float density = 0.3989422804014327f * expf(-0.5f * x * x);
  return 0.5f * (1.0f + erff(x * 0.7071067811865476f)) + x * density;
}

// of_x = gradient * derivative at x, [rows, width]. `partials` [row_blocks, width] gets the sums of of_x over the rows of a block.
// The width is a multiple of four. Block b computes the columns of chunk b % chunks and every row_blocks-th group of rows.
template <typename T>
__device__ inline void gelu_backward(T *of_x, float *partials, const T *gradient, const T *x, u64 rows, u32 width, u32 row_blocks,
                                     bool is_tanh) {
  const u32 chunks = (width + GELU_COLUMNS - 1) / GELU_COLUMNS;
  const u32 row_block = blockIdx.x / chunks, column = blockIdx.x % chunks * GELU_COLUMNS + 4 * threadIdx.x;
  if (column >= width) {
    return;
  }
  const u64 step = static_cast<u64>(row_blocks) * GELU_ROWS;
  float sums[4] = {};
  for (u64 first = static_cast<u64>(row_block) * GELU_ROWS; first < rows; first += step) {
    Four<T> of_result[GELU_ROWS], values[GELU_ROWS];
#pragma unroll
    for (u32 r = 0; r < GELU_ROWS; r++) {
      if (first + r < rows) {
        const u64 place = ((first + r) * width + column) / 4;
        of_result[r] = reinterpret_cast<const Four<T> *>(gradient)[place];
        values[r] = reinterpret_cast<const Four<T> *>(x)[place];
      }
    }
#pragma unroll
    for (u32 r = 0; r < GELU_ROWS; r++) {
      if (first + r < rows) {
        Four<T> result;
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
          narrow(widen(of_result[r].values[j]) * gelu_derivative(widen(values[r].values[j]), is_tanh), &result.values[j]);
          sums[j] += widen(result.values[j]);
        }
        reinterpret_cast<Four<T> *>(of_x)[((first + r) * width + column) / 4] = result;
      }
    }
  }
  for (u32 j = 0; j < 4; j++) {
    partials[static_cast<u64>(row_block) * width + column + j] = sums[j];
  }
}

#define GELU_BACKWARD(name, T)                                                                                              \
  extern "C" __global__ void lambert_gelu_backward_##name(T *of_x, float *partials, const T *gradient, const T *x, u64 rows, \
                                                          u32 width, u32 row_blocks, u32 is_tanh) {                         \
    gelu_backward(of_x, partials, gradient, x, rows, width, row_blocks, is_tanh != 0);                                      \
  }

GELU_BACKWARD(f32, float)
GELU_BACKWARD(bf16, bf16)
