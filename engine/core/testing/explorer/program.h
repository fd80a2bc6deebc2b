// Finds functions of the running program by place, in its own symbol table.
#pragma once

#include <cstdint>
#include <string>

namespace embstore::explorer {

// Returns the place of an address in the program, whatever the program's load address.
uint64_t place_of(const void* address);
// Returns the begin of the function at a place; the place itself if no function is known there.
uint64_t begin_of_function_at(uint64_t place);
// Returns the name of the function at a place, without arguments and template arguments; "place N" if none is
// known.
std::string function_at(uint64_t place);

}  // namespace embstore::explorer
