// Preloaded before the C library, this makes the owners of a lock file collide: a lock is taken up to 4 ms
// after its file was opened, and another owner has often removed the file by then. With ANY_PATH the owner's
// check that the path still names its file always succeeds.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static unsigned seed;
__attribute__((constructor)) static void begin(void) { seed = (unsigned)getpid(); }

int flock(int descriptor, int operation) {
  int (*next)(int, int) = dlsym(RTLD_NEXT, "flock");
  if (operation & LOCK_EX) usleep(rand_r(&seed) % 4000);
  return next(descriptor, operation);
}

#ifdef ANY_PATH
static __thread struct stat opened;

int fstat(int descriptor, struct stat* found) {
  int (*next)(int, struct stat*) = dlsym(RTLD_NEXT, "fstat");
  const int result = next(descriptor, found);
  opened = *found;
  return result;
}

int stat(const char* path, struct stat* found) {
  int (*next)(const char*, struct stat*) = dlsym(RTLD_NEXT, "stat");
  const size_t length = strlen(path);
  if (length < 5 || strcmp(path + length - 5, ".lock") != 0) return next(path, found);
  *found = opened;
  return 0;
}
#endif
