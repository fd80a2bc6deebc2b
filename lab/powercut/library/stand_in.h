// Common parts of the functions that stand in for libc's and libpmem's.
#pragma once

#include <dlfcn.h>
#include <sys/types.h>

#include "computer.h"

// The return address of the stand-in, in the program.
#define POWERCUT_CALLER __builtin_return_address(0)
#define POWERCUT_EXPORT extern "C" __attribute__((visibility("default")))

namespace powercut {

// Returns the function that this library hides.
template <typename Function>
Function* hidden(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
#define POWERCUT_HIDDEN(name) static auto* const hidden_call = powercut::hidden<decltype(name)>(#name)

// Opens as open(2) does, and follows the file. caller: the return address in the program, also below.
int open_file(const char* function, void* caller, int folder, const char* path, int flags, mode_t mode);
int resize_file(const char* function, void* caller, int descriptor, off_t bytes);
int allocate_file(const char* function, void* caller, int descriptor, off_t offset, off_t bytes);  // an errno
void* map_memory(void* address, size_t bytes, int protection, int flags, int descriptor, off_t offset);
int unmap_memory(void* address, size_t bytes);
// Makes the program's stores in these pages durable.
int sync_memory(const char* function, void* caller, void* address, size_t bytes, int flags);
int remove_name(const char* function, void* caller, int folder, const char* path, int flags);

}  // namespace powercut
