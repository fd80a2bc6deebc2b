// Binds keys_by_partition().
#pragma once

#include <nanobind/nanobind.h>

namespace embstore {

void bind_keys_by_partition(nanobind::module_& module);

}  // namespace embstore
