// Emulates the part of NVML (libnvidia-ml.so.1) that lambert calls, with the types and the symbol names of nvml.h in CUDA
// 12 and 13. There are two GPUs: index 0 on bus 2 and index 1 on bus 1. A file PATH.xid-BUS beside the library PATH is
// an Xid error of the GPU on this bus: it has the number of the error, and the library removes it. While there is a file
// PATH.gone-BUS, the library does not find the GPU on this bus.
//
// Options of the compiler: INIT_RESULT, UTILIZATION_RESULT, POWER_RESULT and REGISTER_RESULT are the results of calls.
// With MIG_MODE=1, the GPUs are in MIG mode.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef INIT_RESULT
#define INIT_RESULT NVML_SUCCESS
#endif
#ifndef UTILIZATION_RESULT
#define UTILIZATION_RESULT NVML_SUCCESS
#endif
#ifndef POWER_RESULT
#define POWER_RESULT NVML_SUCCESS
#endif
#ifndef REGISTER_RESULT
#define REGISTER_RESULT NVML_SUCCESS
#endif
#ifndef MIG_MODE
#define MIG_MODE 0
#endif

typedef enum {
  NVML_SUCCESS = 0,
  NVML_ERROR_UNINITIALIZED = 1,
  NVML_ERROR_INVALID_ARGUMENT = 2,
  NVML_ERROR_NOT_SUPPORTED = 3,
  NVML_ERROR_NOT_FOUND = 6,
  NVML_ERROR_INSUFFICIENT_SIZE = 7,
  NVML_ERROR_DRIVER_NOT_LOADED = 9,
  NVML_ERROR_TIMEOUT = 10,
  NVML_ERROR_GPU_IS_LOST = 15,
} nvmlReturn_t;

typedef struct nvmlDevice_st {
  unsigned int bus;
} *nvmlDevice_t;

typedef struct nvmlEventSet_st {
  nvmlDevice_t devices[2];
  unsigned int count;
} *nvmlEventSet_t;

typedef struct {
  unsigned int gpu;
  unsigned int memory;
} nvmlUtilization_t;

typedef struct {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
} nvmlMemory_t;

typedef struct {
  nvmlDevice_t device;
  unsigned long long eventType;
  unsigned long long eventData;
  unsigned int gpuInstanceId;
  unsigned int computeInstanceId;
} nvmlEventData_t;

#define XID_CRITICAL_ERROR 8ULL

static struct nvmlDevice_st devices[2] = {{2}, {1}};
static int is_initialized;

nvmlReturn_t nvmlInit_v2(void) {
  is_initialized = INIT_RESULT == NVML_SUCCESS;
  return INIT_RESULT;
}

const char *nvmlErrorString(nvmlReturn_t result) {
  switch (result) {
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    default: return "Unknown Error";
  }
}

/// Writes the path of file PATH.KIND-BUS of a GPU. Returns 0 if the path of the library is unknown.
static int path_of(char *path, size_t size, const char *kind, nvmlDevice_t device) {
  Dl_info library;
  if (!dladdr((void *)path_of, &library)) return 0;
  snprintf(path, size, "%s.%s-%u", library.dli_fname, kind, device->bus);
  return 1;
}

static int is_gone(nvmlDevice_t device) {
  char path[4096];
  return path_of(path, sizeof path, "gone", device) && access(path, F_OK) == 0;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device) {
  unsigned int domain, bus, slot, function;
  if (!is_initialized) return NVML_ERROR_UNINITIALIZED;
  if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) != 4) return NVML_ERROR_INVALID_ARGUMENT;
  for (int index = 0; index < 2; index++) {
    if (devices[index].bus != bus || is_gone(&devices[index])) continue;
    *device = &devices[index];
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index) {
  *index = device - devices;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
  if (length < 80) return NVML_ERROR_INSUFFICIENT_SIZE;
  snprintf(uuid, length, "GPU-00000000-0000-0000-0000-%012u", device->bus);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
  *current = *pending = MIG_MODE;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization) {
  *utilization = (nvmlUtilization_t){.gpu = 95 + device->bus, .memory = 40};
  return UTILIZATION_RESULT;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
  unsigned long long gib = 1ULL << 30, used = 70 + device->bus;
  *memory = (nvmlMemory_t){.total = 80 * gib, .free = (80 - used) * gib, .used = used * gib};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts) {
  *milliwatts = 600500 + 10000 * device->bus;
  return POWER_RESULT;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *degrees) {
  if (sensor != 0) return NVML_ERROR_INVALID_ARGUMENT;
  *degrees = 60 + device->bus;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
  *set = calloc(1, sizeof **set);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
  free(set);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set) {
  if (types != XID_CRITICAL_ERROR) return NVML_ERROR_NOT_SUPPORTED;
  if (REGISTER_RESULT == NVML_SUCCESS) set->devices[set->count++] = device;
  return REGISTER_RESULT;
}

/// Takes the Xid error of a GPU. Returns 0 if there is none.
static unsigned long long take_xid(nvmlDevice_t device) {
  char path[4096], taken[4200];
  unsigned long long xid = 0;
  if (!path_of(path, sizeof path, "xid", device)) return 0;
  snprintf(taken, sizeof taken, "%s.%d", path, getpid());
  if (rename(path, taken) != 0) return 0;
  FILE *file = fopen(taken, "r");
  if (file == NULL || fscanf(file, "%llu", &xid) != 1) xid = 0;
  if (file != NULL) fclose(file);
  unlink(taken);
  return xid;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int milliseconds) {
  for (unsigned int waited = 0;; waited += 10) {
    for (unsigned int index = 0; index < set->count; index++) {
      unsigned long long xid = take_xid(set->devices[index]);
      if (xid == 0) continue;
      *data = (nvmlEventData_t){set->devices[index], XID_CRITICAL_ERROR, xid, 0xffffffff, 0xffffffff};
      return NVML_SUCCESS;
    }
    if (waited >= milliseconds) return NVML_ERROR_TIMEOUT;
    usleep(10000);
  }
}
