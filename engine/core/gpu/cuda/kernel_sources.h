// The texts of the kernels and of what they include, embedded when the engine is built.
#pragma once

#include <span>

namespace embstore::gpu {

struct KernelSource {
  const char* name;  // as it is included
  const char* text;
};

std::span<const KernelSource> kernel_sources();

}  // namespace embstore::gpu
