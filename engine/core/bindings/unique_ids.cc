#include "bindings/unique_ids.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bindings/array_arguments.h"
#include "bindings/gil_released.h"
#include "errors/error.h"
#include "row/unique_ids.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace embstore {
namespace {

void check_pair(const UniqueIds& unique, const char* name, size_t by_key_rows, size_t by_id_rows,
                size_t by_key_dim, size_t by_id_dim) {
  if (by_key_rows == unique.keys.size() && by_id_rows == unique.positions.size() && by_key_dim == by_id_dim)
    return;
  throw Error(ErrorKind::kInvalidArgument, std::string(name) + ": shapes don't fit " +
                                               std::to_string(unique.keys.size()) + " keys of " +
                                               std::to_string(unique.positions.size()) + " ids");
}

}  // namespace

void bind_unique_ids(nb::module_& module) {
  nb::class_<UniqueIds>(module, "UniqueIds")
      .def(
          "__init__",
          [](UniqueIds* self, const Ids& ids, size_t partition_count) {
            const GilReleased release;
            new (self) UniqueIds(span_of(ids), partition_count);
          },
          "ids"_a.noconvert(), "partition_count"_a = 1)
      .def("keys", [](const UniqueIds& unique) { return to_numpy(std::vector(unique.keys)); })
      .def("begins", [](const UniqueIds& unique) { return unique.begins; })
      .def("occurrences", [](const UniqueIds& unique) { return to_numpy(std::vector(unique.occurrences)); })
      .def(
          "spread",
          [](const UniqueIds& unique, const Rows& rows, const MutableRows& out) {
            check_pair(unique, "rows", rows.shape(0), out.shape(0), rows.shape(1), out.shape(1));
            const GilReleased release;
            unique.spread(rows.data(), rows.shape(1), out.data());
          },
          "rows"_a.noconvert(), "out"_a.noconvert())
      .def(
          "sum",
          [](const UniqueIds& unique, const Rows& gradients, const MutableRows& sums) {
            check_pair(unique, "sums", sums.shape(0), gradients.shape(0), sums.shape(1), gradients.shape(1));
            const GilReleased release;
            unique.sum(gradients.data(), gradients.shape(1), sums.data());
          },
          "gradients"_a.noconvert(), "sums"_a.noconvert());
}

}  // namespace embstore
