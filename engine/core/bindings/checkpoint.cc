#include "bindings/checkpoint.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/array_arguments.h"
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

nb::dict save_table(const TableHandle& handle, std::string path, const nb::bytes& save_id, uint32_t partition,
                    uint32_t partition_count, bool incremental, std::optional<int64_t> least_version,
                    std::optional<double> least_half_square, bool waiting_keys, bool skip_damaged) {
  Table& table = handle.table();
  const FileIdentity identity{to_save_id(save_id), partition, partition_count, incremental};
  SavedTable saved;
  FileSummary summary;
  {
    const nb::gil_scoped_release release;
    Writer file(std::move(path), RowLayout(table.dim(), table.slot_count()), identity);
    saved = table.save(file, {least_version, least_half_square}, waiting_keys,
                       skip_damaged ? OnDamage::kSkip : OnDamage::kRaise);
    summary = file.finish();
  }
  nb::dict dict;
  put_summary(dict, summary);
  dict["rows_left"] = saved.rows_left;
  dict["next_span"] = saved.next_span;
  dict["apply_count"] = saved.state.apply_count;
  dict["beta1_power"] = saved.state.optimizer.beta1_power;
  dict["beta2_power"] = saved.state.optimizer.beta2_power;
  dict["learning_rate"] = saved.state.optimizer.learning_rate;
  dict["clock"] = saved.state.clock;
  dict["skipped"] = to_numpy(std::move(saved.skipped));
  return dict;
}

nb::tuple to_tuple(const SketchShape& shape) {
  return nb::make_tuple(shape.counters, shape.hashes, shape.counter_bits);
}

nb::dict verify(const std::string& path, size_t partition_count) {
  const VerifiedFile file = [&] {
    const nb::gil_scoped_release release;
    return verify_file(path, partition_count);
  }();
  nb::dict dict;
  put_summary(dict, file.summary);
  dict["save_id"] = nb::bytes(file.header.save_id.data(), file.header.save_id.size());
  dict["dim"] = file.header.dim;
  dict["slot_count"] = file.header.slot_count;
  dict["partition"] = file.header.partition;
  dict["partition_count"] = file.header.partition_count;
  dict["incremental"] = (file.header.flags & kIncremental) != 0;
  dict["rows_by_partition"] = nb::cast(file.rows);
  nb::list shapes;
  for (const SketchShape& shape : file.sketch_shapes) shapes.append(to_tuple(shape));
  dict["sketch_shapes"] = shapes;
  return dict;
}

void restore(const TableHandle& table, const Chain& chain, size_t partition, size_t partition_count,
             int64_t apply_count, double beta1_power, double beta2_power, double learning_rate,
             uint64_t clock, bool waiting_keys) {
  const nb::gil_scoped_release release;
  restore_table(table.table(), {partition, partition_count}, chain,
                {apply_count, {beta1_power, beta2_power, learning_rate}, clock}, waiting_keys);
}

}  // namespace

void bind(nb::module_& module) {
  module.def("save_table", &save_table, "table"_a, nb::kw_only(), "path"_a, "save_id"_a, "partition"_a,
             "partition_count"_a, "incremental"_a, "least_version"_a = nb::none(),
             "least_half_square"_a = nb::none(), "waiting_keys"_a = true, "skip_damaged"_a = false);
  module.def(
      "save_succeeded",
      [](const TableHandle& table, uint16_t next_span) {
        const nb::gil_scoped_release release;
        table->save_succeeded(next_span);
      },
      "table"_a, "next_span"_a);
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
        const nb::gil_scoped_release release;
        return count_rows(chain, partition_count);
      },
      "chain"_a, "partition_count"_a);
  module.def("restore_table", &restore, "table"_a, nb::kw_only(), "chain"_a, "partition"_a,
             "partition_count"_a, "apply_count"_a, "beta1_power"_a, "beta2_power"_a, "learning_rate"_a,
             "clock"_a, "waiting_keys"_a);
  module.def("crc32c", [](const nb::bytes& data) { return crc32c(data.data(), data.size()); }, "data"_a);
}

}  // namespace embstore::checkpoint
