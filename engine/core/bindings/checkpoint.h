// The part of the Python module that saves and restores tables.
#pragma once

#include <nanobind/nanobind.h>

namespace embstore::checkpoint {

void bind(nanobind::module_& module);

}  // namespace embstore::checkpoint
