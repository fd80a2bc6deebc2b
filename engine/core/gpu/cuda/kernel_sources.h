// The source texts of the kernels and of the files that they include, embedded when the engine is built.
#pragma once

#include <span>

namespace embstore::gpu {

struct KernelSource {
  const char* name;  // as #include names it
  const char* text;
};

std::span<const KernelSource> kernel_sources();

}  // namespace embstore::gpu
