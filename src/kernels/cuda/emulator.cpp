// For tests: the kernels as C++, on a processor. The threads of a block are fibres that switch at barriers and shuffles, in an
// order drawn by a seed, so that a barrier that is missing shows: between barriers each has a priority, and the first of those
// that can goes on, so that some thread is always far ahead of the others. Blocks run one after the other.

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

struct Place {
  unsigned x;
};
thread_local Place threadIdx, blockIdx, blockDim;

constexpr size_t kStack = 64 << 10;
constexpr unsigned kWarp = 32;

enum class Waits { kNot, kBarrier, kShuffle, kEnded };

// A thread of a block.
struct Fibre {
  std::unique_ptr<char[]> stack{new char[kStack]};
  ucontext_t start;
  jmp_buf state;
  bool begun = false;
  uint64_t priority = 0;
  Waits waits = Waits::kEnded;
  // What it brings to a shuffle, from how many lanes further it wants another's, and what it gets.
  uint64_t brought, got;
  unsigned delta;
};

// The threads of one block after the other.
struct Block {
  std::vector<Fibre> fibres;
  std::priority_queue<std::pair<uint64_t, unsigned>> ready;
  std::function<void()> body;
  jmp_buf scheduler;
  unsigned current = 0;
  uint64_t random = 0;
  const char *fault = nullptr;

  uint64_t draw() {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return random;
  }

  // Gives the processor back; returns when the fibre goes on.
  void wait(Waits for_what) {
    Fibre &self = fibres[current];
    self.waits = for_what;
    if (_setjmp(self.state) == 0) {
      _longjmp(scheduler, 1);
    }
  }

  void go_on(unsigned thread) {
    current = thread;
    threadIdx.x = thread;
    if (_setjmp(scheduler) != 0) {
      return;
    }
    Fibre &fibre = fibres[thread];
    if (fibre.begun) {
      _longjmp(fibre.state, 1);
    }
    fibre.begun = true;
    getcontext(&fibre.start);
    fibre.start.uc_stack.ss_sp = fibre.stack.get();
    fibre.start.uc_stack.ss_size = kStack;
    fibre.start.uc_link = nullptr;
    makecontext(&fibre.start, enter, 0);
    setcontext(&fibre.start);
  }

  static void enter();

  // Those of [first, end) that wait, wait for `what`, and none of them has ended.
  bool all_wait(unsigned first, unsigned end, Waits what) const {
    for (unsigned thread = first; thread < end; thread++) {
      if (fibres[thread].waits != what) {
        return false;
      }
    }
    return true;
  }

  void release(unsigned first, unsigned end) {
    for (unsigned thread = first; thread < end; thread++) {
      fibres[thread].waits = Waits::kNot;
      ready.emplace(fibres[thread].priority, thread);
    }
  }

  void release_all() {
    for (Fibre &fibre : fibres) {
      fibre.priority = draw();
    }
    release(0, static_cast<unsigned>(fibres.size()));
  }

  void shuffle(unsigned first) {
    for (unsigned lane = 0; lane < kWarp; lane++) {
      Fibre &fibre = fibres[first + lane];
      const unsigned from = lane + fibre.delta;
      fibre.got = fibres[first + (from < kWarp ? from : lane)].brought;
    }
  }

  void run(unsigned threads) {
    if (threads % kWarp != 0) {
      throw std::runtime_error("a block is no number of whole warps");
    }
    fibres.resize(threads);
    release_all();
    unsigned ended = 0;
    while (ended < threads) {
      if (ready.empty()) {
        throw std::runtime_error("threads wait for others that have ended or wait elsewhere");
      }
      const unsigned thread = ready.top().second;
      ready.pop();
      go_on(thread);
      const unsigned warp = thread - thread % kWarp;
      switch (fibres[thread].waits) {
        case Waits::kEnded:
          ended++;
          break;
        case Waits::kBarrier:
          if (all_wait(0, threads, Waits::kBarrier)) {
            release_all();
          }
          break;
        case Waits::kShuffle:
          if (all_wait(warp, warp + kWarp, Waits::kShuffle)) {
            shuffle(warp);
            release(warp, warp + kWarp);
          }
          break;
        case Waits::kNot:
          throw std::runtime_error("a thread stopped without waiting");
      }
    }
    if (fault != nullptr) {
      throw std::runtime_error(fault);
    }
  }
};

thread_local std::unique_ptr<Block> block;

// A fibre serves block after block.
void Block::enter() {
  for (;;) {
    block->body();
    block->wait(Waits::kEnded);
  }
}

void __syncthreads() { block->wait(Waits::kBarrier); }

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta) {
  if (mask != 0xffffffffu) {
    block->fault = "only whole warps shuffle here";
  }
  Fibre &self = block->fibres[block->current];
  self.brought = 0;
  std::memcpy(&self.brought, &value, sizeof value);
  self.delta = delta;
  block->wait(Waits::kShuffle);
  std::memcpy(&value, &block->fibres[block->current].got, sizeof value);
  return value;
}

}  // namespace

#define __global__
#define __device__
// Blocks run one after the other.
#define __shared__ static thread_local

using std::isfinite;
using std::memcpy;
#include "kernels.cu"

namespace {

template <typename... Arguments, size_t... Places>
void call(void (*kernel)(Arguments...), void **arguments, std::index_sequence<Places...>) {
  kernel(*static_cast<Arguments *>(arguments[Places])...);
}

template <typename... Arguments>
std::function<void(void **)> callable(void (*kernel)(Arguments...)) {
  return [kernel](void **arguments) { call(kernel, arguments, std::index_sequence_for<Arguments...>()); };
}

#define KERNEL(name) {#name, callable(lambert_##name)}
const std::map<std::string, std::function<void(void **)>> kKernels = {
    KERNEL(dropout_f32),  KERNEL(dropout_bf16),    KERNEL(squares),    KERNEL(root_of_sums), KERNEL(words),
    KERNEL(sum_of_words), KERNEL(lamb_directions), KERNEL(lamb_rates), KERNEL(lamb_apply),   KERNEL(adamw),
    KERNEL(to_bf16),      KERNEL(from_bf16),
};

}  // namespace

// Runs a kernel as cuLaunchKernel would; `seed` draws the order of the threads. Returns what went wrong, or nothing.
extern "C" const char *lambert_emulate(const char *kernel, unsigned blocks, unsigned threads, void **arguments,
                                       uint64_t seed) {
  static thread_local std::string said;
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
    // The fibres stand wherever they are: the next call has new ones.
    block.reset();
    said = std::string(kernel) + ": " + error.what();
    return said.c_str();
  }
}
