// Library for LD_PRELOAD: thread creation fails in `lambert` while the file named by LAMBERT_TEST_FAIL_THREADS exists.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument) {
  static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  if (!real) real = dlsym(RTLD_NEXT, "pthread_create");
  const char *trigger = getenv("LAMBERT_TEST_FAIL_THREADS");
  if (trigger && strcmp(program_invocation_short_name, "lambert") == 0 && access(trigger, F_OK) == 0) {
    return EPERM;
  }
  return real(thread, attributes, start, argument);
}
