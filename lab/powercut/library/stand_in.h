// What every function that stands in for another needs.
#pragma once

#include <dlfcn.h>
#include <sys/types.h>

#include "computer.h"

// The address in the program to which the function returns that this stands in.
#define POWERCUT_CALLER __builtin_return_address(0)
#define POWERCUT_EXPORT extern "C" __attribute__((visibility("default")))

namespace powercut {

// The function that this library hides.
template <typename Function>
Function* hidden(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
#define POWERCUT_HIDDEN(name) static auto* const hidden_call = powercut::hidden<decltype(name)>(#name)

// Opens as open(2) does, and follows the file. `caller`: as everywhere, where the program called.
int open_file(const char* function, void* caller, int folder, const char* path, int flags, mode_t mode);
int resize_file(const char* function, void* caller, int descriptor, off_t bytes);
int allocate_file(const char* function, void* caller, int descriptor, off_t offset, off_t bytes);  // an errno
void* map_memory(void* address, size_t bytes, int protection, int flags, int descriptor, off_t offset);
void* move_memory(void* address, size_t bytes, size_t new_bytes, int flags, void* to);
int protect_memory(void* address, size_t bytes, int protection);
int unmap_memory(void* address, size_t bytes);
// All of what the program has stored in these pages is durable.
int sync_memory(const char* function, void* caller, void* address, size_t bytes, int flags);
int remove_name(const char* function, void* caller, int folder, const char* path, int flags);

}  // namespace powercut
