// The Python module embstore.bench._yardsticks: contenders that the benchmarks compare tables with, and
// measurements of devices. Users of tables never load it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bench/file_yardstick.h"
#include "bench/hand_written_table.h"
#include "bench/leveldb_store.h"
#include "bench/memory_yardstick.h"
#include "bench/tier_alone.h"
#include "bindings/array_arguments.h"
#include "bindings/error_translation.h"
#include "bindings/gil_released.h"

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
            const GilReleased release;
            table.insert(span_of(ids), rows.data());
          },
          "ids"_a.noconvert(), "rows"_a.noconvert())
      .def(
          "lookup",
          [](const HandWrittenTable& table, const Ids& ids, const MutableRows& out) {
            check_rows("out", out, ids, static_cast<size_t>(table.dim()));
            const GilReleased release;
            table.lookup(span_of(ids), out.data());
          },
          "ids"_a.noconvert(), "out"_a.noconvert())
      .def(
          "adagrad",
          [](HandWrittenTable& table, const Ids& ids, const Rows& grads, float learning_rate) {
            check_rows("grads", grads, ids, static_cast<size_t>(table.dim()));
            const GilReleased release;
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
            const GilReleased release;
            store.write(span_of(ids), rows.data());
          },
          "ids"_a.noconvert(), "rows"_a.noconvert())
      .def(
          "read",
          [](const Store& store, const Ids& ids, const MutableRows& rows) {
            check_rows("rows", rows, ids, store.row_floats());
            const GilReleased release;
            store.read(span_of(ids), rows.data());
          },
          "ids"_a.noconvert(), "rows"_a.noconvert())
      .def("close", &Store::close, nb::call_guard<GilReleased>());
}

void bind_stores(nb::module_& module) {
  nb::class_<LevelDbStore> leveldb(module, "LevelDbStore");
  leveldb.def(nb::init<std::string, size_t>(), "directory"_a, "row_floats"_a);
  bind_batches(leveldb);

  nb::class_<TierAlone> tier(module, "TierAlone");
  tier.def(nb::init<const std::string&, std::string, int, int, size_t, bool>(), "kind"_a, "directory"_a,
           "dim"_a, "slot_count"_a, "row_count"_a, "direct"_a)
      .def("drain", &TierAlone::drain, nb::call_guard<GilReleased>())
      .def("file_bytes", &TierAlone::file_bytes);
  bind_batches(tier);
}

void bind_devices(nb::module_& module) {
  nb::enum_<MemoryOperation>(module, "MemoryOperation")
      .value("LOAD", MemoryOperation::kLoad)
      .value("STORE", MemoryOperation::kStore)
      .value("STORE_FLUSHED", MemoryOperation::kStoreFlushed)
      .value("STORE_STREAMED", MemoryOperation::kStoreStreamed);

  const auto without_gil = nb::call_guard<GilReleased>();
  nb::class_<MemoryYardstick>(module, "MemoryYardstick")
      .def(nb::init<size_t, int>(), "bytes"_a, "node"_a, without_gil)
      .def(nb::init<size_t, std::string>(), "bytes"_a, "directory"_a, without_gil)
      .def_prop_ro("is_synced", &MemoryYardstick::is_synced)
      .def("mb_per_s", &MemoryYardstick::mb_per_s, "operation"_a, "random"_a, "access_bytes"_a, "threads"_a,
           "seconds"_a, without_gil)
      .def("latency_ns", &MemoryYardstick::latency_ns, "random"_a, "seconds"_a, without_gil);

  nb::class_<FileYardstick>(module, "FileYardstick")
      .def(nb::init<size_t, std::string, bool>(), "bytes"_a, "directory"_a, "direct"_a, without_gil)
      .def("mb_per_s", &FileYardstick::mb_per_s, "write"_a, "random"_a, "request_bytes"_a, "threads"_a,
           "seconds"_a, without_gil);
}

}  // namespace
}  // namespace embstore

NB_MODULE(_yardsticks, module) {
  embstore::translate_errors();
  embstore::bind_hand_written_table(module);
  embstore::bind_stores(module);
  embstore::bind_devices(module);
}
