// Binds UniqueIds.
#pragma once

#include <nanobind/nanobind.h>

namespace embstore {

void bind_unique_ids(nanobind::module_& module);

}  // namespace embstore
