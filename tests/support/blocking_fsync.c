// Library for LD_PRELOAD: fsync and fdatasync block while the file named by LAMBERT_TEST_BLOCK_FSYNC exists, as on an
// unavailable file server. The file contains a substring of the affected paths. An empty file matches all paths.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// True if the trigger exists and applies to `fd`.
static int blocked(int fd) {
  const char *trigger = getenv("LAMBERT_TEST_BLOCK_FSYNC");
  int file = trigger ? open(trigger, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) {
    return 0;
  }
  char part[1024], link[64], path[4096];
  ssize_t length = read(file, part, sizeof part - 1);
  close(file);
  part[length < 0 ? 0 : length] = 0;
  part[strcspn(part, "\n")] = 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  length = readlink(link, path, sizeof path - 1);
  path[length < 0 ? 0 : length] = 0;
  return strstr(path, part) != NULL;
}

static void wait_until_released(int fd) {
  while (blocked(fd)) {
    usleep(20000);
  }
}

int fsync(int fd) {
  wait_until_released(fd);
  return syscall(SYS_fsync, fd);
}

int fdatasync(int fd) {
  wait_until_released(fd);
  return syscall(SYS_fdatasync, fd);
}
