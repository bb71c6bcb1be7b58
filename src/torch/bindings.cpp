// The functions that Rust calls, as one file for the compiler: most of its time goes to the headers of libtorch.

#include "shim.cpp"
#include "gpu.cpp"
#include "attention.cpp"
#include "operation.cpp"
