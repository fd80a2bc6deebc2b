#include "bindings/tables_together.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>

#include "bindings/array_arguments.h"
#include "bindings/error_translation.h"
#include "bindings/gil_released.h"
#include "bindings/table_handle.h"
#include "errors/error.h"
#include "pacing/pacing_debt.h"
#include "row/bags.h"
#include "threads/shared_work.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace embstore {

void PreparedHandle::commit(std::optional<int64_t> global_step) {
  const PacingSuspension other_batches_are_prepared;
  const auto prepared = std::move(prepared_);
  if (prepared == nullptr) throw Error(ErrorKind::kInvalidArgument, "a batch was committed or aborted twice");
  prepared->commit(global_step);
}

void PreparedHandle::abort() {
  const PacingSuspension other_batches_are_prepared;
  prepared_.reset();
}

namespace {

using Values = Array<float, 1>;

// Calls work(i) for each i below `count` on `threads` threads. Returns the exception of each call, if any;
// none stops the others.
template <class Work>
std::vector<std::exception_ptr> errors_of(size_t count, size_t threads, const Work& work) {
  std::vector<std::exception_ptr> errors(count);
  for_each_piece(count, threads, [&](size_t i) {
    try {
      work(i);
    } catch (const std::exception&) {
      errors[i] = std::current_exception();
    }
  });
  return errors;
}

// Returns the number of threads that pay for `ids` ids of several tables. Watched calls use one thread, so
// that the times of their phases add up.
size_t threads_for(size_t ids, bool any_watched) {
  return any_watched ? 1 : std::clamp<size_t>(ids / Table::kMinIdsAThread, 1, HelpingThreads::max_threads());
}

// One table's part of a look-up in several tables.
struct LookUpPart {
  const Table* table;
  std::span<const int64_t> ids;
  std::span<const uint32_t> occurrences;
  std::optional<Bags> bags;  // set if rows are summed to bags

  size_t row_count() const { return bags ? bags->offsets.size() : ids.size(); }
};

// A buffer for rows that will be summed to bags. Its memory belongs to the thread and serves one table after
// another, so that it stays in the cache.
class BagRowBuffer {
 public:
  explicit BagRowBuffer(size_t floats) : floats_(floats) {
    if (floats > kMaxKept) {
      more_ = std::make_unique_for_overwrite<float[]>(floats);
    } else if (kept_.size() < floats) {
      kept_.resize(floats);
    }
  }

  float* rows() { return floats_ > kMaxKept ? more_.get() : kept_.data(); }

 private:
  static constexpr size_t kMaxKept = size_t{1} << 18;
  static thread_local std::vector<float> kept_;

