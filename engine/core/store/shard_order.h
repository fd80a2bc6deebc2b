// Puts work for many rows in the order of the rows' shards, so that each shard's mutex is taken once.
#pragma once

#include <array>
#include <cstdint>

#include "memory/page_vector.h"
#include "row/key_hash.h"

namespace embstore {

// The begin of each shard in that order, and the end of the last one.
using ShardBounds = std::array<uint32_t, kShards + 1>;

// Returns the numbers 0 to count-1 in the order of the shards of key_of(i); numbers of one shard stay in
// ascending order.
template <class KeyOf>
PageVector<uint32_t> in_order_of_shards(size_t count, KeyOf key_of, ShardBounds* bounds = nullptr) {
  ShardBounds begin{};
  for (size_t i = 0; i < count; ++i) ++begin[static_cast<size_t>(shard_of_key(key_of(i))) + 1];
  for (size_t s = 1; s < begin.size(); ++s) begin[s] += begin[s - 1];
  if (bounds != nullptr) *bounds = begin;
  PageVector<uint32_t> order(count);
  for (size_t i = 0; i < count; ++i) {
    order[begin[static_cast<size_t>(shard_of_key(key_of(i)))]++] = static_cast<uint32_t>(i);
  }
  return order;
}

}  // namespace embstore
