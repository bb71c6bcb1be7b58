// In the place of NVIDIA's driver: a card is there. As much of it as is asked for before libtorch is loaded.
int cuInit(unsigned flags) { return (int)flags; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
