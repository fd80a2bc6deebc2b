// Which of the processor's vector instructions hot loops may use beyond those that every x86-64 has.
#pragma once

#include <span>

namespace embstore {

enum class VectorExtensions { kNone, kAvx2 };

const char* name_of(VectorExtensions extensions);  // as in EMBSTORE_CPU

// Those that this processor and its operating system offer, kNone first.
std::span<const VectorExtensions> offered_vector_extensions();

// The widest that is offered, or what the environment's EMBSTORE_CPU says: default or avx2. Settled at the
// first call; throws Error(kInvalidArgument) for another value, and Error(kMissingDevice) for one that
// isn't offered.
VectorExtensions chosen_vector_extensions();

}  // namespace embstore
