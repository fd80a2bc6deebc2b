// numpy arrays as the Python modules take them: contiguous, in memory, of exactly one type.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>
#include <string>

#include "errors/error.h"

namespace embstore {

template <class T, int kDimensions>
using Array = nanobind::ndarray<T, nanobind::ndim<kDimensions>, nanobind::c_contig, nanobind::device::cpu>;
using Ids = Array<const int64_t, 1>;
using Rows = Array<const float, 2>;
using MutableRows = Array<float, 2>;

inline std::span<const int64_t> span_of(const Ids& ids) { return {ids.data(), ids.shape(0)}; }

// Rows go through raw pointers from here on, so their shape is settled here.
template <class RowArray>
void check_rows(const char* argument, const RowArray& rows, const Ids& ids, size_t dim) {
  if (rows.shape(0) == ids.shape(0) && rows.shape(1) == dim) return;
  throw Error(ErrorKind::kInvalidArgument,
              std::string(argument) + ": shape (" + std::to_string(rows.shape(0)) + ", " +
                  std::to_string(rows.shape(1)) + ") doesn't fit " + std::to_string(ids.shape(0)) +
                  " ids of dim " + std::to_string(dim));
}

}  // namespace embstore
