// Profile of the GPU work of a program by kernel name. The CUDA driver loads this library into the program that
// CUDA_INJECTION64_PATH is set for. At exit, it writes a table to the file PROFILE_OUTPUT. The table covers the last
// PROFILE_SECONDS seconds of GPU work (default 2) and says how long the GPU was idle.
//
//   g++ -O2 -shared -fPIC -I CUDA/include profile.cpp -o profile.so CUDA/lib/libcupti.so.13

#include <cupti.h>
#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Work {
  uint64_t start, end;
  std::string name;
};

std::mutex lock;
std::vector<Work> all;

std::string demangled(const char *name) {
  int status = 0;
  char *text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  std::string found = status == 0 ? text : name;
  free(text);
  return found;
}

void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *most) {
  *size = 8 << 20;
  *buffer = static_cast<uint8_t *>(aligned_alloc(8, *size));
  *most = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t *buffer, size_t, size_t valid) {
  const std::lock_guard<std::mutex> held(lock);
  CUpti_Activity *record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
      const auto *kernel = reinterpret_cast<CUpti_ActivityKernel10 *>(record);
      all.push_back({kernel->start, kernel->end, kernel->name});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
      const auto *copy = reinterpret_cast<CUpti_ActivityMemcpy6 *>(record);
      all.push_back({copy->start, copy->end, "copy of kind " + std::to_string(copy->copyKind)});
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
      const auto *fill = reinterpret_cast<CUpti_ActivityMemset4 *>(record);
      all.push_back({fill->start, fill->end, "fill"});
    }
  }
  free(buffer);
}

void report() {
  cuptiActivityFlushAll(1);
  const std::lock_guard<std::mutex> held(lock);
  const char *path = getenv("PROFILE_OUTPUT"), *seconds = getenv("PROFILE_SECONDS");
  FILE *file = path != nullptr ? fopen(path, "w") : nullptr;
  if (file == nullptr || all.empty()) {
    return;
  }
  std::sort(all.begin(), all.end(), [](const Work &a, const Work &b) { return a.start < b.start; });
  const uint64_t last = all.back().end, window = static_cast<uint64_t>(1e9 * (seconds != nullptr ? atof(seconds) : 2.0));
  const uint64_t first = std::max(all.front().start, last > window ? last - window : 0);
  std::map<std::string, std::pair<uint64_t, uint64_t>> sums;
  uint64_t busy = 0, reached = first, count = 0;
  for (const Work &work : all) {
    if (work.start < first) {
      continue;
    }
    auto &sum = sums[work.name];
    sum.first++;
    sum.second += work.end - work.start;
    busy += work.end > reached ? work.end - std::max(work.start, reached) : 0;
    reached = std::max(reached, work.end);
    count++;
  }
  fprintf(file, "%.3f s, idle %.1f %%, %lu operations\n", 1e-9 * (last - first), 100.0 - 100.0 * busy / (last - first), count);
  std::vector<std::pair<uint64_t, std::string>> order;
  for (const auto &[name, sum] : sums) {
    order.push_back({sum.second, name});
  }
  std::sort(order.rbegin(), order.rend());
  fprintf(file, "share %%  calls   mean us  name\n");
  for (const auto &[time, name] : order) {
    const uint64_t calls = sums[name].first;
    fprintf(file, "%6.2f %7lu %9.1f  %.220s\n", 100.0 * time / (last - first), calls, 1e-3 * time / calls,
            demangled(name.c_str()).c_str());
  }
  fclose(file);
}

}  // namespace

extern "C" int InitializeInjection(void) {
  cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
  for (auto kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    cuptiActivityEnable(kind);
  }
  atexit(report);
  return 1;
}
