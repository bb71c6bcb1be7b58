// Test emulator: compiles the kernels as C++ and runs them on the CPU. The threads of a block are fibers,
// which switch at barriers and shuffles. Between barriers, each fiber has a random priority, and the ready
// fiber with the highest priority runs. Some threads therefore run far ahead of others, so that a missing
// barrier produces wrong results. Blocks run sequentially.

#include <setjmp.h>
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Index {
  unsigned x;
};
thread_local Index threadIdx, blockIdx, blockDim;

constexpr size_t kStack = 64 << 10;
constexpr unsigned kWarp = 32;

enum class Wait { kReady, kBarrier, kShuffle, kDone };

// A thread of a block.
struct Fiber {
  std::unique_ptr<char[]> stack{new char[kStack]};
  ucontext_t start;
  jmp_buf state;
  bool started = false;
  uint64_t priority = 0;
  Wait waiting_for = Wait::kDone;
  // State of a shuffle: the value that this thread provides, the value that it
  // receives, and the lane of the source.
  uint64_t provided, received;
  unsigned source;
};

// Scheduler for the threads of a block. One scheduler is reused for all blocks.
struct Block {
  std::vector<Fiber> fibers;
  std::priority_queue<std::pair<uint64_t, unsigned>> ready;
  std::function<void()> body;
  jmp_buf scheduler;
  unsigned current = 0;
  uint64_t random = 0;
  const char *error = nullptr;

  uint64_t draw() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random;
  }

  // Switches to the scheduler. Returns when the fiber is resumed.
  void wait(Wait reason) {
    Fiber &self = fibers[current];
    self.waiting_for = reason;
    if (_setjmp(self.state) == 0) {
      _longjmp(scheduler, 1);
    }
  }

  void resume(unsigned thread) {
    current = thread;
    threadIdx.x = thread;
    if (_setjmp(scheduler) != 0) {
      return;
    }
    Fiber &fiber = fibers[thread];
    if (fiber.started) {
      _longjmp(fiber.state, 1);
    }
    fiber.started = true;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = kStack;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, enter, 0);
    setcontext(&fiber.start);
  }

  static void enter();

  // True if all threads of [first, end) wait for `what`.
  bool all_wait(unsigned first, unsigned end, Wait what) const {
    for (unsigned thread = first; thread < end; thread++) {
      if (fibers[thread].waiting_for != what) {
        return false;
      }
    }
    return true;
  }

  void release(unsigned first, unsigned end) {
    for (unsigned thread = first; thread < end; thread++) {
      fibers[thread].waiting_for = Wait::kReady;
      ready.emplace(fibers[thread].priority, thread);
    }
  }

  void release_all() {
    for (Fiber &fiber : fibers) {
      fiber.priority = draw();
    }
    release(0, static_cast<unsigned>(fibers.size()));
  }

  void shuffle(unsigned first) {
    for (unsigned lane = 0; lane < kWarp; lane++) {
      Fiber &fiber = fibers[first + lane];
      fiber.received = fibers[first + fiber.source].provided;
    }
  }

  void run(unsigned threads) {
    if (threads % kWarp != 0) {
      throw std::runtime_error("block size is not a multiple of the warp size");
    }
    fibers.resize(threads);
    release_all();
    unsigned done = 0;
    while (done < threads) {
      if (ready.empty()) {
        throw std::runtime_error("deadlock: threads wait for threads that are done or wait elsewhere");
      }
      const unsigned thread = ready.top().second;
      ready.pop();
      resume(thread);
      const unsigned warp = thread - thread % kWarp;
      switch (fibers[thread].waiting_for) {
        case Wait::kDone:
          done++;
          break;
        case Wait::kBarrier:
          if (all_wait(0, threads, Wait::kBarrier)) {
            release_all();
          }
          break;
        case Wait::kShuffle:
          if (all_wait(warp, warp + kWarp, Wait::kShuffle)) {
            shuffle(warp);
            release(warp, warp + kWarp);
          }
          break;
        case Wait::kReady:
          throw std::runtime_error("thread yielded without waiting");
      }
    }
    if (error != nullptr) {
      throw std::runtime_error(error);
    }
  }
};

thread_local std::unique_ptr<Block> block;

