// The numpy arrays that the Python modules take (contiguous, in host memory, of exactly one type) and return.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "errors/error.h"

namespace embstore {

template <class T, int kDimensions>
using Array = nanobind::ndarray<T, nanobind::ndim<kDimensions>, nanobind::c_contig, nanobind::device::cpu>;
using Ids = Array<const int64_t, 1>;
using IdsOfAnyShape = nanobind::ndarray<const int64_t, nanobind::c_contig, nanobind::device::cpu>;
using Occurrences = std::optional<Array<const uint32_t, 1>>;  // one for each id
using Rows = Array<const float, 2>;
using MutableRows = Array<float, 2>;

// Returns a numpy array that owns the vector's memory.
template <class T, class Allocator>
nanobind::object to_numpy(std::vector<T, Allocator>&& values, std::vector<size_t> shape) {
  using Vector = std::vector<T, Allocator>;
  auto owned = std::make_unique<Vector>(std::move(values));
  T* data = owned->data();
  const nanobind::capsule owner(owned.get(),
                                [](void* vector) noexcept { delete static_cast<Vector*>(vector); });
  owned.release();
  return nanobind::ndarray<nanobind::numpy, T>(data, shape.size(), shape.data(), owner).cast();
}
template <class T, class Allocator>
nanobind::object to_numpy(std::vector<T, Allocator>&& values) {
  const size_t count = values.size();
  return to_numpy(std::move(values), {count});
}

inline std::span<const int64_t> span_of(const Ids& ids) { return {ids.data(), ids.shape(0)}; }
inline std::span<const int64_t> span_of(const IdsOfAnyShape& ids) { return {ids.data(), ids.size()}; }

inline std::span<const uint32_t> span_of(const Occurrences& occurrences, const Ids& ids) {
  if (!occurrences) return {};
  if (occurrences->shape(0) != ids.shape(0)) {
    throw Error(ErrorKind::kInvalidArgument, "occurrences: has " + std::to_string(occurrences->shape(0)) +
                                                 " for " + std::to_string(ids.shape(0)) + " ids");
  }
  return {occurrences->data(), occurrences->shape(0)};
}

// Throws Error(kInvalidArgument) unless rows have the shape (ids, dim): behind this check they are raw
// pointers.
template <class RowArray>
void check_rows(const char* argument, const RowArray& rows, const Ids& ids, size_t dim) {
  if (rows.shape(0) == ids.shape(0) && rows.shape(1) == dim) return;
  throw Error(ErrorKind::kInvalidArgument,
              std::string(argument) + ": shape (" + std::to_string(rows.shape(0)) + ", " +
                  std::to_string(rows.shape(1)) + ") doesn't fit " + std::to_string(ids.shape(0)) +
                  " ids of dim " + std::to_string(dim));
}

// Throws Error(kInvalidArgument) if the arrays overlap: one is written while the other is still read.
template <class Written, class Read>
void check_apart(const char* argument, const Written& written, const char* other, const Read& read) {
  const auto begin_of = [](const auto& array) { return reinterpret_cast<uintptr_t>(array.data()); };
  const auto end_of = [&](const auto& array) { return begin_of(array) + array.nbytes(); };
  if (end_of(written) <= begin_of(read) || end_of(read) <= begin_of(written)) return;
  throw Error(ErrorKind::kInvalidArgument, std::string(argument) + " must not share memory with " + other +
                                               "; give a copy of one of them");
}

}  // namespace embstore
