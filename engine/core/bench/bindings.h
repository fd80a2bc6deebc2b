#pragma once

#include <nanobind/nanobind.h>

namespace embstore {

// Adds the stores that the tiers' benchmark measures.
void bind_bench_stores(nanobind::module_& module);

}  // namespace embstore
