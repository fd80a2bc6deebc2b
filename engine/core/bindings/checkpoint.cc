#include "bindings/checkpoint.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/array_arguments.h"
#include "bindings/gil_released.h"
#include "bindings/table_handle.h"
#include "errors/error.h"
#include "keep/checkpoint/restore.h"
#include "keep/checkpoint/writer.h"
#include "platform/crc32c.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace embstore::checkpoint {
namespace {

SaveId to_save_id(const nb::bytes& bytes) {
  SaveId id{};
  if (bytes.size() != id.size()) {
    throw Error(ErrorKind::kInvalidArgument, "save_id: must have " + std::to_string(id.size()) +
                                                 " bytes, got " + std::to_string(bytes.size()));
  }
  std::copy_n(static_cast<const uint8_t*>(bytes.data()), id.size(), id.begin());
  return id;
}

void put_summary(nb::dict& dict, const FileSummary& summary) {
  dict["size"] = summary.size_bytes;
  dict["checksum"] = summary.checksum;
  dict["rows"] = summary.totals.rows;
  dict["removed_keys"] = summary.totals.removed_keys;
  dict["waiting_keys"] = summary.totals.waiting_keys;
  dict["sketches"] = summary.totals.sketches;
}

void put_state(nb::dict& dict, const TableState& state) {
  dict["apply_count"] = state.apply_count;
  dict["beta1_power"] = state.optimizer.beta1_power;
  dict["beta2_power"] = state.optimizer.beta2_power;
  dict["learning_rate"] = state.optimizer.learning_rate;
  dict["clock"] = state.clock;
}

// A save of a table: prepare_save(), then begin(), then write(). abandon() gives it up between these calls;
// stop() makes a running write() throw soon.
class SaveHandle {
 public:
  SaveHandle(Table& table, std::string path, const FileIdentity& identity, const EvictionRule& eviction)
      : file_(std::move(path), RowLayout(table.dim(), table.slot_count()), identity),
        save_(table.prepare_save(file_, eviction)) {}

  void begin(bool waiting_keys) { save().begin(waiting_keys); }
  nb::dict write(bool skip_damaged) {
    SavedTable saved;
    FileSummary summary;
    {
      const GilReleased release;
      saved = save().write(skip_damaged ? OnDamage::kSkip : OnDamage::kRaise);
      save_.reset();  // before finish(), which waits for the medium
      summary = file_.finish();
    }
    nb::dict dict;
    put_summary(dict, summary);
    dict["rows_left"] = saved.rows_left;
    dict["number"] = saved.number;
    put_state(dict, saved.state);
    dict["skipped"] = to_numpy(std::move(saved.skipped));
    return dict;
  }
  void stop() { file_.give_up(); }
  void abandon() { save_.reset(); }

 private:
  TableSave& save() {
    if (save_ == nullptr) throw Error(ErrorKind::kInvalidArgument, "the save has ended");
    return *save_;
  }

