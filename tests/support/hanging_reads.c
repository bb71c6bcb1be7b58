// Library for LD_PRELOAD: reads of dataset shards hang while the file named by LAMBERT_TEST_HANG exists.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wait_for(int fd) {
  const char *trigger = getenv("LAMBERT_TEST_HANG");
  if (!trigger || access(trigger, F_OK) != 0) {
    return;
  }
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  path[length < 0 ? 0 : length] = 0;
  while (strstr(path, ".parquet") && access(trigger, F_OK) == 0) {
    usleep(20000);
  }
}

ssize_t read(int fd, void *buffer, size_t length) {
  static ssize_t (*real)(int, void *, size_t);
  if (!real) real = dlsym(RTLD_NEXT, "read");
  wait_for(fd);
  return real(fd, buffer, length);
}

ssize_t pread64(int fd, void *buffer, size_t length, off64_t offset) {
  static ssize_t (*real)(int, void *, size_t, off64_t);
  if (!real) real = dlsym(RTLD_NEXT, "pread64");
  wait_for(fd);
  return real(fd, buffer, length, offset);
}
