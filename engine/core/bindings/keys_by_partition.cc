#include "bindings/keys_by_partition.h"

#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "bindings/array_arguments.h"
#include "bindings/gil_released.h"
#include "errors/error.h"
#include "row/keys_by_partition.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace embstore {
namespace {

nb::tuple keys_by_partition(const Ids& keys, size_t partition_count) {
  if (partition_count == 0 || partition_count > std::numeric_limits<uint32_t>::max()) {
    throw Error(ErrorKind::kInvalidArgument,
                "partition_count: must be 1 to 2^32 - 1, got " + std::to_string(partition_count));
  }
  KeysByPartition parts = [&] {
    const GilReleased release;
    return KeysByPartition(span_of(keys), partition_count);
  }();
  return nb::make_tuple(to_numpy(std::move(parts.positions)), parts.begins);
}

}  // namespace

void bind_keys_by_partition(nb::module_& module) {
  module.def("keys_by_partition", &keys_by_partition, "keys"_a.noconvert(), "partition_count"_a);
}

}  // namespace embstore