  Writer file_;
  std::unique_ptr<TableSave> save_;
};

std::unique_ptr<SaveHandle> prepare_save(const TableHandle& handle, std::string path,
                                         const nb::bytes& save_id, uint32_t partition,
                                         uint32_t partition_count, bool incremental,
                                         std::optional<int64_t> min_version,
                                         std::optional<double> min_half_square) {
  const FileIdentity identity{to_save_id(save_id), partition, partition_count, incremental};
  const GilReleased release;
  return std::make_unique<SaveHandle>(handle.table(), std::move(path), identity,
                                      EvictionRule{min_version, min_half_square});
}

nb::tuple to_tuple(const SketchShape& shape) {
  return nb::make_tuple(shape.counters, shape.hashes, shape.counter_bits);
}

nb::dict verify(const std::string& path, size_t partition_count) {
  const VerifiedFile file = [&] {
    const GilReleased release;
    return verify_file(path, partition_count);
  }();
  nb::dict dict;
  put_summary(dict, file.summary);
  dict["save_id"] = nb::bytes(file.header.save_id.data(), file.header.save_id.size());
  dict["dim"] = file.header.dim;
  dict["slot_count"] = file.header.slot_count;
  dict["partition"] = file.header.partition;
  dict["partition_count"] = file.header.partition_count;
  dict["is_placed_by_hash"] = is_placed_by_hash(file.header);
  dict["incremental"] = (file.header.flags & kIncremental) != 0;
  dict["rows_by_partition"] = nb::cast(file.rows);
  dict["least_key"] = file.keys.least;  // greater than greatest_key if there are no rows
  dict["greatest_key"] = file.keys.greatest;
  nb::list shapes;
  for (const SketchShape& shape : file.sketch_shapes) shapes.append(to_tuple(shape));
  dict["sketch_shapes"] = shapes;
  return dict;
}

void restore(const TableHandle& table, const Chain& chain, size_t partition, size_t partition_count,
             int64_t apply_count, double beta1_power, double beta2_power, double learning_rate,
             uint64_t clock, bool waiting_keys) {
  const GilReleased release;
  table->restore({partition, partition_count}, chain,
                 {apply_count, {beta1_power, beta2_power, learning_rate}, clock}, waiting_keys);
}

nb::dict begin_persist(const TableHandle& handle, std::string path, const nb::bytes& id, uint32_t partition,
                       uint32_t partition_count, bool waiting_keys) {
  Table& table = handle.table();
  const FileIdentity identity{to_save_id(id), partition, partition_count, /*incremental=*/false};
  BegunCheckpoint begun;
  FileSummary summary;
  {
    const GilReleased release;
    Writer file(std::move(path), RowLayout(table.dim(), table.slot_count()), identity);
    begun = table.begin_persist(file, waiting_keys);
    try {
      summary = file.finish();
    } catch (...) {
      table.drop_persisted(begun.number);
      throw;
    }
  }
  nb::dict dict;
  put_summary(dict, summary);
  dict["number"] = begun.number;
  dict["total_rows"] = begun.rows;
  put_state(dict, begun.state);
  return dict;
}

void bind_persisting(nb::module_& module) {
  module.def("begin_persist", &begin_persist, "table"_a, nb::kw_only(), "path"_a, "checkpoint_id"_a,
             "partition"_a, "partition_count"_a, "waiting_keys"_a);
  module.def(
      "finish_persist",
      [](const TableHandle& table, uint64_t number, const nb::bytes& id) {
        const SaveId checkpoint_id = to_save_id(id);
        const GilReleased release;
        table->finish_persist(number, checkpoint_id);
      },
      "table"_a, "number"_a, "checkpoint_id"_a);
  module.def(
      "drop_persisted",
      [](const TableHandle& table, uint64_t number) {
        const GilReleased release;
        table->drop_persisted(number);
      },
      "table"_a, "number"_a);
  module.def(
      "persisted",
      [](const TableHandle& table) {
        nb::list found;
        for (const log::KeptCheckpoint& checkpoint : table->persisted()) {
          found.append(nb::make_tuple(
              checkpoint.number, nb::bytes(checkpoint.id.data(), checkpoint.id.size()), checkpoint.rows));
        }
        return found;
      },
      "table"_a);
  module.def("should_persist", [](const TableHandle& table) { return table->should_persist(); }, "table"_a);
  module.def("is_pool_short", [](const TableHandle& table) { return table->is_pool_short(); }, "table"_a);
  module.def("awaits_restore", [](const TableHandle& table) { return table->awaits_restore(); }, "table"_a);
  module.def(
      "await_restore", [](const TableHandle& table) { table->await_restore(); }, "table"_a,
      nb::call_guard<GilReleased>());
  module.def(
      "discard_persisted",
      [](const TableHandle& table) {
        const GilReleased release;
        table->discard_persisted();
      },
      "table"_a);
  module.def(
      "restore_persisted",
      [](const TableHandle& table, uint64_t number, const Chain& chain, size_t partition,
         size_t partition_count, int64_t apply_count, double beta1_power, double beta2_power,
         double learning_rate, uint64_t clock, bool waiting_keys) {
        const GilReleased release;
        table->restore_persisted(number, {partition, partition_count}, chain,
                                 {apply_count, {beta1_power, beta2_power, learning_rate}, clock},
                                 waiting_keys);
      },
      "table"_a, nb::kw_only(), "number"_a, "chain"_a, "partition"_a, "partition_count"_a, "apply_count"_a,
      "beta1_power"_a, "beta2_power"_a, "learning_rate"_a, "clock"_a, "waiting_keys"_a);
}

void bind_keeping(nb::module_& module) {
  module.def(
      "kept_rows",
      [](const TableHandle& table) {
        nb::list ids;
        if (!table->keeps_rows()) return ids;
        for (const log::CheckpointId& id : table->kept_rows()) ids.append(nb::bytes(id.data(), id.size()));
        return ids;
      },
      "table"_a);
  module.def(
      "take_over_kept_rows",
      [](const TableHandle& table, const std::optional<nb::bytes>& id, const nb::bytes& keep_as) {
        const std::optional<SaveId> wanted = id ? std::optional(to_save_id(*id)) : std::nullopt;
        const SaveId next = to_save_id(keep_as);
        const GilReleased release;
        table->take_over_kept_rows(wanted ? &*wanted : nullptr, next);
      },
      "table"_a, "id"_a.none(), "keep_as"_a);
  module.def(
      "keep_no_rows",
      [](const TableHandle& table, const nb::bytes& id) {
        const SaveId made = to_save_id(id);
        const GilReleased release;
        table->keep_no_rows(made);
      },
      "table"_a, "id"_a);
  module.def(
      "keep_rows", [](const TableHandle& table) { table->keep_rows(); }, "table"_a,
      nb::call_guard<GilReleased>());
  module.def(
      "drop_older_rows", [](const TableHandle& table) { table->drop_older_rows(); }, "table"_a,
      nb::call_guard<GilReleased>());
}

}  // namespace