  const size_t floats_;
  std::unique_ptr<float[]> more_;
};
thread_local std::vector<float> BagRowBuffer::kept_;

void look_up(const LookUpPart& part, LookUpPurpose purpose, float* rows) {
  if (!part.bags) return part.table->lookup(part.ids, rows, purpose, part.occurrences);
  const auto dim = static_cast<size_t>(part.table->dim());
  BagRowBuffer bag_rows(part.ids.size() * dim);
  part.table->lookup(part.ids, bag_rows.rows(), purpose, part.occurrences);
  part.bags->sum(part.ids, bag_rows.rows(), dim, rows);
}

[[noreturn]] void refuse_rows(const Values& rows, size_t ids) {
  throw Error(ErrorKind::kInvalidArgument, "rows: " + std::to_string(rows.shape(0)) +
                                               " floats don't fit the parts of " + std::to_string(ids) +
                                               " ids");
}

// Looks up all parts. `rows`: the parts' rows, one after another. Returns each part's error, or None.
nb::list look_up_parts(const std::vector<LookUpPart>& parts, const Values& rows, LookUpPurpose purpose) {
  std::vector<size_t> places;  // where each part begins in `rows`
  size_t floats = 0;
  size_t ids = 0;
  bool any_watched = false;
  for (const LookUpPart& part : parts) {
    any_watched = any_watched || part.table->is_watched();
    places.push_back(floats);
    floats += part.row_count() * static_cast<size_t>(part.table->dim());
    ids += part.ids.size();
  }
  if (floats != rows.shape(0)) refuse_rows(rows, ids);
  const std::vector<std::exception_ptr> errors = [&] {
    const GilReleased release;
    return errors_of(parts.size(), threads_for(ids, any_watched),
                     [&](size_t i) { look_up(parts[i], purpose, rows.data() + places[i]); });
  }();
  nb::list results;
  for (const std::exception_ptr& error : errors) results.append(python_error_of(error));
  return results;
}

// Looks up ids[begins[i]] to ids[begins[i + 1] - 1] in table i.
nb::list look_up_together(const std::vector<const TableHandle*>& handles, const Ids& ids,
                          const std::vector<size_t>& begins, const Values& rows, bool train,
                          const Occurrences& occurrences) {
  const auto keys = span_of(ids);
  const auto id_occurrences = span_of(occurrences, ids);
  if (begins.size() != handles.size() + 1 || begins.front() != 0 || begins.back() != keys.size() ||
      !std::ranges::is_sorted(begins)) {
    refuse_rows(rows, keys.size());
  }
  std::vector<LookUpPart> parts;
  for (size_t i = 0; i < handles.size(); ++i) {
    const size_t count = begins[i + 1] - begins[i];
    parts.push_back({&handles[i]->table(), keys.subspan(begins[i], count),
                     id_occurrences.empty() ? id_occurrences : id_occurrences.subspan(begins[i], count),
                     std::nullopt});
  }
  return look_up_parts(parts, rows, purpose_of(train, /*count=*/true));
}

// The begins of bags, and the id that is left out of them.
using GivenBags = std::tuple<Ids, std::optional<int64_t>>;

// Throws Error(kInvalidArgument) if bags of `ids` ids can't begin there.
Bags to_bags(const GivenBags& given, size_t ids) {
  const auto& [offsets, left_out] = given;
  if (!are_valid_offsets(span_of(offsets), ids)) {
    throw Error(ErrorKind::kInvalidArgument, "offsets: must start at 0 and ascend to at most " +
                                                 std::to_string(ids) + ", the number of ids");
  }
  return {span_of(offsets), left_out};
}

// Looks up ids[i] in table i, and sums the rows to bags[i] if bags are given.
nb::list look_up_each(const std::vector<const TableHandle*>& handles, const std::vector<IdsOfAnyShape>& ids,
                      const Values& rows, bool train, bool count,
                      const std::optional<std::vector<GivenBags>>& bags) {
  if (ids.size() != handles.size() || (bags && bags->size() != handles.size())) {
    throw Error(ErrorKind::kInvalidArgument, "ids: " + std::to_string(ids.size()) + " batches for " +
                                                 std::to_string(handles.size()) + " tables");
  }
  std::vector<LookUpPart> parts;
  parts.reserve(handles.size());
  for (size_t i = 0; i < handles.size(); ++i) {
    parts.push_back({&handles[i]->table(), span_of(ids[i]), {}, std::nullopt});
    if (bags) parts.back().bags = to_bags((*bags)[i], ids[i].size());
  }
  return look_up_parts(parts, rows, purpose_of(train, count));
}

// Applies batches to distinct tables. Returns for each batch None if it was applied, its error, or the
// position of its first gradient that isn't finite. A batch whose bags are given has a gradient for each bag,
// otherwise for each id.
nb::list apply_each(const std::vector<std::tuple<TableHandle*, Ids, Rows, std::optional<GivenBags>>>& batches,
                    std::optional<int64_t> global_step) {
  size_t all_ids = 0;
  bool any_watched = false;
  std::vector<std::optional<Bags>> bags;
  for (const auto& [handle, ids, grads, given] : batches) {
    bags.push_back(given ? std::optional(to_bags(*given, ids.size())) : std::nullopt);
    check_rows("grads", grads, given ? std::get<0>(*given) : ids, static_cast<size_t>(handle->table().dim()));
    all_ids += ids.shape(0);
    any_watched = any_watched || handle->table().is_watched();
  }
  std::vector<std::optional<size_t>> not_finite(batches.size());
  const std::vector<std::exception_ptr> errors = [&] {
    const GilReleased release;
    return errors_of(batches.size(), threads_for(all_ids, any_watched), [&](size_t i) {
      const auto& [handle, ids, grads, given] = batches[i];
      not_finite[i] = handle->table().apply_if_finite(span_of(ids), grads.data(), global_step, bags[i]);
    });
  }();
  nb::list results;
  for (size_t i = 0; i < batches.size(); ++i) {
    results.append(errors[i] ? python_error_of(errors[i]) : nb::cast(not_finite[i]));
  }
  return results;
}

using GradientPart = std::tuple<Ids, Rows, Occurrences>;
using GradientParts = std::tuple<TableHandle*, std::vector<GradientPart>>;

// One table's batch, joined from several parts.
struct JoinedParts {
  std::vector<int64_t> ids;
  std::vector<uint32_t> occurrences;
  float* gradients;
};

JoinedParts joined(const std::vector<GradientPart>& parts, float scale, float* gradients) {
  JoinedParts joined{.ids = {}, .occurrences = {}, .gradients = gradients};
  for (const auto& [ids, rows, occurrences] : parts) {
    const auto keys = span_of(ids);
    const auto id_occurrences = span_of(occurrences, ids);
    joined.ids.insert(joined.ids.end(), keys.begin(), keys.end());
    joined.occurrences.insert(joined.occurrences.end(), id_occurrences.begin(), id_occurrences.end());
    joined.occurrences.resize(joined.ids.size(), 1);  // parts without occurrences
    gradients = std::transform(rows.data(), rows.data() + rows.size(), gradients,
                               [scale](float value) { return value * scale; });
  }
  return joined;
}

// Returns the room that joining the parts takes, in floats. A single part is used in place, as its gradients
// live long enough.
size_t floats_joined(const std::vector<GradientPart>& parts) {
  size_t floats = 0;
  if (parts.size() > 1) {
    for (const auto& [ids, rows, occurrences] : parts) floats += rows.size();
  }
  return floats;
}

// Prepares all batches. Returns for each a PreparedApply, or its error.
nb::list prepare_together(const std::vector<GradientParts>& batches, float scale) {
  size_t floats = 0;
  for (const auto& [handle, parts] : batches) {
    for (const auto& [ids, rows, occurrences] : parts) {
      check_rows("grads", rows, ids, static_cast<size_t>(handle->table().dim()));
      span_of(occurrences, ids);
    }
    floats += floats_joined(parts);
  }
  std::vector<std::unique_ptr<PreparedHandle>> prepared(batches.size());
  const std::vector<std::exception_ptr> errors = [&] {
    const GilReleased release;
    const PacingSuspension other_batches_are_prepared;
    // One array for all batches: the C library keeps the memory of a large array for the next step.
    const auto gradients = std::make_shared_for_overwrite<float[]>(floats);
    float* room = gradients.get();
    // On one thread: two threads could wait for each other if each needs exclusive use of a table to make
    // room.
    return errors_of(batches.size(), /*threads=*/1, [&](size_t i) {
      const auto& [handle, parts] = batches[i];
      Table& table = handle->table();
      if (parts.size() == 1) {
        const auto& [ids, rows, occurrences] = parts.front();
        prepared[i] = std::make_unique<PreparedHandle>(
            table.prepare_apply(span_of(ids), rows.data(), span_of(occurrences, ids)));
        return;
      }
      const JoinedParts batch = joined(parts, scale, room);
      room += floats_joined(parts);
      prepared[i] = std::make_unique<PreparedHandle>(
          table.prepare_apply(batch.ids, batch.gradients, batch.occurrences), gradients);
    });
  }();
  nb::list made;
  for (size_t i = 0; i < batches.size(); ++i) {
    made.append(errors[i] ? python_error_of(errors[i]) : nb::cast(std::move(prepared[i])));
  }
  return made;
}

void commit_together(const std::vector<PreparedHandle*>& prepared, std::optional<int64_t> global_step) {
  for (PreparedHandle* batch : prepared) batch->commit(global_step);
}

}  // namespace

void bind_tables_together(nb::module_& module) {
  nb::class_<PreparedHandle>(module, "PreparedApply")
      .def("abort", &PreparedHandle::abort, nb::call_guard<GilReleased>());
  module.def(
      "are_valid_offsets",
      [](const Ids& offsets, size_t ids) { return are_valid_offsets(span_of(offsets), ids); }, "offsets"_a,
      "ids"_a);
  module.def("look_up_together", &look_up_together, "tables"_a, "ids"_a.noconvert(), "begins"_a,
             "rows"_a.noconvert(), "train"_a, "occurrences"_a.noconvert() = nb::none());
  module.def("look_up_each", &look_up_each, "tables"_a, "ids"_a.noconvert(), "rows"_a.noconvert(), "train"_a,
             "count"_a, "bags"_a.noconvert() = nb::none());
  module.def("apply_each", &apply_each, "batches"_a.noconvert(), "global_step"_a = nb::none());
  module.def("prepare_together", &prepare_together, "batches"_a.noconvert(), "scale"_a);
  module.def("commit_together", &commit_together, "prepared"_a, "global_step"_a = nb::none(),
             nb::call_guard<GilReleased>());
}

}  // namespace embstore
