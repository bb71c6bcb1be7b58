// GPU functions of libtorch: random generator, streams, memory statistics. The code uses the device-generic
// interface of c10, which needs no CUDA headers.

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdlib>
#include <memory>
#include <mutex>

#include "caught.h"

namespace {

c10::Device gpu(int index) { return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)}; }

// A GPU stream for copies beside the compute stream.
class CopyStream {
 public:
  explicit CopyStream(c10::Device device)
      : device(device), guard(device.type()), stream(guard.getStreamFromGlobalPool(device)), last(device.type()) {}

  // Uploads a host tensor asynchronously through pinned memory, which libtorch keeps until the copy ends. The
  // compute stream may use the result after `join`. The result belongs to the compute stream. If it belonged to this stream,
  // the allocator would record an event when it is freed. That throws in a destructor if the GPU has failed.
  // So if a result is freed before `join`, call `join` before the compute stream allocates again.
  at::Tensor upload(const at::Tensor &host) {
    at::Tensor made = at::empty(host.sizes(), host.options().device(device));
    copy(made, host.pin_memory());
    return made;
  }

  // Copies `from` to the pinned tensor `to`, after the work that is already enqueued on the compute stream.
  void download(at::Tensor &to, const at::Tensor &from) { copy(to, from); }

  // Makes the compute stream wait for all copies so far.
  void join() { last.block(guard.getStream(device)); }

  bool is_done() const { return last.query(); }

  // Waits for all copies so far.
  void wait() const { last.synchronize(); }

 private:
  c10::Device device;
  c10::impl::VirtualGuardImpl guard;
  c10::Stream stream;
  // Recorded after the last copy.
  c10::Event last;

  // Copies after the work that is already enqueued on the compute stream.
  void copy(at::Tensor &to, const at::Tensor &from) {
    c10::Event computed(device.type());
    computed.record(guard.getStream(device));
    computed.block(stream);
    const c10::StreamGuard here(stream);
    to.copy_(from, /*non_blocking=*/true);
    last.record(stream);
  }
};

// Returns the result of `work`. If `work` throws, passes the message to `failed` and returns -1.
template <typename Work>
int attempt(Work work, Failed failed) {
  return caught([&]() -> int { return work(); }, -1, failed);
}

}  // namespace

// Enables deterministic algorithms on GPUs. cuBLAS then needs a workspace of fixed size. It reads the size from
// CUBLAS_WORKSPACE_CONFIG at its initialization, and configs/src/gpu_environment.rs sets this variable. On failure,
// this function and all functions below that return an int pass the message to `failed` and return -1.
extern "C" int lambert_use_deterministic_algorithms(Failed failed) {
  return attempt(
      [] {
        at::Context &context = at::globalContext();
        context.setDeterministicAlgorithms(true, /*warn_only=*/false);
        context.setDeterministicCuDNN(true);
        // The engine never reads uninitialized memory.
        context.setDeterministicFillUninitializedMemory(false);
        return 0;
      },
      failed);
}

// Allows or forbids TF32 in f32 matrix products.
extern "C" int lambert_allow_tf32(bool allowed, Failed failed) {
  return attempt(
      [&] {
        at::globalContext().setFloat32MatmulPrecision(allowed ? "high" : "highest");
        return 0;
      },
      failed);
}

// Disables cuDNN in fused attention. cuDNN builds a plan for every new shape, which takes a large part of a second, and
// nearly every micro-batch has a new shape. The other attention kernels need no plan.
extern "C" int lambert_disable_cudnn_attention(Failed failed) {
  return attempt(
      [] {
        at::globalContext().setSDPUseCuDNN(false);
        return 0;
      },
      failed);
}

// Seeds the default generator of GPU `index`.
extern "C" int lambert_seed_gpu(int index, uint64_t seed, Failed failed) {
  return attempt(
      [&] {
        at::Generator generator = at::globalContext().defaultGenerator(gpu(index));
        const std::lock_guard<std::mutex> lock(generator.mutex());
        generator.set_current_seed(seed);
        return 0;
      },
      failed);
}

