// The Python module. It only converts arguments and results, releases the GIL and maps errors.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/array_arguments.h"
#include "bindings/checkpoint.h"
#include "bindings/device_memory.h"
#include "bindings/error_translation.h"
#include "bindings/gil_released.h"
#include "bindings/keys_by_partition.h"
#include "bindings/table_handle.h"
#include "bindings/tables_together.h"
#include "bindings/unique_ids.h"
#include "errors/error.h"
#include "files/path_lock.h"
#include "pacing/device.h"
#include "pacing/pacing_debt.h"
#include "pacing/recording.h"
#include "pacing/tier_pacer.h"
#include "row/finite_values.h"
#include "table.h"
#include "threads/helping_threads.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace embstore {
namespace {

IdsOnDevice ids_on_device(uint64_t ids, size_t count, uintptr_t stream) {
  if (count > std::numeric_limits<int32_t>::max()) {
    throw Error(ErrorKind::kInvalidArgument,
                "ids: a batch on a GPU has at most 2147483647, got " + std::to_string(count));
  }
  return {{ids}, static_cast<uint32_t>(count), {stream}};
}

template <class T, class Read>
nb::object read_per_id(const Ids& ids, Read read) {
  std::vector<T> values(ids.shape(0));
  {
    const GilReleased release;
    read(span_of(ids), values.data());
  }
  return to_numpy(std::move(values));
}

nb::tuple export_rows(const TableHandle& table, bool skip_damaged, const std::optional<Ids>& keys) {
  ExportedRows rows = [&] {
    const GilReleased release;
    const OnDamage on_damage = skip_damaged ? OnDamage::kSkip : OnDamage::kRaise;
    return keys ? table->export_rows(span_of(*keys), on_damage) : table->export_rows(on_damage);
  }();
  const size_t count = rows.keys.size();
  const size_t dim = static_cast<size_t>(table->dim());
  nb::list slots;
  for (auto& slot : rows.slots) slots.append(to_numpy(std::move(slot), {count, dim}));
  return nb::make_tuple(
      to_numpy(std::move(rows.keys), {count}), to_numpy(std::move(rows.values), {count, dim}),
      to_numpy(std::move(rows.frequencies), {count}), to_numpy(std::move(rows.versions), {count}), slots);
}

nb::list to_list(const std::vector<AccessCount>& accesses) {
  nb::list list;
  for (const AccessCount& count : accesses) {
    nb::dict dict;
    dict["access"] = static_cast<int>(count.access);
    dict["threads"] = count.threads;
    dict["accesses"] = count.accesses;
    dict["bytes"] = count.bytes;
    dict["elapsed_ns"] = count.elapsed_ns;
    list.append(dict);
  }
  return list;
}

nb::dict to_dict(const TableStats::Level& level, const std::optional<std::string>& device_name) {
  const TierStats& tier = level.tier;
  nb::dict dict;
  dict["name"] = tier.name;
  dict["rows"] = level.rows;
  dict["capacity_rows"] = level.capacity_rows == kUnlimitedRows ? nb::object(nb::none())
                                                                : nb::object(nb::int_(level.capacity_rows));
  dict["bytes"] = level.rows * tier.row_bytes;
  dict["row_bytes"] = tier.row_bytes;
  dict["address"] = tier.address;
  dict["mapped_bytes"] = tier.mapped_bytes;
  dict["path"] = tier.path;
  dict["is_pmem"] = tier.is_pmem;
  dict["io_scheme"] = tier.io_scheme;
  dict["gpu"] = tier.gpu;
  dict["is_pinned"] = tier.is_pinned;
  dict["accesses"] = to_list(level.accesses);
  dict["device"] = device_name;
  return dict;
}

nb::dict stats(const TableHandle& table) {
  const TableStats stats = [&table] {
    const GilReleased release;
    return table->stats();
  }();
  nb::list tiers;
  for (size_t t = 0; t < stats.tiers.size(); ++t) {
    tiers.append(to_dict(stats.tiers[t], table.device_names()[t]));
  }
  nb::dict dict;
  dict["hits"] = stats.hits;
  dict["misses"] = stats.misses;
  dict["without_row"] = stats.without_row;
  dict["promotions"] = stats.promotions;
  dict["demotions"] = stats.demotions;
  dict["forgotten_accesses"] = stats.forgotten_accesses;
  dict["waiting_keys"] = stats.waiting_keys;
  dict["filter_bytes"] = stats.filter_bytes;
  dict["index_bytes"] = stats.index_bytes;
  dict["background_error"] = stats.background_error;
  dict["tiers"] = tiers;
  return dict;
}

using TierTuple = std::tuple<std::string, std::optional<std::string>, std::optional<uint64_t>>;

// filter_freq; and for a sketch max_element_size, false_positive_probability and counter_bits.
using FilterTuple = std::tuple<uint64_t, std::optional<std::tuple<uint64_t, double, uint32_t>>>;

// direct_io, io_scheme, file_bytes, buffer_bytes
using SsdHashTuple = std::tuple<bool, std::string, uint64_t, uint64_t>;

SsdHashOptions to_ssd_hash_options(const SsdHashTuple& tuple) {
  const auto& [direct_io, io_scheme, file_bytes, buffer_bytes] = tuple;
  SsdHashOptions options;
  options.direct = direct_io;
  options.file_bytes = file_bytes;
  options.buffer_bytes = buffer_bytes;
  if (io_scheme == "io_uring") {
    options.io_scheme = medium::IoScheme::kIoUring;
  } else if (io_scheme == "pread") {
    options.io_scheme = medium::IoScheme::kPread;
  } else if (io_scheme != "auto") {
    throw Error(ErrorKind::kInvalidArgument, "io_scheme: must be auto, io_uring or pread, got " + io_scheme);
  }
  return options;
}

// name; bytes of the CPU's last-level cache, and of a memory in front of the device; sizes of accesses; times
// in ns by place of the bytes, kind of access, size and threads; times of a single access by kind and size.
// None: the tier isn't paced.
using DeviceTuple = std::optional<std::tuple<std::string, uint64_t, uint64_t, std::vector<uint64_t>,
                                             Array<const double, 4>, Array<const double, 2>>>;

std::shared_ptr<const Device> to_device(const DeviceTuple& tuple) {
  if (!tuple) return nullptr;
  const auto& [name, cpu_bytes, memory_bytes, sizes, times, alone] = *tuple;
  return std::make_shared<Device>(name, CacheSizes{cpu_bytes, memory_bytes}, sizes,
                                  std::vector<double>(times.data(), times.data() + times.size()),
                                  std::vector<double>(alone.data(), alone.data() + alone.size()));
}

// Returns the times to which TierPacer paces phases. outcomes: shares of each Outcome, of shape (phases,
// kOutcomes).
nb::object phase_times_ns(const DeviceTuple& tuple, const Array<const int32_t, 1>& access,
                          const Array<const int32_t, 1>& threads, const Array<const uint64_t, 1>& accesses,
                          const Array<const uint64_t, 1>& bytes, const Array<const uint64_t, 1>& rounds,
                          const Array<const double, 2>& outcomes) {
  const std::shared_ptr<const Device> device = to_device(tuple);
  const size_t count = access.size();
  if (device == nullptr || accesses.size() != count || bytes.size() != count || threads.size() != count ||
      rounds.size() != count || outcomes.shape(0) != count || outcomes.shape(1) != kOutcomes) {
    throw Error(ErrorKind::kInvalidArgument, "phases: columns of different lengths, or no device");
  }
  std::vector<double> times(count);
  for (size_t i = 0; i < count; ++i) {
    const int32_t number = access.data()[i];
    if (number < 0 || static_cast<size_t>(number) >= kAccesses || accesses.data()[i] == 0) {
      throw Error(ErrorKind::kInvalidArgument, "phases: number " + std::to_string(i) + " is none");
    }
    OutcomeShares::Values shares;
    std::copy_n(outcomes.data() + i * kOutcomes, kOutcomes, shares.begin());
    times[i] = device->phase_ns({.access = static_cast<Access>(number),
                                 .threads = threads.data()[i],
                                 .accesses = accesses.data()[i],
                                 .bytes = bytes.data()[i],
                                 .elapsed_ns = 0,
                                 .rounds = rounds.data()[i]},
                                shares);
  }
  return to_numpy(std::move(times));
}

FilterSpec to_filter_spec(const std::optional<FilterTuple>& filter) {
  if (!filter) return NoFilter{};
  const auto& [filter_freq, sketch] = *filter;
  if (!sketch) return CounterFilterSpec{filter_freq};
  const auto& [max_element_size, probability, counter_bits] = *sketch;
  return BloomFilterSpec{filter_freq, max_element_size, probability, counter_bits};
}

void construct_table(TableHandle* self, std::string name, int dim, const Rows& default_values,
                     std::string optimizer, OptimizerParams optimizer_params,
                     const std::vector<TierTuple>& tiers, const std::string& cache_strategy,
                     const std::optional<FilterTuple>& filter, float no_permission_value,
                     const SsdHashTuple& ssd_hash, bool keeps_rows, const std::vector<DeviceTuple>& devices,
                     size_t partition_count, const GpuTuple& gpu) {
  if (cache_strategy != "LFU" && cache_strategy != "LRU") {
    throw Error(ErrorKind::kInvalidArgument, "cache_strategy: must be LFU or LRU, got " + cache_strategy);
  }
  if (dim <= 0) {
    throw Error(ErrorKind::kInvalidArgument, "dim: must be positive, got " + std::to_string(dim));
  }
  if (default_values.shape(0) == 0 || default_values.shape(1) != static_cast<size_t>(dim)) {
    throw Error(ErrorKind::kInvalidArgument,
                "default_values: needs at least one row of dim " + std::to_string(dim));
  }
  TableSpec spec{
      .name = std::move(name),
      .dim = dim,
      .default_values = {default_values.data(), default_values.data() + default_values.size()},
      .optimizer = std::move(optimizer),
      .optimizer_params = std::move(optimizer_params),
      .tiers = {},
      .cache_strategy = cache_strategy == "LFU" ? CacheStrategy::kLfu : CacheStrategy::kLru,
      .filter = to_filter_spec(filter),
      .no_permission_value = no_permission_value,
      .partition_count = partition_count,
  };
  std::vector<std::optional<std::string>> device_names(tiers.size());
  for (const auto& [kind, path, size_bytes] : tiers) {
    const size_t t = spec.tiers.size();
    TierSpec& tier = spec.tiers.emplace_back(TierSpec{.kind = kind,
                                                      .path = path,
                                                      .size_bytes = size_bytes,
                                                      .ssd_hash = to_ssd_hash_options(ssd_hash),
                                                      .gpu = to_device_choice(gpu),
                                                      .keeps_rows = keeps_rows && kind == "SSDHASH"});
    const std::shared_ptr<const Device> device = t < devices.size() ? to_device(devices[t]) : nullptr;
    if (device == nullptr) continue;
    device_names[t] = device->name();
    const auto pacer = std::make_shared<TierPacer>(device);
    tier.medium = pacer->medium();
    tier.watcher = pacer;
  }
  const GilReleased release;
  new (self) TableHandle(spec, std::move(device_names));
}

struct RecordingHandle {
  std::shared_ptr<Recording> recording;
};

// Returns the columns of recorded phases; and each outcome in each of `caches` simulated caches, of shape
// (phases, caches).
nb::dict recorded_phases(const RecordingHandle& handle, size_t caches) {
  const Recording::Phases recorded = handle.recording->phases();
  const size_t count = recorded.phases.size();
  nb::dict columns;
  const auto column = [&]<class T>(const char* name, T (*value_of)(const RecordedPhase&)) {
    std::vector<T> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = value_of(recorded.phases[i]);
    columns[name] = to_numpy(std::move(values));
  };
  using Phase = RecordedPhase;
  column("variable", +[](const Phase& phase) { return phase.variable; });
  column("tier", +[](const Phase& phase) { return phase.tier; });
  column("access", +[](const Phase& phase) { return static_cast<int32_t>(phase.count.access); });
  column("threads", +[](const Phase& phase) { return static_cast<int32_t>(phase.count.threads); });
  column("accesses", +[](const Phase& phase) { return phase.count.accesses; });
  column("bytes", +[](const Phase& phase) { return phase.count.bytes; });
  column("rounds", +[](const Phase& phase) { return phase.count.rounds; });
  column("elapsed_ns", +[](const Phase& phase) { return phase.count.elapsed_ns; });
  column("thread", +[](const Phase& phase) { return phase.thread; });
  column("start_ns", +[](const Phase& phase) { return phase.start_ns; });
  constexpr std::array<const char*, Recording::kRecorded> kNames = {"hits", "dirtied", "clean_misses",
                                                                    "dirty_misses"};
  for (size_t o = 0; o < kNames.size(); ++o) {
    std::vector<double> values(recorded.outcomes.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = recorded.outcomes[i][o];
    columns[kNames[o]] = to_numpy(std::move(values), {count, caches});
  }
  columns["lost"] = recorded.lost;
  return columns;
}

void bind_recording(nb::module_& module) {
  nb::class_<RecordingHandle>(module, "Recording")
      .def(
          "__init__",
          [](RecordingHandle* self, const std::vector<std::tuple<uint64_t, uint64_t>>& caches,
             uint64_t max_phases) {
            std::vector<CacheSizes> sizes;
            for (const auto& [cpu_bytes, memory_bytes] : caches) sizes.push_back({cpu_bytes, memory_bytes});
            new (self) RecordingHandle{std::make_shared<Recording>(sizes, max_phases)};
          },
          "caches"_a, "max_phases"_a)
      .def("elapsed_ns", [](const RecordingHandle& self) { return self.recording->elapsed_ns(); })
      .def("stop", [](const RecordingHandle& self) { self.recording->stop(); })
      .def("phases", &recorded_phases, "caches"_a);
  module.def("phase_times_ns", &phase_times_ns, "device"_a, "access"_a, "threads"_a, "accesses"_a, "bytes"_a,
             "rounds"_a, "outcomes"_a);
}

void bind_table(nb::module_& module) {
  nb::class_<TableHandle>(module, "Table")
      .def("__init__", &construct_table, nb::kw_only(), "name"_a, "dim"_a, "default_values"_a.noconvert(),
           "optimizer"_a, "optimizer_params"_a, "tiers"_a, "cache_strategy"_a = "LFU",
           "filter"_a = nb::none(), "no_permission_value"_a = 0.0f,
           "ssd_hash"_a = SsdHashTuple(false, "auto", uint64_t{64} << 20, uint64_t{4} << 20),
           "keeps_rows"_a = false, "devices"_a = std::vector<DeviceTuple>(), "partition_count"_a = 1,
           "gpu"_a = GpuTuple())
      .def(
          "lookup",
          [](const TableHandle& handle, const Ids& ids, const MutableRows& out, bool train,
             const Occurrences& occurrences, bool count) {
            const Table& table = handle.table();
            check_rows("out", out, ids, static_cast<size_t>(table.dim()));
            check_apart("out", out, "ids", ids);
            const auto id_occurrences = span_of(occurrences, ids);
            const GilReleased release;
            table.lookup(span_of(ids), out.data(), purpose_of(train, count), id_occurrences);
          },
          "ids"_a.noconvert(), "out"_a.noconvert(), "train"_a = false,
          "occurrences"_a.noconvert() = nb::none(), "count"_a = true)
      .def(
          "next_turn", [](const TableHandle& table) { return table->next_turn(); },
          nb::call_guard<GilReleased>())
      .def(
          "prefetch",
          [](const TableHandle& handle, const Ids& ids, uint64_t turn) {
            Table& table = handle.table();
            const GilReleased release;
            table.prefetch(span_of(ids), turn);
          },
          "ids"_a.noconvert(), "turn"_a)
      .def(
          "forget_prefetched", [](const TableHandle& table) { table->forget_prefetched(); },
          nb::call_guard<GilReleased>())
      .def(
          "synchronize", [](const TableHandle& table) { table->synchronise(); },
          nb::call_guard<GilReleased>())
      .def(
          "apply_if_finite",
          [](const TableHandle& handle, const Ids& ids, const Rows& grads,
             std::optional<int64_t> global_step) {
            Table& table = handle.table();
            check_rows("grads", grads, ids, static_cast<size_t>(table.dim()));
            const GilReleased release;
            return table.apply_if_finite(span_of(ids), grads.data(), global_step);
          },
          "ids"_a.noconvert(), "grads"_a.noconvert(), "global_step"_a = nb::none())
      .def(
          "lookup_tier",
          [](const TableHandle& table, const Ids& ids) {
            return read_per_id<int32_t>(ids, [&](auto keys, int32_t* out) { table->lookup_tier(keys, out); });
          },
          "ids"_a.noconvert())
      .def(
          "frequency",
          [](const TableHandle& table, const Ids& ids) {
            return read_per_id<int64_t>(ids, [&](auto keys, int64_t* out) { table->frequencies(keys, out); });
          },
          "ids"_a.noconvert())
      .def(
          "version",
          [](const TableHandle& table, const Ids& ids) {
            return read_per_id<int64_t>(ids, [&](auto keys, int64_t* out) { table->versions(keys, out); });
          },
          "ids"_a.noconvert())
      .def(
          "size", [](const TableHandle& table) { return table->row_count(); }, nb::call_guard<GilReleased>())
      .def(
          "keys",
          [](const TableHandle& table, int64_t first, int64_t last) {
            std::vector<int64_t> keys = [&] {
              const GilReleased release;
              return table->keys_in({first, last});
            }();
            return to_numpy(std::move(keys));
          },
          "first"_a, "last"_a)
      .def("export", &export_rows, "skip_damaged"_a = false, "keys"_a.noconvert() = nb::none())
      .def("stats", &stats)
      .def("find_damaged",
           [](const TableHandle& table) {
             std::vector<int64_t> keys = [&table] {
               const GilReleased release;
               return table->find_damaged();
             }();
             return to_numpy(std::move(keys));
           })
      .def(
          "drop",
          [](const TableHandle& table, const Ids& keys) {
            const GilReleased release;
            return table->drop(span_of(keys));
          },
          "keys"_a.noconvert())
      .def(
          "put",
          [](const TableHandle& table, const Ids& keys, const Rows& values, bool with_slots,
             const Occurrences& frequencies, int64_t version) {
            const GilReleased release;
            table->put(span_of(keys), values.data(), with_slots, span_of(frequencies, keys), version);
          },
          "keys"_a.noconvert(), "values"_a.noconvert(), "with_slots"_a, "frequencies"_a.noconvert(),
          "version"_a)
      .def(
          "evict",
          [](const TableHandle& table, std::optional<int64_t> min_version,
             std::optional<double> min_half_square) {
            const GilReleased release;
            return table->evict({min_version, min_half_square});
          },
          "least_version"_a.none(), "least_half_square"_a.none())
      .def(
          "leave_out_apply", [](const TableHandle& table) { table->leave_out_apply(); },
          nb::call_guard<GilReleased>())
      .def(
          "apply_count", [](const TableHandle& table) { return table->apply_count(); },
          nb::call_guard<GilReleased>())
      .def(
          "advance_apply_count",
          [](const TableHandle& table, int64_t at_least) { table->advance_apply_count(at_least); },
          "at_least"_a, nb::call_guard<GilReleased>())
      .def(
          "learning_rate", [](const TableHandle& table) { return table->learning_rate(); },
          nb::call_guard<GilReleased>())
      .def(
          "set_learning_rate",
          [](const TableHandle& table, double learning_rate) { table->set_learning_rate(learning_rate); },
          "learning_rate"_a, nb::call_guard<GilReleased>())
      .def(
          "drain", [](const TableHandle& table) { table->drain(); }, nb::call_guard<GilReleased>())
      .def(
          "start_recording",
          [](const TableHandle& table, const RecordingHandle& recording, int32_t number) {
            table->watch(recording.recording.get(), [&](size_t tier) {
              return recording.recording->watcher(number, static_cast<int32_t>(tier));
            });
          },
          "recording"_a, "number"_a)
      .def(
          "stop_recording",
          [](const TableHandle& table, const RecordingHandle& recording) {
            table->unwatch(recording.recording.get());
          },
          "recording"_a)
      .def("close", &TableHandle::close, nb::call_guard<GilReleased>());
}

// A batch in a device's memory: the variable's partitions, then the addresses and sizes of the batch's
// arrays.
using LookUpTuple = std::tuple<std::vector<const TableHandle*>, uint64_t, size_t, uint64_t>;
using ApplyTuple = std::tuple<std::vector<const TableHandle*>, uint64_t, size_t, uint64_t, uint64_t, uint64_t,
                              uint64_t, uint64_t, std::vector<std::string>, uint64_t>;

std::vector<Table*> tables_of(const std::vector<const TableHandle*>& handles) {
  std::vector<Table*> tables;
  for (const TableHandle* handle : handles) tables.push_back(&handle->table());
  return tables;
}

void look_up_on_device(const std::vector<LookUpTuple>& batches, uintptr_t stream, bool train, bool count) {
  std::vector<std::vector<const Table*>> tables;
  std::vector<Table::LookUpOnDevice> look_ups;
  for (const auto& [partitions, ids, ids_count, out] : batches) {
    const std::vector<Table*> variable_tables = tables_of(partitions);
    tables.emplace_back(variable_tables.begin(), variable_tables.end());
    look_ups.push_back({tables.back(), ids_on_device(ids, ids_count, stream), {out}});
  }
  const GilReleased release;
  Table::lookup_on_device(look_ups, purpose_of(train, count));
}

void apply_on_device(const std::vector<ApplyTuple>& batches, uintptr_t stream,
                     std::optional<int64_t> global_step) {
  std::vector<std::vector<Table*>> tables;
  std::vector<Table::ApplyOnDevice> applies;
  size_t table_count = 0;
  for (const auto& [partitions, ids, count, grads, rows, bags, kept, refused, reasons, left_out] : batches) {
    tables.push_back(tables_of(partitions));
    table_count += partitions.size();
    applies.push_back({tables.back(),
                       ids_on_device(ids, count, stream),
                       {{grads}, rows, {bags}},
                       {{kept}, {refused}, reasons, {left_out}}});
  }
  const GilReleased release;
  std::optional<PacingSuspension> caller_holds_a_lock;
  if (table_count > 1) caller_holds_a_lock.emplace();
  Table::apply_on_device(applies, global_step);
}

void prefetch_on_device(const std::vector<const TableHandle*>& partitions, uint64_t ids, size_t count,
                        uintptr_t stream, const std::vector<uint64_t>& turns) {
  const std::vector<Table*> tables = tables_of(partitions);
  const GilReleased release;
  Table::prefetch_on_device(tables, ids_on_device(ids, count, stream), turns);
}

void bind_steps_on_device(nb::module_& module) {
  module.def("lookup_on_device", &look_up_on_device, "batches"_a, "stream"_a, "train"_a, "count"_a);
  module.def("apply_on_device", &apply_on_device, "batches"_a, "stream"_a, "global_step"_a = nb::none());
  module.def("prefetch_on_device", &prefetch_on_device, "partitions"_a, "ids"_a, "count"_a, "stream"_a,
             "turns"_a);
}

}  // namespace
}  // namespace embstore

