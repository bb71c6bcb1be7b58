// Delays every twentieth socket write of 1 KiB or more by 50 ms. For each delayed write, appends a byte to the file
// that LAMBERT_TEST_DELAYS names. Tests load this library with LD_PRELOAD, because not every kernel can delay packets.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

ssize_t writev(int fd, const struct iovec *parts, int count) {
  static ssize_t (*real)(int, const struct iovec *, int);
  static unsigned seen;
  if (!real) real = dlsym(RTLD_NEXT, "writev");
  size_t length = 0;
  for (int i = 0; i < count; ++i) length += parts[i].iov_len;
  int type;
  socklen_t size = sizeof type;
  if (length >= 1024 && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && ++seen % 20 == 0) {
    const char *name = getenv("LAMBERT_TEST_DELAYS");
    int file = name ? open(name, O_WRONLY | O_CREAT | O_APPEND, 0644) : -1;
    if (file >= 0) {
      if (write(file, ".", 1) < 0) abort();
      close(file);
    }
    usleep(50000);
  }
  return real(fd, parts, count);
}
