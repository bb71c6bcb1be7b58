// Catches C++ exceptions, which must not unwind into Rust.

#pragma once

#include <exception>

using Failed = void (*)(const char *);

// Returns the result of `work`. If `work` throws, passes the message to `failed` and returns `otherwise`.
template <typename Work, typename Result>
Result caught(Work work, Result otherwise, Failed failed) {
  try {
    return work();
  } catch (const std::exception &error) {
    failed(error.what());
  } catch (...) {
    failed("an exception of an unknown type");
  }
  return otherwise;
}
