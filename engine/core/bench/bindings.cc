#include "bench/bindings.h"

#include <nanobind/stl/string.h>

#include <string>

#include "bench/leveldb_store.h"
#include "bench/tier_alone.h"
#include "bindings/array_arguments.h"
#include "errors/error.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace embstore {
namespace {

template <class Store, class RowArray>
void check_rows(const Store& store, const Ids& ids, const RowArray& rows) {
  if (rows.shape(0) == ids.shape(0) && rows.shape(1) == store.row_floats()) return;
  throw Error(ErrorKind::kInvalidArgument, "rows: need " + std::to_string(ids.shape(0)) + " rows of " +
                                               std::to_string(store.row_floats()) + " floats");
}

template <class Store>
void bind_batches(nb::class_<Store>& type) {
  type.def_prop_ro("row_floats", &Store::row_floats)
      .def(
          "write",
          [](Store& store, const Ids& ids, const Rows& rows) {
            check_rows(store, ids, rows);
            const nb::gil_scoped_release release;
            store.write(span_of(ids), rows.data());
          },
          "ids"_a.noconvert(), "rows"_a.noconvert())
      .def(
          "read",
          [](const Store& store, const Ids& ids, const MutableRows& rows) {
            check_rows(store, ids, rows);
            const nb::gil_scoped_release release;
            store.read(span_of(ids), rows.data());
          },
          "ids"_a.noconvert(), "rows"_a.noconvert())
      .def("close", &Store::close, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace

void bind_bench_stores(nb::module_& module) {
  nb::class_<LevelDbStore> leveldb(module, "LevelDbStore");
  leveldb.def(nb::init<std::string, size_t>(), "directory"_a, "row_floats"_a);
  bind_batches(leveldb);

  nb::class_<TierAlone> tier(module, "TierAlone");
  tier.def(nb::init<const std::string&, std::string, int, int, size_t, bool>(), "kind"_a, "directory"_a,
           "dim"_a, "slot_count"_a, "row_count"_a, "direct"_a)
      .def("drain", &TierAlone::drain, nb::call_guard<nb::gil_scoped_release>())
      .def("file_bytes", &TierAlone::file_bytes);
  bind_batches(tier);
}

}  // namespace embstore
