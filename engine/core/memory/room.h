// Room for a file of rows, asked for before it's taken.
#pragma once

#include <cstdint>
#include <string>

#include "errors/error.h"

namespace embstore {

// Throws Error(kStoreFull) where the file at `path`, which may be there already, would lie in memory and can't have
// `size_bytes`: the kernel doesn't refuse what a tmpfs may have and the computer doesn't, but ends processes for it.
// Of other file systems nothing is asked: their calls tell.
void require_room_in_memory(const std::string& path, uint64_t size_bytes);

// Of a call that found no space for it.
Error no_room(const std::string& path, uint64_t size_bytes);

}  // namespace embstore
