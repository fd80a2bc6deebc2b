// Room for rows, asked for before it's taken.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "errors/error.h"

namespace embstore {

// Throws Error(kStoreFull) where the file at `path`, which may be there already, would lie in memory and can't have
// `size_bytes`: the kernel doesn't refuse what a tmpfs may have and the computer doesn't, but ends processes for it.
// Of other file systems nothing is asked: their calls tell.
void require_room_in_memory(const std::string& path, uint64_t size_bytes);

// What the process may take without ending itself or others, of the computer's memory and of its container's; nothing where the
// system doesn't say.
std::optional<uint64_t> available_memory_bytes();

// Of a call that found no space for it.
Error no_room(const std::string& path, uint64_t size_bytes);

}  // namespace embstore
