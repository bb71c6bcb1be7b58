// What of a card's is reached through libtorch: its generator, its streams. All through c10's device-generic interface, which
// needs no header of CUDA's.

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>
#include <mutex>
#include <vector>

#include "caught.h"

namespace {

c10::Device card(int index) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)}; }

// A stream of a card beside the one that computes, for copies. All through c10's interface.
class Lane {
 public:
  explicit Lane(c10::Device device)
      : device(device), guard(device.type()), stream(guard.getStreamFromGlobalPool(device)), last(device.type()) {}

  // A copy of a tensor in main memory, made as soon as the lane is free, by way of pinned memory, which libtorch keeps until
  // then. For the computing stream it is there after `order`.
  at::Tensor send(const at::Tensor &host) {
    const c10::StreamGuard here(stream);
    at::Tensor made = host.pin_memory().to(device, host.scalar_type(), /*non_blocking=*/true);
    last.record(stream);
    sent.push_back(made);
    return made;
  }

  // Copies to pinned memory what `from` is when the computing stream has done what it was given so far.
  void take(at::Tensor &to, const at::Tensor &from) {
    c10::Event computed(device.type());
    computed.record(guard.getStream(device));
    computed.block(stream);
    const c10::StreamGuard here(stream);
    to.copy_(from, /*non_blocking=*/true);
    last.record(stream);
  }

  // Lets the computing stream wait for all copies so far.
  void order() {
    const c10::Stream computing = guard.getStream(device);
    last.block(computing);
    for (const at::Tensor &tensor : sent) {
      // Freed, its memory is not given away before the computing stream is past it.
      guard.recordDataPtrOnStream(tensor.storage().data_ptr(), computing);
    }
    sent.clear();
  }

  bool is_done() const { return last.query(); }

  // Waits for all copies so far.
  void wait() const { last.synchronize(); }

 private:
  c10::Device device;
  c10::impl::VirtualGuardImpl guard;
  c10::Stream stream;
  // Behind the last copy.
  c10::Event last;
  // What the computing stream has not been told to wait for.
  std::vector<at::Tensor> sent;
};

// Returns what `work` does, or -1 and tells `failed` why.
template <typename Work>
int attempt(Work work, Failed failed) {
  return caught([&]() -> int { return work(); }, -1, failed);
}

}  // namespace

// Lets operations on cards add up in one order. cuBLAS needs a workspace of a fixed size for that, which it reads from
// CUBLAS_WORKSPACE_CONFIG when it begins; configs/src/gpu_environment.rs sets it. Returns 0, or -1 and tells `failed` why, and so do all below that return a number.
extern "C" int lambert_add_in_one_order(Failed failed) {
  return attempt(
      [] {
        at::Context &context = at::globalContext();
        context.setDeterministicAlgorithms(true, /*warn_only=*/false);
        context.setDeterministicCuDNN(true);
        // Nothing here reads memory before it writes it.
        context.setDeterministicFillUninitializedMemory(false);
        return 0;
      },
      failed);
}

// Whether matrix products of 32 bits may read 19 of them.
extern "C" int lambert_allow_tf32(bool allowed, Failed failed) {
  return attempt(
      [&] {
        at::globalContext().setFloat32MatmulPrecision(allowed ? "high" : "highest");
        return 0;
      },
      failed);
}

// Leaves cuDNN out of fused attention: it makes a plan for every new shape, which takes a good part of a second, and here nearly
// every micro-batch has a shape of its own. The kernels that are left have none to make.
extern "C" int lambert_leave_out_cudnn(Failed failed) {
  return attempt(
      [] {
        at::globalContext().setSDPUseCuDNN(false);
        return 0;
      },
      failed);
}

// Seeds the default generator of card `index`.
extern "C" int lambert_seed_card(int index, uint64_t seed, Failed failed) {
  return attempt(
      [&] {
        at::Generator generator = at::globalContext().defaultGenerator(card(index));
        const std::lock_guard<std::mutex> lock(generator.mutex());
        generator.set_current_seed(seed);
        return 0;
      },
      failed);
}

// The stream of card `index` that this thread's operations go to, as CUDA knows it (null is the default one), into `stream`.
extern "C" int lambert_current_stream(int index, void **stream, Failed failed) {
  return attempt(
      [&] {
        const auto *guard = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
        *stream = guard->getStreamNativeHandle(guard->getStream(card(index)));
        return 0;
      },
      failed);
}

// The most bytes of card `index` that tensors have had at a time, into `bytes`.
extern "C" int lambert_peak_memory(int index, int64_t *bytes, Failed failed) {
  return attempt(
      [&] {
        const auto stats = c10::getDeviceAllocator(c10::DeviceType::CUDA)->getDeviceStats(card(index).index());
        *bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
        return 0;
      },
      failed);
}

// A lane of card `index`; null where that fails.
extern "C" Lane *lambert_lane(int index, Failed failed) {
  return caught([&] { return new Lane(card(index)); }, static_cast<Lane *>(nullptr), failed);
}

// Forgets a lane, whose copies have been made.
extern "C" void lambert_lane_forget(Lane *lane) { delete lane; }

// Lane::send, as its caller's own; null where that fails.
extern "C" at::Tensor *lambert_lane_send(Lane *lane, const at::Tensor *host, Failed failed) {
  return caught([&] { return new at::Tensor(lane->send(*host)); }, static_cast<at::Tensor *>(nullptr), failed);
}

// Lane::take.
extern "C" int lambert_lane_take(Lane *lane, at::Tensor *to, const at::Tensor *from, Failed failed) {
  return attempt([&] { return lane->take(*to, *from), 0; }, failed);
}

// Lane::order.
extern "C" int lambert_lane_order(Lane *lane, Failed failed) {
  return attempt([&] { return lane->order(), 0; }, failed);
}

// Lane::is_done: 1 or 0.
extern "C" int lambert_lane_is_done(const Lane *lane, Failed failed) {
  return attempt([&] { return lane->is_done() ? 1 : 0; }, failed);
}

// Lane::wait.
extern "C" int lambert_lane_wait(const Lane *lane, Failed failed) {
  return attempt([&] { return lane->wait(), 0; }, failed);
}