NB_MODULE(_core, module) {
  embstore::translate_errors();
  // Objects that a traceback or a cycle still holds at Python's end would add a page of warnings to the
  // user's error.
  nb::set_leak_warnings(false);
  module.def("fork_generation", &embstore::fork_generation);
  module.def("pay_pacing_debt", &embstore::pay_pacing_debt, nb::call_guard<embstore::GilReleased>());
  nb::class_<embstore::files::PathLock>(module, "PathLock")
      .def(nb::init<const std::string&, const std::string&>(), "lock_path"_a, "path"_a)
      .def("release", &embstore::files::PathLock::release);
  embstore::bind_device_memory(module);
  module.def(
      "first_not_finite",
      [](const embstore::Rows& values) {
        const embstore::GilReleased release;
        return embstore::first_not_finite({values.data(), values.size()});
      },
      "values"_a.noconvert());
  module.def("set_num_threads", &embstore::HelpingThreads::set_most_threads, "count"_a);
  module.def("get_num_threads", &embstore::HelpingThreads::max_threads);
  embstore::bind_keys_by_partition(module);
  embstore::bind_tables_together(module);
  embstore::bind_recording(module);
  embstore::bind_table(module);
  embstore::bind_steps_on_device(module);
  embstore::bind_unique_ids(module);
  embstore::checkpoint::bind(module);
}
