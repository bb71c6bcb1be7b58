// Replacement for the driver library of NVIDIA that reports one GPU. It has only the functions that are called before
// libtorch is loaded.
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
