// Exceptions that must not leave C++: a caller in Rust cannot unwind them.

#pragma once

#include <exception>

using Failed = void (*)(const char *);

// Returns what `work` does; where it throws, returns `otherwise` and tells `failed` why.
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
