// numpy arrays as the Python module takes them: contiguous, in memory, of exactly one type.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <span>

namespace embstore {

template <class T, int kDimensions>
using Array = nanobind::ndarray<T, nanobind::ndim<kDimensions>, nanobind::c_contig, nanobind::device::cpu>;
using Ids = Array<const int64_t, 1>;
using Rows = Array<const float, 2>;
using MutableRows = Array<float, 2>;

inline std::span<const int64_t> span_of(const Ids& ids) { return {ids.data(), ids.shape(0)}; }

}  // namespace embstore
