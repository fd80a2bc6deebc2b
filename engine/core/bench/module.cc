// The Python module embstore.bench._yardsticks: what the benchmarks compare tables with. Users of tables
// never load it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bench/hand_written_table.h"
#include "bench/leveldb_store.h"
#include "bench/tier_alone.h"
#include "bindings/array_arguments.h"
#include "bindings/error_translation.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace embstore {
namespace {

void bind_hand_written_table(nb::module_& module) {
  nb::class_<HandWrittenTable>(module, "HandWrittenTable")
      .def(nb::init<size_t, int>(), "capacity_rows"_a, "dim"_a)
      .def(
          "insert",
          [](HandWrittenTable& table, const Ids& ids, const Rows& rows) {
            check_rows("rows", rows, ids, static_cast<size_t>(table.dim()));
            const nb::gil_scoped_release release;
            table.insert(span_of(ids), rows.data());
          },
          "ids"_a.noconvert(), "rows"_a.noconvert())
      .def(
          "lookup",
          [](const HandWrittenTable& table, const Ids& ids, const MutableRows& out) {
            check_rows("out", out, ids, static_cast<size_t>(table.dim()));
            const nb::gil_scoped_release release;
            table.lookup(span_of(ids), out.data());
          },
          "ids"_a.noconvert(), "out"_a.noconvert())
      .def(
          "adagrad",
          [](HandWrittenTable& table, const Ids& ids, const Rows& grads, float learning_rate) {
            check_rows("grads", grads, ids, static_cast<size_t>(table.dim()));
            const nb::gil_scoped_release release;
            table.adagrad(span_of(ids), grads.data(), learning_rate);
          },
          "ids"_a.noconvert(), "grads"_a.noconvert(), "learning_rate"_a);
}

template <class Store>
void bind_batches(nb::class_<Store>& type) {
  type.def_prop_ro("row_floats", &Store::row_floats)
      .def(
          "write",
          [](Store& store, const Ids& ids, const Rows& rows) {
            check_rows("rows", rows, ids, store.row_floats());
            const nb::gil_scoped_release release;
            store.write(span_of(ids), rows.data());
          },
          "ids"_a.noconvert(), "rows"_a.noconvert())
      .def(
          "read",
          [](const Store& store, const Ids& ids, const MutableRows& rows) {
            check_rows("rows", rows, ids, store.row_floats());
            const nb::gil_scoped_release release;
            store.read(span_of(ids), rows.data());
          },
          "ids"_a.noconvert(), "rows"_a.noconvert())
      .def("close", &Store::close, nb::call_guard<nb::gil_scoped_release>());
}

void bind_stores(nb::module_& module) {
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

}  // namespace
}  // namespace embstore

NB_MODULE(_yardsticks, module) {
  embstore::translate_errors();
  embstore::bind_hand_written_table(module);
  embstore::bind_stores(module);
}