// Main function of a fiber, which runs the same thread of one block after another.
void Block::enter() {
  for (;;) {
    block->body();
    block->wait(Wait::kDone);
  }
}

void __syncthreads() { block->wait(Wait::kBarrier); }

// Returns the value of lane `source` of the warp.
template <typename T>
T exchange(unsigned mask, T value, unsigned source) {
  if (mask != 0xffffffffu) {
    block->error = "shuffle with a partial warp mask is not supported";
  }
  Fiber &self = block->fibers[block->current];
  self.provided = 0;
  std::memcpy(&self.provided, &value, sizeof value);
  self.source = source;
  block->wait(Wait::kShuffle);
  std::memcpy(&value, &block->fibers[block->current].received, sizeof value);
  return value;
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta) {
  const unsigned lane = threadIdx.x % kWarp;
  return exchange(mask, value, lane + delta < kWarp ? lane + delta : lane);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, unsigned lanes) {
  return exchange(mask, value, (threadIdx.x % kWarp) ^ lanes);
}

}  // namespace

#define __global__
#define __device__
#define __launch_bounds__(...)
// Blocks run sequentially, so one copy of the shared memory suffices.
#define __shared__ static thread_local

using std::isfinite;
using std::memcpy;
#include "kernels.cu"
#include "norm.cu"
#include "rotary.cu"
#include "gate.cu"
#include "relative.cu"
#include "sample.cu"
#include "soft_targets.cu"
#include "cross_entropy.cu"

namespace {

template <typename... Arguments, size_t... Indices>
void call(void (*kernel)(Arguments...), void **arguments, std::index_sequence<Indices...>) {
  kernel(*static_cast<Arguments *>(arguments[Indices])...);
}

template <typename... Arguments>
std::function<void(void **)> callable(void (*kernel)(Arguments...)) {
  return [kernel](void **arguments) { call(kernel, arguments, std::index_sequence_for<Arguments...>()); };
}

#define KERNEL(name) {#name, callable(lambert_##name)}
const std::map<std::string, std::function<void(void **)>> kKernels = {
    KERNEL(dropout_f32),     KERNEL(dropout_bf16),    KERNEL(sum_of_squares), KERNEL(norm_from_sums),
    KERNEL(digest_chunks),   KERNEL(digest_sum),      KERNEL(scaled_directions), KERNEL(scaled_step_sizes),
    KERNEL(scaled_apply),      KERNEL(adamw),           KERNEL(to_bf16),         KERNEL(from_bf16),
    KERNEL(residual_norm_f32), KERNEL(residual_norm_backward_f32), KERNEL(residual_norm_bf16),
    KERNEL(residual_norm_backward_bf16), KERNEL(add_column_sums),     KERNEL(rotate_f32),
    KERNEL(rotate_bf16),       KERNEL(gate_f32),        KERNEL(gate_bf16),       KERNEL(gate_backward_f32),
    KERNEL(gate_backward_bf16), KERNEL(sample_tokens_f32), KERNEL(sample_tokens_bf16),
    KERNEL(soft_targets_f32),  KERNEL(soft_targets_bf16), KERNEL(cross_entropy_f32), KERNEL(cross_entropy_bf16),
    KERNEL(cross_entropy_backward_f32), KERNEL(cross_entropy_backward_bf16),
    KERNEL(relative_softmax_f32), KERNEL(relative_softmax_bf16), KERNEL(relative_softmax_backward_f32),
    KERNEL(relative_softmax_backward_bf16),
};

}  // namespace

// Runs a kernel with the arguments of cuLaunchKernel. `seed` determines the thread order. Returns null, or an error
// message.
extern "C" const char *lambert_emulate(const char *kernel, unsigned blocks, unsigned threads, void **arguments,
                                       uint64_t seed) {
  static thread_local std::string error_text;
  try {
    if (!block) {
      block = std::make_unique<Block>();
    }
    block->random = seed | 1;
    block->body = [run = kKernels.at(kernel), arguments] { run(arguments); };
    blockDim.x = threads;
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
      block->run(threads);
    }
    return nullptr;
  } catch (const std::exception &error) {
    // Discard the suspended fibers. The next call creates new fibers.
    block.reset();
    error_text = std::string(kernel) + ": " + error.what();
    return error_text.c_str();
  }
}
