// Soft targets of a teacher: the divergence between two distributions over the vocabulary, with its gradient. Compiled together
// with kernels.cu.

// Largest value so far, and the sum of the exponentials of all values so far, each minus the largest.
struct Exponentials {
  float largest, sum;

  __device__ void add(float value) {
    if (value > largest) {
      sum = sum * expf(largest - value) + 1.0f;
      largest = value;
    } else {
      sum += expf(value - largest);
    }
  }
};

__device__ inline Exponentials merged(Exponentials one, Exponentials other) {
  const float largest = one.largest > other.largest ? one.largest : other.largest;
  return {largest, one.sum * expf(one.largest - largest) + other.sum * expf(other.largest - largest)};
}

// Merges the values of all threads of the block. Every thread gets the result. `shared` has an element for each warp.
__device__ inline Exponentials block_merged(Exponentials own, Exponentials *shared) {
  for (u32 mask = WARP / 2; mask > 0; mask /= 2) {
    own = merged(own, {__shfl_xor_sync(0xffffffffu, own.largest, mask), __shfl_xor_sync(0xffffffffu, own.sum, mask)});
  }
  if (threadIdx.x % WARP == 0) {
    shared[threadIdx.x / WARP] = own;
  }
  __syncthreads();
  Exponentials all = shared[0];
  for (u32 warp = 1; warp < THREADS / WARP; warp++) {
    all = merged(all, shared[warp]);
  }
  return all;
}

// Elements 4 * word to 4 * word + 3 of a row of `width` elements. If the row is aligned, one access loads them.
template <typename T>
__device__ inline Four<T> four_of(const T *row, u32 word, u32 width, bool aligned) {
  if (aligned) {
    return reinterpret_cast<const Four<T> *>(row)[word];
  }
  Four<T> values = {};
  for (u32 j = 0; j < 4 && 4 * word + j < width; j++) {
    values.values[j] = row[4 * word + j];
  }
  return values;
}

// Writes elements 4 * word to 4 * word + 3 of a row, as above.
template <typename T>
__device__ inline void put_four(T *row, const Four<T> &values, u32 word, u32 width, bool aligned) {
  if (aligned) {
    reinterpret_cast<Four<T> *>(row)[word] = values;
    return;
  }
  for (u32 j = 0; j < 4 && 4 * word + j < width; j++) {
    row[4 * word + j] = values.values[j];
  }
}

// One block computes one row. Only the first `vocabulary` columns count. losses[row] = weight * temperature^2 * KL(teacher ||
// student) of the distributions at `temperature`. `gradient` is that of the loss for the logits of the student, and 0 in the other
// columns. `weights` may be null.
template <typename T>
__device__ inline void soft_targets(T *gradient, float *losses, const T *student, const T *teacher, const float *weights,
                                    u32 vocabulary, u32 student_width, u32 teacher_width, float temperature) {
  __shared__ Exponentials of_student[THREADS / WARP], of_teacher[THREADS / WARP];
  const u64 row = blockIdx.x;
  student += row * student_width;
  teacher += row * teacher_width;
  gradient += row * student_width;
  const bool student_aligned = student_width % 4 == 0, teacher_aligned = teacher_width % 4 == 0;
  const float inverse = 1.0f / temperature, lowest = -3.0e38f;
  Exponentials students = {lowest, 0.0f}, teachers = {lowest, 0.0f};
  for (u32 word = threadIdx.x; 4 * word < vocabulary; word += THREADS) {
    const Four<T> s = four_of(student, word, student_width, student_aligned);
    const Four<T> t = four_of(teacher, word, teacher_width, teacher_aligned);
    for (u32 j = 0; j < 4 && 4 * word + j < vocabulary; j++) {
      students.add(widen(s.values[j]) * inverse);
      teachers.add(widen(t.values[j]) * inverse);
    }
  }
  students = block_merged(students, of_student);
  teachers = block_merged(teachers, of_teacher);
  const float student_log = logf(students.sum), teacher_log = logf(teachers.sum);
  const float weight = weights == nullptr ? 1.0f : weights[row];
  float loss = 0.0f;
  for (u32 word = threadIdx.x; 4 * word < student_width; word += THREADS) {
    Four<T> s = {}, t = {}, of_student_logits = {};
    if (4 * word < vocabulary) {
      s = four_of(student, word, student_width, student_aligned);
      t = four_of(teacher, word, teacher_width, teacher_aligned);
    }
    for (u32 j = 0; j < 4 && 4 * word + j < vocabulary; j++) {
      const float log_student = widen(s.values[j]) * inverse - students.largest - student_log;
      const float log_teacher = widen(t.values[j]) * inverse - teachers.largest - teacher_log;
      const float target = expf(log_teacher);
      loss += target * (log_teacher - log_student);
      narrow((expf(log_student) - target) * temperature * weight, &of_student_logits.values[j]);
    }
    put_four(gradient, of_student_logits, word, student_width, student_aligned);
  }
  loss = block_sum(loss);
  if (threadIdx.x == 0) {
    losses[row] = loss * temperature * temperature * weight;
  }
}

#define SOFT_TARGETS(name, T)                                                                                                \
  extern "C" __global__ void lambert_soft_targets_##name(T *gradient, float *losses, const T *student, const T *teacher,     \
                                                         const float *weights, u32 vocabulary, u32 student_width,            \
                                                         u32 teacher_width, float temperature) {                             \
    soft_targets(gradient, losses, student, teacher, weights, vocabulary, student_width, teacher_width, temperature);        \
  }

SOFT_TARGETS(f32, float)
SOFT_TARGETS(bf16, bf16)