void bind(nb::module_& module) {
  bind_keeping(module);
  bind_persisting(module);
  nb::class_<SaveHandle>(module, "Save")
      .def("begin", &SaveHandle::begin, "waiting_keys"_a, nb::call_guard<GilReleased>())
      .def("write", &SaveHandle::write, "skip_damaged"_a)
      .def("stop", &SaveHandle::stop)
      .def("abandon", &SaveHandle::abandon, nb::call_guard<GilReleased>());
  module.def("prepare_save", &prepare_save, "table"_a, nb::kw_only(), "path"_a, "save_id"_a, "partition"_a,
             "partition_count"_a, "incremental"_a, "least_version"_a.none(), "least_half_square"_a.none(),
             nb::keep_alive<0, 1>());
  module.def(
      "save_succeeded",
      [](const TableHandle& table, uint64_t number) {
        const GilReleased release;
        table->save_succeeded(number);
      },
      "table"_a, "number"_a);
  module.def(
      "sketch_shape",
      [](const TableHandle& table) -> nb::object {
        const SketchShape shape = table->sketch_shape();
        return shape.counter_bits == 0 ? nb::none() : nb::object(to_tuple(shape));
      },
      "table"_a);
  module.def("verify_rows", &verify, "path"_a, "partition_count"_a);
  module.def(
      "count_rows",
      [](const Chain& chain, size_t partition_count) {
        const GilReleased release;
        return count_rows(chain, partition_count);
      },
      "chain"_a, "partition_count"_a);
  module.def("restore_table", &restore, "table"_a, nb::kw_only(), "chain"_a, "partition"_a,
             "partition_count"_a, "apply_count"_a, "beta1_power"_a, "beta2_power"_a, "learning_rate"_a,
             "clock"_a, "waiting_keys"_a);
  module.def("crc32c", [](const nb::bytes& data) { return crc32c(data.data(), data.size()); }, "data"_a);
}

}  // namespace embstore::checkpoint