// Writes to `stream` the CUDA stream on which this thread runs operations on GPU `index` (null: the default stream).
extern "C" int lambert_current_stream(int index, void **stream, Failed failed) {
  return attempt(
      [&] {
        const auto *guard = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
        *stream = guard->getStreamNativeHandle(guard->getStream(gpu(index)));
        return 0;
      },
      failed);
}

// Writes the peak memory of tensors on GPU `index`, in bytes, to `bytes`.
extern "C" int lambert_peak_memory(int index, int64_t *bytes, Failed failed) {
  return attempt(
      [&] {
        const auto stats = c10::getDeviceAllocator(c10::DeviceType::CUDA)->getDeviceStats(gpu(index).index());
        *bytes = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)].peak;
        return 0;
      },
      failed);
}

// Makes the memory of tensors that are now on GPU `index` their peak.
extern "C" int lambert_reset_peak_memory(int index, Failed failed) {
  return attempt(
      [&] {
        c10::getDeviceAllocator(c10::DeviceType::CUDA)->resetPeakStats(gpu(index).index());
        return 0;
      },
      failed);
}

// Creates a copy stream on GPU `index`; null on failure.
extern "C" CopyStream *lambert_copy_stream(int index, Failed failed) {
  return caught([&] { return new CopyStream(gpu(index)); }, static_cast<CopyStream *>(nullptr), failed);
}

// Records an event on the current stream of a GPU: all work enqueued so far is complete. The caller owns the result, which
// is null on failure.
extern "C" c10::Event *lambert_time_event(int index, Failed failed) {
  return caught(
      [&] {
        const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
        // Only events with this flag measure time.
        auto event = std::make_unique<c10::Event>(c10::DeviceType::CUDA, c10::EventFlag::BACKEND_DEFAULT);
        event->record(guard.getStream(gpu(index)));
        return event.release();
      },
      static_cast<c10::Event *>(nullptr), failed);
}

// Deletes an event.
extern "C" void lambert_time_event_delete(c10::Event *event) { delete event; }

// Waits for two events and returns the time between them, in milliseconds.
extern "C" int lambert_time_between(const c10::Event *from, const c10::Event *to, double *milliseconds, Failed failed) {
  return attempt(
      [&] {
        from->synchronize();
        to->synchronize();
        *milliseconds = from->elapsedTime(*to);
        return 0;
      },
      failed);
}

// Deletes a copy stream, whose copies must be complete.
extern "C" void lambert_copy_stream_delete(CopyStream *copies) { delete copies; }

// Calls CopyStream::upload. The caller owns the result, which is null on failure.
extern "C" at::Tensor *lambert_copy_stream_upload(CopyStream *copies, const at::Tensor *host, Failed failed) {
  return caught([&] { return new at::Tensor(copies->upload(*host)); }, static_cast<at::Tensor *>(nullptr), failed);
}

// CopyStream::download.
extern "C" int lambert_copy_stream_download(CopyStream *copies, at::Tensor *to, const at::Tensor *from, Failed failed) {
  return attempt([&] { return copies->download(*to, *from), 0; }, failed);
}

// CopyStream::join.
extern "C" int lambert_copy_stream_join(CopyStream *copies, Failed failed) {
  return attempt([&] { return copies->join(), 0; }, failed);
}

// CopyStream::is_done: 1 or 0.
extern "C" int lambert_copy_stream_is_done(const CopyStream *copies, Failed failed) {
  return attempt([&] { return copies->is_done() ? 1 : 0; }, failed);
}

// CopyStream::wait.
extern "C" int lambert_copy_stream_wait(const CopyStream *copies, Failed failed) {
  return attempt([&] { return copies->wait(), 0; }, failed);
}
