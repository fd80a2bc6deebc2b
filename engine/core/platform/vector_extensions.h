// The processor's vector instructions that hot loops may use, beyond those of every x86-64.
#pragma once

#include <span>

namespace embstore {

enum class VectorExtensions { kNone, kAvx2 };

const char* name_of(VectorExtensions extensions);  // its name in EMBSTORE_CPU

// Returns what this processor and its operating system offer, kNone first.
std::span<const VectorExtensions> offered_vector_extensions();

// Returns the widest extensions offered, or those that the environment variable EMBSTORE_CPU names:
// default or avx2. Decided at the first call. Throws Error(kInvalidArgument) for another name, and
// Error(kMissingDevice) for extensions that aren't offered.
VectorExtensions chosen_vector_extensions();

}  // namespace embstore
