// The functions of the program that runs, by where they lie in it: its own table of symbols has them.
#pragma once

#include <cstdint>
#include <string>

namespace embstore::explorer {

// Where something lies in the program, wherever that is loaded.
uint64_t place_of(const void* address);
// Where the function begins that lies there; the place itself where none is known.
uint64_t begin_of_function_at(uint64_t place);
// The name of the function at a place, without its arguments and template arguments; the place itself where none is known.
std::string function_at(uint64_t place);

}  // namespace embstore::explorer
