// Ends the process with one line if a destructor throws a CUDA error. Destructors of libtorch record events when they
// free memory, which throws after the failure of a GPU. The default handler would end the process with SIGABRT.

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

namespace {

int exit_code = 1;
std::terminate_handler inherited = nullptr;

[[noreturn]] void on_terminate() {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) {
      std::rethrow_exception(thrown);
    }
  } catch (const std::exception &error) {
    if (std::strstr(error.what(), "CUDA") != nullptr) {
      const std::string all = error.what();
      const std::string line = "ERROR the GPU failed while memory was freed: " + all.substr(0, all.find('\n')) + "\n";
      // The exit code follows even if standard error is closed.
      [[maybe_unused]] const auto written = write(STDERR_FILENO, line.data(), line.size());
      _exit(exit_code);
    }
  } catch (...) {
  }
  if (inherited != nullptr) {
    inherited();
  }
  std::abort();
}

}  // namespace

// From now on, an uncaught CUDA error ends the process with exit code `code`.
extern "C" void lambert_exit_on_cuda_error(int code) {
  exit_code = code;
  const std::terminate_handler before = std::set_terminate(on_terminate);
  if (before != on_terminate) {
    inherited = before;
  }
}
